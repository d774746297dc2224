#pragma once
// Adafactor (Shazeer, Stern 2018) as torch.optim.Adafactor of torch 2.15 has it, each parameter by
// itself. What it finds of a tensor does not depend on how ranks cut it.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/host_memory.h"
#include "kernels/adafactor/adafactor.h"
#include "optim/update_rule.h"

namespace trireme {

class AdafactorRule final : public UpdateRule {
 public:
  /// row_var and col_var of matrices, variance of vectors.
  static std::vector<OptimizerState> states();
  /// The store and the channels must outlive it. Channels are asked where the ranks that hold parts
  /// of a parameter are several.
  AdafactorRule(const ParamStore& store, std::span<const UpdatedParam> params,
                const ViewChannels& channels);
  /// What it takes beside the store, on the device.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& values);
  static Sent bytes_sent(const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, MeshView view);

  void step(Context& context, const UpdateStep& step) override;
  void step(Context& context, const UpdateStep& step, BlockMeter& meter) override;
  [[nodiscard]] std::vector<TensorView> changed() const override;

 private:
  using Words = std::array<std::int64_t, ExactSum::kWords>;
  /// What is known of each of tensors_.
  struct Whole {
    UpdatedParam param;
    double elements = 0, rows = 0;
    Slice row_lines = {0, 0}, column_lines = {0, 0};
    /// Of the ranks of the tensor axis that hold the same part, or the same rows, this one counts.
    bool counts = true, counts_rows = true;
  };
  /// Of a view: its tensors, and lines of which ranks of the tensor axis, or of ZeRO, have other
  /// parts. What another rank counts is dropped before a sum.
  struct Joined {
    UpdateChannels channels;
    std::vector<std::size_t> tensors;
    std::vector<Slice> tensor_lines, shard_lines, dropped;
  };

  void add(const ParamStore& store, const UpdatedParam& param);
  void make_buffers(Device device);
  /// All but the update itself.
  void prepare(Context& context, const UpdateStep& step);
  void find_sums(Context& context, const UpdateStep& step);
  template <class T>
  void join_lines(T* lines, Communicator::Combine combine);
  void join_words(std::vector<Words>& words, bool Whole::*counts);
  void take_words(Context& context, std::vector<Words>& words);
  void take_rows(Context& context);
  /// f(values) in memory of the host; a GPU's go there and back.
  template <class T, class F>
  void on_host(Context& context, const TensorView& values, const F& f);

  std::array<Joined, kMeshViews.size()> joined_;
  std::vector<AdafactorTensor> tensors_;
  std::vector<Whole> wholes_;
  std::int64_t lines_ = 0;
  Buffer largest_, sums_, words_, scalars_;
  std::vector<Words> weights_, rows_, steps_;  // of each tensor
  std::vector<std::byte> packed_;              // what is joined at once
  HostBuffer mirror_;                          // of what stands on a GPU
};

}  // namespace trireme
