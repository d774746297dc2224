#include "pipeline/schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

namespace {

constexpr std::array<std::string_view, 5> kNames = {"F", "B", "W", "BW", "R"};
constexpr std::int64_t kRanksMax = 1 << 16, kStagesMax = 1 << 20, kMicroBatchesMax = 1 << 24;

std::optional<ActionKind> kind_of(std::string_view name) {
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<ActionKind>(found - kNames.begin());
}

/// Reads one file's actions; knows where it stands, for the message.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  Schedule schedule(const Json& json) {
    if (!json.is_object()) fail("is {}. Legal: an object with \"ranks\"", json.kind_name());
    const Json* ranks = json.find("ranks");
    if (ranks == nullptr) fail("has no \"ranks\". Legal: a list of actions for each rank");
    Schedule schedule;
    const Json::Array& lists = list(*ranks, "\"ranks\"", kRanksMax);
    for (const Json& rank : lists) {
      where_ = fmt::format("rank {}", &rank - lists.data());
      std::vector<Action>& actions = schedule.ranks.emplace_back();
      if (!rank.is_array()) fail("is {}. Legal: a list of actions", rank.kind_name());
      const std::string of_rank = where_;
      for (const Json& element : rank.as_array()) {
        where_ = fmt::format("{}, position {}", of_rank, actions.size());
        actions.push_back(action(element));
      }
    }
    where_.clear();
    if (const Json* placement = json.find("placement"); placement != nullptr) {
      for (const Json& rank : list(*placement, "\"placement\"", kStagesMax))
        schedule.placement.push_back(number(rank, "a rank in \"placement\"", std::ssize(lists)));
    }
    if (const Json* flag = json.find("reproducible"); flag != nullptr) {
      if (!flag->is_bool()) fail("\"reproducible\" is {}. Legal: true or false", flag->kind_name());
      schedule.reproducible = flag->as_bool();
    }
    return schedule;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError("{}: {}{}{}", source_, where_, where_.empty() ? "" : ": ",
                      fmt::format(format, std::forward<Args>(args)...));
  }

  const Json::Array& list(const Json& json, std::string_view what, std::int64_t count_max) const {
    if (!json.is_array()) fail("{} is {}. Legal: a list", what, json.kind_name());
    const Json::Array& elements = json.as_array();
    if (elements.empty() || std::ssize(elements) > count_max)
      fail("{} has {} entries. Legal: 1 to {}", what, elements.size(), count_max);
    return elements;
  }

  std::int32_t number(const Json& json, std::string_view what, std::int64_t end) const {
    if (!json.is_integer() || json.as_integer() < 0 || json.as_integer() >= end)
      fail("{} is {}. Legal: an integer from 0 to {}", what, json.dump(), end - 1);
    return static_cast<std::int32_t>(json.as_integer());
  }

  Action action(const Json& json) const {
    if (!json.is_array() || json.as_array().size() < 3 || json.as_array().size() > 5)
      fail("is no action. Legal: [action, virtual stage, micro-batch], then a start and a group");
    const Json::Array& parts = json.as_array();
    const auto kind = parts[0].is_string() ? kind_of(parts[0].as_string()) : std::nullopt;
    if (!kind) fail("the action is {}. Legal: \"F\", \"B\", \"W\", \"BW\", \"R\"", parts[0].dump());
    Action action{*kind, number(parts[1], "the virtual stage", kStagesMax),
                  number(parts[2], "the micro-batch", kMicroBatchesMax)};
    if (parts.size() > 3 && !parts[3].is_number() && !parts[3].is_null())
      fail("the start is {}. Legal: a number, or null", parts[3].kind_name());
    if (parts.size() > 4 && !parts[4].is_null())
      action.group = number(parts[4], "the group", std::int64_t{1} << 31);
    return action;
  }

  std::string_view source_;
  std::string where_;
};

}  // namespace

ScheduleShape shape_of(const Schedule& schedule) {
  ScheduleShape shape;
  shape.ranks = static_cast<std::int32_t>(schedule.ranks.size());
  shape.virtual_stages = static_cast<std::int32_t>(schedule.placement.size());
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (schedule.placement.empty())
        shape.virtual_stages = std::max(shape.virtual_stages, action.virtual_stage + 1);
      shape.micro_batches = std::max(shape.micro_batches, action.micro_batch + 1);
    }
  }
  shape.first_trained = schedule.first_trained;
  shape.placement = schedule.placement;
  for (std::int32_t stage = std::ssize(schedule.placement); stage < shape.virtual_stages; ++stage)
    shape.placement.push_back(stage % shape.ranks);
  return shape;
}

std::vector<std::int32_t> interleaved_placement(int ranks, int stages_per_rank) {
  std::vector<std::int32_t> placement;
  for (int stage = 0; stage < ranks * stages_per_rank; ++stage) placement.push_back(stage % ranks);
  return placement;
}

std::vector<std::int32_t> v_placement(int ranks) {
  std::vector<std::int32_t> placement;
  for (int stage = 0; stage < 2 * ranks; ++stage)
    placement.push_back(stage < ranks ? stage : 2 * ranks - 1 - stage);
  return placement;
}

std::string_view name_of(ActionKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::string text_of(const Action& action) {
  return fmt::format("{}{}.{}", name_of(action.kind), action.virtual_stage, action.micro_batch);
}

std::size_t end_of_group(const std::vector<Action>& actions, std::size_t position) {
  const std::int32_t group = actions[position].group;
  std::size_t end = position + 1;
  while (group != 0 && end < actions.size() && actions[end].group == group) ++end;
  return end;
}

Json schedule_json(const Schedule& schedule, const std::vector<std::vector<double>>* starts) {
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    Json actions = Json::array();
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      Json::Array parts = {name_of(action.kind), action.virtual_stage, action.micro_batch};
      if (starts != nullptr) parts.emplace_back((*starts)[rank][i]);
      if (action.group != 0) {
        if (starts == nullptr) parts.emplace_back(nullptr);
        parts.emplace_back(action.group);
      }
      actions.push_back(std::move(parts));
    }
    ranks.push_back(std::move(actions));
  }
  Json json;
  json["ranks"] = std::move(ranks);
  Json placement = Json::array();
  for (const std::int32_t rank : shape_of(schedule).placement) placement.push_back(rank);
  json["placement"] = std::move(placement);
  json["reproducible"] = schedule.reproducible;
  return json;
}

Schedule make_forward_pass(std::vector<std::int32_t> placement) {
  Schedule schedule;
  for (std::size_t stage = 0; stage < placement.size(); ++stage) {
    const auto rank = static_cast<std::size_t>(placement[stage]);
    if (schedule.ranks.size() <= rank) schedule.ranks.resize(rank + 1);
    schedule.ranks[rank].push_back({ActionKind::kForward, static_cast<std::int32_t>(stage), 0});
  }
  schedule.placement = std::move(placement);
  return schedule;
}

Schedule parse_schedule(const Json& json, std::string_view source) {
  return Reader(source).schedule(json);
}

Schedule read_schedule(const std::string& path) {
  JsonRules rules;
  rules.code = ExitCode::kConfig;
  return parse_schedule(parse_json(read_file(path), path, rules), path);
}

}  // namespace trireme
