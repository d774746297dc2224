#include "config/convert.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "config/convert_draft.h"
#include "config/parse.h"
#include "config/problem.h"

namespace trireme {

namespace {

/// Sections as objects.
Json nested(const std::vector<std::pair<std::string, Json>>& values) {
  Json json = Json::object();
  for (const auto& [path, value] : values) {
    const auto dot = path.find('.');
    if (dot == std::string::npos) {
      json[path] = value;
    } else {
      json[path.substr(0, dot)][path.substr(dot + 1)] = value;
    }
  }
  return json;
}

std::optional<Json> number_of(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, whole);
      error == std::errc() && at == end)
    return Json(whole);
  double real = 0;
  const auto [at, error] = std::from_chars(text.data(), end, real);
  if (error != std::errc() || at != end || !std::isfinite(real)) return std::nullopt;
  return Json(real);
}

}  // namespace

const Field* find_field_of_other(std::string_view OtherNames::*system, std::string_view name) {
  for (const Field& field : fields()) {
    std::string_view names = field.row.peers.*system;
    while (!names.empty()) {
      const std::string_view one = names.substr(0, names.find(' '));
      if (one == name) return &field;
      names.remove_prefix(std::min(names.size(), one.size() + 1));
    }
  }
  return nullptr;
}

void ConversionDraft::set(std::string_view path, Json value, std::string_view from) {
  const auto found = entries_.find(path);
  if (found == entries_.end()) {
    entries_.emplace(path, Entry{std::move(value), std::string(from)});
    return;
  }
  Entry& entry = found->second;
  if (!(entry.value == value) && entry.from != from) {
    remark("{}: {} gives {}, {} gives {}; the latter is taken", path, entry.from,
           shown(entry.value), from, shown(value));
  }
  entry = {std::move(value), std::string(from)};
}

bool ConversionDraft::set_text(const Field& field, std::string_view text, std::string_view from) {
  std::vector<Json> readings;
  if (auto number = number_of(text)) readings.push_back(*std::move(number));
  if (text == "true" || text == "false") readings.emplace_back(text == "true");
  readings.emplace_back(text);
  for (Json& reading : readings) {
    RunConfig scratch;
    if (!field.assign(reading, scratch)) continue;
    set(field.path, std::move(reading), from);
    return true;
  }
  return false;
}

void ConversionDraft::erase(std::string_view path) {
  if (const auto found = entries_.find(path); found != entries_.end()) entries_.erase(found);
}

const Json* ConversionDraft::find(std::string_view path) const {
  const auto found = entries_.find(path);
  return found == entries_.end() ? nullptr : &found->second.value;
}

std::optional<std::int64_t> ConversionDraft::integer(std::string_view path) const {
  const Json* value = find(path);
  return value != nullptr && value->is_integer() ? std::optional(value->as_integer())
                                                 : std::nullopt;
}

void ConversionDraft::nothing(std::string_view name, std::string_view why) {
  auto at = std::find_if(nothing_.begin(), nothing_.end(),
                         [&](const auto& one) { return one.first == why; });
  if (at == nothing_.end()) at = nothing_.insert(at, {std::string(why), ""});
  at->second += (at->second.empty() ? "" : ", ") + std::string(name);
}

/// In the order of the fields, the model before init.
void ConversionDraft::put_in_order() {
  std::vector<std::pair<std::string, Json>> values;
  for (const Field& field : fields()) {
    if (field.path == "init.weights" && find("model") != nullptr)
      values.emplace_back("model", *find("model"));
    if (const Json* value = find(field.path)) values.emplace_back(field.path, *value);
  }
  result_.config = nested(values);
}

void ConversionDraft::drop_refused() {
  for (std::size_t left = entries_.size(); left > 0; --left) {
    put_in_order();
    const std::vector<Problem> problems = parse_run_config(result_.config).problems;
    const auto refused = std::find_if(problems.begin(), problems.end(), [&](const Problem& one) {
      return find(one.path) != nullptr || (one.path.starts_with("model.") && find("model"));
    });
    if (refused == problems.end()) return;
    const std::string path = find(refused->path) != nullptr ? refused->path : "model";
    remark("{} is left out: {} ({})", path, format_problem(*refused),
           entries_.find(path)->second.from);
    if (path == "model") miss("model", "see above");
    erase(path);
  }
  put_in_order();
}

void ConversionDraft::name_missing() {
  for (const Problem& problem : parse_run_config(result_.config).problems) {
    const auto why = why_missing_.find(problem.path);
    result_.missing.push_back(fmt::format("{}: {}", problem.path,
                                          why == why_missing_.end() ? problem.legal : why->second));
  }
}

Conversion ConversionDraft::finish() {
  drop_refused();
  name_missing();
  for (const auto& [why, names] : nothing_) result_.nothing.push_back(names + ": " + why);
  return std::move(result_);
}

Conversion convert_config(std::string_view text, std::string_view source,
                          std::optional<ForeignSystem> system) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    throw ConfigError("{}: is empty (there is nothing to convert)", source);
  const bool json = text[first] == '{';
  const ForeignSystem of =
      system.value_or(json ? ForeignSystem::kDeepSpeed : ForeignSystem::kMegatron);
  ConversionDraft draft(of);
  of == ForeignSystem::kDeepSpeed ? convert_deepspeed(text, source, draft)
                                  : convert_megatron(text, source, draft);
  return draft.finish();
}

}  // namespace trireme
