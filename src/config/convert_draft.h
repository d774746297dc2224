#pragma once
// A translation under way: what the tables of the other systems write into.

#include <fmt/core.h>

#include <functional>
#include <map>

#include "config/convert.h"
#include "config/fields.h"

namespace trireme {

class ConversionDraft {
 public:
  explicit ConversionDraft(ForeignSystem system) { result_.system = system; }

  /// `path` = value, as `from` says. Of two that differ the later holds, and that is reported.
  void set(std::string_view path, Json value, std::string_view from);
  /// A value of text ("1e-4", "true") as the field's type has it; false where it is none.
  bool set_text(const Field& field, std::string_view text, std::string_view from);
  void erase(std::string_view path);
  [[nodiscard]] const Json* find(std::string_view path) const;
  /// A whole number, or nothing.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view path) const;

  template <class... Args>
  void remark(fmt::format_string<Args...> format, Args&&... args) {
    result_.remarks.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Why a required key is left out, in place of "is not among them".
  void miss(std::string path, std::string why) { why_missing_[std::move(path)] = std::move(why); }
  void unset(std::string text) { result_.unset.push_back(std::move(text)); }
  void nothing(std::string_view name, std::string_view why);
  void unknown(std::string name) { result_.unknown.push_back(std::move(name)); }

  /// Checks what was written as a config is checked, takes out and reports what this version
  /// refuses, and names what is missing.
  Conversion finish();

 private:
  void drop_refused();
  void name_missing();
  void put_in_order();

  struct Entry {
    Json value;
    std::string from;
  };
  std::map<std::string, Entry, std::less<>> entries_;  ///< by path; "model" is one value
  std::map<std::string, std::string> why_missing_;
  std::vector<std::pair<std::string, std::string>> nothing_;  ///< why, names
  Conversion result_;
};

void convert_megatron(std::string_view text, std::string_view source, ConversionDraft& draft);
void convert_deepspeed(std::string_view text, std::string_view source, ConversionDraft& draft);

/// The field whose column of `system` (&OtherNames::megatron, ...) holds `name`; else nullptr.
const Field* find_field_of_other(std::string_view OtherNames::*system, std::string_view name);

}  // namespace trireme
