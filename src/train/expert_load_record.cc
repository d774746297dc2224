#include "train/expert_load_record.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace trireme {

ExpertLoadRecord::ExpertLoadRecord(const ModelConfig& model, const std::filesystem::path& directory)
    : path_(directory / kFileName) {
  for (const LayerConfig& layer : model.layers)
    load_.emplace_back(static_cast<std::size_t>(layer.experts ? layer.experts->count : 0));
}

void ExpertLoadRecord::add(const ExpertReport& report) {
  for (std::size_t layer = 0; layer < load_.size(); ++layer) {
    for (std::size_t e = 0; e < load_[layer].size(); ++e)
      load_[layer][e] += report.tokens[layer][e];
  }
}

void ExpertLoadRecord::write() const {
  try {
    write_file_atomically(path_, expert_load_json(load_).dump() + "\n");
  } catch (const Error& error) {
    log_warning("{}. Training goes on without it", error.what());
  }
}

}  // namespace trireme
