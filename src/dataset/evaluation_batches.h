#pragma once

#include <cstdint>
#include <memory>

#include "dataset/batch_builder.h"
#include "dataset/loader.h"

namespace trireme {

/// The validation samples 0 ... batches * largest global - 1, or all of the source once where it
/// has fewer; the same at every evaluation. They fall to micro-batches and data ranks like those of
/// training (sample s to pass floor(s / (micro * data)), data rank floor(s / micro) mod data), in
/// as many passes as the samples need; places without a sample are rows without counted targets, so
/// that every rank does the same number of passes.
class EvaluationBatches {
 public:
  /// `batches` global batches; the rest as Loader's. `shape`'s accumulation is not used.
  EvaluationBatches(std::shared_ptr<const SampleSource> source, const RunConfig::Data& data,
                    const BatchShape& shape, std::int64_t batches, std::int64_t end_token,
                    std::int64_t vocab_size);

  /// Micro-batches of this rank, equal on all ranks.
  [[nodiscard]] std::int64_t passes() const { return passes_; }
  /// Samples of all ranks.
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  /// Valid until the next call. Throws DataError as Loader::next. Allocates nothing.
  const MicroBatch& read(std::int64_t pass);

 private:
  BatchShape shape_;
  std::int64_t samples_, passes_;
  std::vector<std::int64_t> rows_;
  BatchBuilder builder_;
};

}  // namespace trireme
