#include "dataset/evaluation_batches.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace trireme {

EvaluationBatches::EvaluationBatches(std::shared_ptr<const SampleSource> source,
                                     const RunConfig::Data& data, const BatchShape& shape,
                                     std::int64_t batches, std::int64_t end_token,
                                     std::int64_t vocab_size)
    : shape_(shape),
      rows_(static_cast<std::size_t>(shape.micro)),
      builder_(source, make_batch_rules(data, end_token, vocab_size), shape.micro, shape.context) {
  expect(shape.tokens == source->length(), "samples of {} tokens from a source of {}", shape.tokens,
         source->length());
  std::int64_t wanted = 0;
  if (!multiply_checked(batches, shape.global.largest(), &wanted))
    wanted = SampleSource::kEndless - 1;
  samples_ = std::min(wanted, source->count());
  passes_ = samples_ / (shape.micro * shape.data_ranks) +
            (samples_ % (shape.micro * shape.data_ranks) > 0 ? 1 : 0);
}

const MicroBatch& EvaluationBatches::read(std::int64_t pass) {
  expect(pass >= 0 && pass < passes_, "pass {} of {}", pass, passes_);
  const std::int64_t first = (pass * shape_.data_ranks + shape_.data_rank) * shape_.micro;
  for (std::int64_t row = 0; row < shape_.micro; ++row) {
    rows_[static_cast<std::size_t>(row)] = first + row < samples_ ? first + row : -1;
  }
  builder_.build(rows_);
  return builder_.micro_batch();
}

}  // namespace trireme
