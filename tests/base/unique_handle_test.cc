#include "base/unique_handle.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace trireme {
namespace {

std::vector<int> destroyed;

struct CountingTraits {
  using Raw = int;
  static Raw null() noexcept { return -1; }
  static void destroy(Raw raw) noexcept { destroyed.push_back(raw); }
};
using Handle = UniqueHandle<CountingTraits>;

static_assert(!std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>);
static_assert(std::is_nothrow_move_constructible_v<Handle>);

class UniqueHandleTest : public testing::Test {
 protected:
  void SetUp() override { destroyed.clear(); }
};

TEST_F(UniqueHandleTest, a_handle_is_destroyed_once) {
  {
    Handle first(7);
    Handle second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), 7);
  }
  EXPECT_EQ(destroyed, (std::vector<int>{7}));
}

TEST_F(UniqueHandleTest, an_empty_handle_destroys_nothing) {
  { const Handle empty; }
  EXPECT_TRUE(destroyed.empty());
}

TEST_F(UniqueHandleTest, assignment_destroys_what_was_held) {
  Handle handle(1);
  handle = Handle(2);
  EXPECT_EQ(destroyed, (std::vector<int>{1}));
  EXPECT_EQ(handle.get(), 2);
}

TEST_F(UniqueHandleTest, assignment_to_itself_keeps_the_handle) {
  Handle handle(1);
  Handle& alias = handle;
  handle = std::move(alias);
  EXPECT_EQ(handle.get(), 1);
  EXPECT_TRUE(destroyed.empty());
}

TEST_F(UniqueHandleTest, a_released_handle_belongs_to_the_caller) {
  {
    Handle handle(5);
    EXPECT_EQ(handle.release(), 5);
    EXPECT_FALSE(handle);
  }
  EXPECT_TRUE(destroyed.empty());
}

}  // namespace
}  // namespace trireme
