// The only file that sees oneDNN. Versions 2.5 to 3.x.
#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>

#include "base/math.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

char letter(bool transpose) { return transpose ? 'T' : 'N'; }

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype,
                          Transpose transpose) {
  using Tag = dnnl::memory::format_tag;
  return {{rows, columns}, type_of(dtype), transpose == Transpose::kYes ? Tag::ba : Tag::ab};
}

struct Primitive {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul matmul;
};

/// A memo of what oneDNN generates for a shape: making it again costs more than a small product.
/// One for each thread that calls ops, so that it needs no lock.
class PrimitiveCache {
 public:
  using Key = std::array<std::int64_t, 8>;

  const dnnl::engine& engine() const { return engine_; }
  dnnl::stream& stream() { return stream_; }

  const Primitive& get(const Gemm& args, Sizes s, int threads) {
    const Key key = {s.m,
                     s.n,
                     s.k,
                     static_cast<int>(args.transpose_a) * 2 + static_cast<int>(args.transpose_b),
                     static_cast<int>(args.accumulate) * 2 + static_cast<int>(args.bias_N.given()),
                     static_cast<int>(args.a.dtype),
                     static_cast<int>(args.c_MN.dtype),
                     threads};
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    return primitives_.emplace(key, make(args, s)).first->second;
  }

 private:
  Primitive make(const Gemm& args, Sizes s) const {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (args.accumulate == Accumulate::kYes) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::memory::desc a = matrix(s.m, s.k, args.a.dtype, args.transpose_a);
    const dnnl::memory::desc b = matrix(s.k, s.n, args.b.dtype, args.transpose_b);
    const dnnl::memory::desc c = matrix(s.m, s.n, args.c_MN.dtype, Transpose::kNo);
    // An empty description stands for "no bias".
    const dnnl::memory::desc bias = args.bias_N.given()
                                        ? matrix(1, s.n, args.bias_N.dtype, Transpose::kNo)
                                        : dnnl::memory::desc();
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, a, b, bias, c, attributes);
#else
    const dnnl::matmul::desc operation =
        args.bias_N.given() ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
#endif
    return {description, dnnl::matmul(description)};
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Primitive> primitives_;
};

PrimitiveCache& primitive_cache() {
  thread_local PrimitiveCache cache;
  return cache;
}

/// Sets of instructions are sets of bits.
bool library_uses(dnnl::cpu_isa isa) {
  static const auto used = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bits = static_cast<unsigned>(isa);
  return (used & bits) == bits;
}

}  // namespace

void prepare_library(int threads) {
  static const bool strict = [] {
#if DNNL_VERSION_MAJOR > 2 || DNNL_VERSION_MINOR >= 5  // older ones know no other mode
    dnnl::set_default_fpmath_mode(dnnl::fpmath_mode::strict);
#endif
    return true;
  }();
  static_cast<void>(strict);
  if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
}

bool sgemm_by_library(const ProductArgs& args) {
  const auto f32 = [](const void* matrix) { return static_cast<const float*>(matrix); };
  return dnnl::sgemm(letter(args.transpose_a), letter(args.transpose_b), args.sizes.m, args.sizes.n,
                     args.sizes.k, 1.0F, f32(args.a), args.a_stride, f32(args.b), args.b_stride,
                     args.add ? 1.0F : 0.0F, static_cast<float*>(args.c),
                     args.c_stride) == dnnl::status::success;
}

bool library_multiplies_bf16() { return library_uses(dnnl::cpu_isa::avx512_core_bf16); }

bool library_multiplies_bf16_tiles() { return library_uses(dnnl::cpu_isa::avx512_core_amx); }

void gemm_by_primitive(Context& context, const Gemm& args, Sizes sizes) {
  prepare_library(context.threads());
  PrimitiveCache& cache = primitive_cache();
  try {
    const Primitive& primitive = cache.get(args, sizes, context.threads());
    const auto operand = [&](const dnnl::memory::desc& description, const void* data) {
      return dnnl::memory(description, cache.engine(),
                          const_cast<void*>(data));  // oneDNN has no constant memory
    };
    const auto& description = primitive.description;
    const dnnl::memory::desc scratchpad = description.scratchpad_desc();
    std::unordered_map<int, dnnl::memory> operands = {
        {DNNL_ARG_SRC, operand(description.src_desc(), args.a.data)},
        {DNNL_ARG_WEIGHTS, operand(description.weights_desc(), args.b.data)},
        {DNNL_ARG_DST, operand(description.dst_desc(), args.c_MN.data)},
        {DNNL_ARG_SCRATCHPAD, operand(scratchpad, context.scratch(scratchpad.get_size()))}};
    if (args.bias_N.given()) {
      operands.emplace(DNNL_ARG_BIAS, operand(description.bias_desc(), args.bias_N.data));
    }
    primitive.matmul.execute(cache.stream(), operands);
    cache.stream().wait();
  } catch (const dnnl::error& error) {
    throw InternalError("oneDNN refuses a product of [{}, {}] and [{}, {}] in {}: {}", sizes.m,
                        sizes.k, sizes.k, sizes.n, name_of(args.a.dtype), error.message);
  }
}

}  // namespace trireme::gemm_internal

namespace trireme {

std::string gemm_library_version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace trireme
