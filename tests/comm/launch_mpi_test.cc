#include <gtest/gtest.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>

#include "support/mpi_test.h"

namespace trireme {
namespace {

#ifdef OPEN_MPI
/// A setting of the library as it has been read; -1 where it has none of that name.
std::int64_t setting(const char* name) {
  int provided = 0, index = 0, count = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  MPI_T_cvar_handle handle{};
  std::size_t value = 0;
  const bool known = MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
                     MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS;
  if (known) {
    MPI_T_cvar_read(handle, &value);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return known ? static_cast<std::int64_t>(value) : -1;
}

TEST(LaunchSettings, pieces_of_sums_go_to_another_host_without_its_consent) {
  if (test_world().size() == 1) GTEST_SKIP() << "alone MPI is never started";
  EXPECT_EQ(setting("btl_tcp_eager_limit"), 512 << 10);
}
#endif

}  // namespace
}  // namespace trireme
