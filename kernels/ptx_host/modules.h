#pragma once
// The kernels that a program brings: PTX inside its executable, found by what nvcc registers.
#include <string>

#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {

/// PTX of a fat binary as nvcc writes it (`--no-compress`): the newest architecture's. Throws where
/// there is none.
std::string ptx_of(const void* fat_binary);

/// Modules live as long as the process. `stub` is the host's function of a kernel.
void* add_module(const void* fat_binary);
void add_kernel(void* module, const void* stub, const char* name);
void add_variable(void* module, const void* host, const char* name);
/// Decoded at its first use. Throws PtxError.
const Program& program_of(const void* stub);
bool is_kernel(const void* stub);
/// Where a registered variable lies; null where it is none.
void* address_of_variable(const void* host);

/// Checks a launch against what an H100 takes, runs it, and says on standard error what was wrong.
void launch(const void* stub, Launch launch);
/// The arguments as the kernel's parameters lie. Throws PtxError.
std::vector<std::uint8_t> pack_params(const void* stub, void** args);

}  // namespace trireme::ptx
