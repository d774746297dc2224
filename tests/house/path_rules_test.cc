#include "house/path_rules.h"

#include <gtest/gtest.h>

namespace trireme::house {
namespace {

const SourceFile kPage = {
    "docs/page.md", "# The `train` page: a [link](x.md)\n## Same\n## Same\n```\n## not one\n```\n"};

TreeNames names() {
  const std::string paths[] = {"README.md",           "docs/page.md",     "src/base/error.h",
                               "kernels/gemm/gemm.h", "tests/e2e/lib.sh", "scripts/test.sh"};
  return names_of(paths, {&kPage, 1});
}

std::size_t links(std::string text, std::string path = "README.md") {
  return link_faults({std::move(path), std::move(text)}, names()).size();
}

TEST(LinkRule, targets_are_looked_for_from_the_pages_folder) {
  EXPECT_EQ(links("[a](docs/page.md) [b](docs/) [c](docs) [d](src/base/error.h)"), 0U);
  EXPECT_EQ(links("[a](../README.md) [b](page.md)", "docs/page.md"), 0U);
  EXPECT_EQ(links("[a](page.md)"), 1U);
  EXPECT_EQ(links("[a](docs/other.md)\n\n[b](src/error.h)"), 2U);
  EXPECT_EQ(links("[a](https://example.org/x.md) [b](mailto:a@b.c)"), 0U);
  EXPECT_EQ(links("![picture](docs/x.svg \"title\")"), 1U);
  EXPECT_EQ(links("`[a](absent.md)`\n```\n[b](absent.md)\n```\n"), 0U) << "code";
  EXPECT_EQ(links("// [a](absent.md)", "src/x.cc"), 0U) << "no page";
}

TEST(LinkRule, anchors_are_headings) {
  EXPECT_EQ(links("[a](docs/page.md#the-train-page-a-link)"), 0U);
  EXPECT_EQ(links("[a](#same) [b](#same-1)", "docs/page.md"), 0U);
  EXPECT_EQ(links("[a](#same-2) [b](#not-one)", "docs/page.md"), 2U);
  EXPECT_EQ(links("[a](scripts/test.sh#same)"), 1U);
}

std::size_t paths(std::string text, std::string path = "src/base/x.cc") {
  return path_faults({std::move(path), std::move(text)}, names()).size();
}

TEST(PathRule, comments_name_what_is_there) {
  EXPECT_EQ(paths("// base/error.h, src/base/error.h, gemm/gemm.h and error.h.\n"), 0U);
  EXPECT_EQ(paths("/* kernels/gemm/gemm.h\n   e2e/lib.sh, page.md */"), 0U);
  EXPECT_EQ(paths("// base/errors.h\n// error.cc\n"), 2U);
  EXPECT_EQ(paths("/* all\n of kernels/norm/norm.h */"), 1U);
  EXPECT_EQ(paths("f(\"base/errors.h\"); #include \"x.h\"\n"), 0U) << "no comment";
  EXPECT_EQ(paths("echo absent.sh # runs scripts/test.sh\n", "scripts/x.sh"), 0U);
  EXPECT_EQ(paths("# runs scripts/tests.sh\n", "scripts/x.sh"), 1U);
  EXPECT_EQ(paths("echo $#absent.sh\n", "scripts/x.sh"), 0U) << "no comment";
  EXPECT_EQ(paths("`scripts/test.sh --all`, `absent.cc`", "README.md"), 1U);
  EXPECT_EQ(paths("lib.sh, absent.sh", "data/x.txt"), 0U) << "no page";
}

TEST(PathRule, folders_of_the_tree_are_there) {
  EXPECT_EQ(paths("// src/base, tests/e2e/ and kernels/gemm.\n"), 0U);
  EXPECT_EQ(paths("// src/bases and tests/e2e/data\n"), 2U);
  EXPECT_EQ(paths("// runs/x, and/or\n"), 0U);
}

TEST(PathRule, placeholders_and_other_projects_are_left_alone) {
  EXPECT_EQ(paths("// <op>.h, kernels/<op>/<op>.h, *.cc, tests/*_test.cc, $DIR/x.sh, file.cu"), 0U);
  EXPECT_EQ(paths("// DIR/README.md, tests/golden/CASE, mpi.h, megatron/core/a.py"), 0U);
  EXPECT_EQ(paths("// https://example.org/x.h"), 0U);
}

}  // namespace
}  // namespace trireme::house
