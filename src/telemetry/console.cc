#include "telemetry/console.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/human_format.h"
#include "base/readable.h"

namespace trireme {

namespace {

constexpr std::size_t kRanksMax = 64;

std::string step_of_total(std::int64_t step, std::int64_t total) {
  const std::string total_text = fmt::format("{}", total);
  return fmt::format("step {:>{}}/{}", step, total_text.size(), total_text);
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "";
}

}  // namespace

std::string step_text(const StepLine& line, std::int64_t steps_total, double seconds_left) {
  std::string text = fmt::format("{} | loss {:.4f} | grad norm {:.3f} | lr {:.2e} | {} tokens/s",
                                 step_of_total(line.step, steps_total), line.loss, line.grad_norm,
                                 line.lr, format_count(line.tokens_per_second));
  if (line.logit_z_loss) text += fmt::format(" | logit z {:.2e}", *line.logit_z_loss);
  if (line.noise_scale) text += fmt::format(" | noise scale {:.3g}", *line.noise_scale);
  if (line.experts) {
    const std::vector<double>& load = line.experts->load;
    text += fmt::format(" | expert load {:.2f}", *std::max_element(load.begin(), load.end()));
    if (line.experts->aux_loss != 0) text += fmt::format(" | aux {:.4f}", line.experts->aux_loss);
    if (line.experts->z_loss != 0) text += fmt::format(" | z {:.4f}", line.experts->z_loss);
  }
  if (line.mfu) text += fmt::format(" | MFU {:.1f}%", 100 * *line.mfu);
  return text + fmt::format(" | memory {} | {} left", format_bytes(line.memory_bytes),
                            format_duration(seconds_left));
}

std::string evaluation_text(const EvaluationLine& line, std::int64_t steps_total) {
  return fmt::format("{} | validation loss {}{:.4f} | perplexity {:.4g} | {} tokens",
                     step_of_total(line.step, steps_total),
                     line.name.empty() ? "" : fmt::format("of {} ", line.name), line.loss,
                     line.perplexity, format_count(static_cast<double>(line.tokens)));
}

std::string sample_text(const SampleLine& line, std::int64_t steps_total) {
  std::string text;
  for (const char c : line.prompt + line.text) c == '\n' ? text += "\\n" : text += c;
  return fmt::format("{} | sample: {}", step_of_total(line.step, steps_total),
                     readable(text, LineFeeds::kEscaped, 2000));
}

std::string table_text(std::span<const std::string> header,
                       std::span<const std::vector<std::string>> rows,
                       std::span<const Align> columns) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < header.size(); ++c) {
    widths.push_back(width_of(header[c]));
    for (const auto& row : rows) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  const auto add_row = [&](std::span<const std::string> cells) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - width_of(cells[c]), ' ');
      line += "  ";
      line += columns[c] == Align::kRight ? padding + cells[c] : cells[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_row(header);
  for (const auto& row : rows) add_row(row);
  return text;
}

std::string memory_text(std::span<const MemoryItem> items, std::int64_t available_bytes) {
  std::vector<std::vector<std::string>> rows;
  std::int64_t total = 0;
  for (const auto& [name, bytes] : items) {
    rows.push_back({name, format_bytes(bytes)});
    total += bytes;
  }
  rows.push_back({"total", format_bytes(total)});
  const std::string header[] = {"memory", "bytes"};
  const Align columns[] = {Align::kLeft, Align::kRight};
  std::string text = table_text(header, rows, columns);
  if (available_bytes > 0) {
    text += fmt::format("  {} of the {} that this rank may use\n",
                        percent(static_cast<double>(total), static_cast<double>(available_bytes)),
                        format_bytes(available_bytes));
  }
  return text;
}

std::string batch_text(const BatchArithmetic& batch) {
  const std::int64_t global = batch.micro * batch.accumulation * batch.data_ranks;
  const std::int64_t tokens = global * batch.sequence_length;
  std::string text =
      fmt::format("  batch     {} global = {} micro x {} accumulation x {}", global, batch.micro,
                  batch.accumulation, counted(batch.data_ranks, "data rank"));
  if (batch.pass > 0 && batch.pass < batch.micro)
    text += fmt::format(", computed {} at a time", batch.pass);
  text += "\n";
  text += fmt::format("  tokens    {} a step = {} x {}\n", format_integer(tokens),
                      counted(global, "sample"), batch.sequence_length);
  std::int64_t steps = 0;
  double samples = 0;
  std::vector<std::string> sizes;
  for (const auto& [count, size] : batch.steps_of_sizes) {
    sizes.push_back(fmt::format("{} from step {} on (accumulation {})", size, steps + 1,
                                size / (batch.micro * batch.data_ranks)));
    steps += count;
    samples += static_cast<double>(count) * static_cast<double>(size);
  }
  if (sizes.size() > 1) text += fmt::format("  ramp      {}\n", fmt::join(sizes, ", "));
  text += fmt::format("  training  {}, {} tokens", counted(steps, "step"),
                      format_count(samples * static_cast<double>(batch.sequence_length)));
  if (batch.windows > 0) {
    text += fmt::format(", {:.2f} epochs of {}", samples / static_cast<double>(batch.windows),
                        counted(batch.windows, "window"));
  }
  return text + "\n";
}

std::string placements_text(std::span<const RankPlacement> places) {
  std::vector<std::vector<std::string>> rows;
  if (places.size() <= kRanksMax) {
    for (const RankPlacement& place : places) {
      rows.push_back({fmt::format("{}", place.rank), place.host, place.cores,
                      fmt::format("{}", place.threads), place.device});
    }
  } else {
    for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
      while (end < places.size() && places[end].host == places[begin].host) ++end;
      const RankPlacement& first = places[begin];
      rows.push_back({fmt::format("{}-{}", first.rank, places[end - 1].rank), first.host, "",
                      fmt::format("{}", first.threads), first.device});
    }
  }
  const std::string header[] = {"rank", "host", "cores", "threads", "device"};
  const Align columns[] = {Align::kRight, Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft};
  return table_text(header, rows, columns);
}

}  // namespace trireme
