#pragma once
// megatron-core's order of samples, index for index (GPTDataset and BlendedDataset of megatron-core
// 0.16) at equal seed, T and samples. Unlike our own orders it changes with the length of the run.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "config/run_config.h"
#include "dataset/sample_order.h"

namespace trireme {

/// The order of one corpus. With n sequences of together K tokens, T tokens a sample and N samples
/// asked for: epochs E = the smallest with E K >= N T + 1; where E > 1 the last epoch stands apart
/// when fewer than int(0.8 floor((K-1)/T)) samples of it are needed. The sequences of all epochs
/// (or of the first E - 1, then of the last) are shuffled as one array, laid end to end and cut
/// into floor((E K - 1)/T) samples that share one token with their neighbours; then the samples are
/// shuffled, likewise in one or two parts. The random numbers are numpy's RandomState(seed).
struct MegatronRequest {
  SequenceRange range;       ///< K > 0
  std::int64_t length = 0;   ///< T
  std::int64_t samples = 0;  ///< N
  std::uint32_t seed = 0;
};

/// The arrays of an order, in memory or in a mapped cache file. Sample k begins with token
/// sample_offset[j] of sequence document_index[sample_position[j]], j = shuffle_index[k], and ends
/// where sample j + 1 begins, plus a token.
class MegatronIndex {
 public:
  std::span<const std::int32_t> document_index;
  std::span<const std::int64_t> sample_position;  ///< one more than there are samples
  std::span<const std::int32_t> sample_offset;    ///< likewise
  std::span<const std::uint32_t> shuffle_index;

  /// Throws ConfigError where an index type is too small: 2^31 sequences in all, 2^32 samples.
  static MegatronIndex build(const IndexedFile& file, const MegatronRequest& request);
  /// The index stored at `path`, or nothing where the file is missing, damaged or of another key.
  static std::unique_ptr<MegatronIndex> load(const std::filesystem::path& path,
                                             const std::string& key);
  /// Writes beside `path` and renames: a reader sees a whole file or none. Throws DataError.
  void store(const std::filesystem::path& path, const std::string& key) const;

 private:
  MappedFile mapped_;
  std::vector<std::int32_t> own_documents_, own_offsets_;
  std::vector<std::int64_t> own_positions_;
  std::vector<std::uint32_t> own_shuffle_;
};

/// The stored index of (file, request), built and stored where there is none, in the first of
/// `folders` that can be written (all are searched); with a warning kept in memory where none can.
/// Runs that start together build once: the others wait for the one that holds the lock file.
std::unique_ptr<MegatronIndex> cached_megatron_index(
    const IndexedFile& file, const MegatronRequest& request,
    std::span<const std::filesystem::path> folders);

/// Samples of one corpus.
class MegatronSource final : public SampleSource {
 public:
  MegatronSource(Corpus corpus, std::int64_t length, std::unique_ptr<MegatronIndex> index);
  [[nodiscard]] std::int64_t length() const override { return length_; }
  [[nodiscard]] std::int64_t count() const override {
    return static_cast<std::int64_t>(index_->shuffle_index.size());
  }
  void read(std::int64_t sample, const Window& window) const override;
  [[nodiscard]] const std::string& source_name(std::int64_t) const override {
    return corpus_.file().prefix();
  }
  [[nodiscard]] std::string describe(std::int64_t sample, std::int64_t index) const override;
  [[nodiscard]] const MegatronIndex& index() const { return *index_; }

 private:
  template <class Visitor>
  void visit_pieces(std::int64_t sample, Visitor&& visitor) const;
  Corpus corpus_;
  std::int64_t length_;
  std::unique_ptr<MegatronIndex> index_;
};

/// How many samples megatron-core asks of each source of a blend of `samples`, and what it draws:
/// the blend's size is the sum of ceil(N w_d), a source is asked for 1.005 of its share, rounded
/// up. `weights` as given by the user.
struct MegatronShares {
  std::vector<double> weights;  ///< normalised twice, as its blend uses them
  std::vector<std::int64_t> requested;
  std::int64_t size = 0;
};
MegatronShares megatron_shares(std::span<const double> weights, std::int64_t samples);

/// What make_megatron_source would refuse, found without building an index. Throws ConfigError.
void check_megatron_order(const RunConfig& config, std::span<const Corpus> corpora,
                          std::int64_t total_samples);

/// The training data of a config in this order. One corpus is read directly, but with a weight and
/// data.split as a blend of one. Throws ConfigError for a seed beyond 32 bits.
std::shared_ptr<const SampleSource> make_megatron_source(const RunConfig& config,
                                                         std::vector<Corpus> corpora,
                                                         std::int64_t total_samples);

}  // namespace trireme
