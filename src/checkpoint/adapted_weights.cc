#include "checkpoint/adapted_weights.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/math.h"
#include "base/parallel_for.h"
#include "checkpoint/boxes.h"
#include "checkpoint/nf4_base.h"
#include "checkpoint/tensor_parts.h"
#include "config/adapters.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/", kWeight = ".weight";

/// A box of W as it is stored, `rows` x `columns`, and its part of A and B.
struct BoxOfWeight {
  float* values = nullptr;
  std::int64_t out = 0, in = 0;
  bool in_out = false;  ///< rows are inputs
  [[nodiscard]] std::int64_t rows() const { return in_out ? in : out; }
  [[nodiscard]] std::int64_t columns() const { return in_out ? out : in; }
};

void for_rows(const BoxOfWeight& box, const std::function<void(std::int64_t)>& row) {
  constexpr std::int64_t kRowsAtOnce = 32;
  parallel_for(ceil_div(box.rows(), kRowsAtOnce), [&](std::int64_t job) {
    const std::int64_t end = std::min(box.rows(), (job + 1) * kRowsAtOnce);
    for (std::int64_t r = job * kRowsAtOnce; r < end; ++r) row(r);
  });
}

/// W += scale B A. a [rank, in], b [out, rank].
void add_product(const BoxOfWeight& box, const AdapterConfig& adapters, const float* a,
                 const float* b) {
  const std::int64_t rank = adapters.rank, columns = box.columns();
  std::vector<float> turned;  // B^T, so that a row of W is a sum of rows here too
  if (box.in_out) {
    turned.resize(static_cast<std::size_t>(rank * columns));
    for (std::int64_t o = 0; o < columns; ++o) {
      for (std::int64_t k = 0; k < rank; ++k) turned[k * columns + o] = b[o * rank + k];
    }
  }
  const float* right = box.in_out ? turned.data() : a;
  const auto scale = static_cast<float>(adapters.scale);
  for_rows(box, [&](std::int64_t r) {
    std::vector<float> sum(static_cast<std::size_t>(columns));
    for (std::int64_t k = 0; k < rank; ++k) {
      const float left = box.in_out ? a[k * box.in + r] : b[r * rank + k];
      const float* from = right + k * columns;
      for (std::int64_t c = 0; c < columns; ++c) sum[c] += left * from[c];
    }
    float* w = box.values + r * columns;
    for (std::int64_t c = 0; c < columns; ++c) w[c] += scale * sum[c];
  });
}

/// squares[o] += the sum over this box's inputs.
void add_squares(const BoxOfWeight& box, double* squares) {
  for (std::int64_t r = 0; r < box.rows(); ++r) {
    const float* w = box.values + r * box.columns();
    for (std::int64_t c = 0; c < box.columns(); ++c)
      squares[box.in_out ? c : r] += static_cast<double>(w[c]) * w[c];
  }
}

/// Outputs get lengths m; squares: of their whole rows. Both are those of this box.
void set_lengths(const BoxOfWeight& box, const float* m, const double* squares) {
  for_rows(box, [&](std::int64_t r) {
    float* w = box.values + r * box.columns();
    for (std::int64_t c = 0; c < box.columns(); ++c) {
      const std::int64_t o = box.in_out ? c : r;
      w[c] *= static_cast<float>(m[o] / std::sqrt(squares[o]));
    }
  });
}

/// The module of a weight: "model.layers.0.self_attn.q_proj"; "" for what is no matrix of one.
std::string module_of(std::string_view weight) {
  return weight.ends_with(kWeight) ? std::string(weight.substr(0, weight.size() - kWeight.size()))
                                   : "";
}

/// The adapted modules in the order of the model, the same on all ranks.
std::vector<std::string> adapted_modules(const ModelConfig& model) {
  std::vector<std::string> names;
  for (LinearModule& module : linear_modules(model)) {
    if (!module.of_experts && model.adapters->adapts(module.name))
      names.push_back(std::move(module.name));
  }
  return names;
}

/// An adapter's parameters, and which rows of B are those of the weight's outputs.
struct AdapterOfWeight {
  std::string a, b, magnitude;
  std::int64_t first = 0, rows = 0;  ///< of how many
};
AdapterOfWeight adapter_of(const std::string& module, std::int64_t outputs) {
  return {module + ".lora_A.weight", module + ".lora_B.weight", module + ".lora_magnitude_vector",
          0, outputs};
}
AdapterOfWeight adapter_of(const ExpertWeight& of, std::int64_t outputs) {
  const bool halves = of.module.ends_with("gate_up_proj");
  return {expert_adapter_name(of.module, of.expert, 'A'),
          expert_adapter_name(of.module, of.expert, 'B'), "", of.up ? outputs : 0,
          halves ? 2 * outputs : outputs};
}

/// A box of one adapted weight with its part of the adapter.
struct Place {
  const StateTensor* weight;
  BoxOfWeight box;
  std::int64_t out_begin = 0, out_size = 0;  ///< out_size: of the whole tensor
  std::vector<float> a, b, m;
};

class StateMerge {
 public:
  StateMerge(const ModelConfig& model, State& state, Communicator& world)
      : adapters_(*model.adapters), world_(world) {
    modules_ = adapted_modules(model);
    for (const std::string& module : modules_) places_[module];
    for (StateTensor& tensor : state.tensors) {
      const std::string name = tensor.name.substr(kStatePrefix.size());
      if (const auto found = places_.find(module_of(name)); found != places_.end()) {
        const bool in_out = stored_in_out(model, found->first);
        add_place(adapter_of(found->first, tensor.global_shape[in_out ? 1 : 0]), tensor, in_out,
                  found->second);
      } else if (const auto of = expert_weight_of(name); of && adapters_.adapts(of->module)) {
        add_place(adapter_of(*of, tensor.global_shape[0]), tensor, false, of_experts_);
      }
    }
  }
  State& adapters() { return loaded_; }

  void run() {
    for (Place& place : of_experts_)
      add_product(place.box, adapters_, place.a.data(), place.b.data());
    for (const std::string& module : modules_) {
      std::deque<Place>& places = places_.at(module);
      for (Place& place : places) add_product(place.box, adapters_, place.a.data(), place.b.data());
      if (adapters_.magnitudes) set_all_lengths(places);
    }
  }

 private:
  void add_place(const AdapterOfWeight& of, StateTensor& tensor, bool in_out,
                 std::deque<Place>& places) {
    Place& place = places.emplace_back();
    const int out = in_out ? 1 : 0, in = 1 - out;
    const Box& box = tensor.box;
    place.weight = &tensor;
    place.box = {reinterpret_cast<float*>(tensor.data), box.shape[out], box.shape[in], in_out};
    place.out_begin = box.offset[out];
    place.out_size = tensor.global_shape[out];
    const std::int64_t rank = adapters_.rank;
    want(of.a, {rank, tensor.global_shape[in]}, {{0, box.offset[in]}, {rank, box.shape[in]}},
         place.a);
    want(of.b, {of.rows, rank}, {{of.first + box.offset[out], 0}, {box.shape[out], rank}}, place.b);
    if (adapters_.magnitudes)
      want(of.magnitude, {place.out_size}, {{box.offset[out]}, {box.shape[out]}}, place.m);
  }

  void want(const std::string& name, const Shape& shape, const Box& box,
            std::vector<float>& values) {
    values.resize(static_cast<std::size_t>(box.shape.count()));
    StateTensor tensor;
    tensor.name = std::string(kStatePrefix) + name;
    tensor.global_shape = shape;
    tensor.box = box;
    tensor.data = reinterpret_cast<std::byte*>(values.data());
    loaded_.tensors.push_back(std::move(tensor));
  }

  /// A row may stand in boxes of several ranks, and a box on several ranks.
  void set_all_lengths(std::deque<Place>& places) {
    std::int64_t size = places.empty() ? 0 : places.front().out_size;
    world_.maximum(std::span(&size, 1));
    std::vector<double> squares(static_cast<std::size_t>(size));
    for (const Place& place : places)
      if (place.weight->replica == 0) add_squares(place.box, squares.data() + place.out_begin);
    world_.sum(squares);
    for (const Place& place : places)
      set_lengths(place.box, place.m.data(), squares.data() + place.out_begin);
  }

  const AdapterConfig& adapters_;
  Communicator& world_;
  std::vector<std::string> modules_;
  std::map<std::string, std::deque<Place>> places_;  // addresses stay
  std::deque<Place> of_experts_;
  State loaded_;
};

}  // namespace

void add_adapters(const ModelConfig& model, State& state, const std::function<void(State&)>& load,
                  Communicator& world) {
  StateMerge merge(model, state, world);
  load(merge.adapters());
  merge.run();
}

bool AdapterMerge::adapts(const std::string& weight) const {
  if (const auto of = expert_weight_of(weight))
    return of_experts_.contains(expert_adapter_name(of->module, of->expert, 'A'));
  if (of_experts_.contains(expert_adapter_name(weight, 0, 'A'))) return true;
  const std::string module = module_of(weight);
  return !module.empty() && source_.weights().contains(module + ".lora_A.weight");
}

void AdapterMerge::add(const std::string& weight, std::span<float> values) const {
  if (nf4_.contains(weight)) round_to_nf4(values);
  if (!adapts(weight)) return;
  if (const auto of = expert_weight_of(weight)) return add_to_expert(*of, values);
  if (names_experts(weight)) return add_to_experts(weight, values);
  const std::string module = module_of(weight);
  const auto read = [&](const char* end) {
    const std::span<const float> values_of = source_.read_fp32(module + end);
    return std::vector<float>(values_of.begin(), values_of.end());
  };
  const std::vector<float> a = read(".lora_A.weight"), b = read(".lora_B.weight");
  const AdapterConfig& adapters = *model_.adapters;
  const std::int64_t out = std::ssize(b) / adapters.rank, in = std::ssize(a) / adapters.rank;
  const BoxOfWeight box{values.data(), out, in, stored_in_out(model_, module)};
  add_product(box, adapters, a.data(), b.data());
  if (!adapters.magnitudes) return;
  std::vector<double> squares(static_cast<std::size_t>(out));
  add_squares(box, squares.data());
  set_lengths(box, read(".lora_magnitude_vector").data(), squares.data());
}

const std::vector<float>& AdapterMerge::of_layer(const std::string& stored) const {
  constexpr std::size_t kOfLayer = 4;  // A and B of both products
  if (kept_.size() == kOfLayer && !kept_.contains(stored)) kept_.clear();
  std::vector<float>& values = kept_[stored];
  if (values.empty()) {
    const std::span<const float> all = source_.read_fp32(stored);
    values.assign(all.begin(), all.end());
  }
  return values;
}

void AdapterMerge::add_to_expert(const ExpertWeight& of, std::span<float> values) const {
  const AdapterConfig& adapters = *model_.adapters;
  const bool first = of.module.ends_with("gate_up_proj");
  const ExpertAdapterPart &part_a = of_experts_.at(expert_adapter_name(of.module, of.expert, 'A')),
                          &part_b = of_experts_.at(expert_adapter_name(of.module, of.expert, 'B'));
  const std::int64_t in = source_.weights().at(part_a.stored).shape[1],
                     out = std::ssize(values) / in;
  const Shape a_shape{adapters.rank, in}, b_shape{first ? 2 * out : out, adapters.rank};
  std::vector<float> a(static_cast<std::size_t>(a_shape.count())),
      b(static_cast<std::size_t>(out * adapters.rank));
  part_a.take(a_shape, of_layer(part_a.stored).data(), whole(a_shape), a.data());
  part_b.take(b_shape, of_layer(part_b.stored).data(), {{of.up ? out : 0, 0}, {out, adapters.rank}},
              b.data());
  add_product({values.data(), out, in, false}, adapters, a.data(), b.data());
}

void AdapterMerge::add_to_experts(const std::string& weight, std::span<float> values) const {
  const bool first = weight.ends_with("gate_up_proj");
  const ExpertAdapterPart& any = of_experts_.at(expert_adapter_name(weight, 0, 'A'));
  const std::int64_t in = source_.weights().at(any.stored).shape[1],
                     all = std::ssize(values) / any.experts, columns = all / in;
  const Shape shape{first ? columns / 2 : columns, in};
  std::vector<float> of_one(static_cast<std::size_t>(shape.count()));
  for (std::int64_t expert = 0; expert < any.experts; ++expert) {
    float* const stored = values.data() + expert * all;
    for (const char* half : {".gate", ".up"}) {
      if (!first && half == std::string_view(".up")) continue;
      const std::string name = fmt::format("{}[{}]{}", weight, expert, first ? half : "");
      const auto part = part_of(name);
      part->take({{expert, 0, 0}, {1, in, columns}}, stored, whole(shape), of_one.data());
      add_to_expert(*expert_weight_of(name), of_one);
      part->put(shape, of_one.data(), stored);
    }
  }
}

}  // namespace trireme
