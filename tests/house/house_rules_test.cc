#include "house/house_rules.h"

#include <gtest/gtest.h>

namespace trireme::house {
namespace {

std::size_t count(const Faults& faults) { return faults.size(); }

SourceFile including(std::string path, std::string_view include) {
  return {std::move(path), "#pragma once\n#include " + std::string(include) + "\n"};
}

std::size_t layer_count(std::string path, std::string_view include) {
  return count(layer_faults(including(std::move(path), include)));
}

TEST(LayerRule, lower_levels_and_the_own_folder_are_open) {
  EXPECT_EQ(layer_count("src/tensor/x.h", "\"base/error.h\""), 0U);
  EXPECT_EQ(layer_count("src/tensor/x.cc", "\"tensor/x.h\""), 0U);
  EXPECT_EQ(layer_count("src/model/x.cc", "\"kernels/gemm/gemm.h\""), 0U);
  EXPECT_EQ(layer_count("src/train/x.cc", "\"telemetry/console.h\""), 0U);
  EXPECT_EQ(layer_count("src/main.cc", "\"commands/commands.h\""), 0U);
  EXPECT_EQ(layer_count("src/base/x.cc", "<vector>"), 0U);
}

TEST(LayerRule, higher_levels_and_siblings_are_closed) {
  EXPECT_EQ(layer_count("src/base/x.h", "\"config/parse.h\""), 1U);
  EXPECT_EQ(layer_count("src/model/x.h", "\"optim/adamw.h\""), 1U);
  EXPECT_EQ(layer_count("src/telemetry/x.cc", "\"checkpoint/reader.h\""), 1U);
  EXPECT_EQ(layer_count("src/comm/x.cc", "\"kernels/gemm/gemm.h\""), 1U);
  EXPECT_EQ(layer_count("src/train/x.cc", "\"commands/commands.h\""), 1U);
  EXPECT_EQ(layer_count("kernels/gemm/gemm.h", "\"model/linear.h\""), 1U);
  EXPECT_EQ(layer_count("src/base/x.h", "  \"config/parse.h\"  // indented"), 1U);
  EXPECT_EQ(count(layer_faults({"src/base/x.h", "  #  include \"config/parse.h\""})), 1U);
}

TEST(LayerRule, includes_are_written_from_the_root) {
  EXPECT_EQ(layer_count("src/base/x.cc", "\"error.h\""), 1U);
  EXPECT_EQ(layer_count("src/base/x.cc", "\"../base/error.h\""), 1U);
  EXPECT_EQ(layer_count("src/base/x.cc", "\"support/temporary_directory.h\""), 1U);
}

TEST(LayerRule, ops_do_not_know_each_other) {
  EXPECT_EQ(layer_count("kernels/rope/rope_cpu.cc", "\"kernels/common/simd.h\""), 0U);
  EXPECT_EQ(layer_count("kernels/rope/rope_cpu.cc", "\"kernels/rope/rope.h\""), 0U);
  EXPECT_EQ(layer_count("kernels/attention/attention.cc", "\"kernels/gemm/gemm.h\""), 0U);
  EXPECT_EQ(layer_count("kernels/rope/rope_cpu.cc", "\"kernels/norm/norm.h\""), 1U);
  EXPECT_EQ(layer_count("kernels/common/simd.h", "\"kernels/norm/norm.h\""), 1U);
}

TEST(LayerRule, a_folder_without_a_level_is_told) {
  EXPECT_EQ(layer_count("src/utils/x.h", "<vector>"), 1U);
}

TEST(HeavyHeaderRule, a_heavy_header_stays_in_sources_of_its_folder) {
  const auto faults = [](std::string path, std::string_view include) {
    const SourceFile tree[] = {including(std::move(path), include)};
    return count(heavy_header_faults(tree));
  };
  EXPECT_EQ(faults("src/base/json.cc", "<nlohmann/json.hpp>"), 0U);
  EXPECT_EQ(faults("src/comm/mpi_handles.h", "<mpi.h>"), 0U);
  EXPECT_EQ(faults("src/base/json.h", "<nlohmann/json.hpp>"), 1U);
  EXPECT_EQ(faults("src/config/parse.cc", "<nlohmann/json.hpp>"), 1U);
  EXPECT_EQ(faults("src/train/runtime.cc", "<mpi.h>"), 1U);
  EXPECT_EQ(faults("src/model/x.cc", "<dnnl.hpp>"), 1U);
  EXPECT_EQ(faults("src/dataset/x.cc", "<hdf5.h>"), 1U);
  EXPECT_EQ(faults("src/config/x.cc", "<CLI/CLI.hpp>"), 1U);
  EXPECT_EQ(faults("src/train/x.cc", "<hwloc.h>"), 1U);
  EXPECT_EQ(faults("src/generate/x.cc", "<pcre2.h>"), 1U);
  EXPECT_EQ(faults("src/checkpoint/x.cc", "<xxhash.h>"), 1U);
  EXPECT_EQ(faults("src/train/x.cc", "<spdlog/spdlog.h>"), 1U);
}

TEST(HeavyHeaderRule, no_chain_of_includes_leads_out_of_the_folder) {
  const SourceFile tree[] = {
      {"src/train/x.cc", "#include \"train/y.h\"\n"},
      {"src/train/y.h", "#include \"comm/engine.h\"\n"},
      {"src/comm/engine.h", "#include \"comm/mpi_handles.h\"\n"},
      {"src/comm/mpi_handles.h", "#include <mpi.h>\n"},
      {"src/comm/engine.cc", "#include \"comm/engine.h\"\n"},
  };
  const Faults faults = heavy_header_faults(tree);
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].path, "src/train/y.h");
  EXPECT_EQ(faults[1].path, "src/train/x.cc");
  EXPECT_EQ(count(heavy_header_faults(std::span(tree).subspan(2))), 0U);
}

TEST(StandardHeaderRule, they_are_reached_by_the_programs_headers_alone) {
  const std::string from = "std:" + std::string(":");  // in pieces: this file keeps the rule too
  const SourceFile tree[] = {
      {"src/base/x.h", "#include <cstdint>\n" + from + "int64_t x;"},
      {"src/base/y.h", "#include \"base/x.h\"\n" + from + "uint8_t y;"},
      {"src/base/z.h", "#include <string>\n// " + from + "int8_t\n" + from + "uint8_t z;"},
      {"src/base/z.cc",
       "#include \"base/x.h\"\nvoid f() { " + from + "sort(s.begin(), s.end()); }"},
      {"src/base/w.h", "int w = " + from + "count_words(" + from + "uint8_text());"},
      {"tests/e2e/a.h", "#include <algorithm>"},
      {"tests/e2e/a.cc", "#include \"a.h\"\nint b = " + from + "max(1, 2);"},
  };
  const Faults faults = standard_header_faults(tree);
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].path, "src/base/z.cc");
  EXPECT_EQ(faults[0].problem, from + "sort without <algorithm>");
  EXPECT_EQ(faults[1].path, "src/base/z.h");
  EXPECT_EQ(faults[1].line, 3);
}

TEST(ModelIncludeRule, what_moves_bytes_is_closed_to_the_model) {
  const auto faults = [](std::string path, std::string_view include) {
    return count(model_include_faults(including(std::move(path), include)));
  };
  EXPECT_EQ(faults("src/model/x.cc", "\"comm/communicator.h\""), 1U);
  EXPECT_EQ(faults("src/model/x.h", "\"parallel/mesh_shape.h\""), 1U);
  EXPECT_EQ(faults("src/model/x.h", "\"parallel/tensor_axis.h\""), 0U);
  EXPECT_EQ(faults("src/model/x.h", "\"store/param_store.h\""), 0U);
  EXPECT_EQ(faults("src/model/x.h", "\"store/reduction.h\""), 1U);
  EXPECT_EQ(faults("src/model/x.h", "\"kernels/gemm/gemm.h\""), 0U);
  EXPECT_EQ(faults("src/parallel/x.cc", "\"comm/communicator.h\""), 0U);
}

TEST(StyleRule, each_fault_is_found) {
  const auto faults = [](std::string path, std::string text) {
    return count(style_faults({std::move(path), std::move(text)}));
  };
  EXPECT_EQ(faults("src/a/x.h", "#pragma once\nint x;\n"), 0U);
  EXPECT_EQ(faults("src/a/x.h", "int x;\n"), 1U);
  EXPECT_EQ(faults("src/a/x.h", ""), 1U);
  EXPECT_EQ(faults("src/a/x.cc", "int x;\n"), 0U);
  EXPECT_EQ(faults("src/a/x.cuh", "#pragma once\n  using namespace std;\n"), 1U);
  EXPECT_EQ(faults("src/a/x.cc", "using namespace std::chrono_literals;\n"), 0U);
  EXPECT_EQ(faults("src/a/x.cc", std::string(100, 'x') + "\n"), 0U);
  EXPECT_EQ(faults("src/a/x.cc", std::string(101, 'x') + "\n"), 1U);
  const std::string raw = std::string("R") + "\"(";
  EXPECT_EQ(faults("src/a/x.cc", raw + "\n" + std::string(120, 'x') + ")\";\n"), 1U);
  EXPECT_EQ(faults("src/a/x.cc", raw + "\n" + std::string(117, 'x') + ")\";\n"), 0U);
  EXPECT_EQ(faults("src/a/x.cc", raw + ")\";\n" + std::string(101, 'x')), 1U);
  std::string accented;
  for (int i = 0; i < 100; ++i) accented += "\xc3\xa9";
  EXPECT_EQ(faults("src/a/x.cc", accented), 0U) << "columns are characters, not bytes";
  EXPECT_EQ(faults("src/a/x.cc", std::string(600, '\n')), 0U);
  EXPECT_EQ(faults("src/a/x.cc", std::string(601, '\n')), 1U);
  EXPECT_EQ(faults("src/a/x.cc", "// Made by a script\n" + std::string(601, '\n')), 0U);
  EXPECT_EQ(faults("src/a/x.cc", std::string("// TO") + "DO fix\n"), 1U);
  EXPECT_EQ(faults("src/a/x.cc", std::string("// TO") + "DO(ann): fix, before 1.0\n"), 0U);
}

TEST(OpRule, a_listed_op_needs_contract_source_and_test) {
  const std::string cmake = "# x\nset(ops embedding\n    gemm)\n";
  std::set<std::string> paths = {"kernels/embedding/embedding.h",
                                 "kernels/embedding/embedding_cpu.cc",
                                 "kernels/gemm/gemm.h",
                                 "kernels/gemm/gemm_onednn.cc",
                                 "tests/kernels/embedding_test.cc",
                                 "tests/kernels/gemm_test.cc"};
  EXPECT_EQ(count(op_faults(cmake, paths)), 0U);
  for (const std::string& path : paths) {
    auto without = paths;
    without.erase(path);
    EXPECT_EQ(count(op_faults(cmake, without)), 1U) << path;
  }
  EXPECT_EQ(count(op_faults("nothing", paths)), 1U);
}

TEST(ShellTestRule, a_check_behind_finish_or_without_it_is_found) {
  const auto faults = [](std::string text, std::string path = "tests/e2e/x_test.sh") {
    return count(shell_test_faults({std::move(path), std::move(text)}));
  };
  const std::string sourced = ". \"$(dirname \"$0\")/lib.sh\"\n";
  EXPECT_EQ(faults(sourced + "check a\nfinish\n\n"), 0U);
  EXPECT_EQ(faults(sourced + "finish\ncheck a\n"), 1U);
  EXPECT_EQ(faults(sourced + "check a\n"), 1U);
  EXPECT_EQ(faults(sourced + "finish\ncheck a\nfinish\n"), 1U);
  EXPECT_EQ(faults(". ../cluster/check.sh\ncheck a\n"), 1U);
  EXPECT_EQ(faults("[ 1 = 1 ]\n"), 0U) << "has its own way to fail";
  EXPECT_EQ(faults(sourced + "check a\n", "tests/e2e/lib.sh"), 0U);
}

TEST(MachinePathRule, folders_of_a_machine_are_found) {
  const auto faults = [](std::string text) {
    return count(machine_path_faults({"README.md", std::move(text)}));
  };
  EXPECT_EQ(faults(std::string("see /ro") + "ot/x\n"), 1U);
  EXPECT_EQ(faults(std::string("see /wo") + "rk/main\nor ../" + "shared\n"), 2U);
  EXPECT_EQ(faults("shared roots work/here\n"), 0U);
}

}  // namespace
}  // namespace trireme::house
