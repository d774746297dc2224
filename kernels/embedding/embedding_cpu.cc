#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/embedding/embedding_table.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class T>
void forward_of(const EmbeddingForwardArgs& args) {
  const std::int64_t n = args.channels;
  parallel_ranges(args.exec, args.tokens, n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      T* out = static_cast<T*>(args.out) + t * n;
      const std::int64_t index = args.ids[t] - args.first_row;
      if (index < 0 || index >= args.rows) {
        for_each_vector(0, n,
                        [&](std::int64_t c, auto lanes) { F32::zero().store(out + c, lanes); });
        continue;
      }
      const T* row = static_cast<const T*>(args.table) + index * n;
      if (args.positions == nullptr) {
        __builtin_memcpy(out, row, static_cast<std::size_t>(n) * sizeof(T));
        continue;
      }
      const T* position = static_cast<const T*>(args.position_table) + args.positions[t] * n;
      for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
        (F32::load(row + c, lanes) + F32::load(position + c, lanes)).store(out + c, lanes);
      });
    }
  });
}

void forward(const EmbeddingForwardArgs& args) {
  if (args.dtype == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

template <class T>
void backward_of(const EmbeddingBackwardArgs& args) {
  const std::int64_t n = args.channels;
  // Frequent tokens have neighbouring ids, so rows are dealt like cards. Each thread reads all ids.
  const int pieces = piece_count(args.exec.threads, args.tokens, n);
  parallel_pieces(pieces, pieces, [&](int piece, std::int64_t, std::int64_t) {
    for (std::int64_t t = 0; t < args.tokens; ++t) {
      const std::int64_t index = args.ids[t] - args.first_row;
      if (index < 0 || index >= args.rows || index % pieces != piece) continue;
      float* row = args.dtable + index * n;
      const T* d = static_cast<const T*>(args.dout) + t * n;
      for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
        (F32::load(row + c, lanes) + F32::load(d + c, lanes)).store(row + c, lanes);
      });
    }
  });
}

void backward(const EmbeddingBackwardArgs& args) {
  if (args.dout_type == DType::kF32) return backward_of<float>(args);
  backward_of<BFloat16>(args);
}

std::size_t backward_scratch_bytes(std::int64_t, std::int64_t) { return 0; }

}  // namespace

const EmbeddingKernels embedding_cpu = {forward, backward, backward_scratch_bytes};

}  // namespace trireme::TRIREME_ISA
