#include "kernels/ptx_host/modules.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "kernels/ptx_host/decode.h"

namespace trireme::ptx {
namespace {

constexpr std::uint32_t kFatBinary = 0xba55ed50;
constexpr std::size_t kMaxShared = 227 * 1024;  // of a block of an H100

struct LoadedModule {
  std::unique_ptr<Module> text;
  Addresses addresses;
  std::vector<std::unique_ptr<std::uint8_t[]>> variables;
};
struct Kernel {
  LoadedModule* module;
  std::string name;
  std::unique_ptr<Program> program;
};
struct HostVariable {
  LoadedModule* module;
  std::string name;
};

std::map<const void*, Kernel>& kernels() {
  static auto* all = new std::map<const void*, Kernel>;
  return *all;
}
std::map<const void*, HostVariable>& variables() {
  static auto* all = new std::map<const void*, HostVariable>;
  return *all;
}

template <class T>
T read_at(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void place_globals(LoadedModule& module) {
  for (const Variable& variable : module.text->globals()) {
    if (variable.bytes == 0) continue;
    const std::size_t room = variable.bytes + variable.align;
    auto memory = std::make_unique<std::uint8_t[]>(room);
    auto at = reinterpret_cast<std::uintptr_t>(memory.get());
    at = (at + variable.align - 1) / variable.align * variable.align;
    std::copy(variable.values.begin(), variable.values.end(), reinterpret_cast<std::uint8_t*>(at));
    own_memory(reinterpret_cast<void*>(at), variable.bytes);
    module.addresses[variable.name] = at;
    module.variables.push_back(std::move(memory));
  }
}

}  // namespace

std::string ptx_of(const void* fat_binary) {
  const auto* at = static_cast<const std::uint8_t*>(fat_binary);
  if (read_at<std::uint32_t>(at) != kFatBinary) throw PtxError("this is no fat binary");
  const std::uint8_t* end = at + read_at<std::uint16_t>(at + 6) + read_at<std::uint64_t>(at + 8);
  at += read_at<std::uint16_t>(at + 6);
  std::string best;
  std::uint32_t best_architecture = 0;
  for (; at < end;) {
    const auto kind = read_at<std::uint16_t>(at);
    const auto header = read_at<std::uint32_t>(at + 4),
               architecture = read_at<std::uint32_t>(at + 28);
    const auto payload = read_at<std::uint64_t>(at + 8);
    const auto* text = reinterpret_cast<const char*>(at + header);
    if (kind == 1 && architecture >= best_architecture) {
      if (read_at<std::uint32_t>(at + 16) != 0 && read_at<std::uint64_t>(at + 56) != 0)
        throw PtxError("the PTX is compressed: compile with nvcc --no-compress");
      best.assign(text, payload);
      best_architecture = architecture;
    }
    at += header + payload;
  }
  if (best.empty())
    throw PtxError(
        "a fat binary has no PTX: compile with -gencode arch=compute_90a,code=compute_90a");
  return best;
}

// TRIREME_PTX_COVERAGE=<file>: what was executed, a line an instruction: kernel, bytes behind its
// name, how often, opcode.
void write_coverage() {
  std::ofstream file(std::getenv("TRIREME_PTX_COVERAGE"));
  for (const auto& [stub, kernel] : kernels()) {
    if (!kernel.program) continue;
    const Program& program = *kernel.program;
    for (std::size_t i = 0; i + 1 < program.code.size(); ++i)
      if (program.executed[i])
        file << program.name << ' ' << program.code[i].at << ' ' << program.executed[i] << ' '
             << program.opcodes[i] << '\n';
  }
}

void* add_module(const void* fat_binary) {
  static const bool covers =
      std::getenv("TRIREME_PTX_COVERAGE") && std::atexit(write_coverage) == 0;
  (void)covers;
  auto* module = new LoadedModule;
  module->text = std::make_unique<Module>(ptx_of(fat_binary));
  place_globals(*module);
  return module;
}
void add_kernel(void* module, const void* stub, const char* name) {
  kernels()[stub] = {static_cast<LoadedModule*>(module), name, nullptr};
}
void add_variable(void* module, const void* host, const char* name) {
  variables()[host] = {static_cast<LoadedModule*>(module), name};
}
void* address_of_variable(const void* host) {
  const auto found = variables().find(host);
  if (found == variables().end()) return nullptr;
  const Addresses& addresses = found->second.module->addresses;
  const auto at = addresses.find(found->second.name);
  return at == addresses.end() ? nullptr : reinterpret_cast<void*>(at->second);
}
bool is_kernel(const void* stub) { return kernels().contains(stub); }

const Program& program_of(const void* stub) {
  const auto found = kernels().find(stub);
  if (found == kernels().end()) throw PtxError("this function is no kernel");
  Kernel& kernel = found->second;
  if (!kernel.program) {
    const Module& module = *kernel.module->text;
    const Function function = module.entry(kernel.name);
    kernel.program =
        std::make_unique<Program>(Decoder(function, module, kernel.module->addresses).take());
  }
  return *kernel.program;
}

std::vector<std::uint8_t> pack_params(const void* stub, void** args) {
  const Program& program = program_of(stub);
  std::vector<std::uint8_t> params(program.param_bytes, 0);
  for (std::size_t i = 0; i < program.param_offsets.size(); ++i)
    std::memcpy(params.data() + program.param_offsets[i], args[i], program.param_sizes[i]);
  return params;
}

void launch(const void* stub, Launch launch) {
  const Program& program = program_of(stub);
  launch.program = &program;
  const std::uint64_t threads = std::uint64_t(launch.block[0]) * launch.block[1] * launch.block[2];
  for (int i = 0; i < 3; ++i) {
    if (program.cluster[i]) launch.cluster[i] = program.cluster[i];
    if (launch.grid[i] == 0 || launch.grid[i] % launch.cluster[i])
      throw PtxError(program.name + ": the grid is empty, or no multiple of the cluster");
  }
  if (threads == 0 || threads > 1024 || (program.max_threads && threads > program.max_threads))
    throw PtxError(program.name + ": " + std::to_string(threads) + " threads in a block");
  if (program.shared_bytes + launch.dynamic_shared > kMaxShared)
    throw PtxError(program.name + ": " +
                   std::to_string(program.shared_bytes + launch.dynamic_shared) +
                   " bytes of shared memory");
  run_grid(launch);
}

}  // namespace trireme::ptx
