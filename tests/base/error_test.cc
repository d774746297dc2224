#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace trireme {
namespace {

template <class Fault>
ExitCode code_of(const Fault& fault) {
  return fault.code();
}

TEST(Error, each_class_carries_its_documented_exit_code) {
  EXPECT_EQ(static_cast<int>(code_of(ConfigError("x"))), 2);
  EXPECT_EQ(static_cast<int>(code_of(EnvironmentError("x"))), 3);
  EXPECT_EQ(static_cast<int>(code_of(DivergedError("x"))), 4);
  EXPECT_EQ(static_cast<int>(code_of(InternalError("x"))), 70);
  EXPECT_EQ(static_cast<int>(code_of(DataError("x"))), 74);
}

TEST(Error, the_message_is_formatted_and_caught_as_the_base_class) {
  try {
    throw DataError("{}: ends after {} bytes", "a.bin", 7);
  } catch (const Error& fault) {
    EXPECT_STREQ(fault.what(), "a.bin: ends after 7 bytes");
    EXPECT_EQ(fault.code(), ExitCode::kData);
  }
}

TEST(Error, expect_throws_only_where_the_condition_fails) {
  EXPECT_NO_THROW(expect(true, "never seen"));
  EXPECT_THROW(expect(false, "rank {}", 3), InternalError);
}

TEST(Error, reasons_of_the_operating_system_are_words) {
  EXPECT_EQ(errno_text(ENOSPC), "No space left on device");
  EXPECT_EQ(errno_text(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace trireme
