#pragma once

#include <filesystem>

#include "config/model_config.h"
#include "plan/expert_files.h"
#include "train/step_reports.h"

namespace trireme {

/// What the experts of a run have had to do since the program was started: expert_load.json of its
/// folder, for `train plan --expert-load`.
class ExpertLoadRecord {
 public:
  static constexpr const char* kFileName = "expert_load.json";
  ExpertLoadRecord(const ModelConfig& model, const std::filesystem::path& directory);
  /// Of a step.
  void add(const ExpertReport& report);
  /// Warns where that is not possible: training does without.
  void write() const;

 private:
  const std::filesystem::path path_;
  ExpertLoad load_;
};

}  // namespace trireme
