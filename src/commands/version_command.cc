#include <cstdio>

#include "base/error.h"
#include "base/human_format.h"
#include "base/version.h"
#include "checkpoint/hdf5_file.h"
#include "comm/launch.h"
#include "commands/commands.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "kernels/gemm/gemm.h"

namespace trireme {

namespace {

std::string gpus_text() {
  if (gpu::backend_name() == "none") return "none: this build has the CPU backend only";
  try {
    std::string text;
    for (int i = 0; i < gpu::device_count(); ++i) {
      const gpu::Info info = gpu::info(i);
      text += fmt::format("{}{} ({}.{}, {})", i == 0 ? "" : ", ", info.name, info.capability / 10,
                          info.capability % 10,
                          format_bytes(static_cast<std::int64_t>(info.total_bytes)));
    }
    return text;
  } catch (const EnvironmentError& error) {
    return fmt::format("none: {}", error.what());
  }
}

std::string instruction_sets_text() {
  std::string text = "built for ";
  for (std::size_t i = 0; i < kIsaCount; ++i)
    text += fmt::format("{}{}",
                        i == 0               ? ""
                        : i + 1 == kIsaCount ? " and "
                                             : ", ",
                        name_of(kIsas[i]));
  return text;
}

}  // namespace

int version_command(Arguments arguments) {
  if (!arguments.empty())
    throw ConfigError("train --version takes no arguments, found {}", arguments.front());
  std::string text = fmt::format("train {} ({})\n", program_version(), program_commit());
  const auto row = [&](std::string_view name, std::string_view value) {
    text += fmt::format("  {:<17} {}\n", name, value);
  };
  row("compiler", fmt::format("GCC {}", __VERSION__));
  row("MPI", mpi_library_name());
  row("HDF5", hdf5_version());
  row("oneDNN", gemm_library_version());
  row("CPU", fmt::format("{}, {} usable cores", cpu_model_name(), usable_cpu_count()));
  row("instruction sets", instruction_sets_text());
  row("uses", name_of(detect_isa()));
  row("GPUs", gpus_text());
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace trireme
