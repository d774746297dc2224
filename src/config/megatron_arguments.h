#pragma once
// The arguments of Megatron-LM's training program in a command line or a script.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/convert_draft.h"

namespace trireme {

struct MegatronArgument {
  std::string name;  ///< "--num-layers": '-' for every '_'
  std::vector<std::string> values;
};

/// What becomes of an argument that the field table's column does not translate alone.
struct MegatronRow {
  std::string_view name;
  bool flag;                  ///< takes no value
  std::string_view why = "";  ///< why it has no meaning here; "": it is read
};
/// nullptr where there is no row.
const MegatronRow* find_megatron_row(std::string_view name);
/// The field whose Megatron column has the name; nullptr where there is none.
const Field* find_megatron_field(std::string_view name);

class MegatronArguments {
 public:
  /// Of all commands in the text the one with the most arguments that are known. Reports what could
  /// not be followed. Throws ConfigError where the text is no script or no argument is known.
  MegatronArguments(std::string_view text, std::string_view source, ConversionDraft& draft);

  [[nodiscard]] std::span<const MegatronArgument> all() const { return arguments_; }
  /// Ranks that torchrun starts, where the launcher's arguments say so.
  [[nodiscard]] std::optional<std::int64_t> ranks() const { return ranks_; }

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] const MegatronArgument* find(std::string_view name) const;
  /// The value; nothing where it is absent or known on the machine only, which is reported once.
  /// Throws ConfigError where there is none, or no number of that kind.
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  [[nodiscard]] std::optional<std::int64_t> whole(std::string_view name) const;
  /// Several of them; nothing where one is known on the machine only, which is reported.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> wholes(std::string_view name) const;
  /// Of something that a model has: 1 to 2^24, else a fault too.
  [[nodiscard]] std::optional<std::int64_t> size(std::string_view name) const;
  [[nodiscard]] std::optional<double> real(std::string_view name) const;

  [[noreturn]] void fault(std::string_view name, std::string_view what) const;

 private:
  [[nodiscard]] std::int64_t whole_of(std::string_view name, const std::string& value) const;
  void take(std::span<const std::string> words);
  void count_ranks(std::span<const std::string> launcher);

  std::string source_;
  ConversionDraft& draft_;
  std::vector<MegatronArgument> arguments_;  ///< each name once: the last holds
  std::optional<std::int64_t> ranks_;
};

}  // namespace trireme
