#include "optim/block_meter.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"

namespace trireme {

namespace {

/// As the gradient norm sees it: a vector is so many rows.
template <class View>
View as_rows(const View& view) {
  return view.shape.rank() == 1 ? view.reshape({view.shape[0], 1}) : view;
}

std::int64_t columns_of(const Shape& shape) { return shape.rank() == 1 ? 1 : shape[1]; }

std::int64_t rows_of_piece(const Shape& shape, BlockMeter::Piece piece) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(piece) / columns_of(shape), 1,
                                  std::max<std::int64_t>(shape[0], 1));
}

/// The views have the parameter's count, not always its shape.
template <class View>
View part_of(const View& view, Slice elements) {
  return view.given() ? view.reshape({view.count()}).rows(elements.begin, elements.size) : view;
}

UpdateTensor part_of(const UpdateTensor& tensor, Slice rows) {
  const TensorView parameter = as_rows(tensor.parameter);
  const std::int64_t columns = parameter.shape[1];
  const Slice elements{rows.begin * columns, rows.size * columns};
  UpdateTensor part = tensor;
  part.parameter = parameter.rows(rows.begin, rows.size);
  part.copy = part_of(tensor.copy, elements);
  part.exp_avg = part_of(tensor.exp_avg, elements);
  part.exp_avg_sq = part_of(tensor.exp_avg_sq, elements);
  if (tensor.gradient_slots.given()) {
    part.gradient_slots = tensor.gradient_slots.rows(rows.begin, rows.size);
  } else {
    part.gradient = part_of(tensor.gradient, elements);
  }
  return part;
}

void add_squares(Context& context, ExactSum& sum, const ConstTensorView& rows) {
  grad_norm_accumulate(context, sum, {&rows, 1});
}

}  // namespace

BlockMeter::BlockMeter(const ParamStore& store, std::vector<int> place_of, int blocks,
                       Device device, Piece piece)
    : store_(store),
      piece_(piece),
      place_of_(std::move(place_of)),
      squares_(static_cast<std::size_t>(blocks)),
      old_(DType::kF32,
           {buffer_bytes(store.params(), store.gradients().layout(), piece) /
            static_cast<std::int64_t>(sizeof(float))},
           device) {}

std::int64_t BlockMeter::buffer_bytes(const std::vector<ParamMeta>& params,
                                      const StoreLayout& layout, Piece piece) {
  std::int64_t elements = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const Shape shape = layout.owned_shape(i);
    if (params[static_cast<std::size_t>(i)].shares == kNoParam && shape.count() > 0)
      elements = std::max(elements, rows_of_piece(shape, piece) * columns_of(shape));
  }
  return elements * static_cast<std::int64_t>(sizeof(float));
}

void BlockMeter::clear() { squares_.assign(squares_.size(), {}); }

BlockSquares& BlockMeter::begin(Context& context, ParamIndex index, const Shape& owned) {
  const auto block =
      static_cast<std::size_t>(store_.params()[static_cast<std::size_t>(index)].block);
  BlockSquares& squares = squares_[static_cast<std::size_t>(place_of_[block])];
  if (owned.count() == 0) return squares;
  add_squares(context, squares.gradient, as_rows(store_.gradients().counted(index)));
  squares.elements += store_.gradients().counted_rows(index, owned[0]).size * columns_of(owned);
  return squares;
}

void BlockMeter::measure_change(Context& context, BlockSquares& squares, const TensorView& value,
                                const std::function<void()>& update) {
  const TensorView old = old_.view().rows(0, value.count()).reshape(value.shape);
  cast(context, old, value);
  add_squares(context, squares.weights, old);
  update();
  scale(context, old, -1);
  accumulate(context, old, value);
  add_squares(context, squares.update, old);
}

void BlockMeter::measure(Context& context, ParamIndex index, const UpdateTensor& tensor,
                         const std::function<void(const UpdateTensor&)>& update) {
  const std::int64_t rows = tensor.parameter.shape[0];
  const Slice counted = store_.gradients().counted_rows(index, rows);
  const std::int64_t end = counted.begin + counted.size;
  const std::int64_t step = rows_of_piece(tensor.parameter.shape, piece_);
  BlockSquares& squares = begin(context, index, tensor.parameter.shape);
  if (counted.begin > 0) update(part_of(tensor, {0, counted.begin}));
  for (std::int64_t begin = counted.begin; begin < end; begin += step) {
    const UpdateTensor part = part_of(tensor, {begin, std::min(step, end - begin)});
    measure_change(context, squares, part.parameter, [&] { update(part); });
  }
  if (end < rows) update(part_of(tensor, {end, rows - end}));
}

void BlockMeter::measure(Context& context, ParamIndex index, const TensorView& value,
                         const std::function<void()>& update) {
  expect(piece_ == Piece::kWhole, "a whole parameter for a meter of rows");
  BlockSquares& squares = begin(context, index, value.shape);
  const Slice counted =
      value.count() == 0 ? Slice{0, 0} : store_.gradients().counted_rows(index, value.shape[0]);
  if (counted.size == 0) return update();
  measure_change(context, squares, as_rows(value).rows(counted.begin, counted.size), update);
}

}  // namespace trireme
