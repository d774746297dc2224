#pragma once

#include "model/param_table.h"

namespace trireme {

/// Sets ParamMeta::matrix of the layers' products and of the adapters beside them.
void mark_matrices(ModelParams& params);

}  // namespace trireme
