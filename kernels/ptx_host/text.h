#pragma once
// PTX as text (PTX ISA 9.0, chapters 4, 5 and 11): a module's variables and functions, a body's
// statements. Names of registers and labels are resolved here, by their scopes; what an opcode
// means is decode.h's.
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ptx {

/// What is wrong with a program, an access or a launch. Its text names kernel, line and lane where
/// it knows them.
struct PtxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `.param .align 8 .b8 x[48]`, `.shared .b32 n`, `.global .align 4 .b8 t[8] = {..}`.
struct Variable {
  std::string_view name;
  std::size_t align = 1, bytes = 0;
  std::vector<std::uint8_t> values;  // of an initialised .global or .const
  bool external = false;             // `.extern .shared`: begins where the kernel's own end
};

enum class Form {
  kRegister,
  kPredicateSink,
  kImmediate,
  kFloat,
  kSpecial,
  kSymbol,
  kAddress,
  kVector,
  kPair
};

/// One operand as it is written. An address is [first + offset], with coordinates behind it for
/// tensors.
struct Text {
  Form form = Form::kImmediate;
  std::string_view name;    // of a special register, symbol or label
  std::int32_t index = -1;  // of a register
  std::uint64_t bits = 0;   // an integer, or a float's bits
  int float_bits = 0;       // 32 or 64
  std::int64_t offset = 0;
  bool negated = false;
  std::vector<Text> parts;
};

struct Statement {
  std::string_view opcode;  // "wgmma.mma_async.sync..."
  std::int32_t guard = -1;  // the predicate's register
  bool guard_negated = false;
  std::vector<Text> operands;
  std::int32_t target = -1;  // of a branch: the statement that the label stands before
  int line = 0;
  std::uint32_t at = 0;  // bytes behind the function's name
};

/// `bits` is 1 for a predicate.
struct Register {
  int bits;
  std::string_view name;
};

struct Function {
  std::string_view name;
  std::vector<Variable> params, shared, local;
  std::vector<Register> registers;
  std::vector<Statement> statements;
  std::uint32_t max_threads[3] = {0, 0, 0}, cluster[3] = {0, 0, 0};
};

/// Holds the text. Functions are read when they are asked for: a module may have a million lines.
class Module {
 public:
  explicit Module(std::string text);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  bool has_entry(std::string_view name) const { return entries_.contains(name); }
  /// Throws PtxError where the text is no PTX.
  Function entry(std::string_view name) const;
  const std::vector<Variable>& globals() const { return globals_; }
  const std::vector<Variable>& shared() const { return shared_; }
  std::vector<std::string_view> entry_names() const;

 private:
  void index();
  std::string text_;
  std::map<std::string_view, std::pair<std::size_t, int>>
      entries_;  // position of the name, its line
  std::vector<Variable> globals_, shared_;
};

}  // namespace trireme::ptx
