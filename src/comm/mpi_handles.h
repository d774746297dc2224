#pragma once
// The only header that names MPI, for the .cc files of this folder alone.

#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI dropped in 2012
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

#include "base/error.h"
#include "base/unique_handle.h"

namespace trireme {

/// "MPI_Ibcast failed: MPI_ERR_TRUNCATE: message truncated"
inline void check_mpi(int result, const char* operation) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw InternalError("{} failed: {} (a rank or the network may be gone).", operation,
                      std::string(text, static_cast<std::size_t>(length)));
}

struct MpiCommTraits {
  using Raw = MPI_Comm;
  static Raw null() noexcept { return MPI_COMM_NULL; }
  static void destroy(Raw raw) noexcept { MPI_Comm_free(&raw); }
};
using MpiComm = UniqueHandle<MpiCommTraits>;

}  // namespace trireme
