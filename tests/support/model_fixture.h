#pragma once
// A model with its parameters and buffers on one rank, as tests of the model and of training use
// it.

#include <memory>
#include <span>
#include <vector>

#include "base/trace.h"
#include "config/model_parse.h"
#include "model/stage.h"
#include "pipeline/executor.h"
#include "support/golden.h"
#include "support/program_device.h"
#include "support/store_contents.h"
#include "tensor/transfer.h"

namespace trireme {

/// Token ids and targets of one micro-batch with the memory behind the views. A target of -100 or
/// -1 is not counted.
struct OwnedBatch {
  std::vector<std::int32_t> ids, targets, positions, first_key, numbers;
  MicroBatch view;

  OwnedBatch(std::int64_t sequences, std::int64_t tokens, std::span<const std::int64_t> input_ids,
             std::span<const std::int64_t> target_ids) {
    ids.assign(input_ids.begin(), input_ids.end());
    for (const std::int64_t target : target_ids)
      targets.push_back(target < 0 ? -1 : static_cast<std::int32_t>(target));
    for (std::int64_t i = 0; i < sequences * tokens; ++i)
      positions.push_back(static_cast<std::int32_t>(i % tokens));
    view.sequences = sequences;
    view.tokens = tokens;
    for (const std::int32_t target : targets) view.target_count += target >= 0;
    refresh();
  }
  OwnedBatch(const OwnedBatch&) = delete;
  OwnedBatch& operator=(const OwnedBatch&) = delete;

  /// The rows are the run's samples from `sample` on.
  void number(std::int64_t sample) {
    for (std::int64_t i = 0; i < view.sequences * view.tokens; ++i) {
      numbers.push_back(static_cast<std::int32_t>(sample + i / view.tokens));
      numbers.push_back(static_cast<std::int32_t>(i % view.tokens));
    }
    refresh();
  }
  /// Documents begin at `starts` of each row; positions restart there.
  void set_documents(const std::vector<std::vector<std::int64_t>>& starts) {
    first_key.assign(ids.size(), 0);
    for (std::size_t row = 0; row < starts.size(); ++row) {
      std::int32_t begin = 0;
      std::size_t next = 0;
      for (std::int64_t t = 0; t < view.tokens; ++t) {
        if (next < starts[row].size() && starts[row][next] == t) {
          begin = static_cast<std::int32_t>(t);
          ++next;
        }
        const std::size_t at =
            row * static_cast<std::size_t>(view.tokens) + static_cast<std::size_t>(t);
        first_key[at] = begin;
        positions[at] = static_cast<std::int32_t>(t) - begin;
      }
    }
    refresh();
  }

 private:
  void refresh() {
    const Shape flat{static_cast<std::int64_t>(ids.size())};
    view.input_ids = view_of<const std::int32_t>(ids.data(), flat);
    view.targets = view_of<const std::int32_t>(targets.data(), flat);
    view.positions = view_of<const std::int32_t>(positions.data(), flat);
    if (!numbers.empty())
      view.numbers = view_of<const std::int32_t>(numbers.data(), Shape{flat[0], 2});
    if (!first_key.empty()) view.first_key = view_of<const std::int32_t>(first_key.data(), flat);
  }
};

/// On the GPU of a program that has one (or its execution on the host), else on the CPU.
struct ModelFixture {
  ModelConfig config;
  ModelParams params;
  Context context;
  ParamStore store;
  Stage stage;
  Trace trace;

  ModelFixture(ModelConfig model, const StageShape& shape, DType compute = DType::kF32,
               int threads = 1, const StoreContents& training = kTrainingStore)
      : config(std::move(model)),
        params(declare(config, shape)),
        context(program_device(), threads, detect_isa()),
        store(params.metas, compute,
              shape.purpose == StagePurpose::kEvaluation ? StoreContents{} : training,
              context.device()),
        stage(context, config, params, store, on(context.device(), shape)) {}

  static ModelParams declare(const ModelConfig& config, const StageShape& shape) {
    ModelParams params = declare_params(config);
    if (shape.fp8) declare_fp8(params, config, *shape.fp8, {});
    return params;
  }
  static StageShape on(Device device, StageShape shape) {
    shape.device = device.kind;
    return shape;
  }

  /// Copies the tensors of a Hugging Face file by name, and `adapters`; throws where one is
  /// missing.
  void load(const std::filesystem::path& safetensors, GoldenTensors adapters = {}) {
    GoldenTensors tensors = with_experts_apart(read_tensors(safetensors));
    tensors.merge(adapters);
    for (ParamIndex index = 0; index < static_cast<int>(params.metas.size()); ++index) {
      if (!store.has_value(index)) continue;
      const auto found = tensors.find(params.metas[static_cast<std::size_t>(index)].name);
      expect(found != tensors.end(), "no tensor {}",
             params.metas[static_cast<std::size_t>(index)].name);
      const TensorView value = store.value(index);
      expect(static_cast<std::int64_t>(found->second.values.size()) == value.count(),
             "{}: another size", found->first);
      const std::vector<float> values(found->second.values.begin(), found->second.values.end());
      copy_in(context, value, std::as_bytes(std::span(values)));
    }
    store.refresh_copies(context);
  }

  /// One step's forward and backward over all micro-batches; returns the loss.
  double run(std::span<const MicroBatch> batches, Executor& executor) {
    std::int64_t targets = 0;
    for (const MicroBatch& batch : batches) targets += batch.target_count;
    stage.begin_step(batches, targets);
    stage.rewind();
    executor.run(trace);
    return stage.loss_sum() / static_cast<double>(targets);
  }
  double run(std::span<const MicroBatch> batches, const Schedule& schedule) {
    Executor executor(lower(schedule).ranks.front(), stage);
    return run(batches, executor);
  }
  double run(std::span<const MicroBatch> batches) {
    return run(batches, make_1f1b(1, static_cast<int>(batches.size())));
  }

  /// Nothing of what is not trained.
  std::vector<float> gradient(ParamIndex index) {
    if (!params.metas[static_cast<std::size_t>(index)].trainable) return {};
    const TensorView view = store.gradients().sum(index);
    std::vector<float> values(static_cast<std::size_t>(view.count()));
    copy_out(context, std::as_writable_bytes(std::span(values)), view);
    return values;
  }
};

}  // namespace trireme
