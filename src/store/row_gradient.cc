#include "store/row_gradient.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "tensor/transfer.h"

namespace trireme {

RowGradient::RowGradient(std::int64_t rows, std::int64_t columns, std::int64_t most)
    : most_(most),
      table_(DType::kF32, {most + 1, columns}),
      slots_(DType::kI32, {rows}),
      indices_(DType::kI32, {most}),
      token_slots_(DType::kI32, {most}) {
  std::fill_n(slots_.view().as<std::int32_t>(), rows, narrow<std::int32_t>(most));
}

std::int64_t RowGradient::bytes_of(std::int64_t rows, std::int64_t columns, std::int64_t most) {
  return 4 * ((most + 1) * columns + rows + 2 * most);
}

void RowGradient::clear(Context& context) {
  trireme::clear(context, looked_up());
  const auto* indices = indices_.view().as<std::int32_t>();
  auto* slots = slots_.view().as<std::int32_t>();
  for (std::int64_t i = 0; i < count_; ++i) slots[indices[i]] = static_cast<std::int32_t>(most_);
  count_ = 0;
}

void RowGradient::add(Context& context, ConstTensorView ids_T, ConstTensorView dout_TC,
                      std::int64_t first_row, std::int64_t vocabulary) {
  const std::int64_t tokens = ids_T.count(), rows = slots_.view().count();
  expect(tokens <= most_, "{} tokens look up rows of a gradient made for {}", tokens, most_);
  const auto* ids = ids_T.as<std::int32_t>();
  auto* slots = slots_.view().as<std::int32_t>();
  auto* indices = indices_.view().as<std::int32_t>();
  auto* token_slots = token_slots_.view().as<std::int32_t>();
  for (std::int64_t t = 0; t < tokens; ++t) {
    expect(ids[t] < vocabulary, "token {} of a vocabulary of {}", ids[t], vocabulary);
    const std::int64_t row = ids[t] - first_row;
    token_slots[t] = 0;  // of another part
    if (row < 0 || row >= rows) continue;
    if (slots[row] == most_) {
      expect(count_ < most_, "more than {} rows of an embedding are looked up", most_);
      indices[count_] = static_cast<std::int32_t>(row);
      slots[row] = static_cast<std::int32_t>(count_++);
    }
    token_slots[t] = slots[row] + 1;
  }
  embedding_backward(context, looked_up(), token_slots_.view().rows(0, tokens), dout_TC, 1,
                     count_ + 1);
}

RowSum::RowSum(Context& context, RowGradient& gradient, Communicator& ranks)
    : context_(context), gradient_(gradient), ranks_(ranks) {
  const std::int64_t each = div_exact(gradient.most(), ranks.size());
  indices_ = Buffer(DType::kI32, {ranks.size(), each});
  targets_ = Buffer(DType::kI32, {ranks.size(), each});
  slots_ = Buffer(DType::kI32, {gradient.slots().count()});
  rows_ = Buffer(DType::kF32, {ranks.size(), each, gradient.table().shape[1]});
}

std::int64_t RowSum::buffer_bytes(std::int64_t rows, std::int64_t columns, std::int64_t most,
                                  int ranks) {
  return ranks == 1 ? 0 : 4 * (most * (2 + columns) + rows);
}

std::int64_t RowSum::bytes_sent(std::int64_t columns, std::int64_t most, int ranks) {
  return one_way_bytes_sent(4 * most, ranks) + one_way_bytes_sent(4 * most * columns, ranks);
}

void RowSum::start() {
  const std::int64_t each = indices_.view().shape[1], count = gradient_.count();
  expect(count <= each, "{} rows are looked up where a rank has {} tokens", count, each);
  const TensorView indices = indices_.view().rows(ranks_.rank(), 1).reshape({each});
  std::fill_n(indices.as<std::int32_t>(), each, -1);
  const TensorView mine = gradient_.indices(), rows = gradient_.looked_up();
  copy_bytes(context_, indices.data, mine.data, mine.bytes());
  copy_bytes(context_, rows_.view().rows(ranks_.rank(), 1).data, rows.data, rows.bytes());
  indices_sent_ = ranks_.start_all_gather(indices_.view());
  rows_sent_ = ranks_.start_all_gather(rows_.view());
}

void RowSum::add_neighbours(int first, int second, int span) {
  const std::int64_t each = indices_.view().shape[1], columns = rows_.view().shape[2];
  const int theirs = std::min(span, ranks_.size() - second);  // the last block may be shorter
  const auto flat = [each](const Buffer& values, int rank, int ranks) {
    return values.view().rows(rank, ranks).reshape({ranks * each});
  };
  const auto rows = [&](int rank, int ranks) {
    return rows_.view().rows(rank, ranks).reshape({ranks * each, columns});
  };
  const auto* kept = flat(indices_, first, span).as<std::int32_t>();
  auto* added = flat(indices_, second, theirs).as<std::int32_t>();
  auto* targets = flat(targets_, second, theirs).as<std::int32_t>();
  auto* slots = slots_.view().as<std::int32_t>();
  for (std::int64_t i = 0; i < span * each; ++i) {
    if (kept[i] >= 0) slots[kept[i]] = static_cast<std::int32_t>(i + 1);
  }
  for (std::int64_t i = 0; i < theirs * each; ++i) {
    targets[i] = added[i] < 0 ? 0 : slots[added[i]];
    if (targets[i] != 0) added[i] = -1;
  }
  for (std::int64_t i = 0; i < span * each; ++i) {
    if (kept[i] >= 0) slots[kept[i]] = 0;
  }
  // Target 0 is an id of another part, which adds nothing; a row has one target at most.
  embedding_backward(context_, rows(first, span), flat(targets_, second, theirs),
                     rows(second, theirs), 1, span * each + 1);
}

void RowSum::finish() {
  std::exchange(indices_sent_, {}).wait();
  std::exchange(rows_sent_, {}).wait();
  for (int span = 1; span < ranks_.size(); span *= 2) {
    for (int first = 0; first + span < ranks_.size(); first += 2 * span)
      add_neighbours(first, first + span, span);
  }
  gradient_.clear(context_);
  const std::int64_t each = indices_.view().shape[1], columns = rows_.view().shape[2];
  // An index is at one rank now, so that any order adds the same. None: beyond the rows, of another
  // part.
  const std::int64_t none = gradient_.slots().count();
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const TensorView indices = indices_.view().rows(rank, 1).reshape({each});
    auto* first = indices.as<std::int32_t>();
    std::replace(first, first + each, -1, narrow<std::int32_t>(none));
    gradient_.add(context_, indices, rows_.view().rows(rank, 1).reshape({each, columns}), 0,
                  none + 1);
  }
}

}  // namespace trireme
