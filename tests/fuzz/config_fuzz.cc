// A config as a user gives it: two files, the model's config.json and --set options, divided by
// lines "%%". Whatever is accepted resolves to a config.json that reads back to the same run.
#include <algorithm>

#include "base/file.h"
#include "config/merge.h"
#include "config/model_parse.h"
#include "config/parse.h"
#include "fuzz_support.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void check_problems(const LoadedConfig& loaded) {
  for (const Problem& problem : loaded.problems) require_readable(format_problem(problem), 1);
  for (const std::string& note : loaded.notes) require(!note.empty(), "an empty note");
  const std::string json = problems_json(loaded.problems).dump();
  (void)parse_json(json, "problems as JSON");
}

void check_resolved(const RunConfig& config) {
  const Json resolved = resolved_json(config);
  const std::string text = resolved.dump(2);
  const LoadedConfig again = parse_run_config(parse_json(text, "resolved"));
  if (!again.problems.empty()) {
    defect(fmt::format("a resolved config is refused: {}\n{}",
                       format_problem(again.problems.front()), text));
  }
  const Json second = resolved_json(again.config);
  if (second != resolved) {
    defect(fmt::format("a resolved config resolves to another:\n{}\n{}", text, second.dump(2)));
  }
  require(again.config == config, "a resolved config is not the run's");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool moved = [] {
    // Relative paths of an input ("model": "m.json") mean the fuzzer's own folder.
    std::filesystem::current_path(folder());
    return true;
  }();
  (void)moved;
  const std::vector<std::string> parts = split_texts(text_of(data, size), 4);
  put("a.json", parts[0]);
  put("b.json", parts[1].empty() ? "{}" : parts[1]);
  put("m.json", parts[2]);
  const Expected expected{{ExitCode::kConfig, ExitCode::kData}, ""};
  ConfigInput input{{"a.json", "b.json"}, lines_of(parts[3])};
  LoadedConfig loaded;
  if (accepted(expected, [&] { loaded = read_run_config(input); })) {
    check_problems(loaded);
    const bool clean = accepted(expected, [&] { throw_problems(loaded.problems); });
    require(clean == loaded.problems.empty(), "problems that are not thrown");
    if (clean) (void)accepted({{}, ""}, [&] { check_resolved(loaded.config); });
  }
  (void)accepted(expected, [&] {
    const ModelConfig model = load_model_config("m.json");
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    const ModelConfig again = read_model(model_keys_json(model), problems, notes);
    require(problems.empty(), "the keys of an accepted model are refused");
    require(again == model, "the keys of a model give another");
    (void)hf_config_json(model, DType::kBF16);
  });
  return 0;
}
