#include "plan/cluster_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/nearest_word.h"
#include "base/program_files.h"

namespace trireme {

namespace {

constexpr double kLargest = 1e24;

struct Bounds {
  double from = 0, to = kLargest;
  bool from_excluded = false;
};
constexpr Bounds kPositive{0, kLargest, true}, kNotNegative{}, kShare{0, 1, false};
constexpr Bounds kEfficient{0, Cluster::kEfficiencyMax, true};
enum class Need : std::uint8_t { kRequired, kOptional };

/// Reads the keys of one object, and notes what is wrong with each under its path.
class Reader {
 public:
  Reader(const Json* json, std::string path, std::vector<Problem>& problems)
      : json_(json), path_(std::move(path)), problems_(problems) {
    if (json_ == nullptr || json_->is_object()) return;
    note("", shown(*json_), "an object", "is no object");
    json_ = nullptr;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  /// Keys that nobody has read are faults.
  ~Reader() {
    if (json_ == nullptr) return;
    for (const auto& [key, value] : json_->as_object()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      problems_.push_back({at(key), shown(value), fmt::format("{}", fmt::join(known_, ", ")),
                           nearest_word(key, known_).value_or(""), kUnknownKey});
    }
  }

  /// Null where it is missing or null.
  const Json* find(const char* key, Need need = Need::kOptional) {
    known_.emplace_back(key);
    const Json* found = json_ == nullptr ? nullptr : json_->find(key);
    if (found != nullptr && !found->is_null()) return found;
    if (json_ != nullptr && need == Need::kRequired)
      note(key, "nothing", "a value", "is missing: a prediction needs it");
    return nullptr;
  }
  void number(const char* key, double& value, const Bounds& bounds, Need need = Need::kOptional) {
    const Json* found = find(key, need);
    if (found == nullptr) return;
    const bool fits = found->is_number() && found->as_double() <= bounds.to &&
                      (bounds.from_excluded ? found->as_double() > bounds.from
                                            : found->as_double() >= bounds.from);
    if (fits) {
      value = found->as_double();
    } else {
      note(key, shown(*found), legal_of(bounds), "is no such number");
    }
  }
  void number(const char* key, std::optional<double>& value, const Bounds& bounds) {
    double read = -1;
    number(key, read, bounds);
    if (read >= 0) value = read;
  }
  void integer(const char* key, std::int64_t& value, std::int64_t from,
               Need need = Need::kOptional) {
    const Json* found = find(key, need);
    if (found == nullptr) return;
    if (found->is_integer() && found->as_integer() >= from) {
      value = found->as_integer();
    } else {
      note(key, shown(*found), fmt::format("an integer of at least {}", from), "is no such number");
    }
  }
  /// Empty where it is missing or another word.
  std::string word(const char* key, const std::vector<std::string>& words, Need need) {
    const Json* found = find(key, need);
    if (found == nullptr) return "";
    const std::string given = found->is_string() ? found->as_string() : "";
    if (std::find(words.begin(), words.end(), given) != words.end()) return given;
    problems_.push_back({at(key), shown(*found), fmt::format("\"{}\"", fmt::join(words, "\", \"")),
                         nearest_word(given, words).value_or(""), "is none of the words"});
    return "";
  }
  void text(const char* key, std::string& value, Need need) {
    const Json* found = find(key, need);
    if (found == nullptr) return;
    if (found->is_string()) {
      value = found->as_string();
    } else {
      note(key, shown(*found), "a string", "is no string");
    }
  }
  Reader object(const char* key, Need need = Need::kOptional) {
    const Json* found = find(key, need);
    return {found, at(key), problems_};
  }
  /// `read(entry)` of each entry of a list of objects.
  template <class Read>
  void list(const char* key, const Read& read) {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array()) return note(key, shown(*found), "a list of objects", "is no list");
    for (std::size_t i = 0; i < found->as_array().size(); ++i) {
      Reader entry(&found->as_array()[i], fmt::format("{}[{}]", at(key), i), problems_);
      read(entry);
    }
  }
  [[nodiscard]] bool there() const { return json_ != nullptr; }

 private:
  [[nodiscard]] std::string at(std::string_view key) const {
    return key.empty() ? path_ : fmt::format("{}.{}", path_, key);
  }
  void note(std::string_view key, std::string found, std::string legal, std::string message) {
    problems_.push_back({at(key), std::move(found), std::move(legal), "", std::move(message)});
  }
  static std::string legal_of(const Bounds& bounds) {
    return fmt::format("a number {} {:g} to {:g}", bounds.from_excluded ? "above" : "from",
                       bounds.from, bounds.to);
  }

  const Json* json_;
  const std::string path_;
  std::vector<Problem>& problems_;
  std::vector<std::string> known_;
};

void read_device(Reader keys, Cluster::Device& device) {
  const std::string kind = keys.word("kind", {"cpu", "cuda"}, Need::kRequired);
  device.kind = kind == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
  keys.text("name", device.name, Need::kOptional);
  keys.integer("threads", device.threads, 1);
  keys.integer("memory_bytes", device.memory_bytes, 1, Need::kRequired);
  keys.number("bytes_per_second", device.bytes_per_second, kPositive, Need::kRequired);
  keys.integer("multiprocessors", device.multiprocessors, 0);
  Reader tflops = keys.object("tflops", Need::kRequired);
  tflops.number("fp32", device.tflops.fp32, kPositive, Need::kRequired);
  tflops.number("bf16", device.tflops.bf16, kPositive);
  tflops.number("fp8", device.tflops.fp8, kPositive);
}

void read_tables(Reader& keys, Cluster& cluster) {
  keys.list("gemm", [&](Reader& entry) {
    ProductSeconds product;
    entry.integer("m", product.m, 1, Need::kRequired);
    entry.integer("n", product.n, 1, Need::kRequired);
    entry.integer("k", product.k, 1, Need::kRequired);
    const std::string type = entry.word("dtype", {"fp32", "bf16", "fp8"}, Need::kRequired);
    product.type = type == "fp8" ? DType::kF8E4M3 : type == "bf16" ? DType::kBF16 : DType::kF32;
    entry.number("seconds", product.seconds, kPositive, Need::kRequired);
    cluster.gemm.push_back(product);
  });
  keys.list("memory", [&](Reader& entry) {
    MemorySeconds pass;
    entry.number("bytes", pass.bytes, kPositive, Need::kRequired);
    entry.number("seconds", pass.seconds, kPositive, Need::kRequired);
    cluster.memory.push_back(pass);
  });
  std::sort(cluster.memory.begin(), cluster.memory.end(),
            [](const MemorySeconds& a, const MemorySeconds& b) { return a.bytes < b.bytes; });
}

void read_program(Reader keys, std::optional<OtherProgram>& program) {
  if (!keys.there()) return;
  OtherProgram& other = program.emplace();
  other.flash = keys.word("attention", {"flash", "unfused"}, Need::kRequired) != "unfused";
  keys.number("elementwise_bytes", other.elementwise_bytes, kNotNegative);
  keys.number("cut_elementwise_bytes", other.cut_elementwise_bytes, kNotNegative);
  keys.number("score_bytes", other.score_bytes, kNotNegative);
  keys.number("logit_bytes", other.logit_bytes, kNotNegative);
  keys.number("embedding_bytes", other.embedding_bytes, kNotNegative);
  keys.number("gradient_bytes", other.gradient_bytes, kPositive);
  keys.number("optimizer_bytes", other.optimizer_bytes, kNotNegative);
  Reader overlap = keys.object("overlap");
  overlap.number("tensor", other.overlap.tensor, kShare);
  overlap.number("data", other.overlap.data, kShare);
  overlap.number("pipeline", other.overlap.pipeline, kShare);
}

void read_link(Reader keys, Cluster::Link& link) {
  keys.number("bytes_per_second", link.bytes_per_second, kPositive, Need::kRequired);
  keys.number("latency_seconds", link.latency_seconds, kNotNegative);
}

void read_shares(Reader& keys, Cluster& cluster) {
  Reader efficiency = keys.object("efficiency");
  efficiency.number("gemm", cluster.efficiency.gemm, kEfficient);
  efficiency.number("gemm_fp8", cluster.efficiency.gemm_fp8, kEfficient);
  efficiency.number("memory", cluster.efficiency.memory, kEfficient);
  efficiency.number("attention", cluster.efficiency.attention, kEfficient);
  efficiency.number("node", cluster.efficiency.node, kEfficient);
  efficiency.number("network", cluster.efficiency.network, kEfficient);
  Reader host = keys.object("host");
  host.number("layer_forward_seconds", cluster.host.layer_forward_seconds, kNotNegative);
  host.number("layer_backward_seconds", cluster.host.layer_backward_seconds, kNotNegative);
  host.number("tensor_growth", cluster.host.tensor_growth, kNotNegative);
  host.number("step_seconds", cluster.host.step_seconds, kNotNegative);
}

void read_money(Reader& keys, Cluster& cluster) {
  Reader power = keys.object("power");
  power.number("node_idle_watts", cluster.power.node_idle_watts, kNotNegative);
  power.number("device_watts", cluster.power.device_watts, kNotNegative);
  power.number("pue", cluster.power.pue, {1, 100, false});
  Reader price = keys.object("price");
  price.number("device_hour", cluster.price.device_hour, kNotNegative);
  price.number("kwh", cluster.price.kwh, kNotNegative);
  price.number("storage_gb_month", cluster.price.storage_gb_month, kNotNegative);
}

void read_sources(const Json* sources, Cluster& cluster, std::vector<Problem>& problems) {
  if (sources == nullptr) return;
  if (!sources->is_object()) {
    problems.push_back({"cluster.sources", shown(*sources), "an object of strings", "",
                        "says by path where numbers come from, and is no object"});
    return;
  }
  for (const auto& [path, source] : sources->as_object()) {
    if (source.is_string()) {
      cluster.sources.emplace_back(path, source.as_string());
    } else {
      problems.push_back(
          {"cluster.sources." + path, shown(source), "a string", "", "is no string"});
    }
  }
}

// The same on the way out.

void put(Json& json, const char* key, double value) {
  if (value > 0) json[key] = value;
}
void put(Json& json, const char* key, const std::optional<double>& value) {
  json[key] = value ? Json(*value) : Json();
}

Json device_json(const Cluster::Device& device) {
  Json json;
  json["kind"] = device.kind == DeviceKind::kCpu ? "cpu" : "cuda";
  json["name"] = device.name;
  if (device.kind == DeviceKind::kCpu) json["threads"] = device.threads;
  Json& tflops = json["tflops"];
  put(tflops, "fp32", device.tflops.fp32);
  put(tflops, "bf16", device.tflops.bf16);
  put(tflops, "fp8", device.tflops.fp8);
  json["memory_bytes"] = device.memory_bytes;
  json["bytes_per_second"] = device.bytes_per_second;
  if (device.multiprocessors > 0) json["multiprocessors"] = device.multiprocessors;
  return json;
}

const char* dtype_word(DType type) {
  return is_fp8(type) ? "fp8" : type == DType::kBF16 ? "bf16" : "fp32";
}

void put_tables(const Cluster& cluster, Json& json) {
  if (!cluster.gemm.empty()) json["gemm"] = Json::array();
  for (const ProductSeconds& each : cluster.gemm) {
    json["gemm"].push_back(Json::Object{{"m", each.m},
                                        {"n", each.n},
                                        {"k", each.k},
                                        {"dtype", dtype_word(each.type)},
                                        {"seconds", each.seconds}});
  }
  if (!cluster.memory.empty()) json["memory"] = Json::array();
  for (const MemorySeconds& each : cluster.memory)
    json["memory"].push_back(Json::Object{{"bytes", each.bytes}, {"seconds", each.seconds}});
}

Json program_json(const OtherProgram& other) {
  Json overlap = Json::Object{{"tensor", other.overlap.tensor},
                              {"data", other.overlap.data},
                              {"pipeline", other.overlap.pipeline}};
  return Json::Object{{"attention", other.flash ? "flash" : "unfused"},
                      {"elementwise_bytes", other.elementwise_bytes},
                      {"cut_elementwise_bytes", other.cut_elementwise_bytes},
                      {"score_bytes", other.score_bytes},
                      {"logit_bytes", other.logit_bytes},
                      {"embedding_bytes", other.embedding_bytes},
                      {"gradient_bytes", other.gradient_bytes},
                      {"optimizer_bytes", other.optimizer_bytes},
                      {"overlap", std::move(overlap)}};
}

Json link_json(const Cluster::Link& link) {
  return Json::Object{{"bytes_per_second", link.bytes_per_second},
                      {"latency_seconds", link.latency_seconds}};
}

void put_shares(const Cluster& cluster, Json& json) {
  Json& efficiency = json["efficiency"];
  efficiency["gemm"] = cluster.efficiency.gemm;
  if (cluster.efficiency.gemm_fp8) efficiency["gemm_fp8"] = *cluster.efficiency.gemm_fp8;
  efficiency["memory"] = cluster.efficiency.memory;
  efficiency["attention"] = cluster.efficiency.attention;
  efficiency["node"] = cluster.efficiency.node;
  efficiency["network"] = cluster.efficiency.network;
  json["host"] = Json::Object{{"layer_forward_seconds", cluster.host.layer_forward_seconds},
                              {"layer_backward_seconds", cluster.host.layer_backward_seconds},
                              {"tensor_growth", cluster.host.tensor_growth},
                              {"step_seconds", cluster.host.step_seconds}};
}

void put_money(const Cluster& cluster, Json& json) {
  Json& power = json["power"];
  put(power, "node_idle_watts", cluster.power.node_idle_watts);
  put(power, "device_watts", cluster.power.device_watts);
  power["pue"] = cluster.power.pue;
  Json& price = json["price"];
  put(price, "device_hour", cluster.price.device_hour);
  put(price, "kwh", cluster.price.kwh);
  put(price, "storage_gb_month", cluster.price.storage_gb_month);
}

/// The file that is meant; empty, with a problem, where a name is none of ours.
std::string path_of(const std::string& path_or_name, std::vector<Problem>& problems) {
  std::error_code ignored;
  const bool like_path = path_or_name.find('/') != std::string::npos ||
                         path_or_name.ends_with(".json") ||
                         std::filesystem::is_regular_file(path_or_name, ignored);
  if (like_path) return path_or_name;
  const auto named = find_program_file("configs/clusters/" + path_or_name + ".json");
  if (!named.empty()) return named.string();
  const std::vector<std::string> names = cluster_names();
  problems.push_back({"--cluster", Json(path_or_name).dump(),
                      fmt::format("a file, or one of {}", fmt::join(names, ", ")),
                      nearest_word(path_or_name, names).value_or(""),
                      "is no cluster that comes with this program"});
  return "";
}

}  // namespace

double Cluster::peak_flops(DType type) const {
  const Device::Tflops& of = device.tflops;
  const double bf16 = of.bf16 > 0 ? of.bf16 : of.fp32;
  if (is_fp8(type)) return 1e12 * (of.fp8 > 0 ? of.fp8 : bf16);
  return 1e12 * (type == DType::kBF16 ? bf16 : of.fp32);
}

Cluster parse_cluster(const Json& json, std::vector<Problem>& problems) {
  Cluster cluster;
  Reader keys(&json, "cluster", problems);
  keys.text("name", cluster.name, Need::kRequired);
  keys.integer("devices_per_node", cluster.devices_per_node, 1, Need::kRequired);
  keys.integer("cores_per_node", cluster.cores_per_node, 0);
  read_device(keys.object("device", Need::kRequired), cluster.device);
  keys.number("shared_bytes_per_second", cluster.shared_bytes_per_second, kPositive);
  keys.number("cold_bytes_per_second", cluster.cold_bytes_per_second, kPositive);
  read_tables(keys, cluster);
  read_program(keys.object("program"), cluster.program);
  read_link(keys.object("node", Need::kRequired), cluster.node);
  read_link(keys.object("network", Need::kRequired), cluster.network);
  read_shares(keys, cluster);
  read_money(keys, cluster);
  read_sources(keys.find("sources"), cluster, problems);
  return cluster;
}

Json cluster_file_json(const Cluster& cluster) {
  Json json;
  json["name"] = cluster.name;
  json["devices_per_node"] = cluster.devices_per_node;
  if (cluster.cores_per_node > 0) json["cores_per_node"] = cluster.cores_per_node;
  json["device"] = device_json(cluster.device);
  if (cluster.shared_bytes_per_second > 0)
    json["shared_bytes_per_second"] = cluster.shared_bytes_per_second;
  if (cluster.cold_bytes_per_second > 0)
    json["cold_bytes_per_second"] = cluster.cold_bytes_per_second;
  put_tables(cluster, json);
  if (cluster.program) json["program"] = program_json(*cluster.program);
  json["node"] = link_json(cluster.node);
  json["network"] = link_json(cluster.network);
  put_shares(cluster, json);
  put_money(cluster, json);
  if (!cluster.sources.empty()) json["sources"] = Json::object();
  for (const auto& [path, source] : cluster.sources) json["sources"][path] = source;
  return json;
}

Cluster read_cluster(const std::string& path_or_name, std::vector<Problem>& problems) {
  const std::string path = path_of(path_or_name, problems);
  if (path.empty()) return {};
  JsonRules rules;
  rules.code = ExitCode::kConfig;
  rules.comments = true;
  return parse_cluster(parse_json(read_file(path), path, rules), problems);
}

std::vector<std::string> cluster_names() {
  const auto page = find_program_file("configs/clusters/README.md");
  std::vector<std::string> names;
  if (page.empty()) return names;
  for (const auto& entry : std::filesystem::directory_iterator(page.parent_path()))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trireme
