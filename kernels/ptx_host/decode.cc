#include "kernels/ptx_host/decode.h"

#include <algorithm>
#include <cstring>

#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {
namespace {

const std::unordered_map<std::string_view, Decode>& opcode_table() {
  static const auto table = [] {
    std::unordered_map<std::string_view, Decode> all;
    for (const auto& family :
         {integer_opcodes(), float_opcodes(), bits_opcodes(), convert_opcodes(), memory_opcodes(),
          control_opcodes(), collective_opcodes(), mma_opcodes(), wgmma_opcodes(), async_opcodes(),
          mbarrier_opcodes()})
      for (const Opcode& opcode : family) all.emplace(opcode.name, opcode.decode);
    return all;
  }();
  return table;
}

const std::unordered_map<std::string_view, Special>& special_table() {
  using enum Special;
  static const std::unordered_map<std::string_view, Special> table = {
      {"%tid.x", kTidX},
      {"%tid.y", kTidY},
      {"%tid.z", kTidZ},
      {"%ntid.x", kNtidX},
      {"%ntid.y", kNtidY},
      {"%ntid.z", kNtidZ},
      {"%ctaid.x", kCtaidX},
      {"%ctaid.y", kCtaidY},
      {"%ctaid.z", kCtaidZ},
      {"%nctaid.x", kNctaidX},
      {"%nctaid.y", kNctaidY},
      {"%nctaid.z", kNctaidZ},
      {"%cluster_ctaid.x", kClusterCtaidX},
      {"%cluster_ctaid.y", kClusterCtaidY},
      {"%cluster_ctaid.z", kClusterCtaidZ},
      {"%cluster_nctaid.x", kClusterNctaidX},
      {"%cluster_nctaid.y", kClusterNctaidY},
      {"%cluster_nctaid.z", kClusterNctaidZ},
      {"%clusterid.x", kClusteridX},
      {"%clusterid.y", kClusteridY},
      {"%clusterid.z", kClusteridZ},
      {"%nclusterid.x", kNclusteridX},
      {"%nclusterid.y", kNclusteridY},
      {"%nclusterid.z", kNclusteridZ},
      {"%cluster_ctarank", kClusterCtarank},
      {"%cluster_nctarank", kClusterNctarank},
      {"%is_explicit_cluster", kIsExplicitCluster},
      {"%laneid", kLaneid},
      {"%warpid", kWarpid},
      {"%nwarpid", kNwarpid},
      {"%smid", kSmid},
      {"%nsmid", kNsmid},
      {"%gridid", kGridid},
      {"%lanemask_eq", kLanemaskEq},
      {"%lanemask_le", kLanemaskLe},
      {"%lanemask_lt", kLanemaskLt},
      {"%lanemask_ge", kLanemaskGe},
      {"%lanemask_gt", kLanemaskGt},
      {"%dynamic_smem_size", kDynamicSmemSize},
      {"%total_smem_size", kTotalSmemSize}};
  return table;
}

std::size_t align_up(std::size_t value, std::size_t align) {
  return (value + align - 1) / align * align;
}

// The elements of an opcode's types, as they are written.
bool parse_type(std::string_view word, Type& type) {
  static const std::unordered_map<std::string_view, Type> types = {
      {"b8", {Kind::kBits, 8}},
      {"b16", {Kind::kBits, 16}},
      {"b32", {Kind::kBits, 32}},
      {"b64", {Kind::kBits, 64}},
      {"b128", {Kind::kBits, 128}},
      {"u8", {Kind::kUnsigned, 8}},
      {"u16", {Kind::kUnsigned, 16}},
      {"u32", {Kind::kUnsigned, 32}},
      {"u64", {Kind::kUnsigned, 64}},
      {"s8", {Kind::kSigned, 8}},
      {"s16", {Kind::kSigned, 16}},
      {"s32", {Kind::kSigned, 32}},
      {"s64", {Kind::kSigned, 64}},
      {"f16", {Kind::kFloat, 16}},
      {"f32", {Kind::kFloat, 32}},
      {"f64", {Kind::kFloat, 64}},
      {"f16x2", {Kind::kFloat, 16, 2}},
      {"bf16", {Kind::kBf16, 16}},
      {"bf16x2", {Kind::kBf16, 16, 2}},
      {"tf32", {Kind::kTf32, 32}},
      {"e4m3", {Kind::kE4m3, 8}},
      {"e5m2", {Kind::kE5m2, 8}},
      {"e4m3x2", {Kind::kE4m3, 8, 2}},
      {"e5m2x2", {Kind::kE5m2, 8, 2}},
      {"u16x2", {Kind::kUnsigned, 16, 2}},
      {"s16x2", {Kind::kSigned, 16, 2}},
      {"pred", {Kind::kPredicate, 1}}};
  const auto found = types.find(word);
  if (found == types.end()) return false;
  type = found->second;
  return true;
}

}  // namespace

Decoder::Decoder(const Function& function, const Module& module, const Addresses& addresses)
    : function_(function) {
  program_.name = function.name;
  for (int i = 0; i < 3; ++i) program_.cluster[i] = function.cluster[i];
  program_.max_threads =
      function.max_threads[0] * function.max_threads[1] * function.max_threads[2];
  for (const auto& [name, address] : addresses) addresses_[name] = address;
  place_registers();
  place_params();
  place_shared(module);
  std::size_t at = 0;
  for (const Variable& local : function_.local) {
    at = align_up(at, local.align);
    addresses_[local.name] = kLocalWindow + at;
    at += local.bytes;
  }
  program_.local_bytes = align_up(at, 16);
}

std::uint32_t Decoder::new_row(std::size_t bytes) {
  const std::size_t at = align_up(program_.registers.size(), 32);
  program_.registers.resize(at + bytes, 0xff);
  return std::uint32_t(at);
}

void Decoder::place_registers() {
  rows_.reserve(function_.registers.size());
  for (const Register& r : function_.registers) {
    Operand operand;
    operand.bytes = std::uint8_t(r.bits == 1 ? 0 : r.bits / 8);
    operand.row = new_row(r.bits == 1 ? 4 : std::size_t(operand.bytes) * kLanes);
    rows_.push_back(operand);
  }
}

void Decoder::place_params() {
  std::size_t at = 0;
  for (const Variable& param : function_.params) {
    at = align_up(at, param.align);
    param_offsets_[param.name] = at;
    program_.param_offsets.push_back(at);
    program_.param_sizes.push_back(param.bytes);
    at += param.bytes;
  }
  program_.param_bytes = at;
  program_.param_row = new_row(8 * kLanes);
}

// Dynamic shared memory begins where the variables end.
void Decoder::place_shared(const Module& module) {
  std::size_t at = kSharedBegin, dynamic_align = 16;
  for (const auto* list : {&module.shared(), &function_.shared}) {
    for (const Variable& shared : *list) {
      if (shared.external) {
        dynamic_align = std::max(dynamic_align, shared.align);
        continue;
      }
      at = align_up(at, shared.align);
      addresses_[shared.name] = at;
      at += shared.bytes;
    }
  }
  at = align_up(at, dynamic_align);
  program_.shared_bytes = at - kSharedBegin;
  for (const Variable& shared : module.shared())
    if (shared.external) addresses_[shared.name] = at;
}

Program Decoder::take() {
  program_.code.reserve(function_.statements.size() + 1);
  for (const Statement& statement : function_.statements) decode(statement);
  Statement end;
  end.opcode = "exit";
  decode(end);
  for (std::size_t i = 0; i < program_.code.size(); ++i)
    program_.code[i].op = program_.operands.data() + starts_[i];
  program_.registers.resize(align_up(program_.registers.size(), 64));
  program_.executed.assign(program_.code.size(), 0);
  return std::move(program_);
}

void Decoder::decode(const Statement& statement) {
  statement_ = &statement;
  words_.clear();
  at_ = 1;
  for (std::size_t begin = 0; begin <= statement.opcode.size();) {
    const std::size_t end = std::min(statement.opcode.find('.', begin), statement.opcode.size());
    words_.push_back(statement.opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  instruction_ = Instruction();
  instruction_.line = statement.line;
  instruction_.at = statement.at;
  const std::size_t start = program_.operands.size();
  const auto found = opcode_table().find(words_[0]);
  if (found == opcode_table().end()) fail("this opcode is not known");
  found->second(*this);
  if (words_left()) fail("\"." + std::string(words_[at_]) + "\" is not known here");
  instruction_.count = std::uint16_t(program_.operands.size() - start);
  if (statement.guard >= 0) {
    instruction_.guard = rows_[std::size_t(statement.guard)].row;
    instruction_.guard_negated = statement.guard_negated;
  }
  if (statement.target >= 0) instruction_.target = std::uint32_t(statement.target);
  starts_.push_back(start);
  program_.code.push_back(instruction_);
  program_.opcodes.emplace_back(statement.opcode);
}

void Decoder::fail(const std::string& why) const {
  throw PtxError("PTX line " + std::to_string(statement_->line) + ": " +
                 std::string(statement_->opcode) + ": " + why + "\n  of " + program_.name);
}

bool Decoder::next_is(std::string_view word) const { return words_left() && words_[at_] == word; }
bool Decoder::skip(std::string_view word) {
  if (!next_is(word)) return false;
  ++at_;
  return true;
}
void Decoder::expect(std::string_view word) {
  if (!skip(word)) fail("expected \"." + std::string(word) + "\"");
}
std::string_view Decoder::word() {
  if (!words_left()) fail("a word is missing");
  return words_[at_++];
}
std::uint32_t Decoder::choose(std::span<const std::string_view> words) {
  const auto found = std::find(words.begin(), words.end(), word());
  if (found == words.end()) fail("\"." + std::string(words_[at_ - 1]) + "\" is not known here");
  return std::uint32_t(found - words.begin());
}
void Decoder::skip_all(std::span<const std::string_view> words) {
  while (words_left() && std::find(words.begin(), words.end(), words_[at_]) != words.end()) ++at_;
}
bool Decoder::has_type() const {
  Type type;
  return words_left() && parse_type(words_[at_], type);
}
bool Decoder::ends_with_float() const {
  Type type;
  return parse_type(words_.back(), type) && (type.kind == Kind::kFloat || type.kind == Kind::kBf16);
}
Type Decoder::type() {
  Type type;
  if (!words_left() || !parse_type(words_[at_], type)) fail("a type is missing, or not known");
  ++at_;
  return type;
}

Operand Decoder::register_operand(const Text& text) const {
  Operand operand = rows_[std::size_t(text.index)];
  operand.negated = text.negated;
  return operand;
}

Operand Decoder::special_operand(const Text& text, std::uint8_t bytes) {
  const auto found = special_table().find(text.name);
  if (found == special_table().end())
    fail("the register " + std::string(text.name) + " is not known");
  const auto [slot, fresh] = special_rows_.try_emplace(found->second, 0);
  if (fresh) {
    slot->second = new_row(8 * kLanes);
    program_.specials.push_back({found->second, slot->second});
  }
  if (bytes != 4) fail("a special register is read with 32 bits");
  return {slot->second, 4, false, 0};
}

Operand Decoder::constant_operand(std::uint64_t value, std::uint8_t bytes) {
  if (bytes < 8) value &= (std::uint64_t(1) << (8 * bytes)) - 1;
  const auto [slot, fresh] = constants_.try_emplace({value, bytes}, 0);
  if (fresh) {
    slot->second = new_row(std::size_t(bytes) * kLanes);
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(program_.registers.data() + slot->second + std::size_t(lane) * bytes, &value,
                  std::min<std::size_t>(bytes, 8));
  }
  return {slot->second, bytes, false, 0};
}

// An address of shared memory is a constant but for the block's rank.
Operand Decoder::address_operand(std::uint64_t value, std::uint8_t bytes, bool shared) {
  if (!shared) return constant_operand(value, bytes);
  const auto [slot, fresh] = shared_rows_.try_emplace({value, bytes}, 0);
  if (fresh) {
    slot->second = new_row(std::size_t(bytes) * kLanes);
    program_.shared_rows.push_back({slot->second, bytes, false, std::int64_t(value)});
  }
  return {slot->second, bytes, false, 0};
}

std::uint64_t Decoder::constant(const Text& text) const {
  if (text.form != Form::kImmediate) fail("an immediate is expected");
  return text.bits;
}

void Decoder::add(std::size_t i, Type type) {
  if (i >= count()) fail("operand " + std::to_string(i) + " is missing");
  add(operands()[i], type);
}

void Decoder::add_sink() { program_.operands.push_back({}); }

void Decoder::add_predicate(const Text& text) {
  if (text.form == Form::kPredicateSink) return add_sink();
  if (text.form == Form::kImmediate) {
    Operand operand = constant_operand(text.bits ? ~std::uint64_t(0) : 0, 4);
    operand.bytes = 0;
    operand.negated = text.negated;
    program_.operands.push_back(operand);
    return;
  }
  if (text.form != Form::kRegister || rows_[std::size_t(text.index)].bytes != 0)
    fail("a predicate is expected");
  program_.operands.push_back(register_operand(text));
}

void Decoder::add(const Text& text, Type type) {
  if (type.kind == Kind::kPredicate) return add_predicate(text);
  const std::uint8_t bytes = register_bytes(type);
  switch (text.form) {
    case Form::kVector:
      for (const Text& part : text.parts) add(part, type);
      return;
    case Form::kPredicateSink:
      return add_sink();
    case Form::kRegister: {
      const Operand operand = register_operand(text);
      if (operand.bytes == 0) fail("a predicate stands where a number is expected");
      if (operand.bytes < bytes && type.bits != 128) fail("a register is narrower than its type");
      program_.operands.push_back(operand);
      return;
    }
    case Form::kSpecial:
      program_.operands.push_back(special_operand(text, bytes));
      return;
    case Form::kFloat: {
      std::uint64_t bits = text.bits;
      if (text.float_bits == 64 && type.is(Kind::kFloat, 32)) {
        double wide;
        std::memcpy(&wide, &bits, 8);
        const float narrow = float(wide);
        bits = 0;
        std::memcpy(&bits, &narrow, 4);
      }
      program_.operands.push_back(constant_operand(bits, bytes));
      return;
    }
    case Form::kSymbol: {
      const auto found = addresses_.find(text.name);
      const auto param = param_offsets_.find(text.name);
      if (found != addresses_.end()) {
        const bool shared = found->second < std::uint64_t(1) << kRankShift;
        program_.operands.push_back(
            address_operand(found->second + std::uint64_t(text.offset), bytes, shared));
      } else if (param != param_offsets_.end()) {
        program_.operands.push_back(
            {program_.param_row, 8, false, std::int64_t(param->second) + text.offset});
      } else {
        fail("no variable " + std::string(text.name));
      }
      return;
    }
    case Form::kImmediate:
      program_.operands.push_back(constant_operand(text.bits, bytes));
      return;
    default:
      fail("an operand's form is not known here");
  }
}

void Decoder::add_address(const Text& text) {
  if (text.form != Form::kAddress) fail("an address in brackets is expected");
  Text base = text.parts[0];
  base.offset = 0;
  const bool narrow = base.form == Form::kRegister && rows_[std::size_t(base.index)].bytes == 4;
  add(base, {Kind::kBits, std::uint8_t(narrow ? 32 : 64)});
  program_.operands.back().offset += text.offset;
}

}  // namespace trireme::ptx
