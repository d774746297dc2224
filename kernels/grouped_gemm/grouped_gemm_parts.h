#pragma once
// The products of all experts, shared among threads. Work is cut into parts of an expert's product,
// which a thread takes as it becomes free: no bit of a part depends on how the others are cut.

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/math.h"
#include "device/context.h"
#include "kernels/gemm/thread_product.h"
#include "tensor/tensor_view.h"

namespace trireme::grouped_gemm_internal {

/// Multiplications that are worth a thread.
inline constexpr std::int64_t kThreadWorkMin = 1 << 17;
/// Rows and columns of an expert's result.
struct Extent {
  std::int64_t rows, columns;
};
/// One part of an expert's result.
struct Part {
  std::int64_t expert;
  Slice rows, columns;
};

/// How an expert's result is cut.
struct Cut {
  std::int64_t first;  ///< parts of the experts before
  Extent result, part;

  [[nodiscard]] std::int64_t columns() const { return ceil_div(result.columns, part.columns); }
  [[nodiscard]] std::int64_t parts() const {
    return result.rows == 0 ? 0 : ceil_div(result.rows, part.rows) * columns();
  }
};

/// The parts of all experts, by number.
class Parts {
 public:
  Parts(Cut* memory, std::int64_t experts) : cuts_(memory), experts_(experts) {}
  void append(std::int64_t expert, const Cut& cut) {
    cuts_[expert] = cut;
    cuts_[expert].first = count_;
    count_ += cut.parts();
  }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] Part operator[](std::int64_t number) const {
    const Cut* behind =
        std::upper_bound(cuts_, cuts_ + experts_, number,
                         [](std::int64_t wanted, const Cut& cut) { return wanted < cut.first; });
    const Cut& cut = behind[-1];
    const std::int64_t row = (number - cut.first) / cut.columns() * cut.part.rows;
    const std::int64_t column = (number - cut.first) % cut.columns() * cut.part.columns;
    return {behind - 1 - cuts_,
            {row, std::min(cut.part.rows, cut.result.rows - row)},
            {column, std::min(cut.part.columns, cut.result.columns - column)}};
  }

 private:
  Cut* cuts_;
  std::int64_t experts_, count_ = 0;
};

/// The context's scratch memory: where parts are kept, and floats of each thread.
struct Scratch {
  Cut* cuts;
  float* floats;
};
Scratch scratch_of(Context& context, std::int64_t experts, std::int64_t floats_per_thread);

/// run(part, thread) for all parts.
template <class Run>
void for_each_part(const Context& context, const Parts& parts, std::int64_t work, const Run& run) {
  const std::int64_t useful = std::min(parts.count(), work / kThreadWorkMin);
  const int threads =
      static_cast<int>(std::clamp<std::int64_t>(useful, 1, std::int64_t{context.threads()}));
  std::atomic<std::int64_t> next{0};
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    for (std::int64_t part = next.fetch_add(1); part < parts.count(); part = next.fetch_add(1))
      run(parts[part], thread);
  }
}

/// The rows of segments.
class Segments {
 public:
  Segments(const ConstTensorView& begins, std::int64_t sources)
      : begins_(begins.as<std::int32_t>()), sources_(sources) {}
  [[nodiscard]] Slice rows(std::int64_t expert, std::int64_t first, std::int64_t count) const {
    const std::int32_t* begin = begins_ + expert * sources_ + first;
    return {begin[0], begin[count] - begin[0]};
  }
  [[nodiscard]] Slice rows(std::int64_t expert) const { return rows(expert, 0, sources_); }
  [[nodiscard]] std::int64_t sources() const { return sources_; }
  /// Of all of `experts`.
  [[nodiscard]] std::int64_t count(std::int64_t experts) const {
    return begins_[experts * sources_] - begins_[0];
  }

 private:
  const std::int32_t* begins_;
  std::int64_t sources_;
};

/// Of a gradient's part, whose sums may have to wait for others.
inline constexpr Extent kWeightPartMost = {240, 512};
inline constexpr std::int64_t kWeightPartFloats = kWeightPartMost.rows * kWeightPartMost.columns;

/// Where sums of a part go.
struct PartSums {
  float* at;
  std::int64_t stride;
  bool add;
};

/// Sums of a part of an expert's gradient over its segments. `multiply(part, segment, sums)` has
/// the product of a segment that has rows.
template <class Multiply>
class WeightPart {
 public:
  WeightPart(const Segments& segments, const ThreadProduct& product, const Part& part,
             const Multiply& multiply)
      : segments_(segments), product_(product), part_(part), multiply_(multiply) {}

  /// `memory`: sums_kept() x kWeightPartFloats.
  void run(const PartSums& c, float* memory) const {
    if (segments_.rows(part_.expert).size == 0) return clear(c);
    sum(0, segments_.sources(), c, memory);
  }

 private:
  void clear(const PartSums& c) const {
    for (std::int64_t row = 0; row < part_.rows.size; ++row)
      std::fill_n(c.at + row * c.stride, part_.columns.size, 0.0F);
  }
  /// to (+)= the sum over `count` segments, which have rows; `memory` holds those of later ones.
  void sum(std::int64_t first, std::int64_t count, const PartSums& to, float* memory) const {
    if (count == 1) return multiply_(part_, first, to);
    const auto half =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count) - 1));
    const std::int64_t behind = first + half, rest = count - half;
    if (segments_.rows(part_.expert, first, half).size == 0) return sum(behind, rest, to, memory);
    if (segments_.rows(part_.expert, behind, rest).size == 0) return sum(first, half, to, memory);
    const PartSums kept = {memory, part_.columns.size, false};
    if (to.add) {
      sum(first, count, kept, memory + kWeightPartFloats);
    } else {
      sum(first, half, to, memory);
      sum(behind, rest, kept, memory + kWeightPartFloats);
    }
    product_.add(to.at, to.stride, memory, part_.rows.size, part_.columns.size);
  }

  const Segments& segments_;
  const ThreadProduct& product_;
  const Part& part_;
  const Multiply& multiply_;
};

/// Of sums that wait for others: those of halves within halves, and all before they are added to c.
inline std::int64_t sums_kept(std::int64_t sources) {
  return sources == 1 ? 0 : 1 + std::bit_width(static_cast<std::uint64_t>(sources) - 1);
}

/// The results of all experts: [rows, n] of their own, or gradients [M, N], of which those of
/// experts without rows stay where they are added to.
Parts row_parts(const Context& context, const Segments& segments, std::int64_t experts,
                std::int64_t n, Extent most, Cut* memory);
Parts weight_parts(const Context& context, const Segments& segments, std::int64_t experts,
                   Extent gradient, bool accumulate, Cut* memory);

}  // namespace trireme::grouped_gemm_internal
