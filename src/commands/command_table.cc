#include "commands/command_table.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace trireme {

std::span<const CommandEntry> command_table() {
  static const std::vector<CommandEntry> kCommands = {
      {"",
       "train; resumes by itself",
       train_command,
       {"train config.json", "train config.json --set optimizer.lr=3e-4 --set run.steps=2000",
        "scripts/run.sh -n 4 config.json"},
       true},
      {"benchmark",
       "time the training step of a config on synthetic tokens",
       benchmark_command,
       {"train benchmark config.json --steps 20", "mpirun -n 2 train benchmark config.json --json"},
       true},
      {"plan",
       "check a config for any number of ranks and say what it needs",
       plan_command,
       {"train plan config.json --world 64 --memory 80GiB", "train plan config.json --json",
        "train plan config.json --expert-load runs/first/expert_load.json --write placement.json"}},
      {"preflight",
       "look at all ranks before a run, and name the slow or odd one",
       preflight_command,
       {"train preflight config.json", "mpirun -n 4 train preflight",
        "mpirun -n 4 train preflight config.json --json"},
       true},
      {"convert-config",
       "make a config of the arguments of Megatron-LM or DeepSpeed",
       convert_config_command,
       {"train convert-config pretrain_gpt.sh > config.json",
        "train convert-config ds_config.json --from deepspeed > config.json"}},
      {"compare",
       "set runs side by side",
       compare_command,
       {"train compare runs/lr=1e-4 runs/lr=3e-4", "train compare runs/* --svg losses.svg"}},
      {"average",
       "write the mean of checkpoints as a Hugging Face directory",
       average_command,
       {"train average run/checkpoints/step-00000900 run/checkpoints/step-00001000 --output mean"},
       true},
      {"sweep",
       "train all combinations of some values",
       sweep_command,
       {"train sweep config.json --set optimizer.lr=1e-4,3e-4 --set run.seed=1,2,3",
        "train sweep config.json --set optimizer.lr=1e-4,3e-4 --slurm --ranks 8"},
       true},
      {"schema",
       "print the JSON Schema of the config",
       schema_command,
       {"train schema > train.schema.json"}},
      {"tokenizer",
       "train a byte-level BPE tokenizer",
       tokenizer_command,
       {"train tokenizer --vocab-size 8192 --output tokenizer.json corpus.txt"},
       true},
      {"tokenize",
       "turn text into token files",
       tokenize_command,
       {"train tokenize --tokenizer tokenizer.json --output data/train corpus.txt",
        "zcat corpus.jsonl.gz | train tokenize --tokenizer byte --output data/train --jsonl text "
        "-",
        "train tokenize --tokenizer Qwen3-0.6B --messages messages --pack 4096 --output data/chat "
        "chat.jsonl"},
       true},
      {"data",
       "show the samples that a run will see",
       data_command,
       {"train data config.json --from 100 --count 3"}},
      {"evaluate",
       "compute the validation loss of a checkpoint",
       evaluate_command,
       {"train evaluate run/config.json --checkpoint run/checkpoints/step-00001000 --json",
        "train evaluate --checkpoint run/checkpoints/best --data data/valid"},
       true},
      {"generate",
       "continue a prompt",
       generate_command,
       {"train generate --checkpoint run --prompt 'Once upon a time' --temperature 0.8 --top-k "
        "50",
        "train generate --checkpoint run --chat --prompt 'Why is the sky blue?'"},
       true},
      {"export",
       "write a checkpoint as a Hugging Face directory",
       export_command,
       {"train export --checkpoint run --output model --dtype bf16"},
       true},
      {"checkpoint",
       "list, verify or show checkpoints",
       checkpoint_command,
       {"train checkpoint list run", "train checkpoint verify run/checkpoints/step-00001000"}},
      {"schedule",
       "draw a pipeline schedule",
       schedule_command,
       {"train schedule --kind zb-h1 --stages 4 --micro-batches 8",
        "train schedule config.json --svg schedule.svg"}},
      {"completion",
       "print what makes a shell complete this program's words",
       completion_command,
       {"source <(train completion bash)",
        "train completion fish > ~/.config/fish/completions/train.fish"}},
      {"man", "print the man page", man_command, {"train man > train.1 && man ./train.1"}},
  };
  return kCommands;
}

const CommandEntry* find_command(std::string_view name) {
  for (const CommandEntry& entry : command_table().subspan(1)) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool OptionText::takes(std::string_view what) const {
  for (std::size_t at = value.find(what); at != std::string::npos; at = value.find(what, at + 1)) {
    const auto letter = [&](std::size_t i) {
      return i < value.size() && value[i] >= 'A' && value[i] <= 'Z';
    };
    if ((at == 0 || !letter(at - 1)) && !letter(at + what.size())) return true;
  }
  return false;
}

namespace {

/// "{a,b}|FILE" and what CLI11 makes of a type and its checks ("TEXT:{a,b}", "INT:POSITIVE").
void take_type(const std::string& type, OptionText& option) {
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    std::string_view rest = std::string_view(type).substr(open + 1, close - open - 1);
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      option.values.emplace_back(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    for (const std::string& value : option.values)
      option.value += (option.value.empty() ? "" : "|") + value;
    option.value += type.substr(close + 1, type.find(':', close) - close - 1);
    return;
  }
  const std::string name = type.substr(0, type.find(':'));
  option.value = name == "INT" || name == "UINT" ? "N" : name == "FLOAT" ? "X" : name;
}

OptionText text_of(const CLI::Option& option) {
  OptionText text;
  text.positional = option.get_positional() && !option.nonpositional();
  text.required = option.get_required();
  text.repeated = option.get_items_expected_max() > 1;
  text.text = option.get_description();
  if (text.positional) {
    text.names = {option.get_name(true)};
    take_type(option.get_type_name(), text);
    if (text.values.empty()) text.value = text.names.front();
    return text;
  }
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (option.get_items_expected_max() > 0 && option.get_type_size_max() > 0)
    take_type(option.get_type_name(), text);
  return text;
}

}  // namespace

CommandText describe(const CLI::App& app) {
  CommandText command;
  command.name = app.get_name();
  command.text = app.get_description();
  command.footer = app.get_footer();
  const auto shown = [](const CLI::Option* option) { return !option->get_group().empty(); };
  for (const CLI::Option* option : app.get_options(shown))
    command.options.push_back(text_of(*option));
  const auto named = [](const CLI::App* sub) { return !sub->get_name().empty(); };
  for (const CLI::App* sub : app.get_subcommands(named)) {
    command.subcommands.push_back(describe(*sub));
    command.subcommands.back().summary = sub->get_description();
  }
  return command;
}

std::vector<CommandText> command_texts() {
  std::vector<CommandText> commands;
  for (const CommandEntry& entry : command_table()) {
    CommandText command;
    entry.run(Arguments({}, &entry, &command));
    command.name = entry.name;
    command.summary = entry.summary;
    command.examples.assign(entry.examples.begin(), entry.examples.end());
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string program_name(const CommandText& command) {
  return command.name.empty() ? "train" : "train " + command.name;
}

}  // namespace trireme
