#pragma once

#include "store/param_store.h"

namespace trireme {

/// What a run with AdamW has its store hold.
inline const StoreContents kTrainingStore{true, {{"exp_avg"}, {"exp_avg_sq"}}};

}  // namespace trireme
