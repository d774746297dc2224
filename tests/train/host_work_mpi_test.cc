// What `train plan` says that a rank's host asks for, beside what its channels have started: on
// GPUs, executed on the host here.

#include <gtest/gtest.h>

#include "base/op_trace.h"
#include "dataset/loader.h"
#include "device/gpu.h"
#include "plan/traffic.h"
#include "support/gradient_norm.h"
#include "support/mpi_test.h"
#include "support/small_config.h"
#include "train/gpu_run.h"
#include "train/run_data.h"
#include "train/step.h"

namespace trireme {
namespace {

RunConfig small() {
  RunConfig config = small_config(parse_json(
      R"({"model_type":"llama","hidden_size":16,"vocab_size":61,"num_attention_heads":4,
          "num_key_value_heads":2,"num_hidden_layers":4,"intermediate_size":24})",
      "model"));
  config.data.sequence_length = 16;
  config.data.document_mask = true;
  config.batch.micro = 1;
  config.batch.accumulation = 2;
  return config;
}

std::int64_t calls_of(const OpTrace& trace, std::string_view op) {
  std::int64_t calls = 0;
  for (const OpTotal& total : trace.totals()) calls += op == total.op ? total.calls : 0;
  return calls;
}

void expect_planned(const RunConfig& config, const std::string& what) {
  const PreparedRun prepared = prepare_for_gpus(config);
  RuntimeOptions options;
  options.device = {DeviceKind::kCuda, 0};
  Runtime runtime(test_launch(), config, prepared.run, options);
  runtime.store.initialise(runtime.context, 1);
  runtime.weights_changed(Runtime::Copies::kStale);
  std::int64_t transfers = 0, copies = 0;
  for (const Traffic& traffic : step_traffic(
           config.model,
           memory_request(config, prepared.run, StagePurpose::kTraining, test_world().rank()),
           config.data.document_mask)) {
    transfers += traffic.transfers;
    copies += traffic.copies;
  }
  SourceRequest request;
  request.vocab_size = config.model.vocab_size;
  Loader loader(make_training_source(config, request), config.data, batch_shape(prepared, runtime),
                -1, config.model.vocab_size);
  OpTrace trace(runtime.trace);
  runtime.context.set_op_trace(&trace);
  Step step(runtime);
  for (int i = 0; i < 2; ++i) {
    const std::int64_t before = runtime.channels.transfers();
    trace.clear();
    const StepBatch batch = loader.next();
    step.forward_backward(batch.micro_batches, batch.target_count);
    EXPECT_EQ(runtime.channels.transfers() - before, transfers) << what << ", step " << i;
    // Below stage 2 each of them is an op of its own.
    if (config.parallel.zero_stage <= 1) {
      EXPECT_EQ(calls_of(trace, "pack_shards") + calls_of(trace, "unpack_shards"), copies) << what;
    }
    step.update(1e-3, 1);
  }
  runtime.context.set_op_trace(nullptr);
}

TEST(HostWork, is_what_the_channels_have_started) {
  if (gpu::backend_name() == "none") GTEST_SKIP() << "the plan counts rounds of GPUs";
  const int ranks = test_world().size();
  for (const ReductionOrder order : {ReductionOrder::kLibrary, ReductionOrder::kRank}) {
    for (const int stage : {0, 1, 2, 3}) {
      RunConfig config = small();
      config.parallel.reduction_order = order;
      config.parallel.zero_stage = stage;
      expect_planned(config, "ZeRO " + std::to_string(stage));
      config.precision.wire = DType::kBF16;
      expect_planned(config, "bf16 on the wire, ZeRO " + std::to_string(stage));
    }
    for (const bool tokens_cut : {false, true}) {
      RunConfig config = small();
      config.parallel.reduction_order = order;
      config.parallel.tensor = ranks;
      config.parallel.sequence_parallel = tokens_cut;
      config.parallel.recompute = tokens_cut ? Recompute::kNone : Recompute::kFull;
      expect_planned(config, tokens_cut ? "tensor, sequence parallel" : "tensor, recomputed");
    }
    for (const ContextMethod method :
         {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
      RunConfig config = small();
      config.parallel.context = ranks;
      config.parallel.context_method = method;
      expect_planned(config, "context");
    }
  }
  for (const char* schedule : {"1f1b", "v-min"}) {
    RunConfig config = small();
    config.model.layers.resize(static_cast<std::size_t>(2 * ranks), config.model.layer(0));
    config.parallel.pipeline = ranks;
    config.parallel.pipeline_schedule = schedule;
    expect_planned(config, schedule);
  }
}

}  // namespace
}  // namespace trireme
