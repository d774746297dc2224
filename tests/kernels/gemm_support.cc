#include "kernels/gemm_support.h"

namespace trireme {

GemmOperands::GemmOperands(reference::GemmCase s, DType type, DType c_type)
    : sizes(s),
      a(TestTensor::random(type, s.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1)),
      b(TestTensor::random(type, s.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2)),
      bias(TestTensor::random(type, {s.n}, 3)),
      before(TestTensor::random(c_type, {s.m, s.n}, 4)) {
  args.a = a;
  args.b = b;
  args.transpose_a = s.transpose_a ? Transpose::kYes : Transpose::kNo;
  args.transpose_b = s.transpose_b ? Transpose::kYes : Transpose::kNo;
}

std::vector<double> GemmOperands::expected(const std::vector<double>& start) const {
  return reference::gemm(sizes, start, a.values(), b.values());
}

std::vector<double> GemmOperands::bias_rows() const {
  const std::vector<double> row = bias.values();
  std::vector<double> rows;
  for (std::int64_t i = 0; i < sizes.m; ++i) rows.insert(rows.end(), row.begin(), row.end());
  return rows;
}

Tolerance gemm_tolerance(DType c_type) {
  return c_type == DType::kBF16 ? Tolerance{1.01 / 256, 1e-5} : Tolerance{1e-6, 2e-6};
}

namespace {

gemm_internal::Sizes sizes_of(const Gemm& args) {
  const bool ta = args.transpose_a == Transpose::kYes, tb = args.transpose_b == Transpose::kYes;
  return {args.a.shape[ta ? 1 : 0], args.b.shape[tb ? 0 : 1], args.a.shape[ta ? 0 : 1]};
}

GemmWay way_of_table(Context& context, const std::string& name, const GemmGpuKernels& table,
                     int multiprocessors) {
  return {name,
          [&context, &table](const Gemm& args) {
            const gemm_internal::Sizes sizes = sizes_of(args);
            return sizes.m > 0 && sizes.n > 0 &&
                   table.serves(gemm_internal::gpu_args(context, args, sizes));
          },
          [&context, &table, multiprocessors](const Gemm& args) {
            gemm_internal::gemm_by_table(context, args, sizes_of(args), table, multiprocessors);
          }};
}

}  // namespace

std::vector<GemmWay> gemm_ways(Context& context) {
  std::vector<GemmWay> ways = {{"gemm", [](const Gemm&) { return true; },
                                [&context](const Gemm& args) { gemm(context, args); }}};
  if (!context.on_gpu()) return ways;
  const gemm_internal::GpuTables tables = gemm_internal::gpu_tables();
  constexpr int kMany = 1 << 20;
  ways.push_back(way_of_table(context, "large tiles", *tables.own, 1));
  ways.push_back(way_of_table(context, "small tiles", *tables.own, kMany));
  if (tables.hopper != nullptr) {
    ways.push_back(way_of_table(context, "Hopper's, large tiles", *tables.hopper, 1));
    ways.push_back(way_of_table(context, "Hopper's, small tiles", *tables.hopper, kMany));
  }
  if (tables.library != nullptr)
    ways.push_back(way_of_table(context, "library", *tables.library, 0));
  return ways;
}

}  // namespace trireme
