// Muon's matrices on one rank beside loops in double, and on ranks that hold parts of them beside
// one rank, in bits.
#include "optim/muon_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/random.h"
#include "optim/optimizer.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

using Values = std::vector<double>;

/// torch.optim.Muon's _zeropower_via_newtonschulz in double.
Values orthogonal(Values x, std::int64_t rows, std::int64_t columns) {
  if (rows > columns) {
    Values turned(x.size());
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        turned[static_cast<std::size_t>(j * rows + i)] =
            x[static_cast<std::size_t>(i * columns + j)];
    const Values near = orthogonal(turned, columns, rows);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        x[static_cast<std::size_t>(i * columns + j)] = near[static_cast<std::size_t>(j * rows + i)];
    return x;
  }
  const auto product = [](const Values& a, const Values& b, std::int64_t m, std::int64_t k,
                          std::int64_t n, bool turn_b) {
    Values c(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t l = 0; l < k; ++l)
          c[static_cast<std::size_t>(i * n + j)] +=
              a[static_cast<std::size_t>(i * k + l)] *
              b[static_cast<std::size_t>(turn_b ? j * k + l : l * n + j)];
    return c;
  };
  double squares = 0;
  for (const double each : x) squares += each * each;
  for (double& each : x) each /= std::max(std::sqrt(squares), 1e-7);
  for (int step = 0; step < 5; ++step) {
    Values gram = product(x, x, rows, columns, rows, true);
    const Values square = product(gram, gram, rows, rows, rows, false);
    for (std::size_t i = 0; i < gram.size(); ++i) gram[i] = -4.7750 * gram[i] + 2.0315 * square[i];
    const Values more = product(gram, x, rows, rows, columns, false);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

/// |a - b| / |b|.
double distance(const Values& a, const Values& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

Values random_values(std::int64_t count, std::uint64_t seed, double scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill_normal(seed, 0, static_cast<float>(scale), values);
  return {values.begin(), values.end()};
}

Values values_of(const TensorView& view) {
  Values values;
  for (std::int64_t i = 0; i < view.count(); ++i)
    values.push_back(element(view.data, view.dtype, static_cast<std::size_t>(i)));
  return values;
}

/// A matrix with room for orthogonalize.
struct Workplace {
  Workplace(DType type, std::int64_t rows, std::int64_t columns)
      : matrix(type, {rows, columns}),
        sum(DType::kF32, {rows, columns}),
        gram(type, {std::min(rows, columns), std::min(rows, columns)}),
        square(DType::kF32, {std::min(rows, columns), std::min(rows, columns)}) {}
  void set(const Values& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      set_element(matrix.view().data, matrix.view().dtype, i, static_cast<float>(values[i]));
  }
  [[nodiscard]] OrthogonalizeBuffers buffers() {
    return {matrix.view(), sum.view(), gram.view(), square.view()};
  }
  Buffer matrix, sum, gram, square;
};

TEST(Orthogonalize, is_that_of_double) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {1, 9},
                                      {9, 1},
                                      {12, 12},
                                      {16, 50},
                                      {50, 16},
                                      {33, 64},
                                      {65, 31}}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Context context({}, 2, detect_isa());
      for (const double scale : {1e-3, 10.0}) {
        Workplace at(type, rows, columns);
        at.set(random_values(rows * columns, 7, scale));
        const Values expected = orthogonal(values_of(at.matrix.view()), rows, columns);
        orthogonalize(context, at.buffers());
        EXPECT_LE(distance(values_of(at.matrix.view()), expected),
                  type == DType::kF32   ? 2e-5
                  : rows * columns < 32 ? 5e-2  // a number's rounding is no average
                                        : 2e-2)
            << rows << " x " << columns << ", " << name_of(type) << ", scale " << scale;
      }
    }
  }
}

TEST(Orthogonalize, what_is_nothing_stays_nothing_and_what_is_small_small) {
  Context context({}, 1, detect_isa());
  Workplace at(DType::kF32, 4, 6);
  at.set(Values(24, 0));
  orthogonalize(context, at.buffers());
  EXPECT_EQ(values_of(at.matrix.view()), Values(24, 0));
  at.set(random_values(24, 3, 1e-12));
  const Values expected = orthogonal(values_of(at.matrix.view()), 4, 6);
  orthogonalize(context, at.buffers());
  EXPECT_LE(distance(values_of(at.matrix.view()), expected), 1e-5);
  EXPECT_LT(std::abs(expected.front()), 0.1) << "the norm is no less than 1e-7";
}

TEST(Orthogonalize, threads_alone_and_shape_decide_the_bits) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    std::vector<Values> runs;
    for (int run = 0; run < 2; ++run) {
      Context context({}, 2, detect_isa());
      Workplace at(type, 40, 70);
      at.set(random_values(2800, 5, 1));
      orthogonalize(context, at.buffers());
      runs.push_back(values_of(at.matrix.view()));
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

TEST(Orthogonalize, operations_are_those_of_its_products) {
  EXPECT_EQ(orthogonalize_operations({3, 7}), 5 * (2 * 3 * 3 * 7 + 2 * 3 * 3 * 3 + 2 * 3 * 3 * 7));
  EXPECT_EQ(orthogonalize_operations({7, 3}), orthogonalize_operations({3, 7}));
}

/// A layer as models have it, at odd sizes: heads that share keys, columns and rows that are cut,
/// several segments in one matrix, none; fewer rows than shards; a bias, an embedding; one of
/// another view that stands still.
std::vector<ParamMeta> params_of_layer(MeshView view) {
  std::vector<ParamMeta> params;
  const auto add = [&](const char* name, Shape shape, TensorCut cut, bool matrix) -> ParamMeta& {
    ParamMeta& meta = params.emplace_back();
    meta.name = name;
    meta.shape = shape;
    meta.init = {InitKind::kNormal, 0.5F};
    meta.decay = shape.rank() == 2;
    meta.cut = std::move(cut);
    meta.matrix = matrix;
    meta.view = view;
    return meta;
  };
  add("embedding", {12, 10}, {0, {{12, 12}}}, false);
  add("q", {12, 10}, {0, {{12, 4}}}, true);
  add("k", {6, 10}, {0, {{6, 2}}}, true);
  add("o", {10, 12}, {1, {{12, 4}}}, true).lr_scale = 0.5;
  add("qkv", {10, 24}, {1, {{12, 4}, {12, 4}}}, true);
  add("up", {28, 10}, {0, {{28, 28}}}, true).weight_decay = 0.7;
  add("down", {10, 28}, {1, {{28, 28}}}, true);
  add("bias", {28}, {0, {{28, 28}}}, false);
  add("latent", {3, 10}, {}, true);
  add("frozen", {6, 10}, {0, {{6, 2}}}, true).trainable = false;
  return params;
}

RunConfig::Optimizer muon() {
  RunConfig::Optimizer config;
  config.kind = OptimizerKind::kMuon;
  config.lr = 1e-3;
  config.matrix_lr = 2e-2;
  config.ema = 0.5;
  return config;
}

/// Of (parameter, step), the whole gradient.
Values gradient_of(const ParamMeta& param, int step) {
  return random_values(param.shape.count(),
                       stream_key(static_cast<std::uint64_t>(step), param.name), 0.1);
}

/// Elements of a global tensor to those of a box of it, in memory.
template <class F>
void each_of_box(const Shape& global, const CutPart& part, std::int64_t row, const F& f) {
  const bool matrix = global.rank() == 2;
  const std::int64_t columns = matrix ? global[1] : 1, width = matrix ? part.box.shape[1] : 1,
                     column = matrix ? part.box.offset[1] : 0, at = matrix ? part.at[1] : 0;
  for (std::int64_t i = 0; i < part.box.shape[0]; ++i)
    for (std::int64_t j = 0; j < width; ++j)
      f(static_cast<std::size_t>((part.box.offset[0] + i) * columns + column + j),
        static_cast<std::size_t>((part.at[0] + i) * row + at + j));
}

std::vector<CutPart> parts_here(const ParamStore& store, ParamIndex index) {
  const ParamMeta& param = store.params()[static_cast<std::size_t>(index)];
  const StoreLayout& layout = store.gradients().layout();
  return rows_of_parts(local_parts(param.shape, param.cut, layout.distribution(index).tensor),
                       layout.owned(index));
}

void set_gradients(ParamStore& store, int step) {
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
    if (!param.trainable) continue;
    const Values whole = gradient_of(param, step);
    const TensorView owned = store.gradients().owned(i);
    const std::int64_t row = owned.shape.rank() == 2 ? owned.shape[1] : 1;
    for (const CutPart& part : parts_here(store, i)) {
      each_of_box(param.shape, part, row, [&](std::size_t from, std::size_t to) {
        owned.as<float>()[to] = static_cast<float>(whole[from]);
      });
    }
  }
}

/// All that a state names, by element of the whole tensor: for one rank all, for others what they
/// have.
std::map<std::string, std::map<std::size_t, float>> elements_of(const ParamStore& store) {
  std::map<std::string, std::map<std::size_t, float>> all;
  for (const StateTensor& tensor : store.state().tensors) {
    CutPart part{tensor.box, tensor.box.offset};
    for (int dim = 0; dim < part.at.rank(); ++dim) part.at.set(dim, 0);
    each_of_box(tensor.global_shape, part, tensor.row_stride,
                [&](std::size_t whole, std::size_t here) {
                  all[tensor.name][whole] = reinterpret_cast<const float*>(tensor.data)[here];
                });
  }
  return all;
}

constexpr int kSteps = 3;

void take_steps(Context& context, ParamStore& store, Optimizer& optimizer) {
  store.initialise(context, 3);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(store, step);
    optimizer.step(context, 1e-3 / (step + 1), 0.5);
    optimizer.average(context);
  }
}

/// What is changed after those steps, with bf16 copies refreshed by the update.
void expect_copies(Context& context, ParamStore& store) {
  if (store.compute() != DType::kBF16) return;
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    if (!store.params()[static_cast<std::size_t>(i)].trainable) continue;
    const Values before = values_of(store.copy(i));
    store.refresh_copies(context);
    EXPECT_EQ(values_of(store.copy(i)), before) << i;
  }
}

TEST(MuonRule, is_the_formula_with_adamw_for_all_else) {
  const std::vector<ParamMeta> params = params_of_layer(MeshView::kDense);
  const RunConfig::Optimizer config = muon();
  Context context({}, 2, detect_isa());
  ParamStore store(params, DType::kF32, Optimizer::contents(config));
  Optimizer optimizer(config, store);
  store.initialise(context, 3);
  std::vector<Values> initial;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i)
    initial.push_back(values_of(store.value(i)));
  take_steps(context, store, optimizer);

  std::vector<ParamMeta> others = params;
  for (ParamMeta& param : others) param.trainable = param.trainable && !param.matrix;
  RunConfig::Optimizer adamw = config;
  adamw.kind = OptimizerKind::kAdamW;
  ParamStore rest(others, DType::kF32, Optimizer::contents(adamw));
  Optimizer of_rest(adamw, rest);
  take_steps(context, rest, of_rest);
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const ParamMeta& param = params[static_cast<std::size_t>(i)];
    if (!param.matrix || !param.trainable) {
      EXPECT_EQ(values_of(store.value(i)), values_of(rest.value(i))) << param.name;
      continue;
    }
    Values w = initial[static_cast<std::size_t>(i)], m(w.size());
    for (int step = 0; step < kSteps; ++step) {
      Values u = gradient_of(param, step);
      for (std::size_t at = 0; at < u.size(); ++at) {
        const double g = 0.5 * u[at];
        m[at] = 0.95 * m[at] + 0.05 * g;
        u[at] = 0.05 * g + 0.95 * m[at];
      }
      u = orthogonal(u, param.shape[0], param.shape[1]);
      const double lr = 2e-2 / (step + 1) * param.lr_scale,
                   side = static_cast<double>(std::max(param.shape[0], param.shape[1]));
      for (std::size_t at = 0; at < u.size(); ++at)
        w[at] = w[at] * (1 - lr * param.weight_decay.value_or(0.1)) -
                lr * 0.2 * std::sqrt(side) * u[at];
    }
    EXPECT_LE(distance(values_of(store.value(i)), w), 1e-6) << param.name;
    EXPECT_LE(distance(values_of(store.optimizer_state(MuonRule::kState, i)), m), 1e-6)
        << param.name;
  }
}

struct Ranks {
  int tensor, shards, stage;
};

void expect_bits_of_one_rank(const Ranks& ranks, MeshView view, DType compute) {
  const std::vector<ParamMeta> params = params_of_layer(view);
  const RunConfig::Optimizer config = muon();
  Context context({}, 1, detect_isa());
  ParamStore alone(params, compute, Optimizer::contents(config));
  Optimizer of_alone(config, alone);
  take_steps(context, alone, of_alone);
  const auto expected = elements_of(alone);
  std::mutex mutex;
  std::map<std::string, std::size_t> found;
  on_threads(ranks.tensor * ranks.shards, [&](Communicator& channel) {
    ParamDistribution distribution{ranks.stage, {}};
    distribution.of(view) = {{ranks.tensor, channel.rank() % ranks.tensor},
                             {ranks.shards, channel.rank() / ranks.tensor},
                             {}};
    ViewChannels channels;
    channels[static_cast<std::size_t>(view)].parts = &channel;
    Context of_rank({}, 1, detect_isa());
    ParamStore store(params, compute, Optimizer::contents(config), {}, distribution);
    Optimizer optimizer(config, store, channels);
    take_steps(of_rank, store, optimizer);
    expect_copies(of_rank, store);
    const auto here = elements_of(store);
    const std::lock_guard lock(mutex);
    for (const auto& [name, elements] : here) {
      for (const auto& [at, value] : elements) {
        const float of_one = expected.at(name).at(at);
        EXPECT_EQ(value, of_one) << name << ", element " << at << ", rank " << channel.rank();
        if (value != of_one) break;
        ++found[name];
      }
    }
  });
  for (const auto& [name, elements] : expected) EXPECT_GE(found[name], elements.size()) << name;
}

TEST(MuonRule, every_mesh_has_the_bits_of_one_rank) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const MeshView view : kMeshViews) {
      for (const Ranks& ranks : {Ranks{2, 1, 0},
                                 {4, 1, 0},
                                 {1, 2, 1},
                                 {1, 3, 2},
                                 {1, 4, 3},
                                 {2, 2, 1},
                                 {2, 3, 2},
                                 {4, 2, 3},
                                 {1, 7, 1}}) {
        SCOPED_TRACE(testing::Message() << ranks.tensor << " x " << ranks.shards << ", stage "
                                        << ranks.stage << ", " << name_of(compute));
        expect_bits_of_one_rank(ranks, view, compute);
      }
    }
  }
}

TEST(MuonRule, an_update_that_is_looked_at_has_the_bits_of_one_that_is_not) {
  const std::vector<ParamMeta> params = params_of_layer(MeshView::kDense);
  const RunConfig::Optimizer config = muon();
  Context context({}, 1, detect_isa());
  ParamStore plain(params, DType::kBF16, Optimizer::contents(config)),
      measured(params, DType::kBF16, Optimizer::contents(config));
  Optimizer of_plain(config, plain), of_measured(config, measured);
  BlockMeter meter(measured, {0}, 1, {}, Optimizer::piece(config));
  take_steps(context, plain, of_plain);
  measured.initialise(context, 3);
  double update = 0;
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(measured, step);
    std::vector<Values> before;
    for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i)
      before.push_back(values_of(measured.value(i)));
    of_measured.step(context, 1e-3 / (step + 1), 0.5, meter);
    of_measured.average(context);
    update = 0;
    for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
      const Values after = values_of(measured.value(i)), &old = before[static_cast<std::size_t>(i)];
      for (std::size_t at = 0; at < old.size(); ++at) {
        const auto change = static_cast<float>(after[at]) - static_cast<float>(old[at]);
        update += static_cast<double>(change) * change;
      }
    }
  }
  EXPECT_EQ(elements_of(measured), elements_of(plain));
  EXPECT_NEAR(meter.squares().front().update.value(), update, 1e-9 * update);
}

TEST(MatrixShare, every_matrix_has_one_worker_and_comes_together_there_once) {
  const std::vector<ParamMeta> params = params_of_layer(MeshView::kDense);
  for (const Ranks& ranks : {Ranks{1, 1, 0}, {4, 1, 0}, {1, 3, 1}, {4, 3, 1}, {2, 7, 3}}) {
    const auto share_of = [&](int rank) {
      return MatrixShare(params,
                         dense_distribution(ranks.stage, {{ranks.tensor, rank % ranks.tensor},
                                                          {ranks.shards, rank / ranks.tensor},
                                                          {}}),
                         MeshView::kDense);
    };
    const MatrixShare share = share_of(0);
    const int count = ranks.tensor * ranks.shards;
    EXPECT_EQ(share.ranks(), count);
    std::map<ParamIndex, int> workers;
    for (const auto& round : share.rounds()) {
      std::map<int, int> busy;
      for (const MatrixShare::Task& task : round) {
        EXPECT_EQ(++busy[task.worker], 1);
        EXPECT_TRUE(workers.emplace(task.index, task.worker).second);
        const ParamMeta& param = params[static_cast<std::size_t>(task.index)];
        EXPECT_TRUE(param.matrix && param.trainable);
        std::map<std::size_t, int> times;
        for (int rank = 0; rank < count; ++rank) {
          const int source = share.source(task, rank);
          EXPECT_EQ(share.source(task, source), source);
          const MatrixShare::Part part = share.part(task.index, rank);
          EXPECT_EQ(share.part(task.index, source).shape, part.shape);
          if (source != rank) continue;
          for (const CutPart& box : part.boxes)
            each_of_box(param.shape, box, part.shape[1],
                        [&](std::size_t whole, std::size_t) { ++times[whole]; });
        }
        EXPECT_EQ(times.size(), static_cast<std::size_t>(param.shape.count()));
        for (const auto& [at, n] : times) EXPECT_EQ(n, 1) << param.name << ", " << at;
      }
    }
    EXPECT_EQ(workers.size(), 7U);
    // Nobody has more work than the others have without the longest matrix.
    std::map<int, double> operations;
    double longest = 0, sum = 0;
    for (const auto& [index, worker] : workers) {
      const double of = orthogonalize_operations(params[static_cast<std::size_t>(index)].shape);
      operations[worker] += of;
      longest = std::max(longest, of);
      sum += of;
    }
    double counted = 0;
    for (int rank = 0; rank < count; ++rank) {
      EXPECT_EQ(share_of(rank).cost().operations, operations[rank]);
      EXPECT_LE(operations[rank], sum / count + longest);
      counted += share_of(rank).cost().operations;
    }
    EXPECT_EQ(counted, sum);
  }
}

TEST(MatrixShare, a_rank_alone_sends_nothing_and_needs_room_for_the_largest) {
  const std::vector<ParamMeta> params = params_of_layer(MeshView::kDense);
  const MatrixShare alone(params, {}, MeshView::kDense);
  EXPECT_EQ(alone.cost().elements_sent, 0);
  EXPECT_EQ(alone.cost().transfers, 0);
  EXPECT_EQ(alone.rounds().size(), 7U);
  const MatrixShare::Sizes sizes = alone.sizes();
  EXPECT_EQ(sizes.matrix, 280);
  EXPECT_EQ(sizes.gram, 100);
  EXPECT_EQ(sizes.parts, 288) << "in whole lines of 32";
  EXPECT_EQ(sizes.pieces, 0);
  EXPECT_TRUE(MatrixShare(params, {}, MeshView::kExpert).rounds().empty());
}

}  // namespace
}  // namespace trireme
