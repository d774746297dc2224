#include "kernels/ptx_host/text.h"

#include <algorithm>

#include "kernels/ptx_host/body.h"
#include "kernels/ptx_host/lexer.h"

namespace trireme::ptx {
namespace {

void append_value(Variable& variable, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) variable.values.push_back(std::uint8_t(value >> (8 * i)));
}

void read_values(Lexer& lexer, Variable& variable, std::size_t width) {
  if (lexer.skip("{")) {
    while (!lexer.skip("}")) {
      read_values(lexer, variable, width);
      lexer.skip(",");
    }
    return;
  }
  if (lexer.token().starts_with("0f") || lexer.token().starts_with("0d") ||
      lexer.token().starts_with("0F"))
    return append_value(variable, integer_of("0x" + std::string(lexer.take().substr(2))), width);
  const char first = lexer.token()[0];
  if (first != '-' && (first < '0' || first > '9')) {
    // An address, `generic(name)+8`, is not resolved: a kernel that follows it is told that nobody
    // has that memory.
    while (!lexer.is(",") && !lexer.is("}") && !lexer.is(";")) lexer.take();
    return append_value(variable, ~std::uint64_t(0), width);
  }
  append_value(variable, lexer.take_integer(), width);
}

}  // namespace

int bits_of_type(std::string_view type) {
  if (type == ".pred") return 1;
  if (type == ".texref" || type == ".samplerref" || type == ".surfref") return 64;
  const std::size_t digit = type.find_first_of("0123456789");
  if (digit == std::string_view::npos)
    throw PtxError("the type \"" + std::string(type) + "\" is not known");
  std::string_view number = type.substr(digit);
  const bool pair = number.ends_with("x2");
  if (pair) number.remove_suffix(2);
  return int(integer_of(number)) * (pair ? 2 : 1);
}

Variable read_variable(Lexer& lexer) {
  Variable variable;
  std::size_t lanes = 1;
  int bits = 0;
  while (lexer.token().starts_with(".")) {
    const std::string_view word = lexer.take();
    if (word == ".align") {
      variable.align = lexer.take_integer();
    } else if (word == ".v2" || word == ".v4") {
      lanes = word == ".v2" ? 2 : 4;
    } else if (word != ".ptr" && word != ".attribute" && word != ".managed" &&
               !word.starts_with(".global") && !word.starts_with(".shared") &&
               !word.starts_with(".const") && !word.starts_with(".param") &&
               !word.starts_with(".local")) {
      bits = bits_of_type(word);
    }
  }
  variable.name = lexer.take();
  const std::size_t width = std::size_t(bits) / 8 * lanes;
  std::size_t count = 1;
  while (lexer.skip("[")) {
    count = lexer.is("]") ? 0 : count * lexer.take_integer();
    lexer.expect("]");
  }
  if (lexer.skip("=")) read_values(lexer, variable, width);
  if (count == 0) count = variable.values.size() / width;
  variable.bytes = width * count;
  variable.align = std::max(variable.align, width);
  return variable;
}

Module::Module(std::string text) : text_(std::move(text)) { index(); }

void Module::index() {
  Lexer lexer(text_, 0, 1);
  bool external = false;
  while (!lexer.end()) {
    if (lexer.skip(".entry")) {
      entries_.emplace(lexer.token(), std::pair(lexer.position(), lexer.line()));
    } else if (lexer.is("{")) {
      lexer.skip_braces();
      external = false;
    } else if (lexer.is(".global") || lexer.is(".const") || lexer.is(".shared")) {
      auto& list = lexer.is(".shared") ? shared_ : globals_;
      lexer.next();
      list.push_back(read_variable(lexer));
      list.back().external = external;
    } else {
      if (lexer.is(".extern")) external = true;
      if (lexer.is(";")) external = false;
      lexer.next();
    }
  }
}

std::vector<std::string_view> Module::entry_names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, where] : entries_) names.push_back(name);
  return names;
}

Function Module::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw PtxError("no kernel of the name " + std::string(name) + " is in this PTX");
  Lexer lexer(text_, found->second.first, found->second.second);
  Function function;
  function.name = lexer.take();
  if (lexer.skip("(")) {
    while (!lexer.skip(")")) {
      function.params.push_back(read_variable(lexer));
      lexer.skip(",");
    }
  }
  while (!lexer.is("{")) {
    const std::string_view word = lexer.take();
    std::uint32_t* extents = word == ".maxntid" || word == ".reqntid" ? function.max_threads
                             : word == ".reqnctapercluster"           ? function.cluster
                                                                      : nullptr;
    for (int i = 0; extents && i < 3; ++i) {
      extents[i] = std::uint32_t(lexer.take_integer());
      if (!lexer.skip(",")) {
        for (int j = i + 1; j < 3; ++j) extents[j] = 1;
        break;
      }
    }
  }
  Body(lexer, function, found->second.first).read();
  return function;
}

}  // namespace trireme::ptx
