#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "dataset/sample_order.h"
#include "parallel/context_axis.h"
#include "pipeline/micro_batch.h"
#include "tensor/buffer.h"

namespace trireme {

/// What a sample's tokens become.
struct BatchRules {
  std::int64_t end_token = -1;  ///< < 0: none
  std::int64_t vocab_size = 0;  ///< every id is below it
  bool document_mask = false;   ///< first_key given, positions restart with each document
  bool mask_eod_loss = false;   ///< target -1 where the input is the end token
  bool numbered = false;        ///< MicroBatch::numbers
};
/// Throws ConfigError where mask_eod_loss has no end token.
BatchRules make_batch_rules(const RunConfig::Data& data, std::int64_t end_token,
                            std::int64_t vocab_size);

/// Throws DataError with file, document and position of an id that is not in [0, vocab_size).
void check_token_ids(const SampleSource& source, std::int64_t sample,
                     std::span<const std::int32_t> tokens, std::int64_t vocab_size);

/// The memory of one micro-batch of fixed size and how samples are written into it. Allocates once.
class BatchBuilder {
 public:
  /// `context`: of each sample the tokens of that context-parallel rank.
  BatchBuilder(std::shared_ptr<const SampleSource> source, const BatchRules& rules,
               std::int64_t sequences, AxisRank context = {});

  /// Row r of the micro-batch from sample samples[r]; a negative number gives a row of token 0
  /// without counted targets. With x the T + 1 tokens of a sample: input_ids x[0] ... x[T-1],
  /// targets x[1] ... x[T], -1 where they do not count, at the positions of this rank. Throws
  /// DataError as check_token_ids.
  void build(std::span<const std::int64_t> samples);
  [[nodiscard]] const MicroBatch& micro_batch() const { return micro_batch_; }

 private:
  void build_row(std::int64_t row, std::int64_t sample);

  std::shared_ptr<const SampleSource> source_;
  BatchRules rules_;
  std::vector<PositionRange> ranges_;  // of a sample's tokens, those of this rank
  std::int64_t sequences_, length_;    // tokens of a row
  Buffer input_ids_, targets_, positions_, first_key_, numbers_;
  std::vector<std::int32_t> tokens_, document_begin_;  // of one sample, T + 1
  std::vector<std::uint8_t> counted_;                  // likewise
  MicroBatch micro_batch_;
};

}  // namespace trireme
