#include "config/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "config/aliases.h"
#include "config/parse.h"

namespace trireme {
namespace {

const Json& at(const Json& json, std::string_view key) {
  const Json* member = json.find(key);
  expect(member != nullptr, "no {}", key);
  return *member;
}

Json property_of(const Field& field) {
  static const Json schema = config_schema();
  const Json& properties = at(schema, "properties");
  if (field.section().empty()) return at(properties, field.key());
  return at(at(at(properties, field.section()), "properties"), field.key());
}

TEST(Fields, are_unique_and_documented) {
  std::set<std::string> paths;
  for (const Field& field : fields()) {
    EXPECT_TRUE(paths.insert(field.path).second) << field.path;
    EXPECT_FALSE(field.row.text.empty()) << field.path;
    EXPECT_FALSE(field.row.text.ends_with('.')) << field.path;
    EXPECT_FALSE(field.legal.empty()) << field.path;
  }
}

TEST(Fields, a_default_is_legal_and_one_that_is_not_constant_is_described) {
  const RunConfig defaults;
  for (const Field& field : fields()) {
    const Json value = field.read(defaults);
    RunConfig scratch;
    if (field.row.presence == Presence::kRequired) continue;
    if (value.is_null()) {
      EXPECT_FALSE(field.row.default_text.empty()) << field.path;
      EXPECT_FALSE(field.row.example.empty() && field.schema.find("enum") == nullptr &&
                   field.json_type() != "boolean" && field.path != "data.seed")
          << field.path;
    } else {
      EXPECT_TRUE(field.assign(value, scratch)) << field.path;
      EXPECT_EQ(field.read(scratch), value) << field.path;
    }
  }
}

TEST(Fields, every_example_is_legal) {
  for (const Field& field : fields()) {
    if (field.row.example.empty()) continue;
    RunConfig scratch;
    EXPECT_TRUE(field.assign(parse_json(field.row.example, field.path), scratch)) << field.path;
  }
}

TEST(Schema, is_draft_07_and_closed_at_every_level) {
  const Json schema = config_schema();
  EXPECT_EQ(at(schema, "$schema"), Json("http://json-schema.org/draft-07/schema#"));
  EXPECT_EQ(at(schema, "additionalProperties"), Json(false));
  for (const std::string& section : sections()) {
    EXPECT_EQ(at(at(at(schema, "properties"), section), "additionalProperties"), Json(false))
        << section;
  }
  EXPECT_EQ(at(schema, "properties").as_object().size(),
            sections().size() + 3);  // tokenizer, model, $schema
}

TEST(Schema, says_of_each_field_what_it_is) {
  for (const Field& field : fields()) {
    const Json property = property_of(field);
    const std::string& text = at(property, "description").as_string();
    EXPECT_TRUE(text.starts_with(field.row.text)) << field.path;
    for (const auto name : {field.row.peers.megatron, field.row.peers.deepspeed,
                            field.row.peers.transformers, field.row.peers.torchtitan}) {
      EXPECT_NE(text.find(name), std::string::npos) << field.path;
    }
    const bool constant =
        field.row.presence == Presence::kOptional && field.row.default_text.empty();
    EXPECT_EQ(property.find("default") != nullptr, constant) << field.path;
  }
}

TEST(Schema, holds_exactly_the_required_keys) {
  const Json schema = config_schema();
  const auto required = [&](std::string_view section) {
    return at(at(at(schema, "properties"), section), "required").dump();
  };
  EXPECT_EQ(required("run"), R"(["directory"])");
  EXPECT_EQ(required("data"), R"(["train","sequence_length"])");
  EXPECT_EQ(required("optimizer"), R"(["lr"])");
  EXPECT_EQ(at(schema, "required").dump(), R"(["run","data","batch","optimizer"])");
}

/// As much of draft-07 as one property of ours needs: type, enum, bounds.
bool accepts(const Json& schema, const Json& value) {
  if (const Json* choices = schema.find("anyOf")) {
    for (const Json& choice : choices->as_array()) {
      if (accepts(choice, value)) return true;
    }
    return false;
  }
  if (const Json* constant = schema.find("const")) return *constant == value;
  const std::string& type = at(schema, "type").as_string();
  if (type == "boolean") return value.is_bool();
  if (type == "object") {
    if (!value.is_object()) return false;
    if (const Json* known = schema.find("properties")) {  // and no others
      EXPECT_EQ(at(schema, "additionalProperties"), Json(false));
      if (const Json* needed = schema.find("required")) {
        for (const Json& key : needed->as_array()) {
          if (value.find(key.as_string()) == nullptr) return false;
        }
      }
      return std::all_of(value.as_object().begin(), value.as_object().end(),
                         [&](const auto& member) {
                           const Json* of = known->find(member.first);
                           return of != nullptr && accepts(*of, member.second);
                         });
    }
    const auto size = static_cast<std::int64_t>(value.as_object().size());
    return size >= at(schema, "minProperties").as_integer() &&
           std::all_of(value.as_object().begin(), value.as_object().end(), [&](const auto& member) {
             return accepts(at(schema, "additionalProperties"), member.second);
           });
  }
  if (type == "array") {
    if (!value.is_array()) return false;
    const auto size = static_cast<std::int64_t>(value.as_array().size());
    if (size < at(schema, "minItems").as_integer()) return false;
    if (schema.find("maxItems") != nullptr && size > at(schema, "maxItems").as_integer())
      return false;
    if (at(schema, "items").is_array()) return false;
    for (const Json& item : value.as_array()) {
      if (!accepts(at(schema, "items"), item)) return false;
    }
    return true;
  }
  if (type == "string") {
    if (!value.is_string() || value.as_string().empty() || value.as_string()[0] < ' ') return false;
    const Json* pattern = schema.find("pattern");  // of numbers with units
    if (pattern != nullptr && pattern->as_string().starts_with("^[0-9]") &&
        !std::regex_search(value.as_string(), std::regex(pattern->as_string())))
      return false;
    const Json* words = schema.find("enum");
    if (words == nullptr) return true;
    return std::find(words->as_array().begin(), words->as_array().end(), value) !=
           words->as_array().end();
  }
  if (!value.is_number()) return false;
  const double number = value.as_double();
  if (type == "integer" && number != std::floor(number)) return false;
  const auto bound = [&](const char* key, double otherwise) {
    const Json* limit = schema.find(key);
    return limit == nullptr ? otherwise : limit->as_double();
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return number >= bound("minimum", -kInfinity) && number > bound("exclusiveMinimum", -kInfinity) &&
         number <= bound("maximum", kInfinity) && number < bound("exclusiveMaximum", kInfinity);
}

TEST(Schema, accepts_of_each_field_exactly_what_the_parser_accepts) {
  const char* values[] = {"true",
                          "0",
                          "1",
                          "2",
                          "3",
                          "-1",
                          "3.0",
                          "3.7",
                          "1e3",
                          "1e300",
                          "0.5",
                          "0.999",
                          "\"auto\"",
                          "\"3\"",
                          "\"\"",
                          "\"fp32\"",
                          "\"bf16\"",
                          "\"x\"",
                          "[]",
                          "[1,2]",
                          "[0.1,0.2]",
                          "[0.5,1.0]",
                          "[1,2,3,4]",
                          "[1.5,2]",
                          "{}",
                          "{\"a\": \"b\"}",
                          "{\"a\": 3}",
                          "\"balanced\"",
                          "9007199254740991",
                          "9007199254740992"};
  for (const Field& field : fields()) {
    for (const char* text : values) {
      const Json value = parse_json(text, "value");
      RunConfig scratch;
      EXPECT_EQ(accepts(property_of(field), value), field.assign(value, scratch))
          << field.path << " " << text;
    }
  }
}

}  // namespace
}  // namespace trireme
