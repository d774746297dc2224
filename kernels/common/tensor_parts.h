#pragma once
// Shares elements of many tensors among the threads of an op. For files compiled per instruction
// set.

#include "kernels/common/parallel.h"

namespace trireme::TRIREME_ISA {

/// body(tensor, from, to) for elements of all tensors, `tensor_count` entries that begin one behind
/// the other (`begin`, `count`) and are `element_count` together.
template <class Args, class Body>
inline __attribute__((always_inline)) void for_each_tensor_part(const Args& args,
                                                                std::int64_t work_per_element,
                                                                const Body& body) {
  constexpr std::int64_t kUnit = 64;  // whole cache lines to a thread where tensors begin on one
  const auto first_behind = [&](std::int64_t element) {
    std::int64_t low = 0, high = args.tensor_count - 1;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (args.tensors[middle].begin + args.tensors[middle].count > element) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  const std::int64_t units = (args.element_count + kUnit - 1) / kUnit;
  parallel_ranges(args.exec, units, kUnit * work_per_element,
                  [&](std::int64_t first, std::int64_t last) {
                    const std::int64_t begin = first * kUnit;
                    const std::int64_t end =
                        last * kUnit < args.element_count ? last * kUnit : args.element_count;
                    for (std::int64_t t = first_behind(begin); t < args.tensor_count; ++t) {
                      const auto& tensor = args.tensors[t];
                      if (tensor.begin >= end) break;
                      const std::int64_t from = begin > tensor.begin ? begin - tensor.begin : 0;
                      const std::int64_t to =
                          end - tensor.begin < tensor.count ? end - tensor.begin : tensor.count;
                      body(tensor, from, to);
                    }
                  });
}

}  // namespace trireme::TRIREME_ISA
