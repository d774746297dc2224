#pragma once
// What updates of whole matrices (Muon) take beside those of elements: optim/matrix_share.h over
// shapes, before any rank exists.

#include <array>

#include "config/model_config.h"
#include "plan/layer_time.h"

namespace trireme {

/// Of trained matrices of one view: the seconds of a rank that works on all of them, and what there
/// is of them.
struct MatrixWork {
  double seconds = 0, elements = 0, count = 0;
  MatrixWork& operator+=(const MatrixWork& other);
};
using MatrixWorks = std::array<MatrixWork, kMeshViews.size()>;

/// Of layer `index` of the model, its experts those of one rank of the expert axis.
MatrixWorks matrix_work(const ModelConfig& model, std::int64_t index, const StepLayout& layout,
                        const OpTime& ops);

/// Of a rank, one of so many that hold one copy of those matrices: its share, each work at once;
/// then what travels.
double shared_seconds(const MatrixWork& work, std::int64_t ranks);
PassTime parts_time(const MatrixWork& work, const LinkTime& ranks, DType type, Axis axis);

}  // namespace trireme
