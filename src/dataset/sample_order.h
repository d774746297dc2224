#pragma once
// Which tokens sample number s of a run holds. The number is the whole state.

#include <cstdint>
#include <limits>
#include <string>

#include "config/run_config.h"
#include "dataset/corpus.h"

namespace trireme {

/// Samples of T + 1 tokens by number. Seen from outside immutable and thread-safe.
class SampleSource {
 public:
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  /// T.
  [[nodiscard]] virtual std::int64_t length() const = 0;
  /// Samples before any comes again; kEndless for synthetic data. A fixed order (megatron) ends.
  [[nodiscard]] virtual std::int64_t count() const = 0;
  /// Sample `sample` >= 0; the spans of the window hold T + 1 elements (all but tokens may be
  /// empty). An id that is negative or beyond int32 comes as -1.
  virtual void read(std::int64_t sample, const Window& window) const = 0;
  /// PREFIX or "synthetic".
  [[nodiscard]] virtual const std::string& source_name(std::int64_t sample) const = 0;
  /// "PREFIX.bin: document 3, position 17: token id 70000" for token `index` of a sample.
  [[nodiscard]] virtual std::string describe(std::int64_t sample, std::int64_t index) const = 0;
};

/// The windows of one corpus: window i is the T + 1 tokens t[iT] ... t[iT + T] of its documents
/// laid end to end. "sequential": sample s is window s mod n; "shuffled": of epoch e = floor(s /
/// n), window p(s mod n) with p a permutation that depends on (seed, source, e) alone, so that a
/// longer run never changes what an earlier step saw.
class WindowSource final : public SampleSource {
 public:
  enum class Order : std::uint8_t { kSequential, kShuffled };
  struct Shuffle {
    std::int64_t seed = 0;
    std::int64_t source = 0;  ///< its place in the blend
  };
  /// Throws ConfigError where the corpus is shorter than one window.
  WindowSource(Corpus corpus, std::int64_t length, Order order, Shuffle shuffle);

  [[nodiscard]] std::int64_t length() const override { return length_; }
  [[nodiscard]] std::int64_t count() const override { return windows_; }
  void read(std::int64_t sample, const Window& window) const override;
  [[nodiscard]] const std::string& source_name(std::int64_t) const override {
    return corpus_.file().prefix();
  }
  [[nodiscard]] std::string describe(std::int64_t sample, std::int64_t index) const override;
  /// The window that a sample is.
  [[nodiscard]] std::int64_t window_of(std::int64_t sample) const;

 private:
  Corpus corpus_;
  std::int64_t length_, windows_;
  Order order_;
  std::uint64_t key_;
  std::int64_t source_;
};

/// Uniform token ids by (seed, purpose, sample, position); each sample is one document.
class SyntheticSource final : public SampleSource {
 public:
  /// `purpose` ("train", "validation") keeps streams apart. vocab_size in [1, 2^31).
  SyntheticSource(std::int64_t length, std::int64_t vocab_size, std::int64_t seed,
                  const std::string& purpose);

  [[nodiscard]] std::int64_t length() const override { return length_; }
  [[nodiscard]] std::int64_t count() const override { return kEndless; }
  void read(std::int64_t sample, const Window& window) const override;
  [[nodiscard]] const std::string& source_name(std::int64_t) const override { return name_; }
  [[nodiscard]] std::string describe(std::int64_t sample, std::int64_t index) const override;

 private:
  std::string name_ = "synthetic";
  std::int64_t length_, vocab_size_;
  std::uint64_t key_;
};

}  // namespace trireme
