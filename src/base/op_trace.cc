#include "base/op_trace.h"

#include <string_view>

namespace trireme {

void OpTrace::record(const char* op, const OpWork& work, std::int64_t ns) noexcept {
  const Phase phase = trace_.current_phase();
  std::size_t row = 0;
  while (row < count_ && !(totals_[row].phase == phase && totals_[row].type == work.type &&
                           std::string_view(totals_[row].op) == op)) {
    ++row;
  }
  if (row == kRowsMax) row = kRowsMax - 1;
  if (row == count_) {
    totals_[row] = OpTotal();
    totals_[row].op = ++count_ == kRowsMax ? "others" : op;
    totals_[row].phase = phase;
    totals_[row].type = work.type;
  }
  OpTotal& total = totals_[row];
  ++total.calls;
  total.ns += ns;
  total.flops += work.flops;
  total.bytes += work.bytes;
}

}  // namespace trireme
