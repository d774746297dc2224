#include "plan/cluster_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"

namespace trireme {
namespace {

constexpr const char* kLeast = R"({"name": "c", "devices_per_node": 2,
    "device": {"kind": "cpu", "tflops": {"fp32": 0.5}, "memory_bytes": 1000, "bytes_per_second": 2e10},
    "node": {"bytes_per_second": 1e10}, "network": {"bytes_per_second": 1e9}})";

/// kLeast with a value in place of another; `at` is "device.tflops" or "".
Json edited(const std::vector<std::string>& at, const char* value) {
  Json json = parse_json(kLeast, "test");
  Json* place = &json;
  for (const std::string& key : at) place = &(*place)[key];
  *place = parse_json(value, "test");
  return json;
}

std::vector<Problem> problems_of(const Json& json) {
  std::vector<Problem> problems;
  parse_cluster(json, problems);
  return problems;
}

TEST(ClusterFile, the_least_that_it_needs) {
  std::vector<Problem> problems;
  const Cluster cluster = parse_cluster(parse_json(kLeast, "test"), problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(cluster.device.kind, DeviceKind::kCpu);
  EXPECT_DOUBLE_EQ(cluster.peak_flops(DType::kBF16), 0.5e12);  // what it has
  EXPECT_FALSE(cluster.price.device_hour || cluster.power.device_watts || cluster.program);
}

TEST(ClusterFile, a_number_beyond_all_machines_is_told_the_largest) {
  const std::vector<Problem> problems = problems_of(edited({"node", "bytes_per_second"}, "1e25"));
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems.front().legal, "a number above 0 to 1e+24");
}

TEST(ClusterFile, each_fault_has_its_path_and_what_is_legal) {
  struct Case {
    std::vector<std::string> at;
    const char *value, *path, *nearest;
  };
  const Case cases[] = {
      {{"devices_per_node"}, "0", "cluster.devices_per_node", ""},
      {{"cores_per_node"}, "-1", "cluster.cores_per_node", ""},
      {{"device", "kind"}, "\"cudaa\"", "cluster.device.kind", "cuda"},
      {{"device", "tflops", "bf16"}, "-1", "cluster.device.tflops.bf16", ""},
      {{"device", "tflops", "fp32"}, "null", "cluster.device.tflops.fp32", ""},
      {{"device", "bytes_per_second"}, "\"fast\"", "cluster.device.bytes_per_second", ""},
      {{"device", "memory_byte"}, "1", "cluster.device.memory_byte", "memory_bytes"},
      {{"node"}, "3", "cluster.node", ""},
      {{"efficiency", "gemm"}, "1.6", "cluster.efficiency.gemm", ""},
      {{"power", "pue"}, "0.5", "cluster.power.pue", ""},
      {{"prices"}, "{}", "cluster.prices", "price"},
      {{"gemm"},
       R"([{"m": 1, "n": 1, "k": 1, "dtype": "fp16", "seconds": 1}])",
       "cluster.gemm[0].dtype",
       "fp32"},
      {{"memory"}, R"([{"bytes": 1, "seconds": 0}])", "cluster.memory[0].seconds", ""},
      {{"program"},
       R"({"attention": "flash", "overlap": {"tensor": 2}})",
       "cluster.program.overlap.tensor",
       ""},
      {{"sources"}, R"({"node": 1})", "cluster.sources.node", ""},
  };
  for (const Case& of : cases) {
    const std::vector<Problem> problems = problems_of(edited(of.at, of.value));
    ASSERT_EQ(problems.size(), 1) << of.path << "\n" << format_problems(problems);
    EXPECT_EQ(problems.front().path, of.path);
    EXPECT_NE(problems.front().legal, "") << of.path;
    EXPECT_EQ(problems.front().nearest, of.nearest) << of.path;
  }
}

TEST(ClusterFile, all_faults_at_once) {
  EXPECT_EQ(problems_of(parse_json(R"({"device": {"kind": "cpu"}, "node": {}})", "test")).size(),
            7);
}

TEST(ClusterFile, those_that_come_with_the_program) {
  EXPECT_EQ(cluster_names(), (std::vector<std::string>{"a100", "b200", "h100", "h200"}));
  for (const std::string& name : cluster_names()) {
    std::vector<Problem> problems;
    const Cluster cluster = read_cluster(name, problems);
    EXPECT_TRUE(problems.empty()) << format_problems(problems);
    EXPECT_EQ(cluster.name, name);
    EXPECT_FALSE(cluster.price.device_hour || cluster.price.kwh || cluster.price.storage_gb_month);
  }
}

/// Whether the number at `path` has a source there or at a part above it.
bool has_source(const Cluster& cluster, const std::string& path) {
  return std::any_of(cluster.sources.begin(), cluster.sources.end(), [&](const auto& source) {
    return path == source.first || path.starts_with(source.first + ".");
  });
}

void check_sources(const Cluster& cluster, const Json& json, const std::string& path) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.as_object())
      check_sources(cluster, value, path.empty() ? key : path + "." + key);
  } else if (json.is_number() && path != "devices_per_node" && path != "power.pue") {
    EXPECT_TRUE(has_source(cluster, path)) << cluster.name << ": " << path;
  }
}

TEST(ClusterFile, each_number_of_ours_has_its_source) {
  for (const std::string& name : cluster_names()) {
    const std::string path = std::string(TRIREME_CONFIGS) + "/clusters/" + name + ".json";
    std::vector<Problem> problems;
    check_sources(read_cluster(path, problems), parse_json(read_file(path), path), "");
  }
}

TEST(ClusterFile, a_name_that_nobody_has_gets_the_nearest) {
  std::vector<Problem> problems;
  read_cluster("h20", problems);
  ASSERT_EQ(problems.size(), 1);
  EXPECT_EQ(problems.front().path, "--cluster");
  EXPECT_EQ(problems.front().nearest, "h200");
  EXPECT_NE(problems.front().legal.find("a100"), std::string::npos);
  EXPECT_THROW(read_cluster("nowhere/h100.json", problems), DataError);
}

TEST(ClusterFile, what_is_written_is_read_back) {
  for (const std::string& name : cluster_names()) {
    std::vector<Problem> problems;
    Cluster cluster = read_cluster(name, problems);
    cluster.gemm = {{1, 2, 3, DType::kF8E4M3, 0.25}, {4, 5, 6, DType::kBF16, 0.5}};
    cluster.cores_per_node = 3;
    cluster.cold_bytes_per_second = 5e9;
    cluster.memory = {{1e3, 1e-6}, {1e6, 1e-3}};
    cluster.program.emplace().overlap.data = 0.5;
    cluster.price.kwh = 0.1;
    const Json written = cluster_file_json(cluster);
    const Cluster read = parse_cluster(written, problems);
    EXPECT_TRUE(problems.empty()) << format_problems(problems);
    EXPECT_EQ(cluster_file_json(read), written);
    EXPECT_EQ(read.gemm[0].type, DType::kF8E4M3);
    EXPECT_EQ(read.device.multiprocessors, cluster.device.multiprocessors);
    EXPECT_EQ(read.efficiency.gemm_fp8, cluster.efficiency.gemm_fp8);
    EXPECT_EQ(read.power.node_idle_watts, cluster.power.node_idle_watts);
    EXPECT_EQ(read.sources, cluster.sources);
  }
}

}  // namespace
}  // namespace trireme
