#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/human_format.h"
#include "base/log.h"
#include "checkpoint/name_sets.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "commands/commands.h"
#include "commands/parse_options.h"

namespace trireme {

namespace {

void print(const std::string& line) { std::puts(line.c_str()); }

std::int64_t shard_count(const Manifest& manifest) {
  std::int64_t count = 0;
  for (const ManifestTensor& tensor : manifest.tensors) count += tensor.shard_count();
  return count;
}

std::int64_t parameter_count(const Manifest& manifest) {
  std::int64_t count = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.name.starts_with("parameters/")) count += tensor.shape.count();
  }
  return count;
}

std::vector<CheckpointInfo> checkpoints_of(const std::filesystem::path& argument) {
  std::vector<CheckpointInfo> found = find_checkpoints(argument);
  if (found.empty()) {
    throw DataError(
        "{}: holds no checkpoint. Give a step folder, a checkpoints folder or a run's folder",
        argument.string());
  }
  return found;
}

int list(const std::filesystem::path& argument) {
  for (const CheckpointInfo& info : checkpoints_of(argument)) {
    const bool best = info.step >= 0 && step_of_best(info.path.parent_path()) == info.step;
    const std::string name = info.path.string() + (best ? "  (best)" : "");
    if (!info.problem.empty()) {
      print(fmt::format("{}  not usable: {}", name, info.problem));
      continue;
    }
    const Manifest& manifest = info.manifest;
    print(fmt::format("{}  step {}, {}, {} parameters, {}, {}", name, manifest.step,
                      counted(manifest.consumed_samples, "sample"),
                      format_count(static_cast<double>(parameter_count(manifest))),
                      counted(std::ssize(manifest.tensors), "tensor"),
                      format_bytes(manifest.bytes())));
  }
  return 0;
}

/// The sentence with its tensors, where it names none itself: a file that does not open.
std::string with_tensors(const std::string& text, const std::vector<std::string>& tensors) {
  constexpr std::size_t kNamesMax = 5;
  const bool named = tensors.empty() || text.find(tensors.front()) != std::string::npos;
  return named ? text : fmt::format("{} (tensors {})", text, listed(tensors, kNamesMax));
}

std::vector<std::string> faults_of(const std::filesystem::path& folder) {
  try {
    std::map<std::string, std::vector<std::string>> tensors_by_text;
    for (const CheckpointFault& fault : verify_checkpoint(folder)) {
      std::vector<std::string>& tensors = tensors_by_text[fault.text];
      if (!fault.tensor.empty()) tensors.push_back(fault.tensor);
    }
    std::vector<std::string> faults;
    for (const auto& [text, tensors] : tensors_by_text) {
      faults.push_back(with_tensors(text, tensors));
    }
    return faults;
  } catch (const Error& error) {
    return {error.what()};
  }
}

/// Prints what is wrong with a checkpoint, or that nothing is; the first fault, "" where none.
std::string verify_one(const std::filesystem::path& folder) {
  const std::vector<std::string> faults = faults_of(folder);
  for (const std::string& fault : faults) {
    print(fmt::format("{}  damaged: {}", folder.string(), fault));
  }
  if (!faults.empty()) return faults.front();
  const Manifest manifest = read_manifest(folder);
  print(fmt::format("{}  good: {} in {}, {}", folder.string(),
                    counted(std::ssize(manifest.tensors), "tensor"),
                    counted(shard_count(manifest), "shard"), format_bytes(manifest.bytes())));
  return "";
}

int verify(const std::filesystem::path& argument) {
  std::vector<std::string> damaged;
  const std::vector<CheckpointInfo> found = checkpoints_of(argument);
  for (const CheckpointInfo& info : found) {
    std::string fault = verify_one(info.path);
    if (!fault.empty()) damaged.push_back(std::move(fault));
  }
  if (!damaged.empty()) {
    throw DataError("{}: {} of {} damaged. {}", argument.string(), damaged.size(),
                    counted(std::ssize(found), "checkpoint"), damaged.front());
  }
  return 0;
}

int show(const std::filesystem::path& argument) {
  const CheckpointInfo info = checkpoints_of(argument).front();
  if (!info.problem.empty()) throw DataError("{}", info.problem);
  const Manifest& manifest = info.manifest;
  print(fmt::format("path              {}", info.path.string()));
  print(fmt::format("step              {}", manifest.step));
  print(fmt::format("consumed_samples  {}", manifest.consumed_samples));
  print(fmt::format("mesh              {}", manifest.mesh.dump()));
  print(fmt::format("zero_stage        {}", manifest.zero_stage));
  print(fmt::format("model             {}", manifest.model.dump()));
  print(fmt::format("tokenizer         {}", manifest.tokenizer.dump()));
  print(fmt::format("versions          {}", manifest.versions.dump()));
  for (const ManifestFile& file : manifest.files) {
    print(fmt::format("file              {} ({})", file.file, format_bytes(file.bytes)));
  }
  print(fmt::format("tensors           {} ({})", manifest.tensors.size(),
                    format_bytes(manifest.bytes())));
  std::size_t width = 0;
  for (const ManifestTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  for (const ManifestTensor& tensor : manifest.tensors) {
    print(fmt::format("  {:<{}}  {}  {}  {}", tensor.name, width, name_of(tensor.dtype),
                      tensor.shape.text(), counted(tensor.shard_count(), "shard")));
  }
  return 0;
}

}  // namespace

int checkpoint_command(Arguments arguments) {
  CLI::App app("Look at checkpoints. DIR is a run folder, a checkpoints folder or a step folder.",
               "train checkpoint");
  std::string directory;
  int (*chosen)(const std::filesystem::path&) = nullptr;
  const auto add = [&](const char* name, const char* text,
                       int (*work)(const std::filesystem::path&)) {
    CLI::App* sub = app.add_subcommand(name, text);
    sub->add_option("DIR", directory, "run folder, checkpoints folder or step folder")->required();
    sub->callback([&chosen, work] { chosen = work; });
  };
  add("list", "the checkpoints, newest first, and why one is not usable", list);
  add("verify", "read every byte and compare every hash; exit 0 or 74", verify);
  add("show", "manifest, tensors and shapes of the newest", show);
  app.require_subcommand(1);
  if (!parse_options(app, arguments)) return 0;
  return chosen(directory);
}

}  // namespace trireme
