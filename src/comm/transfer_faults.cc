#include "comm/transfer_faults.h"

#include <utility>

namespace trireme {

TransferFaults::Watched::Watched(TransferFaults& faults, Look look) : faults_(faults) {
  const std::lock_guard lock(faults_.mutex_);
  at_ = faults_.looks_.insert(faults_.looks_.end(), std::move(look));
}

TransferFaults::Watched::~Watched() {
  const std::lock_guard lock(faults_.mutex_);
  faults_.looks_.erase(at_);
}

std::string TransferFaults::first() const {
  const std::lock_guard lock(mutex_);
  for (const Look& look : looks_) {
    if (std::string fault = look(); !fault.empty()) return fault;
  }
  return "";
}

}  // namespace trireme
