// Writes the inputs that the fuzzers begin with, and dictionaries made of the program's own tables:
// fuzz_seeds GOLDEN CONFIGS OUTPUT -> OUTPUT/READER/..., OUTPUT/READER.dict
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint_seed.h"
#include "config/aliases.h"
#include "config/fields.h"
#include "config/model_keys.h"
#include "fuzz_support.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/indexed_writer.h"
#include "tokenizer/pre_tokenizer.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

std::filesystem::path output;

void write(const std::string& reader, const std::string& name, std::string_view bytes) {
  const std::filesystem::path file = output / reader / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

class Dictionary {
 public:
  void add(std::string_view word) {
    text_ += '"';
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte >= 0x7F || c == '"' || c == '\\') {
        text_ += fmt::format("\\x{:02x}", byte);
      } else {
        text_ += c;
      }
    }
    text_ += "\"\n";
  }
  void add_key(std::string_view key) { add(Json(key).dump() + ": "); }
  void add_json() {
    for (const char* word : {"{",
                             "}",
                             "[",
                             "]",
                             ",",
                             ":",
                             "null",
                             "true",
                             "false",
                             "0",
                             "-1",
                             "1e400",
                             "1e-400",
                             "0.5",
                             "9223372036854775807",
                             "18446744073709551616",
                             "\"\"",
                             "\\u0000",
                             "\\ud800",
                             "\xed\xa0\x80",
                             "\n%%\n"})
      add(word);
  }
  void save(const char* reader) const {
    std::ofstream(output / (std::string(reader) + ".dict")) << text_;
  }

 private:
  std::string text_;
};

void make_config_seeds(const std::filesystem::path& golden, const std::filesystem::path& configs) {
  const std::string llama = read_file(configs / "tiny_llama.json");
  write("config", "llama", llama);
  write("config", "gpt2", read_file(configs / "tiny_gpt2.json"));
  const std::string small =
      R"({"run":{"directory":"r","steps":2},"model":"m.json","data":{"train":[[1,"a"],[0.5,"b"]],)"
      R"("sequence_length":8},"batch":{"micro":1},"optimizer":{"lr":1e-3}})";
  const Json models = parse_json(read_file(golden / "config/models.json"), "models.json");
  std::size_t number = 0;
  const Json::Array* cases = models.is_array() ? &models.as_array() : nullptr;
  const auto add_model = [&](const Json& model) {
    write("config", fmt::format("model-{}", number++),
          small + "\n%%\n{\"run\":{\"steps\":null,\"tokens\":64}}\n%%\n" + model.dump() +
              "\n%%\noptimizer.lr=2e-3\nrun.device=cpu\nlr_schedule={\"kind\":\"wsd\"}");
  };
  for (const auto& entry : std::filesystem::directory_iterator(golden / "model")) {
    const auto file = entry.path() / "config.json";
    if (std::filesystem::exists(file)) add_model(parse_json(read_file(file), "config.json"));
  }
  if (cases != nullptr && !cases->empty()) add_model(cases->front());
  Dictionary words;
  words.add_json();
  for (const char* word : {"//", "/*", "*/", "$schema", "synthetic", "m.json", "path"})
    words.add(word);
  for (const Field& field : fields()) {
    words.add_key(field.key());
    words.add(field.path + "=");
    for (const std::string& value : field.values) words.add(Json(value).dump());
  }
  for (const std::string& section : sections()) words.add_key(section);
  for (const auto& [alias, path] : key_aliases()) words.add_key(alias);
  for (const char* key :
       {"model_type",          "rope_scaling",     "rope_parameters",
        "rope_type",           "factor",           "rope_theta",
        "low_freq_factor",     "high_freq_factor", "original_max_position_embeddings",
        "beta_fast",           "mscale",           "head_dim",
        "tie_word_embeddings", "attention_bias",   "mlp_bias",
        "layer_types",         "sliding_window",   "use_sliding_window",
        "eos_token_id",        "n_inner",          "hidden_act"})
    words.add_key(key);
  for (const char* value :
       {"llama", "mistral", "qwen2", "qwen3", "gpt2", "mixtral", "linear", "llama3", "yarn"})
    words.add(Json(value).dump());
  words.save("config");
}

void make_indexed_seeds(const std::filesystem::path& golden) {
  const auto add = [](const std::string& name, const std::filesystem::path& prefix) {
    const auto file = [&](const char* suffix) {
      const std::filesystem::path path = prefix.string() + suffix;
      return std::filesystem::exists(path) ? read_file(path) : std::string();
    };
    const std::string parts[] = {file(".idx"), file(".bin"), file(".json")};
    write("indexed", name, join_parts(parts));
  };
  for (const char* name : {"gaps", "long", "nested"}) add(name, golden / "megatron" / name);
  for (const std::int32_t vocab_size : {300, 70000}) {
    const std::filesystem::path prefix = folder() / fmt::format("own-{}", vocab_size);
    IndexedWriter writer(prefix, vocab_size);
    for (std::int32_t document = 0; document < 3; ++document) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(document + 2), 7 * document);
      writer.append(ids);
      writer.end_document();
    }
    writer.finish(Json::Object{{"tokenizer_hash", "byte"}});
    add(prefix.filename().string(), prefix);
  }
  Dictionary words;
  words.add(std::string_view("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17));
  for (const char* key : {"documents", "tokens", "largest_id", "tokenizer_hash"})
    words.add_key(key);
  words.save("indexed");
}

std::string safetensors_of(std::vector<SafetensorsWriter::Tensor> tensors, DType dtype) {
  const std::filesystem::path place = folder() / "weights";
  std::filesystem::create_directories(place);
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  SafetensorsWriter writer(place, dtype, std::move(tensors));
  for (const SafetensorsWriter::Tensor& tensor : writer.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.count()), 0.5F);
    writer.write(values);
  }
  writer.finish();
  return read_file(place / "model.safetensors");
}

void make_safetensors_seeds() {
  const auto add = [](const char* name, std::vector<std::string> parts) {
    write("safetensors", name, join_parts(parts));
  };
  const SafetensorsWriter::Tensor embedding{"model.embed_tokens.weight", {3, 2}};
  const std::string tied = safetensors_of({embedding}, DType::kF32);
  add("embedding", {"", tied, ""});
  add("with_head", {"", safetensors_of({embedding, {"lm_head.weight", {3, 2}}}, DType::kBF16), ""});
  add("gpt2", {"", safetensors_of({{"wte.weight", {3, 2}}, {"ln_f.bias", {2}}}, DType::kF32), ""});
  add("odd",
      {"", safetensors_of({{"a", {}}, {"b", {0, 4}}, {"c", {1, 2, 1, 2, 3}}}, DType::kF32), ""});
  add("two_files",
      {R"({"metadata":{"total_size":32},"weight_map":{"model.embed_tokens.weight":"a.safetensors",)"
       R"("h.attn.bias":"b.safetensors"}})",
       tied, safetensors_of({{"h.attn.bias", {2}}}, DType::kF32)});
  Dictionary words;
  words.add_json();
  for (const char* key : {"dtype", "shape", "data_offsets", "__metadata__", "weight_map", "format"})
    words.add_key(key);
  for (const char* word :
       {"F32", "F16", "BF16", "F64", "I64", "BOOL", "F4", "F6_E2M3", "U8", "F8_E4M3",
        "lm_head.weight", "model.embed_tokens.weight", "wte.weight", "ln_f.bias", "transformer.",
        ".attn.bias", "a.safetensors", "b.safetensors", "../"})
    words.add(word);
  words.save("safetensors");
}

/// A byte-level vocabulary with a few merges: small enough to be changed in every place.
std::string small_tokenizer(std::string_view pre_tokenizer, std::string_view extra) {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += Json(to_byte_level(std::string(1, static_cast<char>(byte)))).dump() +
                  fmt::format(":{},", byte);
  }
  return fmt::format(R"({{"version":"1.0",{}"pre_tokenizer":{},"decoder":{{"type":"ByteLevel"}},)"
                     R"("model":{{"type":"BPE","merges":["t h","th e",["Ġ","t"],["Ġt","he"]],)"
                     R"("vocab":{{{}"th":256,"the":257,"Ġt":258,"Ġthe":259}}}}}})",
                     extra, pre_tokenizer, vocabulary);
}

constexpr const char* kTokenizerKeys[] = {"type",
                                          "pre_tokenizer",
                                          "normalizer",
                                          "normalizers",
                                          "decoder",
                                          "decoders",
                                          "post_processor",
                                          "processors",
                                          "pretokenizers",
                                          "added_tokens",
                                          "model",
                                          "vocab",
                                          "merges",
                                          "id",
                                          "content",
                                          "special",
                                          "normalized",
                                          "lstrip",
                                          "rstrip",
                                          "single_word",
                                          "pattern",
                                          "Regex",
                                          "String",
                                          "behavior",
                                          "invert",
                                          "add_prefix_space",
                                          "use_regex",
                                          "trim_offsets",
                                          "individual_digits",
                                          "unk_token",
                                          "fuse_unk",
                                          "ignore_merges",
                                          "byte_fallback",
                                          "dropout",
                                          "prepend",
                                          "replacement",
                                          "prepend_scheme",
                                          "split",
                                          "start",
                                          "stop",
                                          "version"};
constexpr const char* kTokenizerValues[] = {"BPE",
                                            "ByteLevel",
                                            "Split",
                                            "Digits",
                                            "Sequence",
                                            "NFC",
                                            "Prepend",
                                            "Replace",
                                            "Metaspace",
                                            "ByteFallback",
                                            "Fuse",
                                            "Strip",
                                            "first",
                                            "always",
                                            "never",
                                            "<0x0A>",
                                            "▁",
                                            "Isolated",
                                            "Removed",
                                            "MergedWithPrevious",
                                            "MergedWithNext",
                                            "Contiguous",
                                            "TemplateProcessing",
                                            "<|endoftext|>",
                                            "</s>",
                                            "#version: 0.2"};

void save_tokenizer_words() {
  Dictionary words;
  words.add_json();
  for (const char* key : kTokenizerKeys) words.add_key(key);
  for (const char* value : kTokenizerValues) words.add(Json(value).dump());
  for (const char* regex :
       {"\\\\p{L}", "\\\\p{^N}", "\\\\s+", "\\\\S", "(?!", "(?<=", "(?i:", "(?>", "[^", "{1,3}",
        "*+", "\\\\x{10ffff}", "\\\\u0041", "|", ".*?", "((a+)+)+b"})
    words.add(regex);
  words.save("tokenizer");
}

void make_tokenizer_seeds(const std::filesystem::path& golden) {
  const std::string text = "\n%%\nthe Thé they'll 1234  the\n\nthe \xff<|end|> x\tthe\nthat";
  const auto byte_level = [](bool regex) {
    return fmt::format(R"({{"type":"ByteLevel","add_prefix_space":false,"use_regex":{}}})", regex);
  };
  const std::string end =
      R"("added_tokens":[{"id":260,"content":"<|end|>","special":true,"normalized":false,)"
      R"("lstrip":false,"rstrip":false,"single_word":false}],)";
  write("tokenizer", "byte_level", small_tokenizer(byte_level(true), "") + text);
  write("tokenizer", "added", small_tokenizer(byte_level(true), end) + text);
  write("tokenizer", "nfc",
        small_tokenizer(byte_level(true), R"("normalizer":{"type":"NFC"},)") + text);
  const auto split = [&](const std::string& regex, const char* behavior, bool invert) {
    return fmt::format(
        R"({{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":{{"Regex":{}}},)"
        R"("behavior":"{}","invert":{}}},{{"type":"Digits","individual_digits":true}},{}]}})",
        Json(regex).dump(), behavior, invert, byte_level(false));
  };
  write("tokenizer", "split",
        small_tokenizer(split(R"(\p{N}{1,3}| ?\p{L}+|\s+(?!\S))", "Isolated", false), end) + text);
  write("tokenizer", "inverted",
        small_tokenizer(split(R"((?i:'s|'t)|[^\r\n\p{L}]+)", "MergedWithNext", true), end) + text);
  for (const char* name : {"llama3", "qwen", "roberta", "deepseek", "llama2", "mistral", "gemma",
                           "metaspace", "crossing"})
    write("tokenizer", name,
          read_file(golden / "tokenizer" / (std::string(name) + ".tokenizer.json")) + text);
  save_tokenizer_words();
}

void make_checkpoint_seeds() {
  const SeedCheckpoint seed = make_seed_checkpoint(folder(), false);
  const SeedCheckpoint split = make_seed_checkpoint(folder(), true);
  Json unhashed = parse_json(seed.manifest, "manifest");
  unhashed.erase("manifest_xxh3_128");
  const std::string with_true[] = {"", ""}, with_true_split[] = {"split", ""};
  const std::string with_own[] = {unhashed.dump(), seed.file};
  write("checkpoint", "true", join_parts(with_true));
  write("checkpoint", "true_split", join_parts(with_true_split));
  write("manifest", "split", split.manifest);
  write("checkpoint", "own_manifest", join_parts(with_own));
  write("manifest", "saved", seed.manifest);
  write("manifest", "without_hash", unhashed.dump(1));
  unhashed["files"] = parse_json(
      R"([{"file":"tokenizer.json","bytes":3,"xxh3_128":"00000000000000000000000000000000"}])", "");
  unhashed["stores"] = parse_json(
      R"([{"file":"rank-00000.h5","bytes":20,"frame_xxh3_128":"0123456789abcdef0123456789abcdef"},
          {"file":"rank-00001.h5","bytes":99,"frame_xxh3_128":"0123456789abcdef0123456789abcdef"}])",
      "");
  unhashed["tensors"] = parse_json(
      R"({"parameters/w":{"dtype":"fp32","shape":[4,2],"shards":[
          {"file":"rank-00000.h5","dataset":"parameters/w/at-0-0","byte_offset":4,"offset":[0,0],"shape":[2,2],
           "xxh3_128":"0123456789abcdef0123456789abcdef"},
          {"file":"rank-00001.h5","dataset":"parameters/w/at-2-0","byte_offset":8,"offset":[2,0],"shape":[2,2],
           "xxh3_128":"0123456789abcdef0123456789abcdef"}]}})",
      "");
  write("manifest", "two_shards", unhashed.dump());
  Dictionary words;
  words.add_json();
  for (const char* key : {"format_version",
                          "step",
                          "consumed_samples",
                          "mesh",
                          "zero_stage",
                          "model",
                          "tokenizer",
                          "scalars",
                          "versions",
                          "files",
                          "tensors",
                          "dtype",
                          "shape",
                          "shards",
                          "file",
                          "dataset",
                          "offset",
                          "xxh3_128",
                          "bytes",
                          "manifest_xxh3_128",
                          "byte_offset",
                          "stores",
                          "frame_xxh3_128"})
    words.add_key(key);
  for (const char* word : {"fp32", "bf16", "fp64", "int32", "rank-00000.h5", "../", "[0]", "[0,0]",
                           "parameters/", "0123456789abcdef0123456789abcdef"})
    words.add(word);
  words.save("manifest");
  words.save("checkpoint");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: fuzz_seeds GOLDEN CONFIGS OUTPUT\n");
    return 2;
  }
  const std::filesystem::path golden = argv[1];
  output = argv[3];
  std::filesystem::remove_all(output);
  make_config_seeds(golden, argv[2]);
  make_indexed_seeds(golden);
  make_safetensors_seeds();
  make_tokenizer_seeds(golden);
  make_checkpoint_seeds();
  return 0;
}
