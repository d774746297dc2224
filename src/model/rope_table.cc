#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "tensor/transfer.h"

namespace trireme {

namespace {

float llama3_frequency(const RopeConfig& rope, float frequency) {
  const double original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor)
    return static_cast<float>(frequency / rope.factor);
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / rope.factor + smooth * frequency);
}

/// The dim whose wave turns `turns` times over the original context.
double yarn_correction_dim(const RopeConfig& rope, std::int64_t rotated, double turns) {
  return static_cast<double>(rotated) *
         std::log(static_cast<double>(rope.original_max_positions) /
                  (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

/// Peng et al. 2023: slow waves are interpolated, fast ones kept, those between mixed by a ramp.
float yarn_frequency(const RopeConfig& rope, std::int64_t rotated, std::int64_t j,
                     float frequency) {
  double low = yarn_correction_dim(rope, rotated, rope.beta_fast);
  double high = yarn_correction_dim(rope, rotated, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotated - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
  return static_cast<float>(frequency / rope.factor * ramp + frequency * (1 - ramp));
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor > 0) return rope.attention_factor;
  const auto scale = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  if (rope.mscale > 0 && rope.mscale_all_dim > 0)
    return scale(rope.mscale) / scale(rope.mscale_all_dim);
  return scale(1);
}

double query_scale(const RopeConfig& rope, std::int64_t position) {
  if (rope.query_beta == 0) return 1;
  const std::int64_t times = position / rope.original_max_positions;
  return 1 + rope.query_beta * std::log(1 + static_cast<double>(times));
}

enum class TableOf : std::uint8_t { kQueries, kKeys };

Buffer make_table(Context& context, const RopeConfig& rope, std::int64_t rotated,
                  std::int64_t positions, TableOf of) {
  const std::int64_t half = rotated / 2;
  std::vector<float> frequencies;
  for (std::int64_t j = 0; j < half; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotated);
    float frequency = 1 / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    switch (rope.kind) {
      case RopeKind::kDefault:
        break;
      case RopeKind::kLinear:
        frequency = static_cast<float>(frequency / rope.factor);
        break;
      case RopeKind::kLlama3:
        frequency = llama3_frequency(rope, frequency);
        break;
      case RopeKind::kYarn:
        frequency = yarn_frequency(rope, rotated, j, frequency);
        break;
    }
    frequencies.push_back(frequency);
  }
  const double of_all = rope.kind == RopeKind::kYarn ? yarn_attention_factor(rope) : 1.0;
  Buffer table(DType::kF32, {positions, rotated});
  float* row = table.view().as<float>();
  for (std::int64_t position = 0; position < positions; ++position, row += rotated) {
    const double factor = of == TableOf::kQueries ? of_all * query_scale(rope, position) : of_all;
    for (std::int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * frequencies[j];
      row[j] = static_cast<float>(std::cos(static_cast<double>(angle)) * factor);
      row[half + j] = static_cast<float>(std::sin(static_cast<double>(angle)) * factor);
    }
  }
  if (!context.on_gpu()) return table;
  Buffer copy(DType::kF32, {positions, rotated}, context.device());
  copy_in(context, copy.view(), {table.view().data, table.bytes()});
  return copy;
}

/// The first layer with the table of `layer`.
std::int64_t owner_of_table(const ModelConfig& config, std::int64_t layer) {
  const auto same = [&of = config.layer(layer).attention](const LayerConfig& other) {
    return other.attention.rope == of.rope && other.attention.rotated_dims() == of.rotated_dims();
  };
  return std::find_if(config.layers.begin(), config.layers.end(), same) - config.layers.begin();
}

bool has_table(const ModelConfig& config, std::int64_t layer) {
  return config.layer(layer).attention.rope && owner_of_table(config, layer) == layer;
}

}  // namespace

RopeTables::RopeTables(Context& context, const ModelConfig& config, std::int64_t positions)
    : config_(config), tables_(config.layers.size()) {
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) {
    const AttentionConfig& attention = config.layer(layer).attention;
    if (!has_table(config, layer)) continue;
    const RopeConfig& rope = *attention.rope;
    const auto make = [&](TableOf of) {
      return make_table(context, rope, attention.rotated_dims(), positions, of);
    };
    Table& table = tables_[static_cast<std::size_t>(layer)];
    table.k = make(TableOf::kKeys);
    if (rope.query_beta != 0) table.q = make(TableOf::kQueries);
  }
}

RopeTable RopeTables::of_layer(std::int64_t layer) const {
  const Table& table = tables_[static_cast<std::size_t>(owner_of_table(config_, layer))];
  const ConstTensorView k = table.k.view(), q = table.q.view();
  return {q.given() ? q : k, k};
}

std::int64_t RopeTables::bytes_of(const ModelConfig& config, std::int64_t positions) {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) {
    if (!has_table(config, layer)) continue;
    const AttentionConfig& attention = config.layer(layer).attention;
    const std::int64_t tables = attention.rope->query_beta != 0 ? 2 : 1;
    bytes += tables * positions * attention.rotated_dims() * std::int64_t{sizeof(float)};
  }
  return bytes;
}

}  // namespace trireme
