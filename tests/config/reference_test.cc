// configs/README.md and the schema beside it, which are made from the field table and committed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "config/fields.h"
#include "config/schema.h"

namespace trireme {
namespace {

constexpr std::string_view kIntroduction = R"(# Configs

Generated from the field table (`src/config/field_table.cc`); a test fails when it is stale, and writes it when
`TRIREME_WRITE_REFERENCE=1` is set.

`train A.json B.json --set key.path=value`: later wins, objects merge, arrays replace, null removes. `//` comments are
allowed. Paths are relative to the working directory. `model` holds the keys of a Hugging Face config, or the path of a
config.json or of its directory, or `{"path": P, key: override}`. A run's folder stands for its config.json.

Integers may be written with a unit: counts with k, M, B, T (`"4k"` is 4000, `"10B"` 10^10), bytes with KB ... TB
and KiB ... TiB (`"2GiB"`); `data.sequence_length` takes none, as 4k may be 4000 or 4096. Resolved configs hold plain
numbers.

Configs to begin with: `MODEL_Ngpu.json` in `gemma3`, `gpt2`, `llama3`, `mistral`, `olmo2`, `olmo3`, `qwen2.5`, `qwen3`,
`smollm2`, `smollm3`, for one GPU of 80 GB, a node of 8, 8 nodes, 64 nodes: copy one, set `data` and `tokenizer`, look
at it with `train plan FILE --world N`, start it. `tiny_*.json` run anywhere, without data. `config.schema.json` is for
editors.
)";

std::string config_reference_markdown() {
  const auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
      text.insert(at, "\\");
    return text;
  };
  static const RunConfig defaults;
  std::string out(kIntroduction);
  std::string section = "-";
  for (const Field& field : fields()) {
    if (field.section() != section) {
      section = std::string(field.section());
      out += section.empty() ? std::string("\n## At the top level\n\n")
                             : fmt::format("\n## {}\n\n", section);
      out += "| key | value | default | meaning |\n|---|---|---|---|\n";
    }
    const bool required = field.row.presence == Presence::kRequired;
    const Json value = required ? Json() : field.read(defaults);
    std::string initial = required          ? "**required**"
                          : value.is_null() ? std::string(field.row.default_text)
                                            : fmt::format("`{}`", value.dump());
    out += fmt::format("| `{}` | {} | {} | {} |\n", field.key(), cell(field.legal),
                       cell(std::move(initial)), cell(describe(field)));
  }
  return out;
}

TEST(Reference, the_committed_one_is_that_of_the_field_table) {
  const std::filesystem::path file = std::filesystem::path(TRIREME_CONFIGS) / "README.md";
  const std::string fresh = config_reference_markdown();
  if (std::getenv("TRIREME_WRITE_REFERENCE") != nullptr) write_file_atomically(file, fresh);
  EXPECT_TRUE(read_file(file) == fresh)
      << "set TRIREME_WRITE_REFERENCE=1 and run this test again to write it";
}

// The configs of known models name it.
TEST(Reference, the_committed_schema_is_that_of_the_field_table) {
  const std::filesystem::path file = std::filesystem::path(TRIREME_CONFIGS) / "config.schema.json";
  const std::string fresh = config_schema().dump(2) + "\n";
  if (std::getenv("TRIREME_WRITE_REFERENCE") != nullptr) write_file_atomically(file, fresh);
  EXPECT_TRUE(read_file(file) == fresh)
      << "set TRIREME_WRITE_REFERENCE=1 and run this test again to write it";
}

TEST(Reference, names_every_field) {
  const std::string text = config_reference_markdown();
  for (const Field& field : fields()) {
    EXPECT_NE(text.find(fmt::format("| `{}` |", field.key())), std::string::npos) << field.path;
  }
}

}  // namespace
}  // namespace trireme
