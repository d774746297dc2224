#pragma once
// Keys of a model as the tests of their reading give and judge them.

#include <gtest/gtest.h>

#include "config/model_parse.h"

namespace trireme {

/// What read_model made of them.
struct Read {
  ModelConfig model;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
};

inline Read read(const Json& json) {
  Read result;
  result.model = read_model(json, result.problems, result.notes);
  return result;
}

inline Read read_text(std::string_view text) { return read(parse_json(text, "model")); }

/// Of keys without a fault.
inline ModelConfig legal(std::string_view text) {
  const Read result = read_text(text);
  EXPECT_TRUE(result.problems.empty()) << text << ": " << format_problems(result.problems);
  return result.model;
}

/// The one fault of keys that make no model.
inline Problem fault(std::string_view text) {
  const Read result = read_text(text);
  EXPECT_EQ(result.problems.size(), 1U) << text << ": " << format_problems(result.problems);
  EXPECT_TRUE(result.model.layers.empty());
  return result.problems.empty() ? Problem{} : result.problems[0];
}

}  // namespace trireme
