#include "optim/update_rule.h"

#include "tensor/transfer.h"

namespace trireme {

namespace {

void copy(Context& context, const TensorView& to, const TensorView& from) {
  copy_bytes(context, to.data, from.data, from.bytes());
}

}  // namespace

void UpdateRule::allow_undo(Device device) {
  for (const TensorView& view : changed()) kept_.emplace_back(view.dtype, view.shape, device);
}

void UpdateRule::step_undoable(Context& context, const UpdateStep& step) {
  const std::vector<TensorView> views = changed();
  for (std::size_t i = 0; i < views.size(); ++i) copy(context, kept_.at(i).view(), views[i]);
  this->step(context, step);
}

void UpdateRule::undo(Context& context) {
  const std::vector<TensorView> views = changed();
  for (std::size_t i = 0; i < views.size(); ++i) copy(context, views[i], kept_.at(i).view());
}

}  // namespace trireme
