#pragma once
// The only header that names MPI, for the .cc files of this folder alone.

#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI dropped in 2012
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <numeric>
#include <string>
#include <vector>

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

/// The ranks of `comm` as ranks of the job, for texts.
inline std::vector<int> world_ranks(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &group), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  int size = 0;
  check_mpi(MPI_Group_size(group, &size), "MPI_Group_size");
  std::vector<int> mine(static_cast<std::size_t>(size)), theirs(mine.size());
  std::iota(mine.begin(), mine.end(), 0);
  const int result = MPI_Group_translate_ranks(group, size, mine.data(), world, theirs.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  check_mpi(result, "MPI_Group_translate_ranks");
  return theirs;
}

}  // namespace trireme
