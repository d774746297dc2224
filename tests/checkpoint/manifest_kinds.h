#pragma once

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/writer.h"

namespace trireme {

/// Where a checkpoint's shards are listed: in the manifest, or split among the stores.
enum class ManifestKind { kListed, kSplit };

inline std::int64_t listed_shards_max(ManifestKind kind) {
  return kind == ManifestKind::kSplit ? 0 : SaveRequest().listed_shards_max;
}

inline std::string name_of_kind(const testing::TestParamInfo<ManifestKind>& info) {
  return info.param == ManifestKind::kSplit ? "split" : "listed";
}

inline auto both_kinds() { return testing::Values(ManifestKind::kListed, ManifestKind::kSplit); }

}  // namespace trireme
