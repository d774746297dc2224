#include "tokenizer/json_reader.h"

#include <algorithm>
#include <limits>

namespace trireme {

namespace {
const Json kNull;
}

void JsonReader::fail(std::string_view what) const { throw DataError("{}: {}", place(), what); }

void JsonReader::wrong_kind(std::string_view wanted) const {
  fail(fmt::format("{} stands where {} is needed", value_->kind_name(), wanted));
}

void JsonReader::refuse(std::string_view what, std::string_view would_differ) const {
  fail(
      fmt::format("{} is not understood by this version (ignoring it would give other {} than "
                  "Hugging Face tokenizers)",
                  what, would_differ));
}

void JsonReader::allow(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      member_at(key, value).refuse("this member");
  }
}

JsonReader JsonReader::member(std::string_view key) const {
  if (!value_->is_object()) wrong_kind("an object");
  const Json* found = value_->find(key);
  return member_at(key, found == nullptr ? kNull : *found);
}

JsonReader JsonReader::member_at(std::string_view key, const Json& value) const {
  return {value, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

JsonReader JsonReader::element(std::size_t index) const {
  return {array()[index], file_, fmt::format("{}[{}]", path_, index)};
}

const std::string& JsonReader::string() const {
  if (!value_->is_string()) wrong_kind("a string");
  return value_->as_string();
}

const Json::Array& JsonReader::array() const {
  if (!value_->is_array()) wrong_kind("an array");
  return value_->as_array();
}

const Json::Object& JsonReader::object() const {
  if (!value_->is_object()) wrong_kind("an object");
  return value_->as_object();
}

std::int32_t JsonReader::id() const {
  if (!value_->is_integer()) wrong_kind("a token id");
  const std::int64_t id = value_->as_integer();
  if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
    fail(fmt::format("{} is no token id", id));
  return static_cast<std::int32_t>(id);
}

bool JsonReader::boolean(bool absent) const {
  if (is_null()) return absent;
  if (!value_->is_bool()) wrong_kind("true or false");
  return value_->as_bool();
}

}  // namespace trireme
