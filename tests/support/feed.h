#pragma once
// A sequence fed to a decoder as a generator does: long pieces by themselves.

#include <algorithm>
#include <cstdint>
#include <span>

#include "model/decoder.h"

namespace trireme {

/// The logits behind the last of `ids`.
inline std::span<const float> feed(Decoder& decoder, std::span<const std::int32_t> ids,
                                   int sequence = 0) {
  const auto rows = static_cast<std::size_t>(decoder.shape().rows);
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), rows);
    const Decoder::Part part{sequence, ids.first(count), count == ids.size()};
    decoder.feed({&part, 1});
    ids = ids.subspan(count);
  }
  return decoder.logits(0);
}

}  // namespace trireme
