#include "house/function_rules.h"

#include <gtest/gtest.h>

#include "house/cpp_text.h"

namespace trireme::house {
namespace {

std::string tokens_of(std::string_view text) {
  std::string all;
  for (const Token& token : scan_cpp(text).tokens) {
    all += std::string(all.empty() ? "" : " ") + std::string(token.text);
  }
  return all;
}

TEST(CppText, comments_literals_and_directives_are_no_code) {
  EXPECT_EQ(tokens_of("a // b {\n/* c } */ d"), "a d");
  EXPECT_EQ(tokens_of("f(\"}\\\"{\", '{', '\\'', u8\"x\")"), "f ( \" , ' , ' , \" )");
  EXPECT_EQ(tokens_of("R\"(\")\" + R\"--( )\" {)--\" + b"), "\" + \" + b");
  EXPECT_EQ(tokens_of("  # define F(x) { \\\n x\ny 1'000 0.5f x->y a::b"),
            "y 1'000 0.5f x -> y a :: b");
}

TEST(CppText, one_branch_of_a_condition_is_code) {
  EXPECT_EQ(tokens_of("#if A\na {\n#elif B\nb {\n#else\nc {\n#endif\nd"), "a { d");
  EXPECT_EQ(tokens_of("#if 0\na\n#else\nb\n#if B\nc\n#endif\n#endif\n"), "b c");
  EXPECT_EQ(
      tokens_of("#ifdef A\n#ifdef B\na\n#else\nb\n#endif\n#else\n#ifdef C\nc\n#endif\n#endif"),
      "a");
}

TEST(CppText, lines_are_counted_everywhere) {
  const CppText text = scan_cpp("/* 1\n2 */ // 2\n#if 1 \\\n 4\nR\"(5\n6)\" a\n'\\n' b // 7\n");
  ASSERT_EQ(text.tokens.size(), 4U);
  EXPECT_EQ(text.tokens[0].line, 5);
  EXPECT_EQ(text.tokens[1].line, 6);
  EXPECT_EQ(text.tokens[3].line, 7);
  ASSERT_EQ(text.comments.size(), 3U);
  EXPECT_EQ(text.comments[1].text, "// 2");
  EXPECT_EQ(text.comments[1].line, 2);
  EXPECT_EQ(text.comments[2].line, 7);
}

std::string shown(std::string_view source) {
  std::string all;
  for (const Function& function : functions_of(source)) {
    all += function.name + "/" + std::to_string(function.parameters) + "@" +
           std::to_string(function.line) + "+" + std::to_string(function.lines) + " ";
  }
  return all;
}

TEST(Functions, definitions_and_declarations_are_found) {
  EXPECT_EQ(shown("int f();\nint g(void) {\n  return f();\n}\n"), "f/0@1+0 g/0@2+3 ");
  EXPECT_EQ(shown("namespace a::b {\nstatic int\nf(int x,\n  int y = g(1, 2)) {\n}\n}"),
            "f/2@3+3 ");
  EXPECT_EQ(shown("template <class T, int N = (2 > 1)> T f(T t) { return t < N ? 1 : h(t); }"),
            "f/1@1+1 ");
  EXPECT_EQ(shown("auto f(std::map<int, int> m, void (*call)(int, int)) -> std::pair<int, int> {}"),
            "f/2@1+1 ");
  EXPECT_EQ(shown("extern \"C\" {\nvoid f(int) {}\n}\nvoid g(int[2], int = X{1, 2}.x) {}"),
            "f/1@2+1 g/2@4+1 ");
  EXPECT_EQ(shown("[[nodiscard]] int f(int) noexcept(noexcept(g(1, 2))) { if (x) { y(); } }"),
            "f/1@1+1 ");
}

TEST(Functions, members_are_found) {
  EXPECT_EQ(
      shown("class A final : public B<int, C> {\n public:\n  explicit A(int x) : B(x), y_{x} {\n"
            "}\n  ~A() override;\n private:\n  int y_{0};\n  int z_ = f(1);\n};\n"),
      "A/1@3+2 ~A/0@5+0 ");
  EXPECT_EQ(shown("A::A(int x, int y) : a_{x}, b_(y) {}\nA::B::~B() {}\n"),
            "A::A/2@1+1 A::B::~B/0@2+1 ");
  EXPECT_EQ(
      shown("struct A { bool operator==(const A&) const = default; A operator()(int, int) {} };"),
      "operator/1@1+0 operator/2@1+1 ");
  EXPECT_EQ(shown("struct alignas(64) A {\n  virtual void f(int a, int b) = 0;\n};"), "f/2@2+0 ");
}

TEST(Functions, values_and_types_are_no_functions) {
  EXPECT_EQ(shown("const T kTable[] = {{f(1), 2}, {g(2), 3}};\nint x{f(1)};"), "");
  EXPECT_EQ(shown("enum class E : int { kA = 1, kB };\nusing F = void (*)(int);\nclass C;"), "");
  EXPECT_EQ(shown("std::function<void(int)> f = [](int x) { return g(x); };\nvoid (*h)(int, int);"),
            "");
}

TEST(Functions, kernels_and_tests_are_known) {
  const auto kind = [](std::string_view source) { return functions_of(source).at(0).kind; };
  EXPECT_EQ(kind("__global__ void __launch_bounds__(128, 2) f(int x) {}"), Function::Kind::kDevice);
  EXPECT_EQ(kind("template <int N> __device__ inline int f() { return N; }"),
            Function::Kind::kDevice);
  EXPECT_EQ(kind("TEST_F(Suite, name) {}"), Function::Kind::kTest);
  EXPECT_EQ(kind("int f() { return g(__device__); }"), Function::Kind::kHost);
  EXPECT_EQ(shown("TEST(Suite, name) {\n}"), "TEST(Suite, name)/2@1+2 ");
}

TEST(FunctionRule, each_limit_is_kept) {
  const auto faults = [](const std::string& head, int lines) {
    return function_faults({"src/a/x.cc", head + " {" + std::string(lines - 1, '\n') + "}\n"})
        .size();
  };
  EXPECT_EQ(faults("void f()", 70), 0U);
  EXPECT_EQ(faults("void f()", 71), 1U);
  EXPECT_EQ(faults("__device__ void f()", 120), 0U);
  EXPECT_EQ(faults("__device__ void f()", 121), 1U);
  EXPECT_EQ(faults("TEST(F, x)", 120), 0U);
  EXPECT_EQ(faults("TEST(F, x)", 121), 1U);
  EXPECT_EQ(faults("void f(int, int, int, int, int, int)", 1), 0U);
  EXPECT_EQ(faults("void f(int, int, int, int, int, int, int)", 1), 1U);
  EXPECT_EQ(faults("__device__ void f(int, int, int, int, int, int, int, int)", 1), 0U);
  EXPECT_EQ(faults("__device__ void f(int, int, int, int, int, int, int, int, int)", 1), 1U);
  EXPECT_EQ(faults("void f(int, int, int, int, int, int, int)", 71), 2U);
  EXPECT_EQ(faults("void f(int, int, int, int, int, int, int);\nvoid g()", 1), 1U) << "declared";
}

}  // namespace
}  // namespace trireme::house
