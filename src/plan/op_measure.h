#pragma once
// Products, passes over memory and attention as a model's layers ask for them, timed: the tables of
// a cluster file. All ranks of a machine work at once and the slowest counts, as in a step.

#include <cstdint>
#include <functional>
#include <vector>

#include "config/model_config.h"
#include "device/context.h"
#include "plan/cluster_file.h"

namespace trireme {

/// What a product is in training: y = x W^T, dx = dy W, dW += dy^T x.
enum class ProductUse : std::uint8_t { kForward, kInput, kWeight };

/// [m, k] x [k, n].
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  ProductUse use = ProductUse::kForward;
  friend bool operator==(const ProductShape&, const ProductShape&) = default;
};

/// The products of layers and head over `rows` tokens, in all three uses: whole, of half and a
/// quarter of the tokens, and of half and a quarter of the columns that a tensor axis cuts, where
/// it can; then cubes and slabs for other models. The longest side is cut until a product has
/// `flops_max` operations. No two alike.
std::vector<ProductShape> products_to_measure(const ModelConfig& model, std::int64_t rows,
                                              double flops_max);

/// How works are timed: on every rank in the same order. References must outlive it.
struct Measurement {
  Context& context;
  /// Returns when all ranks that share the machine have called it; alone: does nothing.
  std::function<void()> together = [] {};
};

/// How often something is timed: `repetitions` times, each of which does it `times` times.
struct Repeats {
  std::int64_t times = 1, repetitions = 8;
};

/// 0 of none.
double median_of(std::vector<double> values);

/// The median repetition of `work`, from one meeting of the ranks to the next; seconds of
/// one time. Collective through `together`.
double seconds_of(const Measurement& measurement, const Repeats& repeats,
                  const std::function<void()>& work);

/// One entry a shape; those of equal sizes and different uses are one, with their mean. fp8 (e4m3)
/// on GPUs alone, by one scale for an operand.
std::vector<ProductSeconds> measure_products(const Measurement& measurement,
                                             const std::vector<ProductShape>& shapes, DType type);

/// RMSNorms with a residual in rows of `columns`, from 64 KiB in all to `bytes_max`.
std::vector<MemorySeconds> measure_passes(const Measurement& measurement, std::int64_t columns,
                                          DType type, std::int64_t bytes_max);

/// Operations a second of causal attention over sequences of `tokens`, forward and backward
/// together, as plan/layer_time.h counts them: 14 for a pair and column.
double measure_attention(const Measurement& measurement, const AttentionConfig& attention,
                         std::int64_t tokens, DType type);

}  // namespace trireme
