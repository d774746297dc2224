#include "kernels/common/kernel_choices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>

namespace trireme {
namespace {

constexpr std::string_view kKernels[kProductKernelCount] = {"own",     "hopper",   "cublaslt",
                                                            "unfused", "hopper_3", "hopper_split"};
constexpr std::span<const std::string_view> kPlainKernels = std::span(kKernels).first(4);
/// Those of fp8 products, which begin with the second.
constexpr std::span<const std::string_view> kQuantizedKernels = std::span(kKernels).subspan(1);
constexpr std::string_view kAttentionKernels[kAttentionKernelCount] = {"own", "cudnn"};
constexpr std::string_view kTypes[] = {"fp32", "bf16"};
constexpr DType kTypeValues[] = {DType::kF32, DType::kBF16};
constexpr std::string_view kFormats[] = {"e4m3", "e5m2"};
constexpr DType kFormatValues[] = {DType::kF8E4M3, DType::kF8E5M2};
/// In the order of GemmEpilogue.
constexpr std::string_view kEpilogues[] = {"none",   "add_residual",    "gelu",  "gelu_backward",
                                           "swiglu", "swiglu_backward", "geglu", "geglu_backward"};
constexpr std::int64_t kLargest = std::int64_t{1} << 40;

/// A choice of a list, read member by member.
class Reader {
 public:
  Reader(const Json& choice, std::string_view source, std::string_view list, std::size_t index)
      : choice_(choice), place_(fmt::format("{}: {}[{}]", source, list, index)) {
    if (!choice.is_object()) throw DataError("{} is {}, not an object", place_, choice.kind_name());
  }

  [[nodiscard]] bool has(std::string_view key) const { return choice_.find(key) != nullptr; }
  [[nodiscard]] std::int64_t size(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_integer() || value.as_integer() < 1 || value.as_integer() > kLargest)
      refuse(key, value, "a whole number from 1 on");
    return value.as_integer();
  }
  [[nodiscard]] bool flag(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_bool()) refuse(key, value, "true or false");
    return value.as_bool();
  }
  /// kLeast to N sizes of `least` and more; 0 where there are fewer than N.
  template <std::size_t kLeast, std::size_t N>
  void sizes(std::string_view key, std::int64_t least, std::array<std::int64_t, N>& sizes) const {
    const Json& list = at(key);
    const bool fits =
        list.is_array() && list.as_array().size() >= kLeast && list.as_array().size() <= N;
    const auto good = [&](const Json& size) {
      return size.is_integer() && size.as_integer() >= least && size.as_integer() <= kLargest;
    };
    if (!fits || !std::all_of(list.as_array().begin(), list.as_array().end(), good))
      refuse(key, list, fmt::format("{} to {} whole numbers from {} on", kLeast, N, least));
    std::transform(list.as_array().begin(), list.as_array().end(), sizes.begin(),
                   [](const Json& size) { return size.as_integer(); });
  }
  /// Which of the words stands there.
  [[nodiscard]] std::size_t word(std::string_view key,
                                 std::span<const std::string_view> words) const {
    const Json& value = at(key);
    const auto found =
        value.is_string() ? std::find(words.begin(), words.end(), value.as_string()) : words.end();
    if (found == words.end()) refuse(key, value, fmt::format("{}", fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
  }
  /// Of each of the kernels.
  template <std::size_t kCount>
  [[nodiscard]] std::array<double, kCount> times(const std::string_view (&kernels)[kCount]) const {
    std::array<double, kCount> times{};
    const Json* list = choice_.find("microseconds");
    if (list == nullptr) return times;
    if (!list->is_object()) refuse("microseconds", *list, "an object");
    for (const auto& [name, time] : list->as_object()) {
      const auto* const found = std::find(std::begin(kernels), std::end(kernels), name);
      if (found == std::end(kernels) || !time.is_number() || !(time.as_double() >= 0)) {
        refuse("microseconds." + name, time, fmt::format("a time of {}", fmt::join(kernels, ", ")));
      }
      times[static_cast<std::size_t>(found - std::begin(kernels))] = time.as_double();
    }
    return times;
  }

 private:
  [[nodiscard]] const Json& at(std::string_view key) const {
    const Json* value = choice_.find(key);
    if (value == nullptr) throw DataError("{} has no {}", place_, key);
    return *value;
  }
  [[noreturn]] void refuse(std::string_view key, const Json& found, std::string_view legal) const {
    throw DataError("{}.{} is {} (legal: {})", place_, key, found.dump(), legal);
  }

  const Json& choice_;
  std::string place_;
};

/// A tenth of a microsecond is below what events tell.
template <std::size_t kCount>
Json json_of(const std::array<double, kCount>& microseconds,
             const std::string_view (&kernels)[kCount]) {
  Json times = Json::object();
  for (std::size_t i = 0; i < kCount; ++i)
    if (microseconds[i] > 0) times[kernels[i]] = std::round(microseconds[i] * 10) / 10;
  return times;
}

/// As many sizes as there are parts.
Json json_of(const QuantizedProductKey::Parts& parts) {
  Json sizes = Json::array();
  for (const std::int64_t size : parts)
    if (size > 0) sizes.push_back(size);
  return sizes;
}
Json json_of(const QuantizedProductKey::Block& block) {
  Json sizes = Json::array();
  for (const std::int64_t size : block) sizes.push_back(size);
  return sizes;
}

std::string_view word_of(DType type) { return kTypes[type == DType::kBF16 ? 1 : 0]; }
std::string_view word_of_format(DType format) { return kFormats[format == DType::kF8E5M2 ? 1 : 0]; }
std::string_view word_of(GemmEpilogue epilogue) {
  return kEpilogues[static_cast<std::size_t>(epilogue)];
}

Json json_of(const ProductKey& key, const ProductChoice& choice) {
  Json product = Json::object();
  product["m"] = key.m;
  product["n"] = key.n;
  product["k"] = key.k;
  product["transpose_a"] = key.transpose_a;
  product["transpose_b"] = key.transpose_b;
  product["accumulate"] = key.accumulate;
  product["bias"] = key.bias;
  product["type"] = word_of(key.type);
  product["c_type"] = word_of(key.c_type);
  product["epilogue"] = word_of(key.epilogue);
  product["kernel"] = name_of(choice.kernel);
  product["microseconds"] = json_of(choice.microseconds, kKernels);
  return product;
}

Json json_of(const QuantizedProductKey& key, const ProductChoice& choice) {
  Json product = Json::object();
  product["a_rows"] = json_of(key.a_rows);
  product["b_rows"] = json_of(key.b_rows);
  product["k"] = json_of(key.k);
  product["a_scales"] = json_of(key.a_scales);
  product["b_scales"] = json_of(key.b_scales);
  product["a_format"] = word_of_format(key.a_format);
  product["b_format"] = word_of_format(key.b_format);
  product["c_type"] = word_of(key.c_type);
  product["accumulate"] = key.accumulate;
  product["bias"] = key.bias;
  product["precise_sums"] = key.precise_sums;
  product["epilogue"] = word_of(key.epilogue);
  product["kernel"] = name_of(choice.kernel);
  product["microseconds"] = json_of(choice.microseconds, kKernels);
  return product;
}

Json json_of(const AttentionKey& key, const AttentionChoice& choice) {
  Json pass = Json::object();
  pass["tokens"] = key.tokens;
  pass["heads"] = key.heads;
  pass["kv_heads"] = key.kv_heads;
  pass["head_dim"] = key.head_dim;
  if (key.value_dim != key.head_dim) pass["value_dim"] = key.value_dim;
  pass["backward"] = key.backward;
  pass["kernel"] = kAttentionKernels[static_cast<std::size_t>(choice.kernel)];
  pass["microseconds"] = json_of(choice.microseconds, kAttentionKernels);
  return pass;
}

/// The list of that name, or none where it need not be there.
const std::vector<Json>* list_of(const Json& choices, std::string_view name,
                                 std::string_view source) {
  const Json* list = choices.find(name);
  if (list == nullptr) return nullptr;
  if (!list->is_array())
    throw DataError("{}: {} is {}, not a list", source, name, list->kind_name());
  return &list->as_array();
}

std::pair<ProductKey, ProductChoice> product_of(const Reader& product) {
  ProductKey key;
  key.m = product.size("m");
  key.n = product.size("n");
  key.k = product.size("k");
  key.transpose_a = product.flag("transpose_a");
  key.transpose_b = product.flag("transpose_b");
  key.accumulate = product.flag("accumulate");
  key.bias = product.flag("bias");
  key.type = kTypeValues[product.word("type", kTypes)];
  key.c_type = kTypeValues[product.word("c_type", kTypes)];
  key.epilogue = static_cast<GemmEpilogue>(product.word("epilogue", kEpilogues));
  return {
      key,
      {static_cast<ProductKernel>(product.word("kernel", kPlainKernels)), product.times(kKernels)}};
}

std::pair<QuantizedProductKey, ProductChoice> quantized_product_of(const Reader& product) {
  QuantizedProductKey key;
  product.sizes<1>("a_rows", 1, key.a_rows);
  product.sizes<1>("b_rows", 1, key.b_rows);
  product.sizes<1>("k", 1, key.k);
  product.sizes<2>("a_scales", 0, key.a_scales);
  product.sizes<2>("b_scales", 0, key.b_scales);
  key.a_format = kFormatValues[product.word("a_format", kFormats)];
  key.b_format = kFormatValues[product.word("b_format", kFormats)];
  key.c_type = kTypeValues[product.word("c_type", kTypes)];
  key.accumulate = product.flag("accumulate");
  key.bias = product.flag("bias");
  key.precise_sums = product.flag("precise_sums");
  key.epilogue = static_cast<GemmEpilogue>(product.word("epilogue", kEpilogues));
  const std::size_t kernel = product.word("kernel", kQuantizedKernels) + 1;
  return {key, {static_cast<ProductKernel>(kernel), product.times(kKernels)}};
}

std::pair<AttentionKey, AttentionChoice> attention_of(const Reader& attention) {
  AttentionKey key;
  key.tokens = attention.size("tokens");
  key.heads = attention.size("heads");
  key.kv_heads = attention.size("kv_heads");
  key.head_dim = attention.size("head_dim");
  key.value_dim = attention.has("value_dim") ? attention.size("value_dim") : key.head_dim;
  key.backward = attention.flag("backward");
  return {key,
          {static_cast<AttentionKernel>(attention.word("kernel", kAttentionKernels)),
           attention.times(kAttentionKernels)}};
}

}  // namespace

std::string_view name_of(ProductKernel kernel) { return kKernels[static_cast<int>(kernel)]; }

const ProductChoice* KernelChoices::find(const ProductKey& key) const {
  const auto found = products_.find(key);
  return found == products_.end() ? nullptr : &found->second;
}

const ProductChoice* KernelChoices::find(const QuantizedProductKey& key) const {
  const auto found = quantized_products_.find(key);
  return found == quantized_products_.end() ? nullptr : &found->second;
}

const AttentionChoice* KernelChoices::find(const AttentionKey& key) const {
  const auto found = attention_.find(key);
  return found == attention_.end() ? nullptr : &found->second;
}

void KernelChoices::add(const KernelChoices& others) {
  products_.insert(others.products_.begin(), others.products_.end());
  quantized_products_.insert(others.quantized_products_.begin(), others.quantized_products_.end());
  attention_.insert(others.attention_.begin(), others.attention_.end());
}

Json KernelChoices::json() const {
  Json choices = Json::object();
  const auto write = [&](std::string_view name, const auto& of_list) {
    Json list = Json::array();
    for (const auto& [key, choice] : of_list) list.push_back(json_of(key, choice));
    choices[name] = std::move(list);
  };
  write("products", products_);
  write("fp8_products", quantized_products_);
  write("attention", attention_);
  return choices;
}

KernelChoices KernelChoices::parse(const Json& choices, std::string_view source) {
  KernelChoices parsed;
  const auto read = [&](std::string_view name, const auto& choice_of) {
    const std::vector<Json>* const list = list_of(choices, name, source);
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const auto [key, choice] = choice_of(Reader((*list)[i], source, name, i));
      if (parsed.find(key) != nullptr)
        throw DataError("{}: {}[{}] is there twice", source, name, i);
      parsed.add(key, choice);
    }
  };
  read("products", product_of);
  read("fp8_products", quantized_product_of);
  read("attention", attention_of);
  return parsed;
}

}  // namespace trireme
