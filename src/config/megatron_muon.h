#pragma once

#include "config/megatron_arguments.h"

namespace trireme {

/// Of `--optimizer muon`: what its arguments (`--muon-...`) mean here, and in what they differ.
/// --lr is written.
void convert_megatron_muon(const MegatronArguments& arguments, ConversionDraft& draft);

}  // namespace trireme
