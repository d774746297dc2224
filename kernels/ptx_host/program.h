#pragma once
// A kernel ready to be executed: every operand is a row of the warp's register file, immediates and
// special registers too.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ptx_host/text.h"

namespace trireme::ptx {

constexpr int kLanes = 32;
constexpr std::uint32_t kAllLanes = 0xffffffffu, kNoRow = 0xffffffffu;

struct Warp;
struct Instruction;
/// Executes for the lanes of the mask. False: it waits, and is asked again later; nothing has
/// happened.
using Handler = bool (*)(Warp&, const Instruction&, std::uint32_t mask);

/// `row` is a byte offset into the register file. A row holds 32 elements of `bytes` bytes, or a
/// predicate's 32 bits (bytes 0).
struct Operand {
  std::uint32_t row = kNoRow;
  std::uint8_t bytes = 0;
  bool negated = false;
  std::int64_t offset = 0;  // of an address
};

enum class Flow : std::uint8_t {
  kNext,  // plain
  kBranch,
  kExit,
  kAligned,  // all lanes of the warp that have not ended execute it together
  kMembers,  // those of its member mask, operand `members`
};

struct Instruction {
  Handler run = nullptr;
  const Operand* op = nullptr;
  std::uint16_t count = 0;
  Flow flow = Flow::kNext;
  bool guard_negated = false;
  bool moves = false;  // copies its operand: allowed while a wgmma has that in flight
  std::uint8_t members = 0;
  std::uint32_t guard = kNoRow;
  std::uint32_t target = 0;
  std::uint32_t detail[4] = {0, 0, 0, 0};  // what the handler's decoder has put there
  int line = 0;
  std::uint32_t at = 0;  // of the statement, bytes behind the kernel's name
};

enum class Special : std::uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtarank,
  kClusterNctarank,
  kIsExplicitCluster,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kDynamicSmemSize,
  kTotalSmemSize,
  kCount
};

struct SpecialRow {
  Special what;
  std::uint32_t row;
};

struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Operand> operands;
  mutable std::vector<std::uint64_t> executed;  // how often, of each instruction, by a warp
  std::vector<std::string> opcodes;             // of each instruction, for messages
  std::vector<std::uint8_t>
      registers;  // a warp's file as it begins: constants in their rows, poison in the others
  std::vector<SpecialRow> specials;
  std::uint32_t param_row = kNoRow;  // 64-bit: where the parameters lie
  std::vector<Operand>
      shared_rows;  // addresses of shared variables: `offset`, and the block's rank
  std::size_t param_bytes = 0, shared_bytes = 0, local_bytes = 0;
  std::vector<std::size_t> param_offsets, param_sizes;
  std::uint32_t max_threads = 0, cluster[3] = {0, 0, 0};
};

}  // namespace trireme::ptx
