#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands/man_page.h"
#include "commands/parse_options.h"

namespace trireme {

int man_command(Arguments arguments) {
  CLI::App app("Prints the man page of this program, for man and groff.", "train man");
  if (!parse_options(app, arguments)) return 0;
  std::fputs(man_page(command_texts()).c_str(), stdout);
  return 0;
}

}  // namespace trireme
