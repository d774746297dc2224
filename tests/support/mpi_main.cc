// Runs GoogleTest on all ranks of an mpirun. Rank 0 prints; another rank prints only its failures.
// The exit code is that of the worst rank; a rank that throws outside of a test ends the others.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "comm/launch.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

Launch* the_launch = nullptr;

/// In rank of GoogleTest's printer on ranks other than 0.
class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  // Asking GoogleTest for the current test here would wait for a lock that the caller holds.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s: %s:%d\n%s\n", rank_, test_.c_str(),
                 result.file_name() == nullptr ? "" : result.file_name(), result.line_number(),
                 result.message());
  }

 private:
  int rank_;
  std::string test_;
};

/// A test fails on all ranks or on none. One that a rank leaves half-way (ASSERT) ends the job: the
/// others may be waiting for it in a collective.
class FailTogether final : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.fatally_failed()) the_launch->abort(1);
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    std::array<std::int64_t, 1> failed{info.result()->Failed() ? 1 : 0};
    the_launch->job().maximum(failed);
    if (failed[0] != 0 && !info.result()->Failed()) {
      ADD_FAILURE_AT(info.file(), info.line()) << "failed on another rank";
    }
  }
};

int run(Launch& launch) {
  // Both ways of waiting for a transfer: two ranks as where each is kept on a core, more as where
  // none is.
  if (launch.job().size() == 2) launch.wait_awake();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (launch.job().rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(launch.job().rank()));
  }
  listeners.Append(new FailTogether);
  std::array<std::int64_t, 1> result{RUN_ALL_TESTS()};
  launch.job().maximum(result);
  return static_cast<int>(result[0]);
}

}  // namespace

Launch& test_launch() { return *the_launch; }
Communicator& test_world() { return the_launch->job(); }

}  // namespace trireme

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::GTEST_FLAG(catch_exceptions) =
      false;  // to the handler below, while the others may wait in a collective
  trireme::Launch launch;
  trireme::the_launch = &launch;
  try {
    return trireme::run(launch);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", launch.job().rank(), error.what());
    launch.abort(1);
  }
}
