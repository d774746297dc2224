#pragma once
// What ops of weighted units share.

#include "kernels/common/check_args.h"
#include "kernels/expert_rows/expert_rows.h"
#include "kernels/expert_rows/expert_rows_table.h"

namespace trireme::expert_rows_internal {

const ExpertRowsKernels& table(const Context& context);

/// What a trace and a refusal call the op.
struct GluNames {
  const char *silu, *gelu, *clamped;

  [[nodiscard]] const char* of(const WeightedGlu& args) const {
    if (args.biased.bias_G2F.given()) return clamped;
    return args.gate == GluGate::kSilu ? silu : gelu;
  }
};

/// Of units whose result is h.
struct UnitShape {
  std::int64_t rows, ffn;
  DType type;
};
WeightedGluRows unit_rows(const Context& context, const ArgumentChecker& check, const UnitShape& h,
                          const WeightedGlu& args);

}  // namespace trireme::expert_rows_internal
