#include "kernels/ptx_host/body.h"

#include <algorithm>
#include <cstdlib>

namespace trireme::ptx {

void Body::read() {
  read_scope(-1);
  resolve_jumps();
}

void Body::read_scope(int parent) {
  lexer_.expect("{");
  const int outer = scope_;
  scope_ = int(scopes_.size());
  scopes_.push_back({parent, {}, {}});
  while (!lexer_.skip("}")) {
    if (lexer_.is("{")) {
      read_scope(scope_);
    } else if (lexer_.token().starts_with(".")) {
      read_directive();
    } else {
      read_statement();
    }
  }
  scope_ = outer;
}

void Body::read_directive() {
  const std::string_view word = lexer_.take();
  if (word == ".reg") {
    read_registers();
  } else if (word == ".shared" || word == ".local" || word == ".param") {
    // What a call hands over (.param) is a thread's own memory too; the same names come back in
    // every scope.
    Variable variable = read_variable(lexer_);
    auto& list = word == ".shared" ? function_.shared : function_.local;
    for (Variable& known : list)
      if (word == ".param" && known.name == variable.name)
        known.bytes = variable.bytes = std::max(known.bytes, variable.bytes);
    list.push_back(variable);
  } else if (word == ".loc") {  // it has no semicolon, and ends with its line
    const int line = lexer_.line();
    while (lexer_.line() == line) lexer_.next();
    return;
  } else if (word != ".pragma") {
    lexer_.fail("the directive " + std::string(word) + " is not known in a body");
  } else {
    lexer_.take();
  }
  lexer_.expect(";");
}

void Body::read_registers() {
  const std::string_view type = lexer_.take();
  if (type.starts_with(".v")) lexer_.fail("vector registers are not known");
  const int bits = bits_of_type(type);
  auto& names = scopes_[std::size_t(scope_)].registers;
  do {
    const std::string_view name = lexer_.take();
    if (lexer_.skip(
            "<")) {  // %r<3>: %r0 %r1 %r2. Only the first is named here: find_register() counts on.
      const int count = int(lexer_.take_integer());
      lexer_.expect(">");
      names[name] = -1 - int(function_.registers.size());
      for (int i = 0; i < count; ++i) function_.registers.push_back({bits, name});
    } else {
      names[name] = int(function_.registers.size());
      function_.registers.push_back({bits, name});
    }
  } while (lexer_.skip(","));
}

int Body::find_register(std::string_view name) const {
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  for (int scope = scope_; scope >= 0; scope = scopes_[std::size_t(scope)].parent) {
    const auto& names = scopes_[std::size_t(scope)].registers;
    const auto whole = names.find(name);
    if (whole != names.end() && whole->second >= 0) return whole->second;
    if (digits == name.size()) continue;
    const auto range = names.find(name.substr(0, digits));
    if (range != names.end() && range->second < 0) {
      const std::size_t index = std::size_t(-1 - range->second) +
                                std::size_t(std::atoll(std::string(name.substr(digits)).c_str()));
      if (index < function_.registers.size() && function_.registers[index].name == range->first)
        return int(index);
    }
  }
  return -1;
}

Text Body::read_word() {
  Text text;
  text.negated = lexer_.skip("!");
  const bool negative = lexer_.skip("-");
  const std::string_view word = lexer_.take();
  const char first = word[0];
  if (first >= '0' && first <= '9') {
    const bool single = word.starts_with("0f") || word.starts_with("0F");
    if (single || word.starts_with("0d") || word.starts_with("0D")) {
      text.form = Form::kFloat;
      text.float_bits = single ? 32 : 64;
      text.bits = integer_of("0x" + std::string(word.substr(2)));
    } else {
      text.bits = integer_of(word);
      if (negative) text.bits = 0 - text.bits;
    }
    return text;
  }
  text.name = word;
  if (word == "_") {
    text.form = Form::kPredicateSink;
    return text;
  }
  if (word == "WARP_SZ") {
    text.bits = 32;
    return text;
  }
  text.index = find_register(word);
  text.form = text.index >= 0 ? Form::kRegister : first == '%' ? Form::kSpecial : Form::kSymbol;
  if (text.form == Form::kSymbol && lexer_.skip("+"))
    text.offset = std::int64_t(lexer_.take_integer());
  return text;
}

Text Body::read_list(std::string_view close, Form form) {
  Text text;
  text.form = form;
  while (!lexer_.skip(close)) {
    text.parts.push_back(read_operand());
    lexer_.skip(",");
  }
  return text;
}

Text Body::read_address() {
  Text text;
  text.form = Form::kAddress;
  text.parts.push_back(read_word());
  text.offset = text.parts[0].offset;
  if (lexer_.skip("+")) {
    text.offset = std::int64_t(lexer_.take_integer());
  } else if (lexer_.is("-")) {
    text.offset = std::int64_t(lexer_.take_integer());
  }
  while (lexer_.skip(",")) text.parts.push_back(read_operand());
  lexer_.expect("]");
  return text;
}

Text Body::read_operand() {
  if (lexer_.skip("[")) return read_address();
  if (lexer_.skip("{")) return read_list("}", Form::kVector);
  if (lexer_.skip("(")) return read_list(")", Form::kVector);
  Text text = read_word();
  if (!lexer_.skip("|")) return text;
  Text pair;
  pair.form = Form::kPair;
  pair.parts.push_back(std::move(text));
  pair.parts.push_back(read_word());
  return pair;
}

void Body::read_statement() {
  Statement statement;
  statement.line = lexer_.line();
  statement.at = std::uint32_t(lexer_.position() - start_);
  if (lexer_.skip("@")) {
    const Text guard = read_word();
    if (guard.form != Form::kRegister) lexer_.fail("a guard that is no register");
    statement.guard = guard.index;
    statement.guard_negated = guard.negated;
  }
  statement.opcode = lexer_.take();
  if (lexer_.skip(":")) {
    if (lexer_.is(".branchtargets") || lexer_.is(".callprototype"))
      lexer_.fail("branch tables and calls through registers are not known");
    scopes_[std::size_t(scope_)].labels[statement.opcode] = int(function_.statements.size());
    return;
  }
  const bool jump = statement.opcode == "bra" || statement.opcode == "bra.uni";
  if (jump) {
    jumps_.push_back({function_.statements.size(), scope_, lexer_.take()});
  } else {
    while (!lexer_.is(";")) {
      statement.operands.push_back(read_operand());
      if (!lexer_.is(";")) lexer_.expect(",");
    }
  }
  lexer_.expect(";");
  function_.statements.push_back(std::move(statement));
}

int Body::find_label(int scope, std::string_view name) const {
  for (; scope >= 0; scope = scopes_[std::size_t(scope)].parent) {
    const auto& labels = scopes_[std::size_t(scope)].labels;
    const auto found = labels.find(name);
    if (found != labels.end()) return found->second;
  }
  throw PtxError(std::string(function_.name) + ": no label " + std::string(name));
}

void Body::resolve_jumps() {
  for (const Jump& jump : jumps_)
    function_.statements[jump.statement].target = find_label(jump.scope, jump.label);
}

}  // namespace trireme::ptx
