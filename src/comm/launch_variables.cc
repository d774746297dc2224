#include "comm/launch_variables.h"

#include <charconv>
#include <cstring>
#include <initializer_list>
#include <string_view>

namespace trireme {

namespace {
class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& get) : get_(get) {}
  [[nodiscard]] bool has(const char* name) const { return !text(name).empty(); }
  [[nodiscard]] std::string_view text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }
  /// -1 where unset or no number.
  [[nodiscard]] int number(const char* name) const {
    const std::string_view value = text(name);
    int number = -1;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
    return fault == std::errc() && end == value.data() + value.size() && number >= 0 ? number : -1;
  }

 private:
  const std::function<const char*(const char*)>& get_;
};

/// The variable with the number of tasks of this process's Slurm step; null outside of steps.
const char* slurm_task_variable(const Variables& variables) {
  if (variables.number("SLURM_PROCID") < 0) return nullptr;
  if (variables.number("SLURM_STEP_NUM_TASKS") > 0) return "SLURM_STEP_NUM_TASKS";
  const bool in_step = variables.has("SLURM_STEP_ID") || variables.has("SLURM_STEPID");
  const bool batch_shell = variables.text("ENVIRONMENT") == "BATCH";
  return in_step || !batch_shell ? "SLURM_NTASKS" : nullptr;
}
}  // namespace

LaunchVariables read_launch_variables(const std::function<const char*(const char*)>& get) {
  const Variables variables(get);
  const auto claim = [&](const char* name, bool pmix) {
    const int ranks = variables.number(name);
    return LaunchVariables{ranks, name + ("=" + std::to_string(ranks)), pmix};
  };
  const bool pmix = variables.has("PMIX_RANK") || variables.has("PMIX_NAMESPACE");
  if (variables.number("OMPI_COMM_WORLD_SIZE") > 0) return claim("OMPI_COMM_WORLD_SIZE", true);
  for (const char* name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE", slurm_task_variable(variables)}) {
    if (name != nullptr && variables.number(name) > 1) return claim(name, pmix);
  }
  // torchrun's and accelerate's, under which no library of MPI knows of the others.
  if (!pmix && variables.number("RANK") >= 0 && variables.number("WORLD_SIZE") > 1)
    return claim("WORLD_SIZE", false);
  if (pmix && variables.number("SLURM_STEP_NUM_TASKS") != 1) return {0, "PMIX_RANK", true};
  return {};
}

}  // namespace trireme
