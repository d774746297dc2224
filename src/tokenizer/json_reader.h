#pragma once
// Members of a `tokenizer.json` with their kinds checked; faults name the file and the JSON path.

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"

namespace trireme {

/// A value and the path that leads to it. Valid as long as the tree.
class JsonReader {
 public:
  JsonReader(const Json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] const Json& value() const { return *value_; }
  /// "FILE: model.vocab"
  [[nodiscard]] std::string place() const { return path_.empty() ? file_ : file_ + ": " + path_; }

  /// Null where the member is absent.
  [[nodiscard]] JsonReader member(std::string_view key) const;
  /// A member that the caller met while walking over object().
  [[nodiscard]] JsonReader member_at(std::string_view key, const Json& value) const;
  [[nodiscard]] JsonReader element(std::size_t index) const;

  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] const Json::Array& array() const;
  [[nodiscard]] const Json::Object& object() const;
  /// 0 to 2^31 - 1.
  [[nodiscard]] std::int32_t id() const;
  /// `absent` where the value is null.
  [[nodiscard]] bool boolean(bool absent) const;
  /// The member "type" of an object.
  [[nodiscard]] const std::string& type() const { return member("type").string(); }

  /// Refuses members that are not in the list: a setting of a newer version may change every id.
  void allow(std::initializer_list<std::string_view> keys) const;

  /// Throws DataError "PLACE: WHAT is not understood ...": ignoring it, WOULD_DIFFER.
  [[noreturn]] void refuse(std::string_view what,
                           std::string_view would_differ = "token ids") const;
  /// Throws DataError "PLACE: what".
  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void wrong_kind(std::string_view wanted) const;

 private:
  const Json* value_;
  std::string file_, path_;
};

}  // namespace trireme
