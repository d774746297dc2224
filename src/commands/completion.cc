#include "commands/completion.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/utf8.h"
#include "commands/shell_quote.h"
#include "config/fields.h"

namespace trireme {

namespace {

/// What the word of an option or a positional argument may be.
enum class Expects : std::uint8_t { kAnything, kFile, kDirectory, kConfigKey };

Expects expects(const OptionText& option) {
  if (option.takes("KEY=VALUE")) return Expects::kConfigKey;
  for (const char* file : {"FILE", "PREFIX", "INPUT", "CONFIG", "RUN"}) {
    if (option.takes(file)) return Expects::kFile;
  }
  return option.takes("DIR") ? Expects::kDirectory : Expects::kAnything;
}

/// The first sentence: a menu has one line.
std::string brief(std::string_view text) {
  std::string line(text.substr(0, std::min(text.find(". "), text.find('\n'))));
  constexpr std::size_t kBytesMax = 70;
  if (line.size() > kBytesMax) {
    line.resize(utf8_valid_prefix(std::string_view(line).substr(0, kBytesMax)));
    line.resize(std::min(line.rfind(' '), line.size()));
    line += " ...";
  }
  return line;
}

/// `visit("checkpoint list", command)` for each command and subcommand; training is "".
void for_each_path(const std::vector<CommandText>& commands,
                   const std::function<void(const std::string& path, const CommandText&)>& visit) {
  for (const CommandText& command : commands) {
    visit(command.name, command);
    for (const CommandText& sub : command.subcommands) visit(command.name + " " + sub.name, sub);
  }
}

std::vector<std::string> option_names(const CommandText& command) {
  std::vector<std::string> names;
  for (const OptionText& option : command.options) {
    if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> names_of(const std::vector<CommandText>& commands) {
  std::vector<std::string> names;
  for (const CommandText& command : commands) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  return names;
}

const OptionText* place_of(const CommandText& command) {
  for (const OptionText& option : command.options) {
    if (option.positional) return &option;
  }
  return nullptr;
}

constexpr std::string_view kBashEngine = R"bash(
_train() {
  local line=${COMP_LINE:0:COMP_POINT} path='' option='' value current tail word
  local -a words=() kinds=() replies=()
  local -i last
  # Words as the shell reads them, but for quotes: readline's own are cut at each "=".
  # shellcheck disable=SC2162
  read -a words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  last=$((${#words[@]} - 1))
  COMPREPLY=()
  ((last >= 1)) || return 0
  current=${words[last]}
  if ((last > 1)) && [[ " $(_train_commands '') " == *" ${words[1]} "* ]]; then
    path=${words[1]}
    if ((last > 2)) && [[ " $(_train_commands "$path") " == *" ${words[2]} "* ]]; then path+=" ${words[2]}"; fi
  fi
  value=$current
  if [[ $current == --*=* ]]; then
    option=${current%%=*} value=${current#*=}
  elif ((last > 1)) && [[ ${words[last - 1]} == -* ]] && _train_value "$path" "${words[last - 1]}" >/dev/null; then
    option=${words[last - 1]}
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_train_options "$path")" -- "$current")
    return 0
  fi
  read -ra kinds <<<"$(_train_value "$path" "$option")"
  if [ -z "$option" ]; then
    if ((last == 1)) || { ((last == 2)) && [ -n "$path" ]; }; then
      read -ra words <<<"$(_train_commands "$path")"
      kinds+=("${words[@]}")
    fi
  fi
  tail=$value
  for word in "${kinds[@]}"; do
    case $word in
    @files | @directories)
      compopt -o filenames 2>/dev/null
      if [ "$word" = @files ]; then word=-f; else word=-d; fi
      mapfile -t -O ${#replies[@]} replies < <(compgen "$word" -- "$value")
      ;;
    @keys)
      if [[ $value == *=* ]]; then
        tail=${value#*=}
        mapfile -t -O ${#replies[@]} replies < <(compgen -W "$(_train_key_values "${value%%=*}")" -- "$tail")
      else
        compopt -o nospace 2>/dev/null
        mapfile -t -O ${#replies[@]} replies < <(compgen -W "$(_train_keys)" -S = -- "$value")
      fi
      ;;
    *) [[ $word != "$value"* ]] || replies+=("$word") ;;
    esac
  done
  # Where "=" ends a word of readline's, it replaces only what stands behind.
  if [[ $COMP_WORDBREAKS != *=* ]]; then replies=("${replies[@]/#/${current%"$tail"}}"); fi
  COMPREPLY=("${replies[@]}")
}
complete -F _train train
)bash";

/// "@files byte": what _train_value prints.
std::string bash_kinds(const OptionText& option) {
  std::string kinds = fmt::format("{}", fmt::join(option.values, " "));
  const auto add = [&](const char* kind) {
    kinds += (kinds.empty() ? "" : " ") + std::string(kind);
  };
  switch (expects(option)) {
    case Expects::kFile:
      add("@files");
      break;
    case Expects::kDirectory:
      add("@directories");
      break;
    case Expects::kConfigKey:
      add("@keys");
      break;
    case Expects::kAnything:
      break;
  }
  return kinds;
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> keys;
  for (const Field& field : fields()) keys.push_back({field.path, field.values});
  keys.push_back({"model", {}});
  return keys;
}

std::string bash_completion(const std::vector<CommandText>& commands,
                            const std::vector<ConfigKey>& keys) {
  std::string names, options, values, key_values;
  for_each_path(commands, [&](const std::string& path, const CommandText& command) {
    const std::vector<std::string> subs = names_of(path.empty() ? commands : command.subcommands);
    if (!subs.empty())
      names += fmt::format("  {}) echo {} ;;\n", shell_quoted(path),
                           shell_quoted(fmt::format("{}", fmt::join(subs, " "))));
    std::vector<std::string> own = option_names(command);
    if (path.empty()) own.emplace_back("--version");
    options += fmt::format("  {}) echo {} ;;\n", shell_quoted(path),
                           shell_quoted(fmt::format("{}", fmt::join(own, " "))));
    const OptionText* place = place_of(command);
    for (const OptionText& option : command.options) {
      if (option.value.empty() || (option.positional && &option != place)) continue;
      std::string patterns;
      if (option.positional) patterns = shell_quoted(path + " ");
      for (const std::string& name : option.names) {
        if (!option.positional)
          patterns += (patterns.empty() ? "" : " | ") + shell_quoted(path + " " + name);
      }
      values += fmt::format("  {}) echo {} ;;\n", patterns, shell_quoted(bash_kinds(option)));
    }
  });
  std::string all_keys;
  for (const ConfigKey& key : keys) {
    all_keys += (all_keys.empty() ? "" : " ") + key.path;
    if (!key.values.empty())
      key_values += fmt::format("  {}) echo {} ;;\n", shell_quoted(key.path),
                                shell_quoted(fmt::format("{}", fmt::join(key.values, " "))));
  }
  return fmt::format(
      "# shellcheck shell=bash\n"
      "# Completion of train for bash, made by `train completion bash`.\n"
      "# Commands, and the commands of a command.\n"
      "_train_commands() {{\n  case $1 in\n{}  esac\n}}\n"
      "_train_options() {{\n  case $1 in\n{}  esac\n}}\n"
      "# What follows an option of a command, or, without one, what its other words are. Fails for "
      "a flag.\n"
      "_train_value() {{\n  case \"$1 $2\" in\n{}  *) return 1 ;;\n  esac\n}}\n"
      "_train_keys() {{ echo {}; }}\n"
      "_train_key_values() {{\n  case $1 in\n{}  esac\n}}\n{}",
      names, options, values, shell_quoted(all_keys), key_values, kBashEngine.substr(1));
}

namespace {

/// A part of a specification of _arguments: colons and brackets end it.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// ":MESSAGE:ACTION"
std::string zsh_action(const OptionText& option) {
  const std::string message =
      ":" + zsh_text(option.value.empty() ? option.names.front() : option.value) + ":";
  const Expects what = expects(option);
  if (!option.values.empty() && what == Expects::kFile) {
    return message +
           fmt::format("{{_alternative \"values\\:value\\:({})\" \"files\\:file\\:_files\"}}",
                       fmt::join(option.values, " "));
  }
  if (!option.values.empty()) return message + fmt::format("({})", fmt::join(option.values, " "));
  switch (what) {
    case Expects::kFile:
      return message + "_files";
    case Expects::kDirectory:
      return message + "_files -/";
    case Expects::kConfigKey:
      return message + "_train_keys";
    case Expects::kAnything:
      break;
  }
  return message + " ";
}

/// The specifications of a command, one a line.
std::string zsh_arguments(const CommandText& command, std::string_view indent) {
  std::string lines;
  const OptionText* place = place_of(command);
  for (const OptionText& option : command.options) {
    if (option.positional && &option != place) continue;
    for (const std::string& name : option.names) {
      std::string spec = option.repeated ? "*" : "";
      if (option.positional) {
        spec = "*" + zsh_action(option);
      } else {
        const bool flag = option.value.empty();
        spec += name;
        if (!flag && name.starts_with("--")) spec += "=";
        spec += "[" + zsh_text(brief(option.text)) + "]";
        if (!flag) spec += zsh_action(option);
      }
      lines += fmt::format(" \\\n{}{}", indent, shell_quoted(spec));
    }
  }
  return lines;
}

std::string zsh_described(const std::vector<CommandText>& commands) {
  std::string words;
  for (const CommandText& command : commands) {
    if (!command.name.empty())
      words += fmt::format("    {}\n", shell_quoted(zsh_text(command.name) + ":" +
                                                    zsh_text(brief(command.summary))));
  }
  return words;
}

}  // namespace

std::string zsh_completion(const std::vector<CommandText>& commands,
                           const std::vector<ConfigKey>& keys) {
  std::string cases;
  for (const CommandText& command : commands) {
    if (command.name.empty()) continue;
    cases += fmt::format("  ({})\n", command.name);
    if (command.subcommands.empty()) {
      cases += fmt::format("    _arguments{}\n    ;;\n", zsh_arguments(command, "      "));
      continue;
    }
    cases += fmt::format(
        "    if (( CURRENT == 2 )); then\n      commands=(\n{}      )\n"
        "      _describe -t commands command commands\n      return\n    fi\n    shift words; (( "
        "CURRENT-- ))\n"
        "    case $words[1] in\n",
        zsh_described(command.subcommands));
    for (const CommandText& sub : command.subcommands)
      cases += fmt::format("    ({}) _arguments{} ;;\n", sub.name, zsh_arguments(sub, "      "));
    cases += "    esac\n    ;;\n";
  }
  std::string all_keys, key_values;
  for (const ConfigKey& key : keys) {
    all_keys += " " + key.path;
    if (!key.values.empty())
      key_values += fmt::format("    ({}) values=({}) ;;\n", key.path, fmt::join(key.values, " "));
  }
  return fmt::format(
      "#compdef train\n"
      "# Completion of train for zsh, made by `train completion zsh`.\n"
      "_train_keys() {{\n"
      "  local -a values\n"
      "  if compset -P '*='; then\n"
      "    case ${{${{IPREFIX%=}}##*=}} in\n{}    esac\n"
      "    (( $#values )) && compadd -a values\n"
      "  else\n"
      "    values=({})\n"
      "    compadd -S = -a values\n"
      "  fi\n"
      "}}\n"
      "_train() {{\n"
      "  local curcontext=$curcontext\n"
      "  local -a commands\n"
      "  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
      "    commands=(\n{}    )\n"
      "    _describe -t commands command commands\n"
      "    _files\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  case $command in\n"
      "  ({}) shift words; (( CURRENT-- )) ;;\n"
      "  esac\n"
      "  case $command in\n{}"
      "  (*)\n    _arguments{} \\\n      '--version[version, libraries, CPU, MPI]'\n    ;;\n"
      "  esac\n"
      "}}\n"
      "if [[ $funcstack[1] == _train ]]; then _train \"$@\"; else compdef _train train; fi\n",
      key_values, all_keys, zsh_described(commands), fmt::join(names_of(commands), "|"), cases,
      zsh_arguments(commands.front(), "      "));
}

namespace {

/// 'text' for fish, where a backslash stays one unless a quote or another follows.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_action(const OptionText& option) {
  std::string words = fmt::format("{}", fmt::join(option.values, " "));
  switch (expects(option)) {
    case Expects::kFile:
      return words.empty() ? " -r -F" : fmt::format(" -r -F -a {}", fish_quoted(words));
    case Expects::kDirectory:
      return " -x -a '(__fish_complete_directories)'";
    case Expects::kConfigKey:
      return " -x -a '(__train_keys)'";
    case Expects::kAnything:
      break;
  }
  return words.empty() ? " -x" : fmt::format(" -x -a {}", fish_quoted(words));
}

void append_fish(std::string& out, const std::string& path, const CommandText& command) {
  const std::string begin =
      fmt::format("complete -c train -n {}", fish_quoted("__train_at " + fish_quoted(path)));
  const OptionText* place = place_of(command);
  for (const OptionText& option : command.options) {
    if (option.positional) {
      if (&option != place) continue;
      std::string action = fish_action(option);
      if (action.starts_with(" -r")) action = action.substr(3);
      if (action.starts_with(" -x")) action = " -f" + action.substr(3);
      out += begin + action + "\n";
      continue;
    }
    out += begin;
    for (const std::string& name : option.names)
      out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!option.value.empty()) out += fish_action(option);
    out += fmt::format(" -d {}\n", fish_quoted(brief(option.text)));
  }
  for (const CommandText& sub : command.subcommands)
    out += fmt::format("{} -f -a {} -d {}\n", begin, fish_quoted(sub.name),
                       fish_quoted(brief(sub.summary)));
}

}  // namespace

std::string fish_completion(const std::vector<CommandText>& commands,
                            const std::vector<ConfigKey>& keys) {
  std::string parents, rules, key_lines;
  for (const CommandText& command : commands) {
    if (!command.name.empty() && !command.subcommands.empty())
      parents += fmt::format(
          "        case {}\n            if contains -- \"$words[3]\" {}\n"
          "                set path \"$path $words[3]\"\n            end\n",
          command.name, fmt::join(names_of(command.subcommands), " "));
  }
  for (const CommandText& command : commands) {
    if (!command.name.empty())
      rules += fmt::format("complete -c train -n __train_first -a {} -d {}\n", command.name,
                           fish_quoted(brief(command.summary)));
  }
  for_each_path(commands, [&](const std::string& path, const CommandText& command) {
    append_fish(rules, path, command);
  });
  rules += "complete -c train -n __train_first -l version -d 'version, libraries, CPU, MPI'\n";
  for (const ConfigKey& key : keys) {
    if (key.values.empty()) {
      key_lines += fmt::format(" {}=", key.path);
    } else {
      for (const std::string& value : key.values)
        key_lines += fmt::format(" {}={}", key.path, value);
    }
  }
  return fmt::format(
      "# Completion of train for fish, made by `train completion fish`.\n"
      "# The command that the line has: empty while training is meant.\n"
      "function __train_path\n"
      "    set -l words (commandline -opc)\n"
      "    set -l path ''\n"
      "    if contains -- \"$words[2]\" {}\n"
      "        set path $words[2]\n"
      "    end\n"
      "    switch \"$path\"\n{}    end\n"
      "    echo $path\n"
      "end\n"
      "function __train_at\n    test (__train_path) = \"$argv[1]\"\nend\n"
      "function __train_first\n    test (count (commandline -opc)) -eq 1\nend\n"
      "function __train_keys\n    printf '%s\\n'{}\nend\n{}",
      fmt::join(names_of(commands), " "), parents, key_lines, rules);
}

}  // namespace trireme
