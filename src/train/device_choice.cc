#include "train/device_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "base/human_format.h"
#include "base/log.h"
#include "config/field_types.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "device/gpu_peak.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized.h"
#include "model/param_table.h"
#include "plan/fp8_support.h"

namespace trireme {

namespace {

std::string_view word_of(DeviceChoice choice) {
  return EnumWords<DeviceChoice>::kWords[static_cast<std::size_t>(choice)];
}

/// Launchers hide GPUs from ranks by these.
std::string visibility_text() {
  std::string text;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"}) {
    const char* value = std::getenv(name);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        value == nullptr ? "is not set" : fmt::format("= \"{}\"", value));
  }
  return text;
}

/// The local rank's. Where a rank sees fewer, the launcher may have given each its own.
Device gpu_of_rank(const Launch& launch) {
  return {DeviceKind::kCuda, launch.local_rank() % gpu::device_count()};
}

/// Throws where two ranks of this host have the same GPU.
void require_own_gpus(const Launch& launch, const std::vector<std::string>& bus_ids) {
  for (std::size_t rank = 1; rank < bus_ids.size(); ++rank) {
    const auto before = bus_ids.begin() + static_cast<std::ptrdiff_t>(rank);
    const auto first = std::find(bus_ids.begin(), before, bus_ids[rank]);
    if (first == before) continue;
    const int count = gpu::device_count();
    throw EnvironmentError(
        "{} ranks on {}, and local ranks {} and {} have the same GPU, {} ({} visible; {}): "
        "every rank needs one of its own. Start as many ranks on a host as it has GPUs",
        bus_ids.size(), launch.host_name(), first - bus_ids.begin(), rank, bus_ids[rank], count,
        visibility_text());
  }
  if (gpu::device_count() == 1 && bus_ids.size() > 1) {
    log_warning(
        "each rank sees one GPU only: GPUs of one host then cannot reach each other's memory, and "
        "transfers are slower. Let every rank see all of its host's (Slurm: --gpus-per-node with "
        "--gpu-bind=none).");
  }
}

/// Of one text of each rank the first that says something, with its rank where it is not true of
/// all; "" where none does. Collective.
std::string first_of(const Launch& launch, const std::string& text) {
  const std::vector<std::string> texts = launch.job().all_gather_text(text);
  const auto first =
      std::find_if(texts.begin(), texts.end(), [](const std::string& one) { return !one.empty(); });
  if (first == texts.end()) return "";
  const bool common = std::all_of(texts.begin(), texts.end(),
                                  [&](const std::string& one) { return one == *first; });
  return common ? *first : fmt::format("rank {}: {}", first - texts.begin(), *first);
}

void require_code(const gpu::Info& info, const std::string& gpu) {
  const gpu::Code code = gpu::code_for(info.capability);
  if (code == gpu::Code::kMachine) return;
  if (code == gpu::Code::kNone) {
    throw EnvironmentError(
        "this build has no code for {}: it has {}. Build with -DTRIREME_CUDA_ARCHITECTURES={}", gpu,
        gpu::architectures(), info.capability);
  }
  log_warning(
      "{} runs what its driver makes of PTX ({}), without the kernels that are made for it alone; "
      "-DTRIREME_CUDA_ARCHITECTURES={} builds for it",
      gpu, gpu::architectures(), info.capability);
}

}  // namespace

DeviceKind device_kind(DeviceChoice choice) {
  switch (choice) {
    case DeviceChoice::kCpu:
      return DeviceKind::kCpu;
    case DeviceChoice::kCuda:
    case DeviceChoice::kCudaHost:
      return DeviceKind::kCuda;
    case DeviceChoice::kAuto:
      break;
  }
  if (gpu::backend_name() != "cuda") return DeviceKind::kCpu;
  try {
    gpu::device_count();
    return DeviceKind::kCuda;
  } catch (const EnvironmentError&) {
    return DeviceKind::kCpu;
  }
}

std::optional<Problem> device_fault(const RunConfig& config) {
  const AttentionBackend& attention = attention_backend(config, device_kind(config.run.device));
  if (attention.serves.cpu || device_kind(config.run.device) != DeviceKind::kCpu)
    return std::nullopt;
  return Problem{"model_backend.attention", fmt::format("\"{}\"", attention.name),
                 "\"own\" on the CPU, or run.device \"cuda\"", "\"own\"",
                 "is a library of GPUs, and this run is on the CPU"};
}

void require_device_built(DeviceChoice choice) {
  if (choice == DeviceChoice::kAuto || choice == DeviceChoice::kCpu) return;
  if (gpu::backend_name() == word_of(choice)) return;
  if (choice == DeviceChoice::kCudaHost) {
    throw EnvironmentError(
        "run.device is \"cuda-host\", which only test builds have (it runs the CUDA sources on the "
        "host, slowly). Use \"cpu\" or \"auto\"");
  }
  throw EnvironmentError(
      "run.device is \"cuda\" but this build has only the CPU backend (no step could run). Use "
      "\"cpu\" or \"auto\", or build with -DTRIREME_CUDA=ON");
}

Device choose_device(DeviceChoice choice, const Launch& launch) {
  Device device;
  std::string gpu, bus_id;
  run_together(launch.job(), [&] {
    require_device_built(choice);
    if (device_kind(choice) == DeviceKind::kCpu) return;
    device = gpu_of_rank(launch);
    const gpu::Info info = gpu::info(device.index);
    gpu = fmt::format("{} ({}.{})", info.name, info.capability / 10, info.capability % 10);
    require_code(info, gpu);
    bus_id = info.pci_bus_id;
  });
  const std::vector<std::string> gpus = launch.job().all_gather_text(gpu);
  for (std::size_t rank = 1; rank < gpus.size(); ++rank) {
    if (gpus[rank] == gpus[0]) continue;
    const auto name = [](const std::string& text) { return text.empty() ? "the CPU" : text; };
    throw SharedError(
        ExitCode::kEnvironment,
        fmt::format("rank 0 has {}, rank {} {} (all would wait for the slowest, and bits would "
                    "differ). Start on one type of GPU",
                    name(gpus[0]), rank, name(gpus[rank])));
  }
  if (device.kind == DeviceKind::kCpu) return device;
  const std::vector<std::string> bus_ids = launch.host().all_gather_text(bus_id);
  run_together(launch.job(), [&] {
    // For tests: several ranks on one GPU.
    if (std::getenv("TRIREME_SHARE_GPU") == nullptr) require_own_gpus(launch, bus_ids);
  });
  if (const std::string missing = first_of(launch, gemm_missing_library()); !missing.empty())
    log_warning("{}", missing);
  return device;
}

const AttentionBackend& ready_attention(const Launch& launch, Device device,
                                        const AttentionBackend& backend,
                                        const AttentionLayout& layout, StagePurpose purpose) {
  if (backend.prepare == nullptr) return backend;
  std::string problem;
  run_together(launch.job(), [&] {
    problem = backend.missing();
    if (problem.empty()) {
      gpu::select(device.index);
      try {
        backend.prepare(layout, purpose != StagePurpose::kEvaluation);
      } catch (const EnvironmentError& error) {
        if (backend.otherwise == nullptr) throw;
        problem = error.what();
      }
    } else if (backend.otherwise == nullptr) {
      throw EnvironmentError(
          "model_backend.attention is \"{}\", which cannot be used here: {}. {}, or set \"own\"",
          backend.name, problem, backend.remedy);
    }
  });
  problem = first_of(launch, problem);
  if (problem.empty()) return backend;
  log_warning(
      "cuDNN is not used ({}): attention runs by this program's own kernels, which may be slower. "
      "{}, or set model_backend.attention \"own\"",
      problem, backend.remedy);
  return *backend.otherwise;
}

void require_fp8(const Launch& launch, Device device, const ModelConfig& model,
                 const Fp8Precision& precision) {
  run_together(launch.job(), [&] {
    if (device.kind == DeviceKind::kCpu) return;
    gpu::select(device.index);
    const gpu::Info info = gpu::info(device.index);
    const auto missing = [&](Fp8Recipe recipe) {
      return gemm_quantized_missing(device, fp8_block(recipe));
    };
    const std::string refusal =
        fp8_refusal({info.name, info.capability, missing(Fp8Recipe::kTensor),
                     missing(Fp8Recipe::kBlock), grouped_gemm_quantized_serves(device)},
                    model, precision);
    if (!refusal.empty()) throw EnvironmentError("precision.compute {}", refusal);
  });
}

std::optional<double> peak_tflops(const RunConfig& config, Device device) {
  if (config.run.peak_tflops || device.kind == DeviceKind::kCpu) return config.run.peak_tflops;
  const bool fp8 = config.precision.compute == ComputePrecision::kFp8;
  return peak_tflops_of(gpu::info(device.index).name, fp8 ? PeakOf::kFp8 : PeakOf::kBf16);
}

std::int64_t memory_in_use(Device device) {
  if (device.kind == DeviceKind::kCpu) return peak_resident_bytes();
  return static_cast<std::int64_t>(gpu::used_bytes());
}

std::string device_text(Device device) {
  if (device.kind == DeviceKind::kCpu) return fmt::format("CPU, {}", name_of(detect_isa()));
  return fmt::format("{} (GPU {})", gpu::info(device.index).name, device.index);
}

}  // namespace trireme
