#pragma once
// From a statement to an instruction. Each family of opcodes has a file, execute_<family>.cc, with
// its decoders and its handlers side by side. A word of an opcode that no decoder takes is an error
// that names it.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/ptx_host/program.h"

namespace trireme::ptx {

enum class Kind : std::uint8_t {
  kBits,
  kUnsigned,
  kSigned,
  kFloat,
  kBf16,
  kTf32,
  kE4m3,
  kE5m2,
  kPredicate
};

struct Type {
  Kind kind = Kind::kBits;
  std::uint8_t bits = 32;  // of one element
  std::uint8_t lanes = 1;  // 2: packed
  bool operator==(const Type&) const = default;
  bool is(Kind k, int b, int l = 1) const { return kind == k && bits == b && lanes == l; }
  bool is_integer() const {
    return kind == Kind::kBits || kind == Kind::kUnsigned || kind == Kind::kSigned;
  }
  bool is_signed() const { return kind == Kind::kSigned; }
};
constexpr std::uint32_t pack(Type t) {
  return std::uint32_t(t.kind) << 16 | std::uint32_t(t.bits) << 8 | t.lanes;
}
constexpr Type unpack(std::uint32_t v) {
  return {Kind(v >> 16), std::uint8_t(v >> 8), std::uint8_t(v)};
}
/// Bytes of the register that holds it: an 8-bit element has 16 bits.
constexpr std::uint8_t register_bytes(Type t) {
  const int bytes = t.bits * t.lanes / 8;
  return std::uint8_t(bytes < 2 ? 2 : bytes);
}

/// Where a module's .global and .const variables stand.
using Addresses = std::map<std::string_view, std::uint64_t>;

class Decoder {
 public:
  Decoder(const Function& function, const Module& module, const Addresses& addresses);
  Program take();

  // ---- for decoders of opcodes ----
  /// The next words of the opcode.
  bool next_is(std::string_view word) const;
  bool skip(std::string_view word);
  void expect(std::string_view word);
  std::string_view word();
  /// The next word's place among these; an error where it is none of them.
  std::uint32_t choose(std::span<const std::string_view> words);
  /// Goes past words of a list, in any order.
  void skip_all(std::span<const std::string_view> words);
  bool words_left() const { return at_ < words_.size(); }
  Type type();
  bool has_type() const;
  /// The last word is a float's type.
  bool ends_with_float() const;
  const std::vector<Text>& operands() const { return statement_->operands; }
  std::size_t count() const { return statement_->operands.size(); }
  /// Appends operand i as a register, constant or address of that type; vectors are taken apart.
  void add(std::size_t i, Type type);
  void add(const Text& text, Type type);
  void add_predicate(const Text& text);
  void add_address(const Text& text);
  void add_sink();
  Instruction& out() { return instruction_; }
  [[noreturn]] void fail(const std::string& why) const;
  std::uint64_t constant(const Text& text) const;

 private:
  void decode(const Statement& statement);
  void place_registers();
  void place_params();
  void place_shared(const Module& module);
  std::uint32_t new_row(std::size_t bytes);
  Operand register_operand(const Text& text) const;
  Operand special_operand(const Text& text, std::uint8_t bytes);
  Operand constant_operand(std::uint64_t value, std::uint8_t bytes);
  Operand address_operand(std::uint64_t value, std::uint8_t bytes, bool shared);
  const Function& function_;
  Program program_;
  std::vector<Operand> rows_;  // of the registers
  std::unordered_map<std::string_view, std::uint64_t> addresses_;
  std::unordered_map<std::string_view, std::size_t> param_offsets_;
  std::map<std::pair<std::uint64_t, int>, std::uint32_t> constants_, shared_rows_;
  std::map<Special, std::uint32_t> special_rows_;
  const Statement* statement_ = nullptr;
  std::vector<std::string_view> words_;
  std::size_t at_ = 0;
  Instruction instruction_;
  std::vector<std::size_t> starts_;
};

using Decode = void (*)(Decoder&);
struct Opcode {
  std::string_view name;
  Decode decode;
};
std::vector<Opcode> integer_opcodes();
std::vector<Opcode> float_opcodes();
std::vector<Opcode> bits_opcodes();
std::vector<Opcode> convert_opcodes();
std::vector<Opcode> memory_opcodes();
std::vector<Opcode> control_opcodes();
std::vector<Opcode> collective_opcodes();
std::vector<Opcode> mma_opcodes();
std::vector<Opcode> wgmma_opcodes();
std::vector<Opcode> async_opcodes();
std::vector<Opcode> mbarrier_opcodes();

}  // namespace trireme::ptx
