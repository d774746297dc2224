#pragma once
// JSON as the program reads and writes it: strict (duplicate keys, depth, trailing text are
// faults), integers apart from reals, keys in file order, numbers that read back to the same bits.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace trireme {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  ///< in file order; `find` is linear

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value);  ///< a real above 2^63 - 1
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  [[nodiscard]] bool is_null() const { return holds<std::monostate>(); }
  [[nodiscard]] bool is_bool() const { return holds<bool>(); }
  [[nodiscard]] bool is_integer() const { return holds<std::int64_t>(); }
  [[nodiscard]] bool is_number() const { return holds<std::int64_t>() || holds<double>(); }
  [[nodiscard]] bool is_string() const { return holds<std::string>(); }
  [[nodiscard]] bool is_array() const { return holds<Array>(); }
  [[nodiscard]] bool is_object() const { return holds<Object>(); }
  /// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object"
  [[nodiscard]] std::string_view kind_name() const;

  // Exact kinds only, else InternalError: ask `is_...` first. as_double takes both numbers.
  [[nodiscard]] bool as_bool() const { return get<bool>(); }
  [[nodiscard]] std::int64_t as_integer() const { return get<std::int64_t>(); }
  [[nodiscard]] double as_double() const;
  [[nodiscard]] const std::string& as_string() const { return get<std::string>(); }
  [[nodiscard]] const Array& as_array() const { return get<Array>(); }
  [[nodiscard]] Array& as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }
  [[nodiscard]] const Object& as_object() const { return get<Object>(); }
  [[nodiscard]] Object& as_object() {
    return const_cast<Object&>(std::as_const(*this).as_object());
  }

  /// The member of an object, or nullptr (also when this is no object).
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] Json* find(std::string_view key) {
    return const_cast<Json*>(std::as_const(*this).find(key));
  }
  /// The member, made (null) where absent; makes an object of a null.
  Json& operator[](std::string_view key);
  /// Removes a member; false where there was none.
  bool erase(std::string_view key);
  /// Appends to an array; makes an array of a null.
  void push_back(Json element);

  /// One line, or indented by `indent` spaces a level. Reals in the shortest form that reads back
  /// to the same bits, always with a point or exponent; non-finite reals become null.
  [[nodiscard]] std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b) = default;

 private:
  template <class T>
  [[nodiscard]] bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  template <class T>
  [[nodiscard]] const T& get() const {
    const T* value = std::get_if<T>(&value_);
    expect(value != nullptr, "a JSON value of another kind: {}", kind_name());
    return *value;
  }
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct JsonRules {
  ExitCode code = ExitCode::kData;  ///< of the Error that a fault throws
  bool comments = false;            ///< `//` and `/* */`
  int depth_max = 64;
  /// Keys of all objects together: `find` and `[]` are linear, and an object may be hostile.
  std::size_t keys_max = std::numeric_limits<std::size_t>::max();
  /// Where not null, a duplicate key is noted here (dotted path) and its last value kept.
  std::vector<std::string>* duplicates = nullptr;
};

/// Throws Error(rules.code): "SOURCE: line L, column C: what is wrong". Input must be UTF-8.
Json parse_json(std::string_view text, std::string_view source, const JsonRules& rules = {});

}  // namespace trireme
