#pragma once
#include <map>
#include <string_view>
#include <vector>

#include "kernels/ptx_host/lexer.h"
#include "kernels/ptx_host/text.h"

namespace trireme::ptx {

/// `.b32`: 32; `.pred`: 1.
int bits_of_type(std::string_view type);
/// From its first directive to what follows its initial values.
Variable read_variable(Lexer& lexer);

/// Reads what stands between a function's braces. Inner braces are scopes of registers and labels.
class Body {
 public:
  /// `start`: where the function's name stands.
  Body(Lexer& lexer, Function& function, std::size_t start)
      : lexer_(lexer), function_(function), start_(start) {}
  void read();

 private:
  struct Scope {
    int parent;
    std::map<std::string_view, int> registers, labels;
  };
  struct Jump {
    std::size_t statement;
    int scope;
    std::string_view label;
  };
  void read_scope(int parent);
  void read_directive();
  void read_registers();
  void read_statement();
  Text read_operand();
  Text read_address();
  Text read_list(std::string_view close, Form form);
  Text read_word();
  int find_register(std::string_view name) const;
  int find_label(int scope, std::string_view name) const;
  void resolve_jumps();

  Lexer& lexer_;
  Function& function_;
  std::size_t start_;
  std::vector<Scope> scopes_;
  int scope_ = -1;
  std::vector<Jump> jumps_;
};

}  // namespace trireme::ptx
