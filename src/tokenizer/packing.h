#pragma once
// Documents into windows of equal size without cutting one that fits.

#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

/// Best fit decreasing: documents by descending length, those of equal length in their order; each
/// goes to the fullest bin that has room for it, of equally full ones to the one that was so first,
/// or opens a bin. Lengths in [1, capacity]. For each bin, in order of opening, the documents in
/// the order in which they came. In n log n. As the packing "bfd" of trl's SFTTrainer, over
/// a whole data set; Ding et al. 2024, "Fewer Truncations Improve Language Modeling".
std::vector<std::vector<std::int64_t>> pack_best_fit(std::span<const std::int32_t> lengths,
                                                     std::int32_t capacity);

}  // namespace trireme
