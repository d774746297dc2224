#include "train/runtime.h"

#include "comm/gpu_channel.h"

namespace trireme {

DType compute_type(const RunConfig& config, DeviceKind device) {
  const ComputePrecision usual =
      device == DeviceKind::kCuda ? ComputePrecision::kBf16 : ComputePrecision::kFp32;
  return config.precision.compute.value_or(usual) == ComputePrecision::kBf16 ? DType::kBF16
                                                                             : DType::kF32;
}

namespace {

StageShape stage_shape(const RuntimeOptions& options) {
  StageShape shape;
  shape.sequences = options.micro;
  shape.tokens = options.tokens;
  shape.purpose = options.purpose;
  return shape;
}

std::unique_ptr<Communicator> gradient_channel(Communicator& data, Context& context,
                                               FlightRecorder& recorder) {
  constexpr std::string_view kName = "data.reduce";
  return context.on_gpu() && data.size() > 1 ? make_gpu_channel(data, kName, context, recorder)
                                             : data.channel(kName);
}

}  // namespace

Runtime::Runtime(Launch& launch_, const RunConfig& config_, const ModelConfig& model_,
                 const RuntimeOptions& options_)
    : launch(launch_),
      config(config_),
      model(model_),
      options(options_),
      mesh(options.mesh),
      data(launch.world().split(mesh.group_color(Axis::kData, launch.world().rank()))),
      context(options.device, options.threads, detect_isa()),
      data_reduce(gradient_channel(*data, context, launch.flight_recorder())),
      params(declare_params(model)),
      store(params.metas, compute_type(config, options.device.kind),
            options.purpose == StagePurpose::kEvaluation ? StorePurpose::kInference
                                                         : StorePurpose::kTraining,
            options.device),
      stage(context, model, params, store, stage_shape(options)),
      plan(make_1f1b(mesh.extent(Axis::kPipeline), static_cast<int>(options.accumulation))) {
  if (options.purpose == StagePurpose::kEvaluation) return;
  reduction.emplace(store, *data_reduce);
  optimizer.emplace(config.optimizer, store);
}

}  // namespace trireme
