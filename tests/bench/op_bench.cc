#include "bench/op_bench.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/float8.h"
#include "base/op_trace.h"
#include "base/random.h"
#include "plan/machine_rates.h"
#include "support/program_device.h"
#include "tensor/transfer.h"

namespace trireme::bench {

Device bench_device() { return program_device(); }

TensorView Operands::keep(Buffer buffer) {
  if (!context_.on_gpu()) return buffers_.emplace_back(std::move(buffer)).view();
  const TensorView from = buffer.view();
  const TensorView to = buffers_.emplace_back(from.dtype, from.shape, context_.device()).view();
  copy_in(context_, to, {from.data, from.bytes()});
  return to;
}

TensorView Operands::indices(std::int64_t count, std::int64_t below) {
  Buffer buffer(DType::kI32, Shape{count});
  const TensorView view = buffer.view();
  std::uint64_t counter = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    view.as<std::int32_t>()[i] =
        static_cast<std::int32_t>(uniform_below(2, static_cast<std::uint64_t>(below), &counter));
  }
  return keep(std::move(buffer));
}

TensorView Operands::i32(const std::vector<std::int32_t>& values) {
  Buffer buffer(DType::kI32, Shape{static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), buffer.view().as<std::int32_t>());
  return keep(std::move(buffer));
}

TensorView Operands::positions() {
  Buffer buffer(DType::kI32, Shape{size.rows()});
  const TensorView view = buffer.view();
  for (std::int64_t i = 0; i < size.rows(); ++i) {
    view.as<std::int32_t>()[i] = static_cast<std::int32_t>(i % size.tokens);
  }
  return keep(std::move(buffer));
}

TensorView Operands::begins(std::int64_t segments) {
  Buffer buffer(DType::kI32, Shape{segments + 1});
  const TensorView view = buffer.view();
  for (std::int64_t i = 0; i <= segments; ++i)
    view.as<std::int32_t>()[i] = static_cast<std::int32_t>(size.rows() * i / segments);
  return keep(std::move(buffer));
}

/// Of no pattern, neither zero nor subnormal, and quick to make: L has hundreds of millions.
TensorView Operands::filled(DType dtype, const Shape& shape, Values values) {
  Buffer buffer(dtype, shape);
  const TensorView view = buffer.view();
  std::uint32_t state = 1;
  // So many fresh ones, then these again: a weight of billions would take longer than its op.
  const std::int64_t fresh = std::min(shape.count(), std::int64_t{1} << 20);
  for (std::int64_t i = 0; i < fresh; ++i) {
    state = state * 1664525 + 1013904223;
    float value = static_cast<float>(state >> 8) / (1 << 24) - 0.5F;
    if (values == Values::kSquares) value *= value;
    if (dtype == DType::kF32) view.as<float>()[i] = value;
    if (dtype == DType::kBF16) view.as<BFloat16>()[i] = to_bfloat16(value);
    if (dtype == DType::kF8E4M3) view.as<F8E4M3>()[i] = to_f8<F8E4M3>(value);
  }
  const auto bytes = static_cast<std::size_t>(view.bytes());
  for (auto done = static_cast<std::size_t>(fresh) * size_of(dtype), part = done; done < bytes;
       done += part) {
    part = std::min(done, bytes - done);
    std::memcpy(view.data + done, view.data, part);
  }
  return keep(std::move(buffer));
}

namespace {

const MachineRates& rates_of(Context& context) {
  static std::map<int, MachineRates> rates;
  const auto found = rates.find(context.threads());
  if (found != rates.end()) return found->second;
  RateRequest request;
  request.bf16 = request.fp8 = true;
  request.largest_copy = copy_bytes_beyond_cache();
  return rates[context.threads()] = measure_rates(context, request);
}

/// Work of one call, as the op's span tells it.
OpTotal measure_work(Context& context, const std::function<void(Context&)>& op) {
  const Trace phases(1);
  OpTrace trace(phases);
  context.set_op_trace(&trace);
  op(context);
  context.set_op_trace(nullptr);
  OpTotal work;
  for (const OpTotal& total : trace.totals()) {
    if (total.flops > 0) work.type = total.type;  // of the product, not of an op behind it
    work.flops += total.flops;
    work.bytes += total.bytes;
  }
  return work;
}

/// Plain numbers: the library's own rate counters would print "/s" behind a quotient.
void report(benchmark::State& state, const OpTotal& work, const MachineRates& rates,
            double seconds) {
  if (work.flops > 0) {
    const std::string product = is_fp8(work.type)           ? "fp8"
                                : work.type == DType::kBF16 ? "bf16"
                                                            : "sgemm";
    const double machine = rates.flops_per_second(work.type),
                 reached = static_cast<double>(work.flops) / seconds;
    state.counters["GFLOP/s"] = reached * 1e-9;
    state.counters[product + "_GFLOP/s"] = machine * 1e-9;
    state.counters["of_" + product] = reached / machine;
    return;
  }
  const double machine = rates.copy_bytes_per_second(static_cast<double>(work.bytes)),
               reached = static_cast<double>(work.bytes) / seconds;
  state.counters["GB/s"] = reached * 1e-9;
  state.counters["copy_GB/s"] = machine * 1e-9;
  state.counters["of_copy"] = reached / machine;
}

void run(benchmark::State& state, const Size& size, DType type, int threads, const MakeOp& make) {
  Context context(bench_device(), threads, detect_isa());
  const MachineRates& rates = rates_of(context);
  Operands operands(context, size, type);
  const std::function<void(Context&)> op = make(operands);
  const OpTotal work = measure_work(context, op);
  context.synchronize();
  // A GPU is handed several calls at once: it must not wait for the host between them.
  const int calls = context.on_gpu() ? 20 : 1;
  const std::int64_t begin_ns = steady_now_ns();
  for (auto _ : state) {
    for (int i = 0; i < calls; ++i) op(context);
    context.synchronize();
  }
  const double seconds = static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
  report(state, work, rates, seconds / static_cast<double>(state.iterations() * calls));
}

}  // namespace

void add_op(const std::string& op, std::initializer_list<DType> types, const MakeOp& make) {
  const bool gpu = bench_device().kind == DeviceKind::kCuda;
  add_op_of(gpu ? kGpuSizes : kCpuSizes, op, types, make);
}

void add_op_of(std::span<const Size> sizes, const std::string& op,
               std::initializer_list<DType> types, const MakeOp& make) {
  const bool gpu = bench_device().kind == DeviceKind::kCuda;
  for (const Size& size : sizes) {
    for (const DType type : types) {
      for (int threads = 1; threads <= (gpu ? 1 : 2); ++threads) {
        const std::string name = op + "/" + size.name + "/" + std::string(name_of(type)) +
                                 "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&size, type, threads, make](auto& state) { run(state, size, type, threads, make); })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace trireme::bench

int main(int argc, char** argv) {
  trireme::bench::add_products();
  trireme::bench::add_attention();
  trireme::bench::add_token_ops();
  trireme::bench::add_expert_ops();
  trireme::bench::add_parameter_ops();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
