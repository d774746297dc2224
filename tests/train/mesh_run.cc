#include "train/mesh_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/hash.h"
#include "base/random.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "dataset/loader.h"
#include "dataset/sample_order.h"
#include "store/base_values.h"
#include "store/host_state.h"
#include "support/fetch.h"
#include "support/gradient_norm.h"
#include "support/program_device.h"
#include "support/save_checkpoint.h"
#include "train/block_norms.h"
#include "train/step.h"
#include "train/step_reports.h"

namespace trireme {

namespace {

constexpr std::int32_t kEndToken = 5;

/// Uniform ids, every tenth the end token.
class MeshTokens final : public SampleSource {
 public:
  explicit MeshTokens(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  [[nodiscard]] std::int64_t length() const override { return kMeshTokens; }
  [[nodiscard]] std::int64_t count() const override { return kEndless; }
  void read(std::int64_t sample, const Window& window) const override {
    std::int32_t begin = 0;
    std::fill(window.counted.begin(), window.counted.end(), std::uint8_t{1});
    for (std::size_t i = 0; i < window.tokens.size(); ++i) {
      const auto vocabulary = static_cast<std::uint64_t>(vocabulary_);
      const std::uint64_t number =
          mix(static_cast<std::uint64_t>(sample) * 1000 + i + 1) % (vocabulary + vocabulary / 12);
      window.tokens[i] = number < vocabulary ? static_cast<std::int32_t>(number) : kEndToken;
      if (window.document_begin.empty()) continue;
      window.document_begin[i] = begin;
      if (window.tokens[i] == kEndToken) begin = static_cast<std::int32_t>(i) + 1;
    }
  }
  [[nodiscard]] const std::string& source_name(std::int64_t) const override { return name_; }
  [[nodiscard]] std::string describe(std::int64_t, std::int64_t) const override { return name_; }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x *= 0x9E3779B97F4A7C15U;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9U;
    return x ^ x >> 32;
  }
  std::int64_t vocabulary_;
  std::string name_ = "mesh tokens";
};

/// A box on its way: name, box and values.
void append(std::string& out, const StateTensor& tensor) {
  const auto put = [&](const auto& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  out += tensor.name;
  out.push_back('\0');
  put(tensor.global_shape);
  put(tensor.box);
  const auto row = static_cast<std::size_t>(tensor.row_size());
  const std::int64_t stride = tensor.row_stride == 0 ? tensor.row_size() : tensor.row_stride;
  for (std::int64_t i = 0; i < tensor.box.shape[0]; ++i) {
    const std::byte* from =
        tensor.data + static_cast<std::size_t>(i * stride) * size_of(tensor.dtype);
    if (tensor.dtype == DType::kF32) {
      out.append(reinterpret_cast<const char*>(from), row * sizeof(float));
      continue;
    }
    for (std::size_t k = 0; k < row; ++k) put(static_cast<float>(from[k]));  // a code
  }
}

class Assembly {
 public:
  /// Takes a box off the front of `text`.
  void take(std::string_view& text) {
    const std::string name(text.data());
    text.remove_prefix(name.size() + 1);
    const auto get = [&](auto& value) {
      std::memcpy(&value, text.data(), sizeof value);
      text.remove_prefix(sizeof value);
    };
    Shape global;
    Box box;
    get(global);
    get(box);
    std::vector<float>& whole = result_.tensors[name];
    std::vector<char>& known = known_[name];
    whole.resize(static_cast<std::size_t>(global.count()));
    known.resize(whole.size());
    const std::int64_t columns = global.rank() == 2 ? global[1] : 1;
    const std::int64_t width = global.rank() == 2 ? box.shape[1] : 1;
    const std::int64_t first = global.rank() == 2 ? box.offset[1] : 0;
    for (std::int64_t row = 0; row < box.shape[0]; ++row) {
      for (std::int64_t column = 0; column < width; ++column) {
        float value = 0;
        get(value);
        const auto at = static_cast<std::size_t>((box.offset[0] + row) * columns + first + column);
        if (known[at] != 0 && std::memcmp(&whole[at], &value, sizeof value) != 0)
          fault(fmt::format("{}[{}]: copies of {} and {}", name, at, whole[at], value));
        whole[at] = value;
        known[at] = 1;
      }
    }
  }
  WholeTensors finish() {
    for (const auto& [name, known] : known_) {
      if (std::count(known.begin(), known.end(), 0) > 0) fault(name + ": nobody holds a part");
    }
    return std::move(result_);
  }

 private:
  void fault(const std::string& text) {
    if (result_.fault.empty()) result_.fault = text;
  }
  WholeTensors result_;
  std::map<std::string, std::vector<char>> known_;
};

WholeTensors gather(Runtime& runtime, const State& state) {
  HostState host(runtime.context, state);
  fetch(runtime.context, state, host);
  std::string mine;
  for (const StateTensor& tensor : host.state().tensors) append(mine, tensor);
  Assembly assembly;
  const std::vector<std::string> all = runtime.replica().all_gather_text(mine);
  for (const std::string& boxes : all) {
    for (std::string_view text = boxes; !text.empty();) assembly.take(text);
  }
  return assembly.finish();
}

/// The owned gradients as boxes of the global ones; what is held as rows is made whole in `whole`.
State gradients_of(const ParamStore& store, std::vector<float>& whole) {
  State state;
  const StoreLayout& layout = store.layout();
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
    if (!store.has_value(i) || !param.trainable) continue;  // or added to another's
    TensorView owned = store.gradients().owned(i);
    if (owned.count() == 0) continue;
    if (const ConstTensorView slots = store.gradients().slots(i); slots.given()) {
      const std::int64_t columns = owned.shape[1];
      for (std::int64_t r = 0; r < slots.count(); ++r) {
        const auto* row = owned.as<float>() + slots.as<std::int32_t>()[r] * columns;
        whole.insert(whole.end(), row, row + columns);
      }
      owned = view_of(whole.data(), layout.local_shape(i));
    }
    const std::int64_t row = owned.count() / owned.shape[0];
    for (const CutPart& part : rows_of_parts(
             local_parts(param.shape, param.cut, layout.distribution(i).tensor), layout.owned(i))) {
      StateTensor tensor;
      tensor.name = param.name;
      tensor.global_shape = param.shape;
      tensor.box = part.box;
      const std::int64_t column = part.at.rank() == 2 ? part.at[1] : 0;
      tensor.data =
          owned.data + static_cast<std::size_t>(part.at[0] * row + column) * sizeof(float);
      tensor.row_stride = row;
      state.tensors.push_back(tensor);
    }
  }
  return state;
}

void load(Runtime& runtime, const std::filesystem::path& folder) {
  HostState host(runtime.context, runtime.store.state());
  const Manifest manifest = load_state(folder, host.state(), runtime.replica());
  runtime.optimizer->set_applied_updates(manifest.scalars.find("applied_updates")->as_integer());
  runtime.optimizer->restore(manifest.scalars);
  host.store();
  runtime.weights_changed(Runtime::Copies::kStale);
}

void save(Runtime& runtime, const std::filesystem::path& directory, int step) {
  const State state = runtime.store.state();
  HostState host(runtime.context, state);
  fetch(runtime.context, state, host);
  host.state().scalars["applied_updates"] = runtime.optimizer->applied_updates();
  runtime.optimizer->save(host.state().scalars);
  SaveRequest request;
  request.directory = directory;
  request.step = step;
  request.state = &host.state();
  const SaveResult result = save_checkpoint(request, runtime.replica());
  expect(result.saved(), "{}", result.error);
}

/// The number beside which a tensor's error is small or large.
double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

void compare(const WholeTensors& found, const WholeTensors& expected, const std::string& ending,
             double& worst, std::string& worst_name) {
  const auto ends = [&](const std::string& name) {
    return name.size() >= ending.size() &&
           name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
  };
  double all = 0;
  for (const auto& [name, values] : expected.tensors) {
    if (ends(name)) all = std::hypot(all, norm_of(values));
  }
  for (const auto& [name, values] : expected.tensors) {
    if (!ends(name)) continue;
    std::vector<float> difference = found.tensors.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) difference[i] -= values[i];
    const double error = norm_of(difference) / std::max(norm_of(values), 1e-4 * all);
    if (!(error <= worst)) {
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
      worst_name = name;
    }
  }
}

double distance_of(const std::vector<double>& found, const std::vector<double>& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(found.at(i) - expected[i]) / std::abs(expected[i]);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

ResolvedRun resolved(const MeshCell& cell, const RunConfig& config, std::int64_t global_batch) {
  ResolvedRun run;
  run.mesh = MeshShape({cell.pipeline, cell.data, cell.context, cell.tensor});
  const std::int64_t micro = div_exact(global_batch, std::int64_t{cell.data} * cell.accumulation);
  run.passes = run.batch = {global_batch, micro, cell.accumulation, cell.data};
  run.device = program_device().kind;
  run.compute = compute_type(config, run.device);
  run.fp8 = config.precision.fp8;
  run.sums = reduction_order(config, run.device);
  run.pipeline = make_pipeline(config, run.mesh, {run.passes}, run.compute);
  return run;
}

/// `visit(value, at)` of each value of a rank, at its index in the whole tensor.
template <class Visit>
void each_value(const StateTensor& tensor, const Visit& visit) {
  const std::int64_t width = tensor.row_size();
  const std::int64_t stride = tensor.row_stride == 0 ? width : tensor.row_stride;
  const bool matrix = tensor.global_shape.rank() == 2;
  const std::int64_t columns = matrix ? tensor.global_shape[1] : 1;
  const std::int64_t first = matrix ? tensor.box.offset[1] : 0;
  auto* values = reinterpret_cast<float*>(tensor.data);
  for (std::int64_t row = 0; row < tensor.box.shape[0]; ++row) {
    for (std::int64_t column = 0; column < width; ++column)
      visit(values[row * stride + column], (tensor.box.offset[0] + row) * columns + first + column);
  }
}

/// Weights that stand in codes have no initial values of their own.
void give_base(Runtime& runtime) {
  BaseValues base(runtime.context, runtime.store, std::numeric_limits<std::int64_t>::max());
  for (const StateTensor& tensor : base.state(0).tensors) {
    const std::uint64_t key = stream_key(7, tensor.name);
    const bool matrix = tensor.global_shape.rank() == 2;
    each_value(tensor, [&](float& value, std::int64_t at) {
      value = matrix ? normal(key, static_cast<std::uint64_t>(at)) / 16 : 1;
    });
  }
  base.give(runtime.fp8_weights);
}

}  // namespace

void disturb(Context& context, const ParamStore& store) {
  State parameters;
  for (StateTensor& tensor : store.state().tensors) {
    if (tensor.name.rfind("parameters/", 0) == 0) parameters.tensors.push_back(tensor);
  }
  HostState host(context, parameters);
  fetch(context, parameters, host);
  for (const StateTensor& tensor : host.state().tensors) {
    each_value(tensor, [](float& value, std::int64_t at) {
      value += static_cast<float>(at * 37 % 101 - 50) / 1000;
    });
  }
  host.store();
}

MeshResult run_mesh(Launch& launch, Communicator& world, const MeshCell& cell,
                    std::int64_t global_batch, int steps, const MeshPassage& passage) {
  expect(world.size() == cell.ranks(), "{} ranks for {}", world.size(), cell.text());
  RunConfig config = cell.config();
  config.log.blocks = true;
  const ResolvedRun run = resolved(cell, config, global_batch);
  RuntimeOptions options;
  options.device = program_device();
  Runtime runtime(launch, world, config, run, options);
  MeshResult result;
  if (passage.load.empty()) {
    runtime.store.initialise(runtime.context, 7);
    if (cell.fp8 && cell.adapter_rank > 0) give_base(runtime);
    result.initial = gather(runtime, runtime.store.state());
    if (cell.magnitudes) {
      runtime.optimizer->begin_states(runtime.context);
      runtime.weights_changed(Runtime::Copies::kStale);
      runtime.stage.begin_magnitudes();
    }
    disturb(runtime.context, runtime.store);
    runtime.optimizer->begin_states(runtime.context);
    runtime.weights_changed(Runtime::Copies::kStale);
  } else {
    load(runtime, passage.load);
    result.initial = gather(runtime, runtime.store.state());
  }

  BatchShape shape;
  shape.global = global_batch;
  shape.micro = run.batch.micro;
  shape.accumulation = cell.accumulation;
  shape.data_rank = runtime.data_rank();
  shape.data_ranks = cell.data;
  shape.tokens = kMeshTokens;
  shape.context = runtime.part.cut.context;
  shape.numbered = config.model.numbers_tokens();
  Loader loader(std::make_shared<MeshTokens>(config.model.vocab_size), config.data, shape,
                kEndToken, config.model.vocab_size);
  loader.seek(passage.first_step * global_batch);
  Step step(runtime);
  StepReports reports(runtime.replica());
  for (int i = 0; i < steps; ++i) {
    const StepBatch batch = loader.next();
    std::int64_t targets = batch.target_count;
    runtime.channels.peers->sum(std::span(&targets, 1));
    step.forward_backward(batch.micro_batches, targets);
    const double norm = gradient_norm(runtime.context, runtime.store, runtime.replica());
    const double loss = runtime.sum_of_losses(step.loss_sum());
    result.losses.push_back(loss / static_cast<double>(targets));
    result.norms.push_back(norm);
    std::vector<float> whole;
    if (i == 0) result.gradients = gather(runtime, gradients_of(runtime.store, whole));
    std::optional<ExpertReport> experts;
    if (config.model.has_experts()) {
      reports.start({}, runtime.stage.expert_totals());
      experts = reports.finish().experts;
    }
    BlockMeter* const meter = i + 1 == steps ? &*runtime.block_meter : nullptr;
    step.update(1e-3, norm, experts ? &*experts : nullptr, meter);
  }
  for (const BlockNorms& block :
       norms_of_blocks(runtime.replica(), runtime.block_meter->squares(), runtime.model)) {
    for (const double norm : {block.grad_norm, block.weight_norm, block.update_norm})
      result.blocks.push_back(norm);
  }
  result.final = gather(runtime, runtime.store.state());
  if (!passage.save.empty()) save(runtime, passage.save, passage.first_step + steps);
  return result;
}

MeshDistance distance_of(const MeshResult& found, const MeshResult& expected) {
  MeshDistance distance;
  distance.losses = distance_of(found.losses, expected.losses);
  distance.norms = distance_of(found.norms, expected.norms);
  distance.blocks = distance_of(found.blocks, expected.blocks);
  compare(found.gradients, expected.gradients, "", distance.gradients, distance.worst_gradient);
  for (const char* moment : {"/exp_avg", "/exp_avg_sq", "/z", "/row_var", "/col_var", "/variance"})
    compare(found.final, expected.final, moment, distance.moments, distance.worst_moment);
  return distance;
}

std::string bits_of(const MeshResult& result) {
  const auto hash_of = [](const auto& values) {
    return xxh3_128_hex(std::as_bytes(std::span(values))).substr(0, 16);
  };
  const auto hash_of_all = [&](const WholeTensors& whole) {
    std::string text;
    for (const auto& [name, values] : whole.tensors) text += name + hash_of(values);
    return xxh3_128_hex(text).substr(0, 16);
  };
  return fmt::format("losses {} norms {} blocks {} gradients {} state {}", hash_of(result.losses),
                     hash_of(result.norms), hash_of(result.blocks), hash_of_all(result.gradients),
                     hash_of_all(result.final));
}

}  // namespace trireme
