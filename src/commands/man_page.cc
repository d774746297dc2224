#include "commands/man_page.h"

#include <fmt/core.h>

#include "base/version.h"

namespace trireme {

namespace {

/// Text that troff takes as it stands: escapes, and dots and quotes that begin a request.
std::string roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    line_start = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string sentence(std::string_view text) {
  std::string line = roff(text);
  if (!line.ends_with('.')) line += '.';
  return line;
}

/// "[\fB\-\-set\fR \fIKEY=VALUE\fR ...]"
std::string synopsis(const OptionText& option) {
  std::string text;
  if (option.positional) {
    const bool set = !option.values.empty();
    text = set ? roff(option.value) : "\\fI" + roff(option.names.front()) + "\\fR";
  } else {
    text = "\\fB" + roff(option.names.back()) + "\\fR";
    if (!option.value.empty()) text += " \\fI" + roff(option.value) + "\\fR";
  }
  if (option.repeated) text += " ...";
  return option.required ? text : "[" + text + "]";
}

void append_usage(std::string& out, const std::string& program, const CommandText& command) {
  out += ".HP\n.B " + roff(program) + "\n";
  for (const bool positional : {true, false}) {
    for (const OptionText& option : command.options) {
      if (option.positional == positional && option.names.back() != "--help")
        out += synopsis(option) + "\n";
    }
  }
}

void append_options(std::string& out, const CommandText& command) {
  for (const OptionText& option : command.options) {
    out += ".TP\n";
    std::string names;
    for (const std::string& name : option.names) {
      names += fmt::format("{}\\f{}{}\\fR", names.empty() ? "" : ", ",
                           option.positional ? 'I' : 'B', roff(name));
    }
    if (!option.value.empty() && option.value != option.names.front())
      names += " \\fI" + roff(option.value) + "\\fR";
    out += names + "\n" + sentence(option.text) + "\n";
  }
}

void append_lines(std::string& out, const std::vector<std::string>& lines) {
  out += ".PP\n.nf\n.RS\n";
  for (const std::string& line : lines) out += roff(line) + "\n";
  out += ".RE\n.fi\n";
}

void append_command(std::string& out, const CommandText& command) {
  out += fmt::format(".SS \"{}\"\n{}\n", roff(program_name(command)), sentence(command.text));
  append_usage(out, program_name(command), command);
  append_options(out, command);
  for (const CommandText& sub : command.subcommands) {
    append_usage(out, program_name(command) + " " + sub.name, sub);
    out += ".IP\n" + sentence(sub.text) + "\n";
    append_options(out, sub);
  }
  if (!command.footer.empty()) out += ".PP\n" + sentence(command.footer) + "\n";
  append_lines(out, command.examples);
}

struct Entry {
  std::string_view name, text;
};

void append_entries(std::string& out, std::string_view heading,
                    std::initializer_list<Entry> entries) {
  out += fmt::format(".SH {}\n", heading);
  for (const Entry& entry : entries)
    out += fmt::format(".TP\n.B {}\n{}\n", roff(entry.name), roff(entry.text));
}

}  // namespace

std::string man_page(const std::vector<CommandText>& commands) {
  std::string out = fmt::format(".TH TRAIN 1 \"\" \"train {}\" \"User Commands\"\n.SH NAME\n",
                                roff(program_version()));
  out += "train \\- trains language models, on one core or on a cluster\n.SH SYNOPSIS\n";
  append_usage(out, "train", commands.front());
  out += ".PP\n.B train\n.I COMMAND\n\\&...\n.SH DESCRIPTION\n";
  out += sentence(
      "A config is JSON; of several the later ones win, and --set lays single keys over them. All "
      "keys stand in the schema (train schema) and in configs/README.md. Several ranks are started "
      "by scripts/run.sh -n N CONFIG (an installed program has scripts and configs in "
      "share/trireme of its prefix), mpirun or srun --mpi=pmix. Results go to standard output, "
      "everything else to standard error");
  out += "\n.SH COMMANDS\n";
  for (const CommandText& command : commands) append_command(out, command);
  append_entries(
      out, "EXIT STATUS",
      {{"0", "Done."},
       {"2", "What the config, the command line or a model config says."},
       {"3", "What this machine or build lacks, a lock that is held, a wrong launch."},
       {"4", "The run diverged; the same again would diverge again."},
       {"70", "An error of the program itself."},
       {"71", "A device or the network failed after the first step; restarting helps."},
       {"74",
        "What a data, tokenizer, weight or checkpoint file contains, or the file system refuses."},
       {"75", "Saved after a signal; please start again."},
       {"124", "No progress for run.hang_timeout_seconds."},
       {"128+n", "A second signal n."}});
  append_entries(out, "SIGNALS",
                 {{"SIGTERM, SIGINT, SIGUSR1",
                   "Finish the step, save, end with 75. A second one ends at once."}});
  append_entries(
      out, "ENVIRONMENT",
      {{"NO_COLOR", "Where set, no colour."},
       {"TRIREME_TRAIN", "The binary that the scripts start, where it is not the one beside them."},
       {"TRIREME_MPIRUN", "The mpirun that they use."}});
  append_entries(
      out, "FILES",
      {{"run.directory/config.json",
        "The config with every default; training it again gives itself."},
       {"run.directory/metrics.jsonl",
        "One object a line: start, step, evaluation, checkpoint, end."},
       {"run.directory/checkpoints/step-N", "The state after update N."},
       {"run.directory/stop", "Made by hand: the run saves, removes this file and ends with 0."}});
  return out;
}

}  // namespace trireme
