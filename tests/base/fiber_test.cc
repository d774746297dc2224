#include "base/fiber.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace trireme {
namespace {

TEST(Fiber, two_bodies_take_turns_at_each_give_way) {
  std::string text;
  const auto body = [&](char name) {
    return [&text, name] {
      for (int i = 0; i < 3; ++i) {
        text += name + std::to_string(i) + " ";
        give_way();
      }
    };
  };
  Fiber a, b;
  for (int round = 0; round < 2; ++round) {  // stacks serve again
    text.clear();
    a.begin(body('a'));
    b.begin(body('b'));
    bool more_a = true, more_b = true;
    while (more_a || more_b) {
      if (more_a) more_a = a.resume();
      if (more_b) more_b = b.resume();
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_EQ(text, "a0 b0 a1 b1 a2 b2 ");
#endif
  }
}

TEST(Fiber, outside_of_one_to_give_way_is_nothing) { give_way(); }

TEST(Fiber, what_a_body_throws_comes_to_who_resumes_it) {
  Fiber fiber;
  fiber.begin([] {
    give_way();
    throw std::runtime_error("from within");
  });
  EXPECT_THROW(while (fiber.resume()){}, std::runtime_error);
  bool ran = false;
  fiber.begin([&] { ran = true; });
  EXPECT_FALSE(fiber.resume());
  EXPECT_TRUE(ran);
  EXPECT_THROW(fiber.resume(), InternalError);
}

TEST(Fiber, a_body_that_nobody_resumes_is_unwound) {
  const auto held = std::make_shared<int>(1);
  {
    Fiber fiber;
    fiber.begin([held] {
      const std::shared_ptr<int> on_its_stack = held;
      give_way();
      ADD_FAILURE() << "went on";
    });
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_TRUE(fiber.resume());
    EXPECT_EQ(held.use_count(), 3);
#endif
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Fiber, has_a_stack_as_deep_as_a_thread_has) {
  Fiber fiber;
  int sum = 0;
  fiber.begin([&] {
    volatile char deep[4 << 20];
    for (std::size_t i = 0; i < sizeof deep; i += 4096) deep[i] = 1;
    give_way();
    for (std::size_t i = 0; i < sizeof deep; i += 4096) sum += deep[i];
  });
  while (fiber.resume()) {
  }
  EXPECT_EQ(sum, 1024);
}

}  // namespace
}  // namespace trireme
