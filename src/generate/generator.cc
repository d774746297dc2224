#include "generate/generator.h"

namespace trireme {

void generate(Decoder& decoder, std::span<const std::int32_t> prompt, std::int64_t count,
              std::int64_t end_token, const SamplingOptions& options,
              const std::function<void(std::int32_t)>& emit) {
  if (count == 0) return;
  std::span<const float> logits = decoder.feed(prompt);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t token = sample_token(logits, options, static_cast<std::uint64_t>(i));
    emit(token);
    if (token == end_token || i + 1 == count) return;
    logits = decoder.feed({&token, 1});
  }
}

}  // namespace trireme
