// One of FlashAttention-3's backward kernels (hopper/ of its repository), HEAD_SIZE, CAUSAL or not,
// in bf16 with dQ in any order, for its machine code: what its run_mha_bwd_hdim* choose.
#include "flash_bwd_launch_template.h"

#if HEAD_SIZE == 64
#define TILE 128, 128
#define WAY 2, 2, true, false, false, 2, 1, 2, 2, false
#elif HEAD_SIZE == 128 && CAUSAL
#define TILE 64, 128
#define WAY 2, 2, true, false, false, 2, 1, 2, 1, false
#elif HEAD_SIZE == 128
#define TILE 80, 128
#define WAY 2, 2, true, false, true, 2, 1, 2, 1, false
#elif HEAD_SIZE == 256
#define TILE 64, 80
#define WAY 1, 1, false, true, true, 2, 1, 1, 1, false
#endif
// No window, no cap, one length, any order, as many heads of keys as of queries.
template void run_flash_bwd<90, HEAD_SIZE, TILE, cutlass::bfloat16_t, CAUSAL, false, false, false,
                            false, false, WAY>(Flash_bwd_params&, cudaStream_t);
