#pragma once
// Feeds the training loop: a thread builds the micro-batches to come while this one computes.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "parallel/cut.h"
#include "pipeline/micro_batch.h"

namespace trireme {

/// How the samples of a global batch fall to the data ranks: sample s of a batch goes to
/// micro-batch floor(s / (micro * data)), data rank floor(s / micro) mod data.
struct BatchShape {
  BatchRamp global = 1;
  std::int64_t micro = 1, accumulation = 1;  ///< of the largest batch
  int data_rank = 0, data_ranks = 1;
  std::int64_t tokens = 1;  ///< T of a sample
  AxisRank context = {};    ///< that shares out the tokens of each sample
  /// Steps that a Loader builds ahead; as many stay whole when they are handed out.
  int lookahead = 1;
  bool numbered = false;  ///< MicroBatch::numbers
};

/// One optimizer step of one data and context rank. Views stay valid for `lookahead` more.
struct StepBatch {
  std::span<const MicroBatch> micro_batches;  ///< `accumulation` of them in the largest
  std::int64_t target_count = 0;              ///< counted targets in this rank's micro-batches
};

class SampleSource;  // sample_order.h: sample number -> T + 1 tokens and where their documents
                     // begin

class Loader {
 public:
  /// `end_token` < 0: none; needed by document_mask and mask_eod_loss. `vocab_size` bounds every id
  /// (DataError with file, document and position beyond it). Starts its thread.
  Loader(std::shared_ptr<const SampleSource> source, const RunConfig::Data& data,
         const BatchShape& shape, std::int64_t end_token, std::int64_t vocab_size);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  [[nodiscard]] int lookahead() const;
  /// The next step's data begins at this global sample. Drops what was prefetched.
  void seek(std::int64_t consumed_samples);
  /// Waits until the step is built; throws what building met. No allocation after the first steps.
  StepBatch next();
  /// Of the `ahead`-th step behind the last, 1 to lookahead. Blocks and throws as next().
  [[nodiscard]] std::int64_t target_count(int ahead);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
