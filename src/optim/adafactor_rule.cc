#include "optim/adafactor_rule.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/rounds.h"
#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

constexpr double kBeta2Decay = -0.8, kLeastScale = 1e-3;  // torch's beta2_decay, eps2
constexpr double kEps = std::numeric_limits<float>::epsilon();

bool is_matrix(const ParamMeta& param) { return param.shape.rank() == 2; }

/// lower = combine(lower, higher), element by element; neither need be aligned.
template <class T, class F>
void combine_each(std::span<std::byte> lower, std::span<const std::byte> higher, F combine) {
  for (std::size_t at = 0; at < lower.size(); at += sizeof(T)) {
    T mine, theirs;
    std::memcpy(&mine, lower.data() + at, sizeof(T));
    std::memcpy(&theirs, higher.data() + at, sizeof(T));
    mine = combine(mine, theirs);
    std::memcpy(lower.data() + at, &mine, sizeof(T));
  }
}

void join_largest(std::span<std::byte> lower, std::span<const std::byte> higher) {
  combine_each<std::int32_t>(lower, higher,
                             [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
}

/// Of sums that are exact, whatever their order.
void join_sums(std::span<std::byte> lower, std::span<const std::byte> higher) {
  combine_each<double>(lower, higher, [](double a, double b) { return a + b; });
}

void join_exact(std::span<std::byte> lower, std::span<const std::byte> higher) {
  combine_each<std::int64_t>(lower, higher, [](std::int64_t a, std::int64_t b) { return a + b; });
}

bool is_several(const Communicator* ranks) { return ranks != nullptr && ranks->size() > 1; }

template <class Words>
double value_of(const Words& words) {
  ExactSum sum;
  sum.words() = words;
  return sum.value();
}

}  // namespace

std::vector<OptimizerState> AdafactorRule::states() {
  OptimizerState rows{"row_var"}, columns{"col_var"}, vectors{"variance"};
  rows.of = StateOf::kRows;
  columns.of = StateOf::kColumns;
  rows.has = columns.has = is_matrix;
  vectors.has = [](const ParamMeta& param) { return !is_matrix(param); };
  return {std::move(rows), std::move(columns), std::move(vectors)};
}

std::int64_t AdafactorRule::buffer_bytes(const std::vector<ParamMeta>& params,
                                         const StoreLayout& values) {
  std::int64_t lines = 0, tensors = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const ParamMeta& param = params[static_cast<std::size_t>(i)];
    if (param.shares != kNoParam || !param.trainable) continue;
    ++tensors;
    if (is_matrix(param)) lines += values.owned_shape(i)[0] + values.owned_shape(i)[1];
  }
  return lines * (4 + 8) + tensors * (8 * ExactSum::kWords + 3 * 4);
}

UpdateRule::Sent AdafactorRule::bytes_sent(const std::vector<ParamMeta>& params,
                                           const ParamDistribution& distribution, MeshView view) {
  const StoreLayout values(params, distribution);
  std::int64_t tensor_lines = 0, shard_lines = 0, tensors = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const ParamMeta& param = params[static_cast<std::size_t>(i)];
    if (param.shares != kNoParam || !param.trainable || param.view != view) continue;
    ++tensors;
    if (!is_matrix(param)) continue;
    const Shape owned = values.owned_shape(i);
    shard_lines += owned[1];
    if (param.cut.given()) tensor_lines += owned[1 - param.cut.dim];
  }
  // Largest magnitudes and sums of lines; three exact sums of a tensor.
  const auto sent = [&](std::int64_t lines, const AxisRank& ranks) {
    const ReductionTree tree = reduction_tree(ranks.index, ranks.extent);
    const std::int64_t messages = std::ssize(tree.children) + (tree.parent < 0 ? 0 : 1);
    return messages * (lines * (4 + 8) + tensors * 3 * std::int64_t{sizeof(Words)});
  };
  const Distribution& ranks = distribution.of(view);
  return {sent(tensor_lines, ranks.tensor), sent(shard_lines, ranks.shard)};
}

AdafactorRule::AdafactorRule(const ParamStore& store, std::span<const UpdatedParam> params,
                             const ViewChannels& channels) {
  for (std::size_t view = 0; view < joined_.size(); ++view)
    joined_[view].channels = channels.at(view);
  for (const UpdatedParam& param : params) add(store, param);
  make_buffers(store.device());
}

void AdafactorRule::add(const ParamStore& store, const UpdatedParam& param) {
  const ParamIndex index = param.index;
  const ParamMeta& meta = store.params()[static_cast<std::size_t>(index)];
  const AxisRank axis = store.layout().distribution(index).tensor;
  Joined& joined = joined_[static_cast<std::size_t>(meta.view)];
  AdafactorTensor tensor;
  tensor.parameter = store.value(index);
  tensor.copy = store.copy(index);
  tensor.gradient = store.gradients().owned(index);
  tensor.gradient_slots = store.gradients().slots(index);
  Whole whole;
  whole.param = param;
  whole.elements = static_cast<double>(meta.shape.count());
  whole.counts = axis.index % meta.cut.replicas(axis.extent) == 0;
  const bool rows_cut = meta.cut.given() && meta.cut.dim == 0;
  whole.counts_rows = rows_cut ? whole.counts : axis.index == 0;
  joined.tensors.push_back(tensors_.size());
  if (is_matrix(meta)) {
    whole.rows = static_cast<double>(meta.shape[0]);
    whole.row_lines = {lines_, tensor.parameter.shape[0]};
    whole.column_lines = {lines_ + whole.row_lines.size, tensor.parameter.shape[1]};
    lines_ += whole.row_lines.size + whole.column_lines.size;
    tensor.rows.variance = store.optimizer_state("row_var", index);
    tensor.columns.variance = store.optimizer_state("col_var", index);
    tensor.rows.terms = meta.shape[1];
    tensor.columns.terms = meta.shape[0];
    if (is_several(joined.channels.shard)) joined.shard_lines.push_back(whole.column_lines);
    if (meta.cut.given() && axis.extent > 1) {
      joined.tensor_lines.push_back(rows_cut ? whole.column_lines : whole.row_lines);
      if (!whole.counts) joined.dropped.push_back(joined.tensor_lines.back());
    }
  } else {
    tensor.variance = store.optimizer_state("variance", index);
  }
  tensors_.push_back(tensor);
  wholes_.push_back(whole);
}

void AdafactorRule::make_buffers(Device device) {
  const auto count = static_cast<std::int64_t>(tensors_.size());
  largest_ = Buffer(DType::kI32, {lines_}, device);
  sums_ = Buffer(DType::kF64, {lines_}, device);
  words_ = Buffer(DType::kF64, {count * ExactSum::kWords}, device);
  scalars_ = Buffer(DType::kF32, {count * 3}, device);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    AdafactorTensor& tensor = tensors_[i];
    const auto at = static_cast<std::int64_t>(i);
    tensor.words = words_.view().rows(at * ExactSum::kWords, ExactSum::kWords);
    tensor.scalars = scalars_.view().rows(at * 3, 3);
    if (wholes_[i].rows == 0) continue;  // a vector
    const auto place = [&](AdafactorLines& lines, const Slice& slice) {
      lines.largest = largest_.view().rows(slice.begin, slice.size);
      lines.sums = sums_.view().rows(slice.begin, slice.size);
    };
    place(tensor.rows, wholes_[i].row_lines);
    place(tensor.columns, wholes_[i].column_lines);
  }
  for (std::vector<Words>* words : {&weights_, &rows_, &steps_}) words->resize(tensors_.size());
  const std::size_t line_bytes = static_cast<std::size_t>(lines_) * sizeof(double),
                    word_bytes = tensors_.size() * sizeof(Words);
  packed_.resize(std::max(line_bytes, word_bytes));
  if (device.kind != DeviceKind::kCpu) mirror_ = HostBuffer(std::max(line_bytes, word_bytes));
}

template <class T, class F>
void AdafactorRule::on_host(Context& context, const TensorView& values, const F& f) {
  if (!context.on_gpu()) return f(reinterpret_cast<T*>(values.data));
  const std::span<std::byte> host(mirror_.data(), static_cast<std::size_t>(values.bytes()));
  copy_out(context, host, values);
  f(reinterpret_cast<T*>(host.data()));
  copy_in(context, values, host);
}

template <class T>
void AdafactorRule::join_lines(T* lines, Communicator::Combine combine) {
  const auto join = [&](Communicator* ranks, const std::vector<Slice>& of) {
    if (!is_several(ranks) || of.empty()) return;
    std::byte* end = packed_.data();
    for (const Slice& slice : of) {
      const std::size_t bytes = static_cast<std::size_t>(slice.size) * sizeof(T);
      std::memcpy(end, lines + slice.begin, bytes);
      end += bytes;
    }
    const std::span<std::byte> all(packed_.data(), end);
    if (!all.empty()) ranks->start_combine(all, combine).wait();
    const std::byte* from = packed_.data();
    for (const Slice& slice : of) {
      const std::size_t bytes = static_cast<std::size_t>(slice.size) * sizeof(T);
      std::memcpy(lines + slice.begin, from, bytes);
      from += bytes;
    }
  };
  for (const Joined& joined : joined_) {
    join(joined.channels.tensor, joined.tensor_lines);
    join(joined.channels.shard, joined.shard_lines);
  }
}

void AdafactorRule::join_words(std::vector<Words>& words, bool Whole::*counts) {
  for (const Joined& joined : joined_) {
    const auto join = [&](Communicator* ranks) {
      if (!is_several(ranks) || joined.tensors.empty()) return;
      auto* packed = reinterpret_cast<Words*>(packed_.data());
      for (const std::size_t i : joined.tensors) *packed++ = words[i];
      const std::span<std::byte> all(packed_.data(), reinterpret_cast<std::byte*>(packed));
      ranks->start_combine(all, join_exact).wait();
      const auto* from = reinterpret_cast<const Words*>(packed_.data());
      for (const std::size_t i : joined.tensors) words[i] = *from++;
    };
    for (const std::size_t i : joined.tensors)
      if (is_several(joined.channels.tensor) && !(wholes_[i].*counts)) words[i] = {};
    join(joined.channels.tensor);
    for (const std::size_t i : joined.tensors) {  // carries, before more are added
      ExactSum sum;
      sum.words() = words[i];
      words[i] = sum.words();
    }
    join(joined.channels.shard);
  }
}

void AdafactorRule::take_words(Context& context, std::vector<Words>& words) {
  on_host<std::int64_t>(context, words_.view(), [&](std::int64_t* all) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      ExactSum sum;
      std::memcpy(sum.words().data(), all + i * ExactSum::kWords, sizeof(Words));
      words[i] = sum.words();
    }
    std::memset(all, 0, words.size() * sizeof(Words));
  });
  join_words(words, &Whole::counts);
}

void AdafactorRule::take_rows(Context& context) {
  on_host<double>(context, sums_.view(), [&](const double* variances) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Slice rows = wholes_[i].row_lines;
      ExactSum sum;
      for (std::int64_t r = rows.begin; r < rows.begin + rows.size; ++r) sum.add(variances[r]);
      rows_[i] = sum.words();
    }
  });
  join_words(rows_, &Whole::counts_rows);
}

void AdafactorRule::find_sums(Context& context, const UpdateStep& step) {
  for (const TensorView& each : {largest_.view(), sums_.view(), words_.view()})
    clear(context, each);
  adafactor_largest(context, tensors_);
  on_host<std::int32_t>(context, largest_.view(),
                        [&](std::int32_t* lines) { join_lines(lines, join_largest); });
  adafactor_sums(context, tensors_);
  on_host<double>(context, sums_.view(), [&](double* lines) {
    for (const Joined& joined : joined_) {
      for (const Slice& slice : joined.dropped) std::fill_n(lines + slice.begin, slice.size, 0.0);
    }
    join_lines(lines, join_sums);
  });
  take_words(context, weights_);
  adafactor_lines(context, tensors_,
                  {step.gradient_scale, std::pow(static_cast<double>(step.applied), kBeta2Decay)});
  take_rows(context);
}

void AdafactorRule::prepare(Context& context, const UpdateStep& step) {
  find_sums(context, step);
  on_host<float>(context, scalars_.view(), [&](float* scalars) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const double mean = wholes_[i].rows == 0 ? 1 : value_of(rows_[i]) / wholes_[i].rows;
      scalars[3 * i] = static_cast<float>(std::max(mean, kEps));
    }
  });
  const auto t = static_cast<double>(step.applied);
  adafactor_squares(context, tensors_, {step.gradient_scale, std::pow(t, kBeta2Decay)});
  take_words(context, steps_);
  on_host<float>(context, scalars_.view(), [&](float* scalars) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Whole& whole = wholes_[i];
      const auto root_mean_square = [&](const Words& words) {
        return std::sqrt(value_of(words) / whole.elements);
      };
      const double lr = step.lr * whole.param.lr_scale;
      const double rate =
          std::max(kLeastScale, root_mean_square(weights_[i])) * std::min(lr, 1 / std::sqrt(t));
      scalars[3 * i + 1] = static_cast<float>(1 - lr * whole.param.weight_decay);
      scalars[3 * i + 2] = static_cast<float>(rate / std::max(1.0, root_mean_square(steps_[i])));
    }
  });
}

void AdafactorRule::step(Context& context, const UpdateStep& step) {
  prepare(context, step);
  adafactor_update(context, tensors_, step.gradient_scale);
}

void AdafactorRule::step(Context& context, const UpdateStep& step, BlockMeter& meter) {
  prepare(context, step);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    meter.measure(context, wholes_[i].param.index, tensors_[i].parameter, [&] {
      adafactor_update(context, {&tensors_[i], 1}, step.gradient_scale);
    });
  }
}

std::vector<TensorView> AdafactorRule::changed() const {
  std::vector<TensorView> views;
  for (const AdafactorTensor& tensor : tensors_) {
    for (const TensorView& view :
         {tensor.parameter, tensor.variance, tensor.rows.variance, tensor.columns.variance}) {
      if (view.given() && view.count() > 0) views.push_back(view);
    }
  }
  return views;
}

}  // namespace trireme
