// Random configs against the binary: whatever `train plan` accepts trains, whatever it refuses is
// refused with a path, by `train` alike.
//
//   random_configs --train BINARY --golden tests/golden --launcher scripts/run.sh
//                  [--count N] [--seed S] [--only INDEX] [--mpi-every N] [--keep FOLDER]
//
// Configs are the same for a seed everywhere. A config that fails is printed and kept with its
// outputs in --keep (random-configs-failed).

#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/file.h"
#include "config/fields.h"
#include "e2e/random_configs/judge.h"
#include "e2e/random_configs/process.h"

namespace trireme {

namespace {

struct Options {
  Tools tools;
  std::int64_t count = 60, only = -1, mpi_every = 4;
  std::uint64_t seed = 1;
  std::filesystem::path keep = "random-configs-failed";
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--train") options.tools.train = std::filesystem::absolute(value);
    if (name == "--golden") options.tools.golden = std::filesystem::absolute(value);
    if (name == "--launcher") options.tools.launcher = std::filesystem::absolute(value);
    if (name == "--keep") options.keep = std::filesystem::absolute(value);
    if (name == "--count") options.count = std::stoll(value);
    if (name == "--seed") options.seed = std::stoull(value);
    if (name == "--only") options.only = std::stoll(value);
    if (name == "--mpi-every") options.mpi_every = std::stoll(value);
  }
  expect(!options.tools.train.empty() && !options.tools.golden.empty() &&
             !options.tools.launcher.empty(),
         "usage: random_configs --train BINARY --golden FOLDER --launcher SCRIPT [--count N] ...");
  return options;
}

/// A key that nobody draws would look covered.
void require_all_fields_drawn() {
  const std::set<std::string> drawn = drawn_fields();
  for (const Field& field : fields()) {
    expect(drawn.contains(field.path), "{} is drawn nowhere: add it to fields.cc", field.path);
  }
}

class Session {
 public:
  explicit Session(Options options)
      : options_(std::move(options)),
        fixtures_(make_fixtures(options_.tools, scratch_ / "fixtures")) {}

  int run() {
    const std::int64_t first = options_.only < 0 ? 0 : options_.only;
    const std::int64_t end = options_.only < 0 ? options_.count : options_.only + 1;
    for (std::int64_t index = first; index < end; ++index) one(index);
    report();
    return failures_ == 0 ? 0 : 1;
  }

 private:
  void one(std::int64_t index) {
    const RandomConfig drawn = draw_config(options_.seed, index, fixtures_);
    Case the_case;
    the_case.folder = scratch_ / "case";
    the_case.index = index;
    the_case.ranks_too = options_.only >= 0 || index % options_.mpi_every == 0;
    const Verdict verdict = judge(drawn, the_case, options_.tools);
    ++outcomes_[verdict.outcome];
    for (const std::string& path : verdict.refused_at) ++refused_at_[path];
    note_given(drawn.merged);
    if (!verdict.faults.empty()) keep(index, drawn, verdict);
    std::filesystem::remove_all(the_case.folder);
  }

  void note_given(const Json& config) {
    for (const Field& field : fields()) {
      if (value_at(config, field.path) != nullptr) ++given_[field.path];
    }
  }

  void keep(std::int64_t index, const RandomConfig& drawn, const Verdict& verdict) {
    ++failures_;
    const std::filesystem::path folder = options_.keep / fmt::format("{}-{}", options_.seed, index);
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder.parent_path());
    std::filesystem::copy(scratch_ / "case", folder, std::filesystem::copy_options::recursive);
    std::string text = fmt::format("FAILED: config {} of seed {} on {} ranks ({})\n", index,
                                   options_.seed, drawn.world, verdict.outcome);
    for (const std::string& oddity : drawn.oddities) text += "  odd: " + oddity + "\n";
    for (const std::string& fault : verdict.faults) text += "  fault: " + fault + "\n";
    for (const std::string& config : drawn.configs) text += config + "\n";
    for (const std::string& set : drawn.overrides) text += "  --set " + set + "\n";
    text += fmt::format("  kept in {}\n", folder.string());
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  void report() {
    std::string text = fmt::format("{} configs of seed {}:", options_.count, options_.seed);
    for (const auto& [outcome, count] : outcomes_) text += fmt::format(" {} {},", count, outcome);
    text += fmt::format(" {} failures\n", failures_);
    text += fmt::format("{} of {} keys given, refused at {} paths\n", given_.size(),
                        fields().size(), refused_at_.size());
    std::fputs(text.c_str(), stdout);
  }

  TemporaryDirectory scratch_;
  Options options_;
  Fixtures fixtures_;
  std::map<std::string, std::int64_t> outcomes_, refused_at_, given_;
  std::int64_t failures_ = 0;
};

}  // namespace

}  // namespace trireme

int main(int argc, char** argv) {
  try {
    trireme::require_all_fields_drawn();
    trireme::Options options = trireme::parse(argc, argv);
    // Of the launcher, and of Open MPI in a container.
    ::setenv("TRIREME_TRAIN", options.tools.train.c_str(), 1);
    ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    ::setenv("NO_COLOR", "1", 1);
    return trireme::Session(std::move(options)).run();
  } catch (const std::exception& error) {
    std::printf("random_configs: %s\n", error.what());
    return 1;
  }
}
