#pragma once
// A gated linear unit's gate as a template argument, for kernels that have one among their steps.

#include "kernels/common/activation.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/glu/glu_gate.h"

namespace trireme::cuda {

template <GluGate kGate>
__device__ __forceinline__ float glu(float gate, float up) {
  return kGate == GluGate::kSilu ? swiglu(gate, up) : geglu(gate, up);
}
template <GluGate kGate>
__device__ __forceinline__ GluGradient gradient_of(float gate, float up, float dact) {
  return kGate == GluGate::kSilu ? swiglu_gradient(gate, up, dact) : geglu_gradient(gate, up, dact);
}

/// What a thread loads of a row.
template <class T, int kWidth>
struct GateUp {
  Vector<T, kWidth> gate, up;
};
template <class T, int kWidth>
struct GateUpGradient {
  Vector<T, kWidth> gate, up, dact;
};

}  // namespace trireme::cuda
