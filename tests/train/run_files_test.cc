#include "train/run_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

class RunFiles : public testing::Test {
 protected:
  RunFiles() { config_.run.directory = (folder_ / "run").string(); }
  void write(const std::string& name, const std::string& text = "mine") const {
    fs::create_directories((folder_ / name).parent_path());
    folder_.write(name, text);
  }
  void make(const std::string& name) const { fs::create_directories(folder_ / name); }
  /// The name of what is in the way; "" where nothing is.
  [[nodiscard]] std::string in_the_way() const {
    const std::optional<Problem> problem = foreign_file(config_);
    if (!problem) return "";
    EXPECT_EQ(problem->code, ExitCode::kConfig);
    const std::string path = problem->message.substr(0, problem->message.find(" is there"));
    return fs::path(path).lexically_relative(folder_.path()).string();
  }

  const TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(RunFiles, a_new_folder_an_empty_one_and_files_of_others_are_no_matter) {
  EXPECT_EQ(in_the_way(), "");
  make("run/checkpoints");
  make("run/tensorboard");
  EXPECT_EQ(in_the_way(), "");
  write("run/notes.txt");
  write("run/model.safetensors");
  write("run/tokenizer.json");
  write("run/checkpoints/notes/x");
  EXPECT_EQ(in_the_way(), "");
  config_.run.directory = "";
  EXPECT_EQ(in_the_way(), "") << "that it is missing is a fault of its own";
}

TEST_F(RunFiles, no_file_that_a_run_writes_may_be_somebody_elses) {
  for (const char* name : {"config.json", "metrics.jsonl", "loss.svg", "report.html",
                           "kernel_choices.json", "tensorboard"}) {
    const std::string path = std::string("run/") + name;
    write(path);
    EXPECT_EQ(in_the_way(), path);
    fs::remove_all(folder_ / "run");
  }
  write("run/trace.json");
  EXPECT_EQ(in_the_way(), "") << "it is not asked for";
  config_.log.trace_steps = {1, 2};
  EXPECT_EQ(in_the_way(), "run/trace.json");
}

TEST_F(RunFiles, a_report_that_is_not_wanted_is_in_nobodys_way) {
  write("run/report.html");
  config_.log.report = false;
  EXPECT_EQ(in_the_way(), "");
}

TEST_F(RunFiles, a_file_for_prometheus_is_a_runs_or_somebody_elses) {
  const fs::path file = folder_ / "run.prom";
  config_.log.prometheus.emplace().file = file.string();
  EXPECT_EQ(in_the_way(), "");
  for (const char* ours : {"", "# HELP trireme_info The program of this run.\n"}) {
    folder_.write("run.prom", ours);
    EXPECT_EQ(in_the_way(), "") << ours;
  }
  for (const char* foreign : {"# HELP node_load1 1m load average.\n", "#", "mine\n"}) {
    folder_.write("run.prom", foreign);
    const std::optional<Problem> problem = foreign_file(config_);
    ASSERT_TRUE(problem) << foreign;
    EXPECT_EQ(problem->path, "log.prometheus");
  }
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_TRUE(foreign_file(config_));
}

TEST_F(RunFiles, a_link_is_somebody_elses_wherever_it_leads) {
  make("run");
  fs::create_symlink("nowhere", folder_ / "run/config.json");
  EXPECT_EQ(in_the_way(), "run/config.json");
}

TEST_F(RunFiles, a_config_beside_metrics_or_checkpoints_is_a_runs) {
  write("run/config.json");
  write("run/loss.svg");
  write("run/metrics.jsonl");
  EXPECT_EQ(in_the_way(), "");
  fs::remove(folder_ / "run/metrics.jsonl");
  EXPECT_EQ(in_the_way(), "run/config.json");
  make("run/checkpoints");
  EXPECT_EQ(in_the_way(), "");
}

TEST_F(RunFiles, a_run_that_ended_before_its_config_stood_begins_again) {
  write("run/metrics.jsonl", "");
  write("run/lock", "");
  EXPECT_EQ(in_the_way(), "");
}

TEST_F(RunFiles, a_lock_that_is_none_is_somebody_elses_in_a_runs_folder_too) {
  write("run/lock", "the key is under the mat");
  EXPECT_EQ(in_the_way(), "run/lock");
  write("run/config.json");
  write("run/metrics.jsonl");
  EXPECT_EQ(in_the_way(), "run/lock");
  write("run/lock", R"({"host": "a", "pid": 12, "job": ""})");
  EXPECT_EQ(in_the_way(), "");
}

TEST_F(RunFiles, step_folders_are_replaced_only_where_a_save_made_them) {
  for (const char* name : {"manifest.json", "rank-00000.h5", "model.h5"}) {
    write("run/checkpoints/step-00000010/" + std::string(name));
    EXPECT_EQ(in_the_way(), "") << name;
    fs::remove_all(folder_ / "run");
  }
  make("run/checkpoints/step-00000010");
  EXPECT_EQ(in_the_way(), "");
  for (const char* kept : {"merges.txt", "generation_config.json", "kernel_choices.json"}) {
    write("run/checkpoints/step-00000010/" + std::string(kept));
    EXPECT_EQ(in_the_way(), "") << "a removal that was cut short left " << kept;
  }
  write("run/checkpoints/step-00000010/thesis.tex");
  EXPECT_EQ(in_the_way(), "run/checkpoints/step-00000010") << "a save keeps no such file";
  fs::remove_all(folder_ / "run");
  write("elsewhere/step-00000010/thesis.tex");
  write("elsewhere/step-00000020", "a file, which no save can replace");
  config_.checkpoint.directory = (folder_ / "elsewhere").string();
  EXPECT_EQ(in_the_way(), "elsewhere/step-00000010");
  EXPECT_EQ(foreign_file(config_)->path, "checkpoint.directory");
}

TEST_F(RunFiles, checkpoints_that_do_not_fit_or_have_no_folder_are_faults_of_files) {
  EXPECT_FALSE(disk_fault(config_, 1000)) << "the run's folder is not there yet";
  const auto code_of = [&](std::int64_t bytes) {
    const std::optional<Problem> fault = disk_fault(config_, bytes);
    return fault ? fault->path + " " + std::to_string(static_cast<int>(fault->code)) : "none";
  };
  EXPECT_EQ(code_of(std::int64_t{1} << 60), "run.directory 74");
  config_.checkpoint.min_free_bytes = std::int64_t{1} << 60;
  EXPECT_EQ(code_of(1), "run.directory 74");
  config_.checkpoint.min_free_bytes = 0;
  write("file");
  config_.checkpoint.directory = (folder_ / "file/checkpoints").string();
  EXPECT_EQ(code_of(1), "checkpoint.directory 74");
}

}  // namespace
}  // namespace trireme
