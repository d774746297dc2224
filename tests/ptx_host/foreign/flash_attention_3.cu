// FlashAttention-3 (hopper/ of its repository), forward and backward in bf16, beside attention in
// double.
#include "attention_case.h"
#include "flash_bwd_launch_template.h"
#include "flash_fwd_launch_template.h"

namespace {

using foreign::Case, foreign::Element, foreign::Tensors;

template <class Params>
void set_shapes(Params& p, const Case& c, int d) {
  p.b = 1;
  p.h = p.h_k = c.heads;
  p.seqlen_q = c.queries, p.seqlen_k = c.keys;
  p.total_q = c.queries, p.total_k = c.keys;
  p.seqlen_q_rounded = (c.queries + 127) / 128 * 128,
  p.seqlen_k_rounded = (c.keys + 127) / 128 * 128;
  p.d = p.dv = p.d_rounded = p.dv_rounded = d;
  p.b_k = 1;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = c.heads * d;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = d;
  p.q_batch_stride = p.o_batch_stride = std::int64_t(c.queries) * c.heads * d;
  p.k_batch_stride = p.v_batch_stride = std::int64_t(c.keys) * c.heads * d;
  p.v_dim_stride = 1;
  p.scale_softmax = float(1 / std::sqrt(double(d)));
  p.window_size_left = -1;
  p.window_size_right = c.causal ? 0 : -1;
  p.is_causal = c.causal;
  p.is_bf16 = true;
  p.num_splits = 1;
  p.arch = 90;
  p.num_sm = 4;  // fewer than tiles: persistent blocks take several; even, for clusters
  p.p_dropout = 1, p.rp_dropout = 1;
  p.tile_count_semaphore = foreign::device<int>(64);
}

template <int kD>
void forward(const Case& c, const Tensors& t) {
  Flash_fwd_params p = {};
  set_shapes(p, c, kD);
  p.q_ptr = t.q, p.k_ptr = t.k, p.v_ptr = t.v, p.o_ptr = t.o;
  p.softmax_lse_ptr = t.lse;
  run_mha_fwd_<90, Element, kD, kD, false, false, false, false>(p, nullptr);
  foreign::check(cudaDeviceSynchronize());
}

// Of head size 64.
void backward(const Case& c, const Tensors& t) {
  constexpr int kD = 64;
  Flash_bwd_params p = {};
  set_shapes(p, c, kD);
  p.seqlen_q_rounded += 128, p.seqlen_k_rounded += 128;  // whatever the block's size
  p.q_ptr = t.q, p.k_ptr = t.k, p.v_ptr = t.v, p.o_ptr = t.o, p.do_ptr = t.d_out;
  p.dq_ptr = t.dq, p.dk_ptr = t.dk, p.dv_ptr = t.dv;
  p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = p.q_row_stride;
  p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = kD;
  p.do_batch_stride = p.dq_batch_stride = p.q_batch_stride;
  p.dk_batch_stride = p.dv_batch_stride = p.k_batch_stride;
  p.softmax_lse_ptr = t.lse;
  const std::size_t rows = std::size_t(c.heads) * p.seqlen_q_rounded;
  p.dsoftmax_sum = foreign::device<float>(rows);
  p.softmax_lse_log2_ptr = foreign::device<float>(rows);
  p.dq_accum_ptr = foreign::device<float>(rows * kD);
  p.dq_semaphore = foreign::device<int>(rows);
  run_mha_bwd_hdim64<90, Element, false>(p, nullptr);
  foreign::check(cudaDeviceSynchronize());
}

template <int kD>
bool run(const Case& c, bool with_backward) {
  const Tensors t = foreign::make_tensors(c, kD);
  forward<kD>(c, t);
  if (with_backward) backward(c, t);
  return foreign::compare("FA3", c, kD, t, with_backward);
}

}  // namespace

int main() {
  bool good = true;
  good &= run<64>({2, 200, 200, false}, true);
  good &= run<64>({1, 300, 300, true}, true);
  good &= run<128>({1, 256, 391, false}, false);  // a cluster of two
  good &= run<128>({2, 190, 190, true}, false);
  return good ? 0 : 1;
}
