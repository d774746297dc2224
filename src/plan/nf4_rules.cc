#include "plan/nf4_rules.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "model/param_table.h"
#include "tensor/nf4_view.h"

namespace trireme {

namespace {

/// The first cut of a weight within a block.
std::optional<std::string> tensor_cut(const ParamMeta& param, int extent) {
  if (extent == 1) return std::nullopt;
  for (int rank = 0; rank < extent; ++rank) {
    for (const CutPart& part : local_parts(param.shape, param.cut, {extent, rank})) {
      const auto element = cut_within_block(param.shape, part.box, kNf4Block);
      if (!element) continue;
      return fmt::format("cuts {} {} at row {}, column {}", param.name, param.shape.text(),
                         *element / param.shape[1], *element % param.shape[1]);
    }
  }
  return std::nullopt;
}

std::optional<std::string> shard_cut(const ParamMeta& param, int extent, std::int64_t shards) {
  const Shape local = local_shape(param.shape, param.cut, {extent, 0});
  const std::int64_t together = kNf4Block / std::gcd(local[1], kNf4Block);
  if (shards == 1 || together == 1 || local[0] % (together * shards) == 0) return std::nullopt;
  return fmt::format("shares the {} rows of {} columns of {} among {} ranks", local[0], local[1],
                     param.name, shards);
}

template <class Cut>
std::optional<std::string> first_cut(const ModelParams& params, const Cut& cut) {
  for (const ParamMeta& param : params.metas) {
    if (!param.nf4) continue;
    if (auto found = cut(param)) return found;
  }
  return std::nullopt;
}

}  // namespace

void check_nf4_cuts(const RunConfig& config, std::int64_t shards,
                    const std::function<bool(std::int64_t)>& tensor_fits,
                    std::vector<Problem>& problems) {
  if (!config.lora.given() || config.lora.base != LoraBase::kNf4) return;
  ModelParams params = declare_params(config.model);
  declare_nf4(params);
  const std::string why = fmt::format(
      ": weights in NF4 have scales of {} elements in a row, which stay whole", kNf4Block);
  const auto of_tensor = [&](std::int64_t extent) {
    return first_cut(params, [extent](const ParamMeta& param) {
      return tensor_cut(param, narrow<int>(extent));
    });
  };
  const std::int64_t tensor = config.parallel.tensor;
  if (const auto cut = of_tensor(tensor)) {
    std::int64_t legal = tensor - 1;
    while (legal > 1 && (!tensor_fits(legal) || of_tensor(legal))) --legal;
    problems.push_back({"parallel.tensor", std::to_string(tensor),
                        fmt::format("{} at most, or lora.base \"compute\"", legal),
                        std::to_string(legal), *cut + why});
    return;
  }
  const auto cut = first_cut(params, [&](const ParamMeta& param) {
    return shard_cut(param, narrow<int>(tensor), shards);
  });
  if (!cut) return;
  problems.push_back(
      {"parallel.zero_stage", "3",
       "0, 1 or 2, a number of ranks that divides rows in whole blocks, or lora.base "
       "\"compute\"",
       "2", *cut + why});
}

}  // namespace trireme
