// FlashAttention-2 (csrc/flash_attn/src of its package), whose products are mma.sync, forward and
// backward in bf16, beside attention in double.
#include "attention_case.h"
#include "flash_bwd_launch_template.h"
#include "flash_fwd_launch_template.h"

namespace {

using foreign::Case, foreign::Element, foreign::Tensors;
constexpr int kD = 64;

void set_params(flash::Flash_bwd_params& p, const Case& c, const Tensors& t) {
  p.b = 1;
  p.h = p.h_k = c.heads;
  p.h_h_k_ratio = 1;
  p.seqlen_q = c.queries, p.seqlen_k = c.keys;
  p.seqlen_q_rounded = (c.queries + 127) / 128 * 128,
  p.seqlen_k_rounded = (c.keys + 127) / 128 * 128;
  p.d = p.d_rounded = kD;
  p.total_q = c.queries;
  p.q_ptr = t.q, p.k_ptr = t.k, p.v_ptr = t.v, p.o_ptr = t.o, p.do_ptr = t.d_out;
  p.dq_ptr = t.dq, p.dk_ptr = t.dk, p.dv_ptr = t.dv;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = c.heads * kD;
  p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = c.heads * kD;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = kD;
  p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = kD;
  p.q_batch_stride = p.o_batch_stride = p.do_batch_stride = p.dq_batch_stride =
      std::int64_t(c.queries) * c.heads * kD;
  p.k_batch_stride = p.v_batch_stride = p.dk_batch_stride = p.dv_batch_stride =
      std::int64_t(c.keys) * c.heads * kD;
  p.scale_softmax = float(1 / std::sqrt(double(kD)));
  p.scale_softmax_log2 = float(1 / std::sqrt(double(kD)) / std::log(2.0));
  p.p_dropout = 1, p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255;
  p.scale_softmax_rp_dropout = p.scale_softmax;
  p.window_size_left = -1;
  p.window_size_right = c.causal ? 0 : -1;
  p.is_bf16 = true;
  p.is_causal = c.causal;
  p.is_seqlens_k_cumulative = true;
  p.num_splits = 1;
  p.softmax_lse_ptr = t.lse;
  const std::size_t rows = std::size_t(c.heads) * p.seqlen_q_rounded;
  p.dsoftmax_sum = foreign::device<float>(rows);
  p.dq_accum_ptr = foreign::device<float>(rows * kD);
}

template <bool kCausal>
bool run(Case c) {
  c.causal = kCausal;
  const Tensors t = foreign::make_tensors(c, kD);
  flash::Flash_bwd_params p = {};
  set_params(p, c, t);
  flash::run_mha_fwd_hdim64<Element, kCausal>(p, nullptr);
  flash::run_mha_bwd_hdim64<Element, kCausal>(p, nullptr);
  foreign::check(cudaDeviceSynchronize());
  return foreign::compare("FA2", c, kD, t, true);
}

}  // namespace

int main() {
  bool good = run<false>({2, 130, 200});
  good &= run<true>({1, 300, 300});
  return good ? 0 : 1;
}
