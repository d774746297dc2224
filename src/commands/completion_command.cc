#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands/completion.h"
#include "commands/parse_options.h"

namespace trireme {

int completion_command(Arguments arguments) {
  std::string shell;
  CLI::App app(
      "Prints the script that makes a shell complete commands, options, their values, config keys "
      "and files.",
      "train completion");
  app.add_option("SHELL", shell, "which shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer(
      "bash: source <(train completion bash), in ~/.bashrc or for this shell alone\n"
      "zsh:  train completion zsh > DIR/_train, of a DIR in $fpath, before compinit\n"
      "fish: train completion fish > ~/.config/fish/completions/train.fish");
  if (!parse_options(app, arguments)) return 0;
  const auto print = shell == "bash"  ? bash_completion
                     : shell == "zsh" ? zsh_completion
                                      : fish_completion;
  std::fputs(print(command_texts(), config_keys()).c_str(), stdout);
  return 0;
}

}  // namespace trireme
