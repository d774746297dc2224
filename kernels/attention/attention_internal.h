#pragma once
// Between the files of this op, and for its tests.

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_library_table.h"
#include "kernels/attention/attention_table.h"

namespace trireme::attention_internal {

/// The library's table; throws EnvironmentError where there is none.
const AttentionLibraryKernels& attention_library();

/// By that table, on a GPU. `shape` is that of the checked arguments. Throw InternalError for what
/// a library does not serve.
void forward_by_library(Context& context, const AttentionShape& shape, const AttentionForward& args,
                        const AttentionLibraryKernels& library);
void backward_by_library(Context& context, const AttentionShape& shape,
                         const AttentionBackward& args, const AttentionLibraryKernels& library);

}  // namespace trireme::attention_internal
