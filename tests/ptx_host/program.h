#pragma once
// A kernel written as PTX, run on the interpreter.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ptx_host/decode.h"
#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {

/// A module of one kernel `k(.param .u64 out, .param .u64 in)`; `shared` bytes of it are the
/// variable `tile`.
class TestProgram {
 public:
  explicit TestProgram(const std::string& body, int shared = 64)
      : module_(
            ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(\n.param .u64 "
            "out,\n.param .u64 in\n)\n{\n"
            ".reg .b32 %r<64>;\n.reg .b64 %rd<64>;\n.reg .f32 %f<160>;\n.reg .pred %p<16>;\n.reg "
            ".b16 %h<16>;\n"
            ".shared .align 1024 .b8 tile[" +
            std::to_string(shared) +
            "];\nld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n" +
            body + "\n}\n") {}

  /// `out` and `in` are device memory while it runs.
  void run(std::vector<std::uint32_t>& out, std::vector<std::uint32_t>& in, std::uint32_t threads,
           std::uint32_t blocks = 1, std::uint32_t cluster = 1) {
    const Function function = module_.entry("k");
    const Program program = Decoder(function, module_, {}).take();
    Launch launch;
    launch.program = &program;
    launch.grid[0] = blocks;
    launch.block[0] = threads;
    launch.cluster[0] = cluster;
    launch.params.resize(16);
    const std::uint64_t pointers[2] = {reinterpret_cast<std::uint64_t>(out.data()),
                                       reinterpret_cast<std::uint64_t>(in.data())};
    std::memcpy(launch.params.data(), pointers, 16);
    own_memory(out.data(), out.size() * 4);
    own_memory(in.data(), in.size() * 4);
    try {
      run_grid(launch);
    } catch (...) {
      disown_memory(out.data());
      disown_memory(in.data());
      throw;
    }
    disown_memory(out.data());
    disown_memory(in.data());
  }

  /// One block; returns what every thread left in out[thread].
  std::vector<std::uint32_t> results(std::uint32_t threads, std::vector<std::uint32_t> in = {0}) {
    std::vector<std::uint32_t> out(threads, 0);
    run(out, in, threads);
    return out;
  }
  /// What it fails with; empty where it does not.
  std::string error(std::uint32_t threads, std::uint32_t blocks = 1, std::uint32_t cluster = 1) {
    std::vector<std::uint32_t> out(1024, 0), in(1024, 0);
    try {
      run(out, in, threads, blocks, cluster);
    } catch (const PtxError& failure) {
      return failure.what();
    }
    return {};
  }

 private:
  Module module_;
};

/// Stores a 32-bit register of every thread.
inline std::string store(const std::string& name) {
  return "mul.wide.u32 %rd60, %r1, 4;\nadd.s64 %rd60, %rd60, %rd1;\nst.global.b32 [%rd60], " +
         name + ";\n";
}

}  // namespace trireme::ptx
