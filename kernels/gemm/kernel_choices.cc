#include "kernels/gemm/kernel_choices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>

namespace trireme {
namespace {

constexpr std::string_view kKernels[kProductKernelCount] = {"own", "hopper", "cublaslt"};
constexpr std::string_view kTypes[] = {"fp32", "bf16"};
constexpr DType kTypeValues[] = {DType::kF32, DType::kBF16};
/// In the order of GemmEpilogue.
constexpr std::string_view kEpilogues[] = {"none",          "add_residual", "gelu",
                                           "gelu_backward", "swiglu",       "swiglu_backward"};
constexpr std::int64_t kLargest = std::int64_t{1} << 40;

/// A product of the list, read member by member.
class Reader {
 public:
  Reader(const Json& product, std::string_view source, std::size_t index)
      : product_(product), place_(fmt::format("{}: products[{}]", source, index)) {
    if (!product.is_object())
      throw DataError("{} is {}, not an object", place_, product.kind_name());
  }

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
  /// Which of the words stands there.
  [[nodiscard]] std::size_t word(std::string_view key,
                                 std::span<const std::string_view> words) const {
    const Json& value = at(key);
    const auto found =
        value.is_string() ? std::find(words.begin(), words.end(), value.as_string()) : words.end();
    if (found == words.end()) refuse(key, value, fmt::format("{}", fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
  }
  [[nodiscard]] std::array<double, kProductKernelCount> times() const {
    std::array<double, kProductKernelCount> times{};
    const Json* list = product_.find("microseconds");
    if (list == nullptr) return times;
    if (!list->is_object()) refuse("microseconds", *list, "an object");
    for (const auto& [name, time] : list->as_object()) {
      const auto* const found = std::find(std::begin(kKernels), std::end(kKernels), name);
      if (found == std::end(kKernels) || !time.is_number() || !(time.as_double() >= 0))
        refuse("microseconds." + name, time, "a time of own, hopper or cublaslt");
      times[static_cast<std::size_t>(found - std::begin(kKernels))] = time.as_double();
    }
    return times;
  }

 private:
  [[nodiscard]] const Json& at(std::string_view key) const {
    const Json* value = product_.find(key);
    if (value == nullptr) throw DataError("{} has no {}", place_, key);
    return *value;
  }
  [[noreturn]] void refuse(std::string_view key, const Json& found, std::string_view legal) const {
    throw DataError("{}.{} is {} (legal: {})", place_, key, found.dump(), legal);
  }

  const Json& product_;
  std::string place_;
};

}  // namespace

std::string_view name_of(ProductKernel kernel) { return kKernels[static_cast<int>(kernel)]; }

const ProductChoice* KernelChoices::find(const ProductKey& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? nullptr : &found->second;
}

void KernelChoices::add(const KernelChoices& others) {
  choices_.insert(others.choices_.begin(), others.choices_.end());
}

Json KernelChoices::json() const {
  Json products = Json::array();
  for (const auto& [key, choice] : choices_) {
    Json product = Json::object();
    product["m"] = key.m;
    product["n"] = key.n;
    product["k"] = key.k;
    product["transpose_a"] = key.transpose_a;
    product["transpose_b"] = key.transpose_b;
    product["accumulate"] = key.accumulate;
    product["bias"] = key.bias;
    product["type"] = kTypes[key.type == DType::kBF16 ? 1 : 0];
    product["c_type"] = kTypes[key.c_type == DType::kBF16 ? 1 : 0];
    product["epilogue"] = kEpilogues[static_cast<std::size_t>(key.epilogue)];
    product["kernel"] = name_of(choice.kernel);
    Json times = Json::object();
    for (std::size_t i = 0; i < kProductKernelCount; ++i) {
      // A tenth of a microsecond is below what events tell.
      if (choice.microseconds[i] > 0)
        times[kKernels[i]] = std::round(choice.microseconds[i] * 10) / 10;
    }
    product["microseconds"] = std::move(times);
    products.push_back(std::move(product));
  }
  return products;
}

KernelChoices KernelChoices::parse(const Json& products, std::string_view source) {
  if (!products.is_array())
    throw DataError("{}: products is {}, not a list", source, products.kind_name());
  KernelChoices choices;
  for (std::size_t i = 0; i < products.as_array().size(); ++i) {
    const Reader product(products.as_array()[i], source, i);
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
    const ProductChoice choice = {static_cast<ProductKernel>(product.word("kernel", kKernels)),
                                  product.times()};
    if (choices.find(key) != nullptr) throw DataError("{}: products[{}] is there twice", source, i);
    choices.add(key, choice);
  }
  return choices;
}

}  // namespace trireme
