#include "plan/layer_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/math.h"
#include "config/adapters.h"
#include "model/attention.h"
#include "model/experts.h"
#include "model/mlp.h"

namespace trireme {

double AxisNumbers::total() const { return std::accumulate(of.begin(), of.end(), 0.0); }

AxisNumbers& AxisNumbers::operator+=(const AxisNumbers& other) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] += other.of[i];
  return *this;
}

PassTime& PassTime::operator+=(const PassTime& other) {
  compute += other.compute;
  host += other.host;
  exposed += other.exposed;
  hidden += other.hidden;
  bytes += other.bytes;
  return *this;
}

PassTime operator*(double times, PassTime pass) {
  pass.compute *= times;
  pass.host *= times;
  for (AxisNumbers* numbers : {&pass.exposed, &pass.hidden, &pass.bytes})
    for (double& number : numbers->of) number *= times;
  return pass;
}

PartTime& PartTime::operator+=(const PartTime& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  backward += other.backward;
  recompute += other.recompute;
  return *this;
}

namespace {

/// The same layer with the heads and columns of one rank.
LayerConfig layer_of_rank(LayerConfig layer, std::int64_t tensor, std::int64_t expert_tensor) {
  layer.attention.heads /= tensor;
  layer.attention.kv_heads = std::max<std::int64_t>(1, layer.attention.kv_heads / tensor);
  layer.mlp.ffn /= tensor;
  if (layer.experts) layer.experts->ffn /= expert_tensor;
  return layer;
}

double real(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

/// One layer of this rank.
class PartTimes::Walk {
 public:
  Walk(const PartTimes& parts, std::int64_t index)
      : parts_(parts),
        layout_(parts.layout_),
        other_(parts.cluster_.program ? &*parts.cluster_.program : nullptr),
        ops_(parts.ops_),
        layer_(layer_of_rank(parts.model_.layer(index), layout_.extent(Axis::kTensor),
                             layout_.expert_tensor)),
        fp8_(in_fp8(index)),
        goes_back_(index >= first_trained_layer(parts.model_)),
        tensor_(parts.cluster_, layout_.extent(Axis::kTensor), 1),
        context_(parts.cluster_, layout_.extent(Axis::kContext), layout_.extent(Axis::kTensor)),
        experts_(parts.cluster_, layout_.expert_ranks(), 1),
        hidden_(parts.model_.hidden),
        rows_(layout_.tokens()),
        stream_rows_(layout_.residual_tokens()),
        element_(real(static_cast<std::int64_t>(size_of(layout_.compute)))) {
    declare_products();
  }

  PartTime run() {
    PartTime time;
    time.forward = forward();
    if (goes_back_) {
      backward(time);
      recompute(time);
    }
    if (other_ != nullptr || !layout_.recorded) add_host(time);
    return time;
  }

  [[nodiscard]] PartSize trained_size() const {
    if (!parts_.model_.adapters) return size();
    PartSize size;
    for (const Product* product :
         {&attention_in_, &q_up_, &kv_up_, &attention_out_, &up_, &down_}) {
      if (product->ranks > 0)
        size.dense += real(product->ranks * product->k + parts_.model_.adapters->rank * product->n);
    }
    if (!layer_.experts) return size;
    for (const Product& product : {experts_in(), experts_out()})
      size.experts += product.count * real(product.ranks * (product.k + product.n));
    return size;
  }
  [[nodiscard]] PartSize size() const {
    PartSize size;
    for (const Product* product : {&attention_in_, &q_up_, &kv_up_, &attention_out_, &up_, &down_})
      size.dense += real(product->n * product->k);
    size.dense += 2 * real(hidden_);
    if (layer_.experts) {
      size.dense += real(layer_.experts->count * hidden_);
      size.experts = 3 * experts_here() * real(layer_.experts->ffn * hidden_);
    }
    return size;
  }

 private:
  /// y [m, n] = x [m, k] W, of a linear.
  struct Product {
    std::int64_t m = 0, n = 0, k = 0;
    double count = 1;
    std::int64_t ranks = 0;  ///< of adapters beside it
  };

  [[nodiscard]] bool in_fp8(std::int64_t index) const {
    if (!layout_.fp8) return false;
    const auto [first, last] = layout_.fp8->bf16_layers;
    return index >= first && index < parts_.model_.layer_count() - last;
  }

  void declare_products() {
    const AttentionConfig& attention = layer_.attention;
    if (attention.latent) {
      const LatentConfig& latent = *attention.latent;
      attention_in_ = {stream_rows_, attention.in_size(), hidden_};
      if (latent.q_rank > 0) q_up_ = {rows_, attention.heads * latent.query_dim(), latent.q_rank};
      kv_up_ = {rows_, attention.heads * latent.key_value_dim(), latent.kv_rank};
    } else {
      attention_in_ = {rows_, attention.in_size(), hidden_};
    }
    attention_out_ = {rows_, hidden_, attention.out_size()};
    up_ = {rows_, layer_.mlp.up_size(), hidden_};
    down_ = {rows_, hidden_, layer_.mlp.ffn};
    const AdapterRanks& adapters = layer_.adapters;
    attention_in_.ranks = adapters.attention_in;
    q_up_.ranks = adapters.q_up;
    kv_up_.ranks = adapters.kv_up;
    attention_out_.ranks = adapters.attention_out;
    up_.ranks = adapters.mlp_in;
    down_.ranks = adapters.mlp_out;
  }

  // --- products --------------------------------------------------------------------------------

  [[nodiscard]] DType operands() const { return fp8_ ? DType::kF8E4M3 : layout_.compute; }
  /// An operand is read as it is and written as codes, `ways` times.
  [[nodiscard]] double quantised(std::int64_t rows, std::int64_t columns, double ways) const {
    return fp8_ && other_ == nullptr ? ops_.memory(real(rows * columns) * (element_ + ways)) : 0;
  }
  [[nodiscard]] bool in_blocks() const {
    return fp8_ && other_ == nullptr && layout_.fp8->recipe == Fp8Recipe::kBlock;
  }
  /// h goes to the last product in codes.
  [[nodiscard]] bool makes_codes() const {
    return in_blocks() && leaves_codes(layer_, tensor_.ranks());
  }
  /// Of B and W in one the gradient before it does, and h again.
  [[nodiscard]] bool makes_gradient_codes() const {
    return in_blocks() && !parts_.model_.adapters && leaves_gradient_codes(layer_, tensor_.ranks());
  }
  /// y += (x A^T) B^T, from x [m, k] to y [m, n].
  [[nodiscard]] double adapters_of(const Product& p) const {
    if (p.ranks == 0) return 0;
    const DType type = layout_.compute;
    return ops_.product({p.m, p.ranks, p.k, type, element_, p.count}) +
           ops_.product({p.m, p.n, p.ranks, type, element_, p.count}) +
           ops_.memory(3 * p.count * real(p.m * p.n) * element_);
  }
  /// Of what an adapter beside `p` reads, or of its gradient there.
  [[nodiscard]] double dropout_of(const Product& p) const {
    const bool drops = p.ranks > 0 && parts_.model_.adapters->dropout > 0;
    return drops ? ops_.memory(2 * real(p.m * p.k) * element_) : 0;
  }
  /// Lengths of the rows of W + B A, [n, k].
  [[nodiscard]] double lengths_of(const Product& p) const {
    if (!has_lengths(p)) return 0;
    return ops_.product({p.n, p.k, p.ranks, layout_.compute, 8}) +
           ops_.memory(real(p.n * p.k) * element_);
  }
  /// So many operands of y's size pass by because of them.
  [[nodiscard]] double by_lengths(const Product& p, double operands) const {
    return has_lengths(p) ? ops_.memory(operands * real(p.m * p.n) * element_) : 0;
  }
  [[nodiscard]] bool has_lengths(const Product& p) const {
    return p.ranks > 0 && parts_.model_.adapters->magnitudes;
  }
  [[nodiscard]] double forward_of(const Product& p) const {
    return ops_.product({p.m, p.n, p.k, operands(), element_, p.count}) + quantised(p.m, p.k, 1) +
           adapters_of(p) + dropout_of(p) + lengths_of(p) + by_lengths(p, 2);
  }
  [[nodiscard]] double down_forward() const {
    return forward_of(down_) - (makes_codes() ? quantised(down_.m, down_.k, 1) : 0);
  }
  [[nodiscard]] double input_of(const Product& p) const {
    return ops_.product({p.m, p.k, p.n, operands(), element_, p.count}) + quantised(p.m, p.n, 2) +
           adapters_of({p.m, p.k, p.n, p.count, p.ranks}) + dropout_of(p) + by_lengths(p, 2);
  }
  /// Into fp32 gradients, read and written.
  [[nodiscard]] double weight_of(const Product& p) const {
    if (parts_.model_.adapters) {
      if (p.ranks == 0) return 0;
      const DType type = layout_.compute;
      return ops_.product({p.ranks, p.k, p.m, type, 8, p.count}) +
             ops_.product({p.n, p.ranks, p.m, type, 8, p.count}) + dropout_of(p) + by_lengths(p, 3);
    }
    return ops_.product({p.n, p.k, p.m, operands(), 8, p.count}) + quantised(p.m, p.k, 1);
  }

  // --- transfers -------------------------------------------------------------------------------

  /// `window`: seconds of work that it goes on behind; of another system its share.
  void transfer(PassTime& pass, Axis axis, double seconds, double window, double calls = 1) const {
    const double hidden = other_ != nullptr ? seconds * other_->overlap.tensor
                                            : parts_.hidden(link_of(axis), seconds, calls, window);
    pass.exposed[axis] += seconds - hidden;
    pass.hidden[axis] += hidden;
  }
  [[nodiscard]] const LinkTime& link_of(Axis axis) const {
    return axis == Axis::kTensor ? tensor_ : axis == Axis::kContext ? context_ : experts_;
  }
  /// Rows of so many columns from residual to all, or their sums from all to residual, around a
  /// ring; without sequence parallelism nothing and an all-reduce.
  void gather(PassTime& pass, double window, double bytes_of_element, double times = 1) const {
    if (layout_.sequence_parallel) ring(pass, times, window, bytes_of_element);
  }
  void reduce(PassTime& pass, double window) const {
    ring(pass, layout_.sequence_parallel ? 1 : 2, window, element_);
  }
  void ring(PassTime& pass, double times, double window, double bytes_of_element) const {
    if (tensor_.ranks() == 1) return;
    const double bytes = real(rows_ * hidden_) * bytes_of_element;
    transfer(pass, Axis::kTensor, tensor_.rings(bytes, times), window);
    pass.bytes[Axis::kTensor] += times * bytes * (1 - 1 / real(tensor_.ranks()));
  }
  /// Of a product whose rows travel as they come: the rank's own come first, or go last.
  [[nodiscard]] double behind_gather(double product) const {
    return product / real(tensor_.ranks());
  }
  [[nodiscard]] double behind_reduce(double product) const {
    return layout_.sequence_parallel && !fp8_ ? product * (1 - 1 / real(tensor_.ranks())) : 0;
  }
  [[nodiscard]] double gathered_element() const { return fp8_ ? 1 : element_; }

  // --- attention -------------------------------------------------------------------------------

  /// Queries and keys that meet, of all sequences and of one head; causal ones once.
  [[nodiscard]] double pairs() const {
    const double tokens = real(layout_.sequence_length);
    const double seen = real(layer_.attention.seen(layout_.sequence_length));
    const double of_one =
        other_ != nullptr && !other_->flash ? tokens * tokens : seen * tokens - seen * seen / 2;
    return real(layout_.passes.micro) * of_one / real(layout_.extent(Axis::kContext));
  }
  [[nodiscard]] double attention_forward() const {
    const double flops = 4 * real(layer_.attention.pair_size()) * pairs();
    double seconds = ops_.attention(flops, layout_.compute);
    if (other_ != nullptr && !other_->flash)
      seconds += ops_.memory(other_->score_bytes * pairs() * real(layer_.attention.heads));
    return seconds;
  }
  /// Scores are made again: five products for two, of which three and one are of keys' dims.
  [[nodiscard]] double attention_backward() const {
    if (other_ != nullptr && !other_->flash) return 2 * attention_forward();
    const double keys = real(layer_.attention.head_dim),
                 values = real(layer_.attention.value_dim());
    return (3 * keys + 2 * values) / (keys + values) * attention_forward();
  }

  void keys_values(PassTime& pass, double attention, bool back) const {
    const std::int64_t ranks = context_.ranks();
    if (ranks == 1) return;
    const double n = real(ranks), kv = real(layer_.attention.kv_size() * rows_),
                 o = real(rows_ * layer_.attention.out_size());
    double bytes = (n - 1) * kv * element_, window = attention * (1 - 1 / n);
    double calls = back ? 2 : 1;
    switch (layout_.context_method) {
      case ContextMethod::kRing:
        if (back) bytes += n * kv * 4;
        calls = back ? 2 * n - 1 : n - 1;  // keys and values, then their sums all the way home
        break;
      case ContextMethod::kAllGather:
        window = 0;
        if (back) bytes += (n - 1) * kv * 4;
        break;
      case ContextMethod::kUlysses: {
        window = 0;
        const double qkv = (real(rows_ * layer_.attention.q_size()) + kv) / n;
        bytes = (n - 1) * (qkv + o / n) * element_;
        if (back) bytes += (n - 1) * qkv * 4;
        calls = back ? 4 : 2;  // q, k, v and o; their gradients, and delta
      }
    }
    const double seconds = layout_.context_method == ContextMethod::kRing
                               ? calls * context_.hop(bytes / calls)
                               : context_.to_all(bytes, calls);
    transfer(pass, Axis::kContext, seconds, window, calls);
    pass.bytes[Axis::kContext] += bytes;
    if (other_ == nullptr && layout_.context_method != ContextMethod::kUlysses)
      pass.compute += (n - 1) * ops_.memory(back ? 12 * kv : 3 * element_ * o);
  }

  // --- passes over memory ----------------------------------------------------------------------

  /// Norms, residuals, rotation, activations.
  [[nodiscard]] double elementwise(bool back) const {
    if (other_ != nullptr) {
      const double bytes = other_->elementwise_bytes * real(stream_rows_ * hidden_) +
                           other_->cut_elementwise_bytes * real(layout_.tokens() * hidden_) /
                               real(layout_.extent(Axis::kTensor));
      return (back ? 2 : 1) * ops_.memory(bytes);
    }
    const double stream = real(stream_rows_ * hidden_) * element_;
    double seconds = 2 * ops_.memory((back ? 5 : 4) * stream);
    if (layer_.norm_before() && layer_.norm_after()) seconds += 2 * ops_.memory(3 * stream);
    if (layer_.residual_dropout > 0) seconds += 2 * ops_.memory(2 * stream);
    if (layer_.attention.qk_norm != QkNorm::kNone)
      seconds += ops_.memory((back ? 3 : 2) * rotated_bytes());
    if (layer_.attention.rope) seconds += ops_.memory(2 * rotated_bytes());
    if (back) seconds += ops_.memory(2 * real(rows_ * layer_.attention.out_size()) * element_);
    return seconds + activation(back);
  }
  /// Of queries and keys.
  [[nodiscard]] double rotated_bytes() const {
    return real(rows_ * (layer_.attention.q_size() + layer_.attention.k_size())) * element_;
  }
  /// The MLP's: with the codes it makes in the way of rows, which products read as they are.
  [[nodiscard]] double activation(bool back) const {
    const double act = real(rows_ * layer_.mlp.ffn) * element_;
    const double in = real(rows_ * layer_.mlp.up_size()) * element_;
    return ops_.memory(back ? 2 * in + 2 * act : in + (makes_codes() ? act / element_ : act));
  }
  /// RoPE's pass, where it quantises for both products.
  [[nodiscard]] double saved_by_rope_codes() const {
    const bool leaves =
        in_blocks() && !parts_.model_.adapters && rope_leaves_codes(layer_, tensor_.ranks());
    return leaves ? ops_.memory(2 * rotated_bytes()) : 0;
  }
  /// Less than activation(true) and what quantises for products, where codes are made behind.
  [[nodiscard]] double saved_by_gradient_codes() const {
    if (!makes_gradient_codes()) return 0;
    const double act = real(rows_ * layer_.mlp.ffn), in = real(rows_ * layer_.mlp.up_size());
    return activation(true) + quantised(up_.m, up_.n, 2) + quantised(down_.m, down_.k, 1) -
           ops_.memory((in + act) * element_ + 2 * in + act +
                       (layer_.mlp.bias ? in * element_ : 0));
  }

  // --- experts ---------------------------------------------------------------------------------

  [[nodiscard]] double experts_here() const {
    return real(layer_.experts->count) / real(layout_.expert);
  }
  [[nodiscard]] std::int64_t home_rows() const {
    return ceil_div(rows_, layout_.extent(Axis::kTensor));
  }
  /// Rows of all experts of this rank.
  [[nodiscard]] double expert_rows() const {
    return real(home_rows() * layer_.experts->chosen * layout_.expert_tensor);
  }
  [[nodiscard]] Product expert_product(std::int64_t n, std::int64_t k, std::int64_t ranks) const {
    const double here = experts_here();
    const double rows = std::max(1.0, expert_rows() / here);
    return {static_cast<std::int64_t>(rows), n, k, here, ranks};
  }
  [[nodiscard]] Product experts_in() const {
    return expert_product(2 * layer_.experts->ffn, hidden_, layer_.adapters.experts_in);
  }
  [[nodiscard]] Product experts_out() const {
    return expert_product(hidden_, layer_.experts->ffn, layer_.adapters.experts_out);
  }
  /// Tokens that go to other ranks, and rows that come back from them.
  struct Sent {
    double tokens = 0, rows = 0;
  };
  [[nodiscard]] Sent expert_sent() const {
    const double others = real(experts_.ranks() - 1), experts = real(layer_.experts->count);
    double misses = 1;  // of a token whose experts are all elsewhere
    for (double i = 0; i < real(layer_.experts->chosen); ++i)
      misses *= std::max(0.0, experts - experts_here() - i) / (experts - i);
    const double reached = layout_.dispatch == DispatchMethod::kAllGather ? 1 : 1 - misses;
    return {real(home_rows()) * reached * others,
            real(home_rows() * layer_.experts->chosen * layout_.expert_tensor) * others /
                real(experts_.ranks())};
  }
  void send_experts(PassTime& pass, double bytes, double window) const {
    if (experts_.ranks() == 1) return;
    transfer(pass, Axis::kExpert, experts_.to_all(bytes), window);
    pass.bytes[Axis::kExpert] += bytes;
  }
  [[nodiscard]] double expert_memory(bool back) const {
    const double row = real(hidden_) * element_, f = real(layer_.experts->ffn) * element_;
    const double rows = expert_rows();
    return ops_.memory(rows * (back ? 6 : 3) * f) + ops_.memory(2 * rows * row) +
           ops_.memory((rows + real(home_rows())) * row);
  }
  /// Bytes of a row, of its columns and of an expert's, that passes between tokens, units and
  /// products move no more where codes are made on the way.
  [[nodiscard]] double saved_by_expert_codes(double of_row, double of_unit) const {
    const bool leaves = in_blocks() && !parts_.model_.adapters &&
                        expert_units_leave_codes(layer_, narrow<int>(layout_.expert_tensor));
    const double bytes = of_row * real(hidden_) + of_unit * real(layer_.experts->ffn);
    return leaves ? ops_.memory(expert_rows() * bytes) : 0;
  }
  void experts_forward(PassTime& pass) const {
    const Sent sent = expert_sent();
    const double row = real(hidden_) * element_, chosen = real(layer_.experts->chosen);
    send_experts(pass, sent.tokens * (row + 8 * chosen), shared() ? forward_of(up_) : 0);
    send_experts(pass, sent.rows * row, shared() ? forward_of(down_) : 0);
    pass.compute += ops_.product({home_rows(), layer_.experts->count, hidden_, DType::kF32, 4}) +
                    forward_of(experts_in()) + forward_of(experts_out()) + expert_memory(false) -
                    saved_by_expert_codes(4, 4);
  }
  void experts_backward(PassTime& input, PassTime& weight) const {
    const Sent sent = expert_sent();
    const double row = real(hidden_) * element_;
    const Product in = experts_in(), out = experts_out();
    send_experts(input, sent.tokens * row, shared() ? input_of(down_) : 0);
    send_experts(input, sent.rows * (row + 4), shared() ? input_of(up_) : 0);
    const Product router{home_rows(), layer_.experts->count, hidden_};
    input.compute += ops_.product({router.m, router.k, router.n, DType::kF32, 4}) + input_of(in) +
                     input_of(out) + expert_memory(true) - saved_by_expert_codes(4, 3);
    weight.compute += weight_of(in) + weight_of(out) - saved_by_expert_codes(0, 3);
    if (!parts_.model_.adapters)
      weight.compute += ops_.product({router.n, router.k, router.m, DType::kF32, 8});
  }
  [[nodiscard]] bool shared() const { return layer_.mlp.ffn > 0; }
  [[nodiscard]] bool has_products() const { return !layer_.experts || shared(); }

  // --- passes ----------------------------------------------------------------------------------

  [[nodiscard]] PassTime forward() const {
    PassTime pass;
    const double in = forward_of(attention_in_), out = forward_of(attention_out_);
    const double attention = attention_forward();
    pass.compute =
        elementwise(false) + in + forward_of(q_up_) + forward_of(kv_up_) + attention + out;
    if (!layer_.attention.latent) gather(pass, behind_gather(in), gathered_element());
    keys_values(pass, attention, false);
    reduce(pass, behind_reduce(out));
    const double up = forward_of(up_), down = down_forward();
    pass.compute += up + down;
    if (has_products()) gather(pass, behind_gather(up), gathered_element());
    if (layer_.experts) experts_forward(pass);
    reduce(pass, layer_.experts ? 0 : behind_reduce(down));
    return pass;
  }

  void backward(PartTime& time) const {
    PassTime &input = time.backward_input, &weight = time.backward_weight;
    const double attention = attention_backward();
    for (const Product* p : {&attention_in_, &q_up_, &kv_up_, &attention_out_, &up_, &down_}) {
      input.compute += input_of(*p);
      weight.compute += weight_of(*p);
    }
    input.compute += elementwise(true) + attention;
    keys_values(input, attention, true);
    if (layer_.experts) experts_backward(input, weight);
    time.backward = input;
    time.backward += weight;
    time.backward.compute -= saved_by_gradient_codes() + saved_by_rope_codes();

    const double out = input_of(attention_out_), down = input_of(down_);
    if (has_products()) gather(input, behind_gather(down), element_);
    gather(input, behind_gather(out), element_);
    reduce(input, layer_.experts ? 0 : behind_reduce(input_of(up_)));
    reduce(input, behind_reduce(input_of(attention_in_)));
    const double weights_out = weight_of(attention_out_) + weight_of(down_);
    const double gathered = (has_products() ? 1 : 0) + (layer_.attention.latent ? 0 : 1);
    if (other_ == nullptr) gather(weight, weights_out, element_, gathered);
    if (layer_.experts || layer_.attention.latent) {
      for (const PassTime* half : {&input, &weight}) {
        time.backward.exposed[Axis::kTensor] += half->exposed[Axis::kTensor];
        time.backward.hidden[Axis::kTensor] += half->hidden[Axis::kTensor];
        time.backward.bytes[Axis::kTensor] += half->bytes[Axis::kTensor];
      }
      return;
    }
    PassTime& both = time.backward;
    gather(both, behind_gather(down), element_);
    reduce(both, weight_of(down_));
    gather(both, behind_gather(out), element_);
    if (other_ == nullptr) gather(both, attention + input_of(attention_in_), element_);
    reduce(both, weight_of(up_));
    if (other_ == nullptr) gather(both, weight_of(attention_out_), element_);
  }

  /// What F keeps is made again but the last product, which no backward reads.
  void recompute(PartTime& time) const {
    PassTime again;
    if (layout_.recompute == Recompute::kFull) {
      again = time.forward;
      if (other_ == nullptr && !layer_.norm_after() && !layer_.experts) {
        again.compute -= down_forward() + (makes_codes() ? activation(false) : 0);
        PassTime last;
        reduce(last, behind_reduce(down_forward()));
        again += -1.0 * last;
      }
    } else if (layout_.recompute == Recompute::kSelective) {
      again.compute = other_ != nullptr
                          ? (other_->flash ? 0 : attention_forward())
                          : 2 * ops_.memory(real(rows_ * layer_.attention.qkv_size()) * element_);
    }
    time.recompute = again;
    time.backward_input += again;
    time.backward += again;
  }

  /// A pass takes what its launches take at least; a CPU does nothing else meanwhile.
  void add_host(PartTime& time) const {
    const Cluster::Host& host = parts_.cluster_.host;
    const double growth = 1 + host.tensor_growth * std::log2(real(layout_.extent(Axis::kTensor)));
    const bool beside = other_ != nullptr || layout_.device == DeviceKind::kCuda;
    const auto floor = [&](PassTime& pass, double seconds) {
      pass.host += std::max(0.0, seconds * growth - (beside ? pass.seconds() : 0));
    };
    const double forward = host.layer_forward_seconds, backward = host.layer_backward_seconds;
    const double again = layout_.recompute == Recompute::kFull ? forward : 0;
    floor(time.forward, forward);
    if (!goes_back_) return;
    floor(time.recompute, again);
    floor(time.backward_input, backward / 2 + again);
    floor(time.backward_weight, backward / 2);
    floor(time.backward, backward + again);
  }

  const PartTimes& parts_;
  const StepLayout& layout_;
  const OtherProgram* other_;
  const OpTime& ops_;
  const LayerConfig layer_;
  const bool fp8_, goes_back_;
  const LinkTime tensor_, context_, experts_;
  const std::int64_t hidden_, rows_, stream_rows_;
  const double element_;
  Product attention_in_, q_up_, kv_up_, attention_out_, up_, down_;
};

namespace {

/// Ranks of a node.
std::int64_t busy_of(const Cluster& cluster, const StepLayout& layout) {
  return std::min<std::int64_t>(cluster.devices_per_node, layout.mesh.size());
}

}  // namespace

PartTimes::PartTimes(const ModelConfig& model, const StepLayout& layout, const Cluster& cluster)
    : model_(model),
      layout_(layout),
      cluster_(cluster),
      ops_(cluster, busy_of(cluster, layout),
           rank_speed(cluster, busy_of(cluster, layout), layout.threads)),
      crowded_(threads_of_core(cluster, busy_of(cluster, layout), layout.threads) > 1) {}

double PartTimes::hidden(const LinkTime& link, double seconds, double calls, double work) const {
  const bool moved_by_others = layout_.device == DeviceKind::kCuda || link.crosses_nodes();
  if (moved_by_others) return std::min(seconds, work);
  const double waits = std::min(seconds, calls * link.latency());
  return crowded_ ? waits : std::min(waits, work);
}

PartTime PartTimes::layer(std::int64_t index) const { return Walk(*this, index).run(); }

PartSize PartTimes::layer_size(std::int64_t index) const { return Walk(*this, index).size(); }

PartSize PartTimes::trained_size(std::int64_t index) const {
  return Walk(*this, index).trained_size();
}

}  // namespace trireme
