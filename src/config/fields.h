#pragma once
// The one list of config fields. Parsing, the JSON Schema, help, configs/README.md and a run's
// config.json are made from it; a new key is a row in field_table.cc and a member of RunConfig.

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

enum class Presence : std::uint8_t { kOptional, kRequired };

/// Names of the same thing elsewhere, "" where there is none; several are separated by a blank.
struct OtherNames {
  std::string_view megatron = "", deepspeed = "", transformers = "", torchtitan = "";
};

/// What a row says about its field.
struct FieldRow {
  std::string_view text;               ///< one line, without unit, range and default
  std::string_view unit = "";          ///< "steps", "tokens/s"
  std::string_view default_text = "";  ///< where the default is not a constant: "run.seed"
  std::string_view example = "";       ///< JSON text
  double minimum = std::numeric_limits<double>::quiet_NaN();  ///< of a number, or of each in a list
  double above = std::numeric_limits<double>::quiet_NaN();    ///< as minimum, itself excluded
  double maximum = std::numeric_limits<double>::quiet_NaN();
  double below = std::numeric_limits<double>::quiet_NaN();
  Presence presence = Presence::kOptional;
  std::vector<std::string_view> values = {};  ///< where fewer than all of a type are legal
  bool plain = false;  ///< an integer that takes no unit ("4k" might be 4000 or 4096 tokens)
  OtherNames peers = {};
};

struct Field {
  std::string path;  ///< "optimizer.lr"; equal to the member of RunConfig
  FieldRow row;
  std::string legal;                ///< "a number above 0", for people
  Json schema;                      ///< draft-07, without description and default
  std::vector<std::string> values;  ///< of an enumeration or of a text with reserved words
  /// Writes the member; false (member untouched) where the value is not legal.
  std::function<bool(const Json&, RunConfig&)> assign;
  /// The member as JSON; null where it is not given.
  std::function<Json(const RunConfig&)> read;
  /// Of objects with keys of their own: what is wrong with those. May be empty.
  std::function<std::vector<Problem>(const Json&)> faults_within;

  [[nodiscard]] std::string_view section() const;  ///< "optimizer"; "" for a field of the top level
  [[nodiscard]] std::string_view key() const;      ///< "lr"
  /// "integer" (also where a text with a unit may stand for it), "number", "boolean", "string",
  /// "array"; "" where several are legal.
  [[nodiscard]] std::string json_type() const;
};

/// An integer, or a text with a unit: a size ("2GiB") where the row counts bytes, else a count
/// ("4k"). Nothing for anything else; the row's range is not looked at.
std::optional<std::int64_t> integer_with_unit(const Json& value, const FieldRow& row);

/// All fields but "model", in the order of config.json.
const std::vector<Field>& fields();

/// nullptr where there is none.
const Field* find_field(std::string_view path);

/// Sections in order of first use: "run", "init", "data", ...
const std::vector<std::string>& sections();

}  // namespace trireme
