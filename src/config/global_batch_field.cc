// How batch.global is read: a number, or a ramp.

#include <fmt/format.h>

#include <algorithm>

#include "config/field_types.h"
#include "config/problem.h"

namespace trireme {

namespace {

const FieldRow& from_token_row() {
  static const FieldRow row{
      .text = "", .unit = "tokens", .minimum = 0, .maximum = 9007199254740991.0};
  return row;
}

using Tokens = Codec<std::int64_t>;

}  // namespace

std::vector<std::string> Codec<GlobalBatch>::words(const FieldRow&) { return {}; }

Json Codec<GlobalBatch>::schema(const FieldRow& row) {
  Json phase =
      Json::Object{{"type", "array"},
                   {"items", Json::Array{Tokens::schema(from_token_row()), Tokens::schema(row)}},
                   {"additionalItems", false},
                   {"minItems", 2}};
  Json ramp = Json::Object{{"type", "array"}, {"items", std::move(phase)}, {"minItems", 1}};
  Json json = Tokens::schema(row);  // of a number, or a text with a unit
  json["anyOf"].push_back(std::move(ramp));
  return json;
}

std::string Codec<GlobalBatch>::legal(const FieldRow& row) {
  return Tokens::legal(row) +
         ", or a ramp [[from_token, size], ...], the first from 0, each from more tokens than the "
         "one before";
}

bool Codec<GlobalBatch>::assign(const Json& json, const FieldRow& row, GlobalBatch& out) {
  std::int64_t size = 0;
  if (Tokens::assign(json, row, size)) {
    out = size;
    return true;
  }
  if (!json.is_array() || !faults_within(json, row).empty()) return false;
  std::vector<BatchPhase> phases;
  for (const Json& item : json.as_array()) {
    BatchPhase& phase = phases.emplace_back();
    Tokens::assign(item.as_array()[0], from_token_row(), phase.from_token);
    Tokens::assign(item.as_array()[1], row, phase.size);
  }
  out = GlobalBatch(std::move(phases));
  return true;
}

Json Codec<GlobalBatch>::read(const GlobalBatch& value) {
  if (!value.is_ramp()) return value.phases.front().size;
  Json list = Json::array();
  for (const BatchPhase& phase : value.phases)
    list.push_back(Json::Array{phase.from_token, phase.size});
  return list;
}

std::vector<Problem> Codec<GlobalBatch>::faults_within(const Json& json, const FieldRow& row) {
  std::vector<Problem> problems;
  if (!json.is_array()) return problems;
  const Json::Array& phases = json.as_array();
  const auto report = [&](std::string path, const Json& found, std::string legal,
                          std::string nearest, std::string message) {
    problems.push_back({"batch.global" + path, shown(found), std::move(legal), std::move(nearest),
                        std::move(message)});
  };
  if (phases.empty()) report("", json, legal(row), "", "is a ramp without a size");
  std::int64_t before = -1;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const std::string path = fmt::format("[{}]", i);
    if (!phases[i].is_array() || phases[i].as_array().size() != 2) {
      report(path, phases[i], "[from_token, size]", "", "is no phase of a ramp");
      continue;
    }
    const Json &from = phases[i].as_array()[0], &size = phases[i].as_array()[1];
    std::int64_t token = 0, samples = 0;
    if (!Tokens::assign(from, from_token_row(), token)) {
      report(path + "[0]", from, i == 0 ? "0" : "tokens: " + Tokens::legal(from_token_row()),
             i == 0 ? "0" : "", "is no count of tokens");
    } else if (i == 0 && token != 0) {
      report(path + "[0]", from, "0", "0", "leaves the first step without a size");
    } else if (token <= before) {
      report(path + "[0]", from, fmt::format("more than {}, where the phase before begins", before),
             std::to_string(before + 1), "begins no later than the phase before");
    }
    before = std::max(before, token);
    if (!Tokens::assign(size, row, samples)) {
      const bool small = size.is_number() && size.as_double() < row.minimum;
      report(path + "[1]", size, "samples: " + Tokens::legal(row), small ? "1" : "",
             "is no size of a batch");
    }
  }
  return problems;
}

}  // namespace trireme
