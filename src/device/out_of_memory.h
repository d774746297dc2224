#pragma once

#include "base/error.h"

namespace trireme {

/// Memory that the system or a GPU refuses, by its size; whoever knows what it was for says more.
class OutOfMemory : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

}  // namespace trireme
