#include "pipeline/draw.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace trireme {

namespace {

/// From the first virtual stage of a rank to its last: 0 ... 1.
std::vector<double> depths(const ScheduleShape& shape) {
  std::vector<int> held(static_cast<std::size_t>(shape.ranks), 0);
  std::vector<double> depth;
  for (const std::int32_t rank : shape.placement) {
    depth.push_back(static_cast<double>(held[static_cast<std::size_t>(rank)]++) /
                    std::max(1, shape.stages_per_rank() - 1));
  }
  return depth;
}

/// Time of the group that the action at `position` is in, and its begin and end in the list.
struct Together {
  std::size_t begin, end;
  double duration = 0;
};
Together together(const std::vector<Action>& actions, std::size_t begin,
                  const std::vector<double>& durations) {
  Together group{begin, end_of_group(actions, begin)};
  for (std::size_t i = begin; i < group.end; ++i) group.duration += durations[i];
  return group;
}

constexpr double kLegendWidth = 760;
constexpr double kRow = 26, kGap = 4, kLeft = 62, kTop = 16, kAxis = 24, kLegend = 22;

std::string_view colour(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "#7aa6dc";
    case ActionKind::kBackwardInput:
      return "#f2b56b";
    case ActionKind::kBackwardWeight:
      return "#8cc084";
    case ActionKind::kBackward:
      return "#d9a05b";
    case ActionKind::kRecompute:
      return "#c7b3e0";
  }
  return "#ffffff";
}

/// 1, 2 or 5 times a power of ten, so that about ten fit.
double tick_step(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * power) <= 12) return factor * power;
  }
  return 10 * power;
}

/// What the colours of this schedule mean, from `y` down.
std::string legend(const Schedule& schedule, const ScheduleShape& shape, double y) {
  std::string svg;
  double x = kLeft;
  const auto text = [&](std::string_view words) {
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", x, y + 9, words);
    x += 5.5 * static_cast<double>(words.size()) + 16;
  };
  for (const auto& [kind, words] : {std::pair{ActionKind::kForward, "F forward"},
                                    {ActionKind::kBackwardInput, "B gradient of the input"},
                                    {ActionKind::kBackwardWeight, "W gradient of the weights"},
                                    {ActionKind::kBackward, "BW both gradients"},
                                    {ActionKind::kRecompute, "R forward again"}}) {
    // clang lets a lambda capture a structured binding only by an own copy.
    const bool occurs =
        std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [&, k = kind](const auto& rank) {
          return std::any_of(rank.begin(), rank.end(),
                             [&](const Action& action) { return action.kind == k; });
        });
    if (!occurs) continue;
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\" "
        "stroke=\"#444444\" stroke-width=\"0.5\"/>\n",
        x, y, colour(kind));
    x += 14;
    text(words);
  }
  if (shape.stages_per_rank() > 1) text("lighter: later virtual stages of a rank");
  return svg;
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Simulation& simulation,
                      const ActionTimes& times, int columns) {
  const ScheduleShape shape = shape_of(schedule);
  const std::vector<double> depth = depths(shape);
  const std::size_t label = std::to_string(shape.ranks - 1).size() + std::string("rank  ").size();
  const double room = std::max(20, columns - static_cast<int>(label));
  // Three characters for the shortest action where that fits; else as many as there are.
  const double shortest = std::min({times.forward, times.backward_input, times.backward_weight});
  const double scale = std::min(3 / shortest, room / simulation.makespan);
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string row(static_cast<std::size_t>(std::ceil(simulation.makespan * scale)), '.');
    const auto put = [&](double start, double duration, char letter, const std::string& number) {
      const auto begin = static_cast<std::size_t>(std::lround(start * scale));
      const auto end =
          std::min(row.size(), static_cast<std::size_t>(std::lround((start + duration) * scale)));
      for (std::size_t i = begin; i < end; ++i) {
        row[i] = i == begin ? letter
                 : i - begin - 1 < number.size() && number.size() < end - begin
                     ? number[i - begin - 1]
                     : '-';
      }
    };
    const std::vector<Action>& actions = schedule.ranks[rank];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      // In a picture of one row the actions of a group stand one after the other.
      double start = simulation.starts[rank][i];
      for (std::size_t j = i; j > 0 && action.group != 0 && actions[j - 1].group == action.group;
           --j)
        start += simulation.durations[rank][j - 1];
      const auto letter = [&](char capital) {
        const bool first = depth[static_cast<std::size_t>(action.virtual_stage)] == 0;
        return first ? capital : static_cast<char>(std::tolower(capital));
      };
      const std::string number = std::to_string(action.micro_batch);
      const double duration = simulation.durations[rank][i];
      if (action.kind == ActionKind::kBackward) {
        const double weight = times.of(ActionKind::kBackwardWeight, action.virtual_stage);
        put(start, duration - weight, letter('B'), number);
        put(start + duration - weight, weight, letter('W'), number);
      } else {
        put(start, duration, letter(name_of(action.kind)[0]), number);
      }
    }
    text += fmt::format("rank {:<{}} {}\n", rank, label - 6, row);
  }
  text += "F forward, B gradient of the input, W gradient of the weights, R recompute";
  if (shape.stages_per_rank() > 1) text += "; small letters: a rank's later virtual stages";
  if (shortest * scale < 1)
    text += fmt::format("\nA column is {:.3g} of time: shorter actions hide each other", 1 / scale);
  return text + "\n";
}

std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const ActionTimes& times) {
  const ScheduleShape shape = shape_of(schedule);
  const std::vector<double> depth = depths(shape);
  const double shortest = std::min({times.forward, times.backward_input, times.backward_weight});
  const double scale =
      std::clamp(18 / shortest, 600 / simulation.makespan, 20000 / simulation.makespan);
  const double width = kLeft + simulation.makespan * scale + 20;
  const double bottom = kTop + static_cast<double>(shape.ranks) * (kRow + kGap);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"10\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      std::max(width, kLegendWidth), bottom + kAxis + kLegend);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const double top = kTop + static_cast<double>(rank) * (kRow + kGap);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", top + kRow / 2 + 4, rank);
    svg +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"#efefef\"/>\n",
                    kLeft, top, simulation.makespan * scale, kRow);
    const std::vector<Action>& actions = schedule.ranks[rank];
    for (std::size_t i = 0; i < actions.size();) {
      const Together group = together(actions, i, simulation.durations[rank]);
      const double height = kRow / static_cast<double>(group.end - i);
      for (; i < group.end; ++i) {
        const Action& action = actions[i];
        const double x = kLeft + simulation.starts[rank][i] * scale,
                     y = top + static_cast<double>(i - group.begin) * height,
                     w = group.duration * scale;
        svg += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
            "fill-opacity=\"{:.2f}\" stroke=\"#444444\" stroke-width=\"0.5\"><title>{} at {:g}, "
            "{:g} long</title></rect>\n",
            x, y, w, height, colour(action.kind),
            1 - 0.6 * depth[static_cast<std::size_t>(action.virtual_stage)], text_of(action),
            simulation.starts[rank][i], group.duration);
        const std::string number = std::to_string(action.micro_batch);
        if (w >= 6 * static_cast<double>(number.size())) {
          svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\">{}</text>\n",
                             x + w / 2, y + height / 2 + 4, number);
        }
      }
    }
  }
  const double step = tick_step(simulation.makespan);
  for (int tick = 0; tick * step <= simulation.makespan; ++tick) {
    const double x = kLeft + tick * step * scale;
    svg += fmt::format(
        "<path d=\"M{0:.2f} {1:.1f}v5\" stroke=\"#444444\"/>"
        "<text x=\"{0:.2f}\" y=\"{2:.1f}\" text-anchor=\"middle\">{3:g}</text>\n",
        x, bottom, bottom + 16, tick * step);
  }
  return svg + legend(schedule, shape, bottom + kAxis) + "</svg>\n";
}

}  // namespace trireme
