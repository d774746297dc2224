#include <algorithm>
#include <fstream>

#include "base/file.h"
#include "e2e/random_configs/judge.h"
#include "e2e/random_configs/process.h"

namespace trireme {

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

/// Documents of 0 to 200 letters as JSON lines.
std::string documents(std::uint64_t seed, int count) {
  Dice dice(stream_key(seed, "documents"));
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string line;
    const std::int64_t words = dice.between(0, 40);
    for (std::int64_t w = 0; w < words; ++w) {
      line += dice.word({"oar", "bank", "sea", "rhythm", "stroke", "\xc3\xa9t\xc3\xa9"});
      for (std::int64_t letters = dice.between(0, 3); letters > 0; --letters)
        line += static_cast<char>('a' + dice.between(0, 25));
      line += ' ';
    }
    text += Json(Json::Object{{"text", line}}).dump() + "\n";
  }
  return text;
}

class Maker {
 public:
  Maker(const Tools& tools, const std::filesystem::path& folder) : tools_(tools), folder_(folder) {}

  Fixtures make() {
    std::filesystem::create_directories(folder_);
    write(folder_ / "a.jsonl", documents(1, 400));
    write(folder_ / "b.jsonl", documents(2, 150));
    write(folder_ / "text.txt", documents(3, 300));
    write(folder_ / "short.txt", "a few");
    const std::string bpe = (folder_ / "bpe.json").string();
    train({"tokenizer", "--vocab-size", "300", "--output", bpe, "text.txt"});
    add("bytes_a", "byte", {"--jsonl", "text", "a.jsonl"});
    add("bytes_b", "byte", {"--jsonl", "text", "b.jsonl"});
    add("bpe_a", bpe, {"--jsonl", "text", "a.jsonl"});
    add("bpe_b", bpe, {"--jsonl", "text", "b.jsonl"});
    add("short", "byte", {"short.txt"});
    made_.short_tokens = made_.tokens.back();
    made_.tokens.pop_back();
    // As Megatron's tools leave them: nobody says what the largest id is.
    for (const char* end : {".bin", ".idx"}) {
      std::filesystem::copy_file(folder_ / (std::string("bytes_a") + end),
                                 folder_ / (std::string("foreign") + end));
    }
    Fixtures::Tokens foreign = made_.tokens.front();
    foreign.prefix = (folder_ / "foreign").string();
    made_.tokens.push_back(foreign);
    add_weights();
    add_cluster();
    return std::move(made_);
  }

 private:
  void train(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), tools_.train.string());
    const Ended ended = run_program(arguments, folder_, "fixture");
    expect(ended.code == 0, "{} {}: exit {}\n{}", arguments[0], arguments[1], ended.code,
           ended.log);
  }

  void add(const char* name, const std::string& tokenizer, std::vector<std::string> input) {
    Fixtures::Tokens tokens;
    tokens.prefix = (folder_ / name).string();
    tokens.tokenizer = tokenizer;
    tokens.vocabulary = tokenizer == "byte" ? 257 : 300;
    std::vector<std::string> arguments = {"tokenize", "--tokenizer", tokenizer, "--output",
                                          tokens.prefix};
    arguments.insert(arguments.end(), input.begin(), input.end());
    train(std::move(arguments));
    made_.tokens.push_back(std::move(tokens));
  }

  void add_weights() {
    for (const auto& entry : std::filesystem::directory_iterator(tools_.golden / "model")) {
      if (std::filesystem::exists(entry.path() / "model.safetensors"))
        made_.weights.push_back(entry.path().string());
    }
    // A folder's order is the file system's.
    std::sort(made_.weights.begin(), made_.weights.end());
    write(folder_ / "donor.json", R"({"run": {"directory": "donor", "steps": 1},
      "model": {"model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 20,
                "num_hidden_layers": 2, "num_attention_heads": 2},
      "data": {"train": "synthetic", "sequence_length": 4}, "batch": {"micro": 1},
      "optimizer": {"lr": 1e-3}})");
    train({"donor.json"});
    made_.checkpoints.push_back((folder_ / "donor").string());
    train({"export", "--checkpoint", "donor", "--output", "exported"});
    made_.weights.push_back((folder_ / "exported").string());
  }

  void add_cluster() {
    made_.cluster = (folder_ / "cluster.json").string();
    write(made_.cluster, R"({"name": "here", "devices_per_node": 8,
      "device": {"kind": "cpu", "tflops": {"fp32": 0.1, "bf16": 0.05, "fp8": 0.02},
                 "memory_bytes": 1000000000, "bytes_per_second": 1e10},
      "node": {"bytes_per_second": 1e9, "latency_seconds": 1e-5},
      "network": {"bytes_per_second": 1e9}})");
  }

  const Tools& tools_;
  const std::filesystem::path folder_;
  Fixtures made_;
};

}  // namespace

Fixtures make_fixtures(const Tools& tools, const std::filesystem::path& folder) {
  return Maker(tools, folder).make();
}

}  // namespace trireme
