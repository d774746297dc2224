#pragma once
// How each type of a RunConfig member is written in JSON. Included by field_table.cc alone.

#include <cmath>

#include "config/fields.h"
#include "config/json_numbers.h"

namespace trireme {

/// The words of an enumeration, in the order of its enumerators.
template <class Enum>
struct EnumWords;
template <>
struct EnumWords<DeviceChoice> {
  static constexpr std::string_view kWords[] = {"auto", "cpu", "cuda", "cuda-host"};
};
template <>
struct EnumWords<CudaGraph> {
  static constexpr std::string_view kWords[] = {"auto", "off"};
};
template <>
struct EnumWords<SampleOrderKind> {
  static constexpr std::string_view kWords[] = {"shuffled", "megatron", "sequential"};
};
template <>
struct EnumWords<AttentionKind> {
  static constexpr std::string_view kWords[] = {"auto", "own", "cudnn"};
};
template <>
struct EnumWords<OptimizerKind> {
  static constexpr std::string_view kWords[] = {"adamw", "lion", "schedule-free", "muon",
                                                "adafactor"};
};
template <>
struct EnumWords<LrScheduleKind> {
  static constexpr std::string_view kWords[] = {"cosine", "linear", "constant", "wsd"};
};
template <>
struct EnumWords<DecayShape> {
  static constexpr std::string_view kWords[] = {"linear", "sqrt", "cosine"};
};
template <>
struct EnumWords<ComputePrecision> {
  static constexpr std::string_view kWords[] = {"fp32", "bf16", "fp8"};
};
template <>
struct EnumWords<Fp8Recipe> {
  static constexpr std::string_view kWords[] = {"tensor", "block"};
};
template <>
struct EnumWords<ContextMethod> {
  static constexpr std::string_view kWords[] = {"ring", "allgather", "ulysses"};
};
template <>
struct EnumWords<ReductionOrder> {
  static constexpr std::string_view kWords[] = {"rank", "library"};
};
template <>
struct EnumWords<Recompute> {
  static constexpr std::string_view kWords[] = {"none", "selective", "full"};
};
template <>
struct EnumWords<WhenBusy> {
  static constexpr std::string_view kWords[] = {"wait", "skip"};
};
template <>
struct EnumWords<MoeBalance> {
  static constexpr std::string_view kWords[] = {"auto", "aux", "bias", "none"};
};
template <>
struct EnumWords<BalanceScope> {
  static constexpr std::string_view kWords[] = {"sequence", "global"};
};
template <>
struct EnumWords<MomentType> {
  static constexpr std::string_view kWords[] = {"fp32", "8bit"};
};
template <>
struct EnumWords<LoraBase> {
  static constexpr std::string_view kWords[] = {"compute", "fp32", "nf4"};
};
template <>
struct EnumWords<DispatchMethod> {
  static constexpr std::string_view kWords[] = {"alltoall", "allgather"};
};
template <>
struct EnumWords<DType> {
  static constexpr std::string_view kWords[] = {"fp32", "bf16", "fp64", "int32", "e4m3", "e5m2"};
};

// What the types have in common; defined in field_types.cc.
std::string legal_range(std::string_view noun, const FieldRow& row);
bool in_range(double value, const FieldRow& row);
void add_range(Json& schema, const FieldRow& row);
std::string legal_words(const std::vector<std::string>& words);
bool is_text(const Json& value);
Json text_schema();
Json typed_schema(const char* type);
Json list_schema(Json items, std::size_t count);
Json integer_schema(const FieldRow& row);

/// Codec<T>: schema, legal, words, assign, read.
template <class T>
struct Codec {  // enumerations
  static_assert(std::is_enum_v<T>);
  static std::vector<std::string> words(const FieldRow& row) {
    if (!row.values.empty()) return {row.values.begin(), row.values.end()};
    return {std::begin(EnumWords<T>::kWords), std::end(EnumWords<T>::kWords)};
  }
  static Json schema(const FieldRow& row) {
    Json json = typed_schema("string"), list = Json::array();
    for (const std::string& word : words(row)) list.push_back(word);
    json["enum"] = list;
    return json;
  }
  static std::string legal(const FieldRow& row) { return legal_words(words(row)); }
  static bool assign(const Json& json, const FieldRow& row, T& out) {
    if (!json.is_string()) return false;
    for (const std::string& word : words(row)) {
      if (word != json.as_string()) continue;
      for (std::size_t i = 0; i < std::size(EnumWords<T>::kWords); ++i) {
        if (EnumWords<T>::kWords[i] == word) out = static_cast<T>(i);
      }
      return true;
    }
    return false;
  }
  static Json read(const T& value) { return EnumWords<T>::kWords[static_cast<std::size_t>(value)]; }
};

template <>
struct Codec<bool> {
  static std::vector<std::string> words(const FieldRow&) { return {}; }
  static Json schema(const FieldRow&) { return typed_schema("boolean"); }
  static std::string legal(const FieldRow&) { return "true or false"; }
  static bool assign(const Json& json, const FieldRow&, bool& out) {
    if (json.is_bool()) out = json.as_bool();
    return json.is_bool();
  }
  static Json read(const bool& value) { return value; }
};

template <>
struct Codec<std::int64_t> {
  static std::vector<std::string> words(const FieldRow&) { return {}; }
  static Json schema(const FieldRow& row) { return integer_schema(row); }
  static std::string legal(const FieldRow& row) { return legal_range("an integer", row); }
  static bool assign(const Json& json, const FieldRow& row, std::int64_t& out) {
    const auto value = row.plain ? exact_integer(json) : integer_with_unit(json, row);
    if (!value || !in_range(static_cast<double>(*value), row)) return false;
    out = *value;
    return true;
  }
  static Json read(const std::int64_t& value) { return value; }
};

template <>
struct Codec<double> {
  static std::vector<std::string> words(const FieldRow&) { return {}; }
  static Json schema(const FieldRow& row) {
    Json json = typed_schema("number");
    add_range(json, row);
    return json;
  }
  static std::string legal(const FieldRow& row) { return legal_range("a number", row); }
  static bool assign(const Json& json, const FieldRow& row, double& out) {
    const auto value = finite_number(json);
    if (!value || !in_range(*value, row)) return false;
    out = *value;
    return true;
  }
  static Json read(const double& value) { return value; }
};

/// Text; `row.values` are words with a meaning of their own, and anything else is a path.
template <>
struct Codec<std::string> {
  static std::vector<std::string> words(const FieldRow& row) {
    return {row.values.begin(), row.values.end()};
  }
  static Json schema(const FieldRow&) { return text_schema(); }
  static std::string legal(const FieldRow& row) {
    return row.values.empty() ? "a string that is not empty"
                              : legal_words(words(row)) + " or a path";
  }
  static bool assign(const Json& json, const FieldRow&, std::string& out) {
    if (is_text(json)) out = json.as_string();
    return is_text(json);
  }
  static Json read(const std::string& value) { return value; }
};

template <class T>
struct Codec<std::optional<T>> {
  static std::vector<std::string> words(const FieldRow& row) { return Codec<T>::words(row); }
  static Json schema(const FieldRow& row) { return Codec<T>::schema(row); }
  static std::string legal(const FieldRow& row) { return Codec<T>::legal(row); }
  static bool assign(const Json& json, const FieldRow& row, std::optional<T>& out) {
    T value{};
    if (!Codec<T>::assign(json, row, value)) return false;
    out = std::move(value);
    return true;
  }
  static Json read(const std::optional<T>& value) {
    return value ? Codec<T>::read(*value) : Json();
  }
};

/// What a member holds where it is given.
template <class T>
struct Given {
  using Type = T;
};
template <class T>
struct Given<std::optional<T>> {
  using Type = T;
};

template <class T, std::size_t kCount>
struct Codec<std::array<T, kCount>> {
  static std::vector<std::string> words(const FieldRow&) { return {}; }
  static Json schema(const FieldRow& row) { return list_schema(Codec<T>::schema(row), kCount); }
  static std::string legal(const FieldRow& row) {
    return fmt::format("a list of {}, each {}", kCount, Codec<T>::legal(row));
  }
  static bool assign(const Json& json, const FieldRow& row, std::array<T, kCount>& out) {
    if (!json.is_array() || json.as_array().size() != kCount) return false;
    std::array<T, kCount> values{};
    for (std::size_t i = 0; i < kCount; ++i) {
      if (!Codec<T>::assign(json.as_array()[i], row, values[i])) return false;
    }
    out = values;
    return true;
  }
  static Json read(const std::array<T, kCount>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(Codec<T>::read(value));
    return list;
  }
};

// Members with a form of their own; defined in field_types.cc.
#define TRIREME_DECLARE_CODEC(Type)                                       \
  template <>                                                             \
  struct Codec<Type> {                                                    \
    static std::vector<std::string> words(const FieldRow& row);           \
    static Json schema(const FieldRow& row);                              \
    static std::string legal(const FieldRow& row);                        \
    static bool assign(const Json& json, const FieldRow& row, Type& out); \
    static Json read(const Type& value);                                  \
  }
TRIREME_DECLARE_CODEC(ResumeChoice);
TRIREME_DECLARE_CODEC(DataSource);
TRIREME_DECLARE_CODEC(ValidationSets);
TRIREME_DECLARE_CODEC(std::vector<std::string>);  // row.minimum: least number of them
TRIREME_DECLARE_CODEC(std::vector<std::int64_t>);
TRIREME_DECLARE_CODEC(StepRanges);
#undef TRIREME_DECLARE_CODEC

/// Of a struct that is an object with keys of its own, each read like a field of that type; faults
/// are those of the keys.
template <class T>
struct ObjectCodec {
  static std::vector<std::string> words(const FieldRow&) { return {}; }
  static Json schema(const FieldRow&);
  static std::string legal(const FieldRow&);
  static bool assign(const Json& json, const FieldRow& row, T& out);
  static Json read(const T& value);
  static std::vector<Problem> faults_within(const Json& json, const FieldRow& row);
};
template <>
struct Codec<Fp8Precision> : ObjectCodec<Fp8Precision> {};
template <>
struct Codec<Prometheus> : ObjectCodec<Prometheus> {};
template <>
struct Codec<SpikeRule> : ObjectCodec<SpikeRule> {};
/// false where there is none.
template <>
struct Codec<std::optional<SpikeRule>> {
  static std::vector<std::string> words(const FieldRow& row);
  static Json schema(const FieldRow& row);
  static std::string legal(const FieldRow& row);
  static bool assign(const Json& json, const FieldRow& row, std::optional<SpikeRule>& out);
  static Json read(const std::optional<SpikeRule>& value);
};

/// A number, or a list of [from_token, number]; `row` is the number's.
template <>
struct Codec<GlobalBatch> {
  static std::vector<std::string> words(const FieldRow& row);
  static Json schema(const FieldRow& row);
  static std::string legal(const FieldRow& row);
  static bool assign(const Json& json, const FieldRow& row, GlobalBatch& out);
  static Json read(const GlobalBatch& value);
  static std::vector<Problem> faults_within(const Json& json, const FieldRow& row);
};

template <>
struct Codec<ParamGroups> {
  static std::vector<std::string> words(const FieldRow& row);
  static Json schema(const FieldRow& row);
  static std::string legal(const FieldRow& row);
  static bool assign(const Json& json, const FieldRow& row, ParamGroups& out);
  static Json read(const ParamGroups& value);
  static std::vector<Problem> faults_within(const Json& json, const FieldRow& row);
};

}  // namespace trireme
