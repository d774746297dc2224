// Shares the products of all experts among threads. Work is cut into parts of an expert's product,
// which a thread takes as it becomes free: no bit of a part depends on how the others are cut.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/math.h"
#include "kernels/gemm/thread_product.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"

namespace trireme::grouped_gemm_internal {
namespace {

/// More than there are threads: experts have parts of unequal sizes.
constexpr std::int64_t kPartsPerThread = 4;
/// Multiplications that are worth a thread.
constexpr std::int64_t kThreadWorkMin = 1 << 17;
/// Tiles of all instruction sets divide these; smaller parts spend their time on packing.
constexpr std::int64_t kRowsAlignment = 24, kColumnsAlignment = 32;
constexpr std::int64_t kRowsMin = 2 * kRowsAlignment, kColumnsMin = 2 * kColumnsAlignment;

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

/// In `wanted` parts, or more where those were larger than `most`. The longer side is halved: what
/// a part reads is a row of one operand for each of its rows, of the other for each of its columns.
Cut cut_of(Extent result, std::int64_t wanted, Extent most) {
  std::int64_t rows = std::max<std::int64_t>(1, ceil_div(result.rows, most.rows));
  std::int64_t columns = ceil_div(result.columns, most.columns);
  while (rows * columns < wanted) {
    const std::int64_t height = result.rows / rows, width = result.columns / columns;
    const bool by_rows = height >= 2 * kRowsMin, by_columns = width >= 2 * kColumnsMin;
    if (!by_rows && !by_columns) break;
    (by_rows && (height >= width || !by_columns) ? rows : columns) *= 2;
  }
  return {0,
          result,
          {std::max(kRowsAlignment, round_up(ceil_div(result.rows, rows), kRowsAlignment)),
           round_up(ceil_div(result.columns, columns), kColumnsAlignment)}};
}

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
Scratch scratch_of(Context& context, std::int64_t experts, std::int64_t floats_per_thread) {
  const std::size_t cuts =
      static_cast<std::size_t>(round_up(experts * static_cast<std::int64_t>(sizeof(Cut)), 64));
  const auto floats = static_cast<std::size_t>(context.threads() * floats_per_thread);
  std::byte* const memory = context.scratch(cuts + floats * sizeof(float));
  return {reinterpret_cast<Cut*>(memory), reinterpret_cast<float*>(memory + cuts)};
}

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

std::int64_t parts_wanted(const Context& context, std::int64_t rows, std::int64_t all) {
  return context.threads() == 1 ? 1 : ceil_div(rows * kPartsPerThread * context.threads(), all);
}

/// An operand's element [row, column] of `stride`.
template <class Pointer>
auto* at(const Pointer& view, std::int64_t row, std::int64_t stride, std::int64_t column) {
  return view.data + (row * stride + column) * static_cast<std::int64_t>(size_of(view.dtype));
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

 private:
  const std::int32_t* begins_;
  std::int64_t sources_;
};

/// Sums of a part of an expert's gradient over its segments.
class WeightPart {
 public:
  static constexpr Extent kMost = {240, 512};
  static constexpr std::int64_t kFloats = kMost.rows * kMost.columns;

  WeightPart(const GroupedGemmWeights& args, const Segments& segments, const ThreadProduct& product,
             const Part& part, float* scratch)
      : args_(args), segments_(segments), product_(product), part_(part), scratch_(scratch) {}

  void run() const {
    const std::int64_t m = args_.c_GMN.shape[1], n = args_.c_GMN.shape[2];
    const Sums c = {
        args_.c_GMN.as<float>() + (part_.expert * m + part_.rows.begin) * n + part_.columns.begin,
        n, args_.accumulate == Accumulate::kYes};
    float* const sums = scratch_ + product_.scratch();
    if (segments_.rows(part_.expert).size == 0) return clear(c);
    sum(0, segments_.sources(), c, sums);
  }

 private:
  struct Sums {
    float* at;
    std::int64_t stride;
    bool add;
  };

  void clear(const Sums& c) const {
    for (std::int64_t row = 0; row < part_.rows.size; ++row)
      std::fill_n(c.at + row * c.stride, part_.columns.size, 0.0F);
  }
  void multiply(std::int64_t segment, const Sums& to) const {
    const std::int64_t m = args_.c_GMN.shape[1], n = args_.c_GMN.shape[2];
    const Slice rows = segments_.rows(part_.expert, segment, 1);
    product_.multiply({{part_.rows.size, part_.columns.size, rows.size},
                       args_.a_RM.dtype,
                       DType::kF32,
                       at(args_.a_RM, rows.begin, m, part_.rows.begin),
                       at(args_.b_RN, rows.begin, n, part_.columns.begin),
                       to.at,
                       m,
                       n,
                       to.stride,
                       true,
                       false,
                       to.add},
                      scratch_);
  }
  /// to (+)= the sum over `count` segments, which have rows; `memory` holds those of later ones.
  void sum(std::int64_t first, std::int64_t count, const Sums& to, float* memory) const {
    if (count == 1) return multiply(first, to);
    const auto half =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count) - 1));
    const std::int64_t behind = first + half, rest = count - half;
    if (segments_.rows(part_.expert, first, half).size == 0) return sum(behind, rest, to, memory);
    if (segments_.rows(part_.expert, behind, rest).size == 0) return sum(first, half, to, memory);
    const Sums kept = {memory, part_.columns.size, false};
    if (to.add) {
      sum(first, count, kept, memory + kFloats);
    } else {
      sum(first, half, to, memory);
      sum(behind, rest, kept, memory + kFloats);
    }
    product_.add(to.at, to.stride, memory, part_.rows.size, part_.columns.size);
  }

  const GroupedGemmWeights& args_;
  const Segments& segments_;
  const ThreadProduct& product_;
  const Part& part_;
  float* scratch_;
};

/// Of sums that wait for others: those of halves within halves, and all before they are added to c.
std::int64_t sums_kept(std::int64_t sources) {
  return sources == 1 ? 0 : 1 + std::bit_width(static_cast<std::uint64_t>(sources) - 1);
}

}  // namespace

void multiply_on_cpu(Context& context, const GroupedGemm& args) {
  constexpr Extent kMost = {504, 1024};
  const std::int64_t experts = args.b.shape[0], k = args.a_RK.shape[1], n = args.c_RN.shape[1];
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, args.a_RK.dtype);
  const Scratch scratch = scratch_of(context, experts, product.scratch());
  Parts parts(scratch.cuts, experts);
  const std::int64_t all =
      segments.rows(experts - 1).begin + segments.rows(experts - 1).size - segments.rows(0).begin;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t rows = segments.rows(expert).size;
    const std::int64_t wanted = rows == 0 ? 0 : parts_wanted(context, rows, all);
    parts.append(expert, cut_of({rows, n}, wanted, kMost));
  }
  const bool transposed = args.transpose_b == Transpose::kYes;
  for_each_part(context, parts, all * n * k, [&](const Part& part, int thread) {
    const std::int64_t row = segments.rows(part.expert).begin + part.rows.begin;
    const std::int64_t column = part.columns.begin;
    product.multiply({{part.rows.size, part.columns.size, k},
                      args.a_RK.dtype,
                      args.c_RN.dtype,
                      at(args.a_RK, row, k, 0),
                      transposed ? at(args.b, part.expert * n + column, k, 0)
                                 : at(args.b, part.expert * k, n, column),
                      at(args.c_RN, row, n, column),
                      k,
                      transposed ? k : n,
                      n,
                      false,
                      transposed,
                      false},
                     scratch.floats + thread * product.scratch());
  });
}

void weights_on_cpu(Context& context, const GroupedGemmWeights& args) {
  const std::int64_t experts = args.c_GMN.shape[0];
  const std::int64_t m = args.c_GMN.shape[1], n = args.c_GMN.shape[2];
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, args.a_RM.dtype);
  const std::int64_t floats = product.scratch() + sums_kept(args.sources) * WeightPart::kFloats;
  const Scratch scratch = scratch_of(context, experts, floats);
  Parts parts(scratch.cuts, experts);
  const std::int64_t all =
      segments.rows(experts - 1).begin + segments.rows(experts - 1).size - segments.rows(0).begin;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t rows = segments.rows(expert).size;
    const bool stays = rows == 0 && args.accumulate == Accumulate::kYes;
    const std::int64_t wanted = rows == 0 ? 1 : parts_wanted(context, rows, all);
    parts.append(expert, cut_of({stays ? 0 : m, n}, wanted, WeightPart::kMost));
  }
  for_each_part(context, parts, (all + experts) * m * n, [&](const Part& part, int thread) {
    WeightPart(args, segments, product, part, scratch.floats + thread * floats).run();
  });
}

}  // namespace trireme::grouped_gemm_internal
