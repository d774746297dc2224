#pragma once
// The model that Megatron-LM's arguments describe, as keys of a Hugging Face config.

#include "config/megatron_arguments.h"

namespace trireme {

/// Writes "model" into the draft, or why there is none: families that Megatron-LM has and this
/// version has not, sizes that are not given.
void convert_megatron_model(const MegatronArguments& arguments, ConversionDraft& draft);

/// The tokenizer's type; pretrain_gpt.py takes GPT-2's where merges are given and no type is.
std::string megatron_tokenizer(const MegatronArguments& arguments);

}  // namespace trireme
