#include "comm/launch_variables.h"

#include <gtest/gtest.h>

#include <map>

#include "comm/launch.h"

namespace trireme {
namespace {

LaunchVariables read(const std::map<std::string, std::string>& variables) {
  return read_launch_variables([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchVariables, a_process_without_a_launcher_is_alone) {
  EXPECT_EQ(read({}).ranks, 1);
  EXPECT_EQ(read({{"HOME", "/root"}, {"OMPI_MCA_btl", "self"}}).ranks, 1);
}

TEST(LaunchVariables, one_rank_is_alone_under_every_launcher) {
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}).ranks, 1);
  EXPECT_EQ(read({{"PMI_SIZE", "1"}}).ranks, 1);
  EXPECT_EQ(read({{"SLURM_PROCID", "0"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_NTASKS", "4"}})
                .ranks,
            1);
}

TEST(LaunchVariables, torchrun_names_ranks_that_mpi_cannot_see) {
  const LaunchVariables found =
      read({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(found.ranks, 4);
  EXPECT_FALSE(found.pmix);
  EXPECT_EQ(found.source, "WORLD_SIZE=4");
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).ranks, 1);
  EXPECT_EQ(read({{"WORLD_SIZE", "4"}}).ranks, 1);  // nobody's rank
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).source,
            "OMPI_COMM_WORLD_SIZE=2");
}

TEST(LaunchVariables, open_mpi_says_how_many_and_is_reachable) {
  const LaunchVariables found =
      read({{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}});
  EXPECT_EQ(found.ranks, 4);
  EXPECT_TRUE(found.pmix);
  EXPECT_EQ(found.source, "OMPI_COMM_WORLD_SIZE=4");
}

TEST(LaunchVariables, a_slurm_step_without_pmix_is_several_ranks_that_cannot_meet) {
  const LaunchVariables found =
      read({{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(found.ranks, 4);
  EXPECT_FALSE(found.pmix);
  EXPECT_EQ(found.source, "SLURM_NTASKS=4");
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).ranks, 2);
}

TEST(LaunchVariables, a_slurm_step_with_pmix_can_meet) {
  const LaunchVariables found = read({{"SLURM_PROCID", "1"},
                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                      {"SLURM_NTASKS", "8"},
                                      {"PMIX_RANK", "1"}});
  EXPECT_EQ(found.ranks, 2);
  EXPECT_TRUE(found.pmix);
}

TEST(LaunchVariables, the_shell_of_a_slurm_batch_job_is_alone) {
  EXPECT_EQ(read({{"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "4"},
                  {"SLURM_JOB_ID", "7"},
                  {"ENVIRONMENT", "BATCH"}})
                .ranks,
            1);
  EXPECT_EQ(read({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).ranks, 1) << "salloc's shell";
}

TEST(LaunchVariables, foreign_launchers_are_seen) {
  const LaunchVariables found = read({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}});
  EXPECT_EQ(found.ranks, 3);
  EXPECT_FALSE(found.pmix);
  EXPECT_EQ(read({{"MV2_COMM_WORLD_SIZE", "2"}}).ranks, 2);
}

TEST(LaunchVariables, pmix_without_a_size_leaves_the_question_to_mpi) {
  const LaunchVariables found = read({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "x"}});
  EXPECT_EQ(found.ranks, 0);
  EXPECT_TRUE(found.pmix);
}

TEST(LaunchVariables, text_that_is_no_number_counts_as_unset) {
  for (const char* text : {"", "two", "-3", "2x", "99999999999999999999", " 2"}) {
    EXPECT_EQ(read({{"OMPI_COMM_WORLD_SIZE", text}, {"PMI_SIZE", text}}).ranks, 1) << text;
  }
}

TEST(Launch, a_process_without_a_launcher_has_a_world_of_one) {
  const Launch launch;
  std::vector<float> values{1, 2};

  launch.job()
      .start_all_reduce(view_of(values.data(), {static_cast<std::int64_t>(values.size())}))
      .wait();

  EXPECT_EQ(launch.job().size(), 1);
  EXPECT_EQ(launch.local_size(), 1);
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  EXPECT_EQ(launch.job().split(3)->size(), 1);
  EXPECT_EQ(launch.job().all_gather_text("me"), std::vector<std::string>{"me"});
}

TEST(Launch, a_launcher_that_mpi_does_not_see_is_refused_with_what_to_type) {
  ASSERT_EQ(::setenv("PMI_SIZE", "4", 1), 0);
  try {
    const Launch launch;
    ADD_FAILURE() << "started with " << launch.job().size() << " ranks";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("PMI_SIZE=4"), std::string::npos) << text;
    EXPECT_NE(text.find("srun --mpi=pmix -n 4"), std::string::npos) << text;
    EXPECT_NE(text.find("mpirun -n 4"), std::string::npos) << text;
  }
  ::unsetenv("PMI_SIZE");
}

}  // namespace
}  // namespace trireme
