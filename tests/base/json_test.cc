#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace trireme {
namespace {

Json parsed(std::string_view text, const JsonRules& rules = {}) {
  return parse_json(text, "x.json", rules);
}

std::string fault_of(std::string_view text, const JsonRules& rules = {}) {
  try {
    parsed(text, rules);
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), rules.code);
    return fault.what();
  }
  return "";
}

TEST(Json, numbers_keep_whether_they_are_integers) {
  EXPECT_TRUE(parsed("3").is_integer());
  EXPECT_FALSE(parsed("3.0").is_integer());
  EXPECT_FALSE(parsed("3e0").is_integer());
  EXPECT_TRUE(parsed("3.0").is_number());
  EXPECT_EQ(parsed("3").as_double(), 3.0);
  EXPECT_EQ(parsed("-9223372036854775808").as_integer(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parsed("9223372036854775807").as_integer(), std::numeric_limits<std::int64_t>::max());
}

TEST(Json, an_integer_beyond_64_bits_is_a_real) {
  for (const char* text : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                           "12345678901234567890123"}) {
    const Json value = parsed(text);
    EXPECT_FALSE(value.is_integer()) << text;
    EXPECT_EQ(value.as_double(), std::strtod(text, nullptr)) << text;
  }
  EXPECT_EQ(parsed("-9223372036854775809").as_double(), -0x1p63);
  EXPECT_FALSE(Json(std::uint64_t{1} << 63).is_integer());
}

TEST(Json, a_number_too_large_for_a_real_is_a_fault) {
  EXPECT_NE(fault_of("1e400"), "");
  EXPECT_NE(fault_of("[-1e400]"), "");
  EXPECT_EQ(parsed("1e-400").as_double(), 0.0);
}

TEST(Json, what_is_no_json_is_refused) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "'a'",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "0x1",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "nul",
                           "1 2",
                           "{} {}",
                           "\"\t\"",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "\"\\udc00\\ud800\"",
                           "// c\n1",
                           "\"",
                           "[1 2]",
                           "{\"a\" 1}",
                           "\xef\xbb\xbf"}) {
    EXPECT_NE(fault_of(text), "") << text;
  }
}

TEST(Json, text_that_is_no_utf8_is_refused) {
  for (const char* text : {"\"\xff\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"",
                           "\"\xf5\x80\x80\x80\"", "\"\xe2\x82\""}) {
    EXPECT_NE(fault_of(text), "") << text;
  }
  EXPECT_EQ(parsed("\"\xc3\xa9 \\u00e9 \\ud83d\\ude00\"").as_string(),
            "\xc3\xa9 \xc3\xa9 \xf0\x9f\x98\x80");
}

TEST(Json, faults_name_source_line_and_column) {
  EXPECT_EQ(fault_of("{\n  \"a\": 1,\n  \"b\": x\n}").find("x.json: line 3, column "), 0U)
      << fault_of("{\n  \"a\": 1,\n  \"b\": x\n}");
  JsonRules rules;
  rules.code = ExitCode::kConfig;
  EXPECT_NE(fault_of("[", rules), "");
}

TEST(Json, a_duplicate_key_is_a_fault_with_its_path) {
  EXPECT_NE(fault_of("{\"a\":{\"b\":1,\"b\":1}}").find("\"a.b\""), std::string::npos);
  EXPECT_EQ(fault_of("[{\"b\":1},{\"b\":1}]"), "");
}

TEST(Json, duplicates_are_collected_where_asked) {
  std::vector<std::string> duplicates;
  JsonRules rules;
  rules.duplicates = &duplicates;
  const Json value = parsed("{\"a\":1,\"b\":{\"c\":1,\"c\":2},\"a\":3}", rules);
  EXPECT_EQ(duplicates, (std::vector<std::string>{"b.c", "a"}));
  EXPECT_EQ(value.find("a")->as_integer(), 3);
  EXPECT_EQ(value.find("b")->find("c")->as_integer(), 2);
}

TEST(Json, deep_nesting_is_refused_before_it_costs_memory_or_stack) {
  JsonRules rules;
  rules.depth_max = 5;
  EXPECT_EQ(fault_of("[[[[[1]]]]]", rules), "");
  EXPECT_NE(fault_of("[[[[[[1]]]]]]", rules).find("nested deeper than 5"), std::string::npos);
  EXPECT_NE(fault_of(std::string(5'000'000, '[')), "");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(fault_of(objects), "");
}

TEST(Json, comments_are_allowed_only_where_asked) {
  JsonRules rules;
  rules.comments = true;
  EXPECT_EQ(parsed("// one\n{\"a\": /* two */ 1}", rules).find("a")->as_integer(), 1);
  EXPECT_NE(fault_of("{\"a\": /* two */ 1}"), "");
  EXPECT_NE(fault_of("{} /* unclosed", rules), "");
}

TEST(Json, keys_keep_the_order_of_the_file) {
  EXPECT_EQ(parsed("{\"z\":1,\"a\":2,\"m\":3}").dump(), "{\"z\":1,\"a\":2,\"m\":3}");
}

TEST(Json, a_large_object_finds_its_names_and_its_duplicates) {
  std::string text = "{";
  for (int i = 0; i < 3000; ++i)
    text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  const Json value = parsed(text + "\"end\":0}");
  EXPECT_EQ(value.as_object().size(), 3001U);
  EXPECT_EQ(value.find("key2999")->as_integer(), 2999);
  EXPECT_NE(fault_of(text + "\"key1234\":0}").find("key1234"), std::string::npos);
}

TEST(Json, every_real_reads_back_to_the_same_bits) {
  std::vector<double> values = {0.0,
                                -0.0,
                                5e-324,
                                -5e-324,
                                2.2250738585072014e-308,
                                2.225073858507201e-308,
                                1.7976931348623157e308,
                                0.1,
                                1.0 / 3,
                                1e22,
                                1e23,
                                123456789012345680.0,
                                3.0,
                                -1e16};
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const auto words = philox(77, i, 0);
    values.push_back(std::bit_cast<double>(std::uint64_t{words[0]} << 32 | words[1]));
  }
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const std::string text = Json(value).dump();
    const Json read = parsed(text);
    ASSERT_FALSE(read.is_integer()) << text;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(read.as_double()), std::bit_cast<std::uint64_t>(value))
        << text;
  }
}

TEST(Json, non_finite_reals_become_null) {
  EXPECT_EQ(Json(std::numeric_limits<double>::quiet_NaN()).dump(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, every_character_survives_a_round_trip) {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(parsed(Json(text).dump()).as_string(), text);
  EXPECT_EQ(Json("a\"b\\c\n\x01").dump(), "\"a\\\"b\\\\c\\n\\u0001\"");
}

TEST(Json, indented_text_reads_back_to_the_same_value) {
  const Json value =
      parsed("{\"a\":[1,2.5,null],\"b\":{},\"c\":[],\"d\":[{\"e\":true}],\"f\":\"x\"}");
  EXPECT_EQ(parsed(value.dump(2)), value);
  EXPECT_EQ(parsed("{\"a\":[1,2]}").dump(2), "{\n  \"a\": [1, 2]\n}");
}

TEST(Json, values_of_another_kind_are_a_defect) {
  EXPECT_THROW((void)Json("x").as_integer(), InternalError);
  EXPECT_THROW((void)Json(1.5).as_integer(), InternalError);
  EXPECT_THROW((void)Json(1).as_bool(), InternalError);
  EXPECT_THROW((void)Json(true).as_double(), InternalError);
  EXPECT_THROW((void)Json().as_array(), InternalError);
  EXPECT_EQ(Json(1).find("a"), nullptr);
}

TEST(Json, members_are_made_changed_and_erased) {
  Json value;
  value["a"]["b"] = 1;
  value["c"].push_back("x");
  EXPECT_EQ(value.dump(), "{\"a\":{\"b\":1},\"c\":[\"x\"]}");
  EXPECT_TRUE(value.erase("a"));
  EXPECT_FALSE(value.erase("a"));
  EXPECT_EQ(value.dump(), "{\"c\":[\"x\"]}");
}

TEST(Json, kinds_have_names_for_messages) {
  EXPECT_EQ(parsed("null").kind_name(), "null");
  EXPECT_EQ(parsed("true").kind_name(), "a boolean");
  EXPECT_EQ(parsed("1").kind_name(), "an integer");
  EXPECT_EQ(parsed("1.5").kind_name(), "a number");
  EXPECT_EQ(parsed("\"\"").kind_name(), "a string");
  EXPECT_EQ(parsed("[]").kind_name(), "an array");
  EXPECT_EQ(parsed("{}").kind_name(), "an object");
}

}  // namespace
}  // namespace trireme
