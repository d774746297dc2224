#include "commands/sweep_slurm.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "commands/shell_quote.h"

namespace trireme {

namespace {

constexpr std::string_view kMark = "# A job array made by `train sweep --slurm`: one run a task.";

/// A value of an #SBATCH line.
std::string directive(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string array_script(const ArrayJob& job) {
  std::string text = fmt::format("#!/bin/bash\n{}\n", kMark);
  text +=
      "# Set --time, --partition and what else your cluster wants here or by SBATCH_ variables. "
      "Submitted again it goes on\n"
      "# with what is not finished.\n";
  text += fmt::format(
      "#SBATCH --job-name=sweep\n#SBATCH --array=0-{}\n#SBATCH --ntasks={}\n"
      "# To the ranks, five minutes before the limit: they finish the step, save, end with 75.\n"
      "#SBATCH --signal=USR1@300\n#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH "
      "--output={}\n",
      job.runs.size() - 1, job.ranks,
      directive((std::filesystem::absolute(job.folder) / "slurm-%A_%a.log").string()));
  text += fmt::format("cd {} || exit 74\n", shell_quoted(std::filesystem::current_path().string()));
  text += fmt::format("export TRIREME_ROOT={} TRIREME_TRAIN={}\n",
                      shell_quoted(job.scripts.parent_path().string()),
                      shell_quoted(job.program.string()));
  text += "case ${SLURM_ARRAY_TASK_ID-} in\n";
  for (std::size_t i = 0; i < job.runs.size(); ++i) {
    text += fmt::format("{}) run=(", i);
    for (std::size_t k = 0; k < job.runs[i].size(); ++k)
      text += (k == 0 ? "" : " ") + shell_quoted(job.runs[i][k]);
    text += ") ;;\n";
  }
  text += "*) echo 'sweep.sbatch: submit this by sbatch, as a job array' >&2 && exit 2 ;;\nesac\n";
  return text + fmt::format("exec bash {} \"${{run[@]}}\"\n",
                            shell_quoted((job.scripts / "slurm.sbatch").string()));
}

std::filesystem::path write_array_script(const ArrayJob& job) {
  std::error_code code;
  std::filesystem::create_directories(job.folder, code);
  if (code) throw DataError("{}: cannot make this folder: {}", job.folder.string(), code.message());
  const std::filesystem::path path = job.folder / "sweep.sbatch";
  if (is_there(path) && read_file(path).find(kMark) == std::string::npos) {
    throw ConfigError(
        "{}: is there and was not made by a sweep (it would be lost). Move it, or choose another "
        "run.directory",
        path.string());
  }
  write_file_atomically(path, array_script(job));
  return path;
}

}  // namespace trireme
