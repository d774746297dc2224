#include "house/type_rules.h"

#include <gtest/gtest.h>

namespace trireme::house {
namespace {

std::string shown(std::string_view source) {
  std::string all;
  for (const TypeName& type : types_of(source))
    all += type.name + "@" + std::to_string(type.line) + " ";
  return all;
}

TEST(Types, what_is_defined_in_a_namespace_is_found) {
  EXPECT_EQ(shown("struct A {};\nnamespace n {\nclass B final : public A { class C {}; };\n}\n"
                  "namespace a::b { enum class D : int { kE }; union E { int x; }; }"),
            "A@1 n::B@3 a::b::D@5 a::b::E@5 ");
  EXPECT_EQ(shown("template <class T, struct U> struct alignas(16) [[nodiscard]] F { T t; };"),
            "F@1 ");
}

TEST(Types, what_other_files_may_say_again_is_not) {
  EXPECT_EQ(shown("class A;\nenum class B : int;\nstruct C x{};\nstruct D* f();"), "");
  EXPECT_EQ(shown("template <>\nstruct A<int> {};\nstruct A::B { struct E {}; };"), "");
  EXPECT_EQ(shown("namespace n { namespace { struct A {}; } struct B {}; }"), "n::B@1 ");
  EXPECT_EQ(shown("void f() { struct A {}; }\nint g(struct B { int x; } b);\nnamespace n = m;"),
            "");
}

TEST(Types, a_name_that_two_files_give_is_a_fault) {
  const std::vector<SourceFile> program = {{"a.h", "namespace n { struct A {}; struct B {}; }"},
                                           {"b.h", "\nnamespace n { class A {}; }"},
                                           {"c.h", "namespace m { struct A {}; }\nstruct S {};"},
                                           {"d.h", "struct S {};"}};
  const Faults faults = type_faults(program);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].path, "b.h");
  EXPECT_EQ(faults[0].line, 2);
  EXPECT_EQ(faults[0].problem, "n::A is defined in a.h too");
}

}  // namespace
}  // namespace trireme::house
