#pragma once
// What the files of attention compiled for one instruction set give the table in attention_cpu.cc.

#include "kernels/attention/attention_table.h"

namespace trireme::TRIREME_ISA {

std::int64_t attention_forward_scratch(const AttentionShape& shape);
std::int64_t attention_backward_scratch(const AttentionShape& shape);
void attention_forward(const AttentionForwardArgs& args);
void attention_forward_few(const AttentionForwardArgs& args);
std::int64_t attention_cached_scratch(std::int64_t head_dim, std::int64_t longest);
void attention_cached(const AttentionCachedArgs& args);
void attention_backward(const AttentionBackwardArgs& args);

}  // namespace trireme::TRIREME_ISA
