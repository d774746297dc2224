// Help, completion and the man page, which all come from one table and the commands' own
// declarations.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>

#include "base/file.h"
#include "commands/command_table.h"
#include "commands/completion.h"
#include "commands/man_page.h"
#include "config/fields.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

using Words = std::vector<std::string>;

struct Ended {
  int code = -1;
  std::string out;
};

Ended run_shell(const std::string& command) {
  Ended ended;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> block;
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    ended.out.append(block.data(), n);
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ended;
}

bool installed(const std::string& program) {
  return run_shell("command -v " + program + " 2>&1").code == 0;
}

std::string printed_by(const Words& words) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_command_line(words), 0);
  std::fflush(stdout);
  return testing::internal::GetCapturedStdout();
}

/// Each option of each command, subcommands too: "plan", "--world".
void for_each_option(
    const std::function<void(const CommandText& command, const OptionText& option)>& visit) {
  for (const CommandText& command : command_texts()) {
    for (const OptionText& option : command.options) visit(command, option);
    for (const CommandText& sub : command.subcommands) {
      for (const OptionText& option : sub.options) visit(sub, option);
    }
  }
}

TEST(CommandTexts, every_command_has_a_summary_and_an_example_of_its_own_options) {
  std::set<std::string> names;
  for (const CommandText& command : command_texts()) {
    SCOPED_TRACE(command.name);
    EXPECT_TRUE(names.insert(command.name).second);
    EXPECT_FALSE(command.summary.empty());
    EXPECT_FALSE(command.text.empty());
    ASSERT_FALSE(command.examples.empty());
    for (const std::string& example : command.examples) {
      SCOPED_TRACE(example);
      const std::string called = command.name.empty() ? "config.json" : "train " + command.name;
      EXPECT_NE(example.find(called), std::string::npos);
      for (std::size_t at = example.find(" --"); at != std::string::npos;
           at = example.find(" --", at + 1)) {
        const std::string name =
            example.substr(at + 1, example.find_first_of(" =", at + 1) - at - 1);
        const bool known = std::any_of(
            command.options.begin(), command.options.end(), [&](const OptionText& option) {
              return std::count(option.names.begin(), option.names.end(), name) > 0;
            });
        EXPECT_TRUE(known) << name;
      }
    }
  }
}

TEST(CommandTexts, help_of_every_command_ends_with_its_examples) {
  for (const CommandText& command : command_texts()) {
    SCOPED_TRACE(command.name);
    const std::string help =
        printed_by(command.name.empty() ? Words{"--help"} : Words{command.name, "--help"});
    for (const std::string& example : command.examples)
      EXPECT_NE(help.find("  " + example + "\n"), std::string::npos);
    for (const OptionText& option : command.options) {
      if (command.name.empty()) continue;
      EXPECT_NE(help.find(option.names.back()), std::string::npos) << option.names.back();
    }
  }
  EXPECT_NE(printed_by({"config.json", "--help"}).find("\nExamples:\n  train config.json\n"),
            std::string::npos);
}

TEST(CommandTexts, options_say_what_their_values_are) {
  const auto option = [](const std::string& command, const std::string& name) {
    OptionText found;
    for (const CommandText& text : command_texts()) {
      if (text.name != command) continue;
      for (const OptionText& candidate : text.options) {
        if (candidate.names.back() == name) found = candidate;
      }
    }
    return found;
  };
  EXPECT_EQ(option("export", "--dtype").values, (Words{"bf16", "fp32"}));
  EXPECT_EQ(option("export", "--dtype").value, "bf16|fp32");
  EXPECT_EQ(option("tokenize", "--tokenizer").value, "byte|FILE");
  EXPECT_TRUE(option("tokenize", "--tokenizer").takes("FILE"));
  EXPECT_EQ(option("plan", "--world").value, "N");
  EXPECT_EQ(option("plan", "--json").value, "");
  EXPECT_TRUE(option("plan", "--set").repeated);
  EXPECT_TRUE(option("plan", "CONFIG").positional);
  EXPECT_TRUE(option("plan", "CONFIG").required);
  EXPECT_EQ(option("completion", "SHELL").values, (Words{"bash", "zsh", "fish"}));
}

/// What bash offers for a line with the cursor at its end.
class BashCompletion : public ::testing::Test {
 protected:
  BashCompletion() {
    folder_.write("train.bash", printed_by({"completion", "bash"}));
    folder_.write("base.json", "");
    folder_.write("two words.json", "");
    std::filesystem::create_directory(folder_ / "runs");
  }
  Words offered(const std::string& line, const std::string& word_breaks = "= ") {
    const std::filesystem::path script = folder_.write(
        "try.bash", "set -u\ncd '" + folder_.path().string() +
                        "' && rm -f try.bash && . ./train.bash\nCOMP_LINE='" + line +
                        "' COMP_POINT=" + std::to_string(line.size()) + " COMP_WORDBREAKS='" +
                        word_breaks + "'\n_train\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    const Ended ended = run_shell("bash '" + script.string() + "' 2>&1");
    EXPECT_EQ(ended.code, 0) << ended.out;
    Words words;
    for (std::size_t begin = 0; begin < ended.out.size();) {
      const std::size_t end = std::min(ended.out.find('\n', begin), ended.out.size());
      if (end > begin) words.push_back(ended.out.substr(begin, end - begin));
      begin = end + 1;
    }
    return words;
  }

  const TemporaryDirectory folder_;
};

TEST_F(BashCompletion, offers_commands_options_values_and_files) {
  EXPECT_EQ(offered("train pl"), Words{"plan"});
  EXPECT_EQ(offered("train base"), Words{"base.json"});
  EXPECT_EQ(offered("train plan --wo"), Words{"--world"});
  EXPECT_EQ(offered("train export --dtype "), (Words{"bf16", "fp32"}));
  EXPECT_EQ(offered("train export --dtype b"), Words{"bf16"});
  EXPECT_EQ(offered("train export --checkpoint r"), Words{"runs"});
  EXPECT_EQ(offered("train export --checkpoint base"), Words{}) << "a file is no folder";
  EXPECT_EQ(offered("train plan ba"), Words{"base.json"});
  EXPECT_EQ(offered("train plan two\\ wo"), Words{"two words.json"});
  EXPECT_EQ(offered("train checkpoint ver"), Words{"verify"});
  EXPECT_EQ(offered("train checkpoint verify ru"), Words{"runs"});
  EXPECT_EQ(offered("train completion "), (Words{"bash", "zsh", "fish"}));
  EXPECT_EQ(offered("train schedule --kind zb-h"), (Words{"zb-h1", "zb-h2"}));
  EXPECT_EQ(offered("train tokenize --tokenizer b"), (Words{"byte", "base.json"}));
  EXPECT_EQ(offered("train plan --world "), Words{});
  EXPECT_EQ(offered("train plan --json ba"), Words{"base.json"}) << "a flag has no value";
}

TEST_F(BashCompletion, offers_config_keys_behind_set) {
  EXPECT_EQ(offered("train base.json --set optimizer.l"), Words{"optimizer.lr="});
  EXPECT_EQ(offered("train plan base.json --set run.dev"), Words{"run.device="});
  EXPECT_EQ(offered("train base.json --set data.order=s"), (Words{"shuffled", "sequential"}));
  EXPECT_EQ(offered("train base.json --set data.order=s", " "),
            (Words{"data.order=shuffled", "data.order=sequential"}));
  EXPECT_EQ(offered("train export --dtype=f"), Words{"fp32"});
  EXPECT_EQ(offered("train export --dtype=f", " "), Words{"--dtype=fp32"});
  for (const Field& field : fields()) {
    const Words keys = offered("train base.json --set " + field.path);
    EXPECT_TRUE(std::count(keys.begin(), keys.end(), field.path + "=") == 1) << field.path;
    if (&field - fields().data() > 8) break;  // a shell each
  }
}

TEST_F(BashCompletion, knows_every_command_option_and_key) {
  const Words commands = offered("train ");
  for (const CommandText& command : command_texts()) {
    const auto named = std::count(commands.begin(), commands.end(), command.name);
    EXPECT_EQ(named, command.name.empty() ? 0 : 1) << command.name;
    const Words options =
        offered("train " + command.name + (command.name.empty() ? "" : " ") + "-");
    for (const OptionText& option : command.options) {
      if (option.positional) continue;
      for (const std::string& name : option.names)
        EXPECT_TRUE(std::count(options.begin(), options.end(), name) == 1)
            << command.name << " " << name;
    }
  }
  const Words keys = offered("train base.json --set ");
  for (const Field& field : fields()) {
    EXPECT_TRUE(std::count(keys.begin(), keys.end(), field.path + "=") == 1) << field.path;
  }
}

TEST(Completion, of_zsh_and_fish_has_every_option_and_is_valid_where_the_shell_is_there) {
  const std::string zsh = printed_by({"completion", "zsh"}),
                    fish = printed_by({"completion", "fish"});
  for_each_option([&](const CommandText& command, const OptionText& option) {
    if (option.positional) return;
    const std::string& name = option.names.back();
    EXPECT_NE(zsh.find(name + (option.value.empty() ? "[" : "=[")), std::string::npos)
        << command.name << name;
    EXPECT_NE(fish.find(" -l " + name.substr(2) + " "), std::string::npos) << command.name << name;
  });
  for (const CommandText& command : command_texts()) {
    EXPECT_NE(zsh.find("(" + command.name + ")"), std::string::npos) << command.name;
    EXPECT_NE(fish.find("__train_first -a " + command.name), std::string::npos) << command.name;
  }
  for (const Field& field : fields()) {
    EXPECT_NE(zsh.find(" " + field.path + " "), std::string::npos) << field.path;
    EXPECT_NE(fish.find(" " + field.path + "="), std::string::npos);
  }
  const TemporaryDirectory folder;
  const auto valid = [&](const std::string& shell, const std::string& text) {
    const std::filesystem::path script = folder.write("train." + shell, text);
    if (!installed(shell)) return;
    const Ended ended = run_shell(shell + " -n '" + script.string() + "' 2>&1");
    EXPECT_EQ(ended.code, 0) << ended.out;
  };
  valid("zsh", zsh);
  valid("fish", fish);
}

TEST(Completion, of_fish_answers_where_fish_is_there) {
  if (!installed("fish")) GTEST_SKIP() << "no fish here";
  const TemporaryDirectory folder;
  folder.write("train.fish", printed_by({"completion", "fish"}));
  const auto offered = [&](const std::string& line) {
    return run_shell("cd '" + folder.path().string() +
                     "' && HOME=. fish --no-config -c 'source train.fish; complete -C \"" + line +
                     "\"' 2>&1")
        .out;
  };
  EXPECT_NE(offered("train pl").find("plan\t"), std::string::npos) << offered("train pl");
  EXPECT_NE(offered("train plan --wo").find("--world\t"), std::string::npos);
  EXPECT_EQ(offered("train plan --dty"), "");
  EXPECT_NE(offered("train export --dtype b").find("bf16"), std::string::npos);
  EXPECT_NE(offered("train checkpoint ver").find("verify\t"), std::string::npos);
  EXPECT_NE(offered("train x.json --set optimizer.l").find("optimizer.lr="), std::string::npos);
  EXPECT_NE(offered("train x.json --set run.device=cu").find("run.device=cuda"), std::string::npos);
}

TEST(ManPage, has_every_command_and_option) {
  const std::string page = printed_by({"man"});
  EXPECT_TRUE(page.starts_with(".TH TRAIN 1 "));
  const auto escaped = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2)
      text.insert(at, "\\");
    return text;
  };
  for (const CommandText& command : command_texts())
    EXPECT_NE(page.find(".SS \"" + escaped(program_name(command)) + "\"\n"), std::string::npos)
        << command.name;
  for_each_option([&](const CommandText& command, const OptionText& option) {
    const std::string name =
        (option.positional ? "\\fI" : "\\fB") + escaped(option.names.back()) + "\\fR";
    EXPECT_NE(page.find(name), std::string::npos) << command.name << " " << option.names.back();
  });
}

TEST(ManPage, renders_without_a_warning) {
  const TemporaryDirectory folder;
  const std::string page = folder.write("train.1", printed_by({"man"})).string();
  if (!installed("groff")) GTEST_SKIP() << "no groff here";
  const Ended warnings = run_shell("groff -man -Tutf8 -ww -z '" + page + "' 2>&1");
  EXPECT_EQ(warnings.code, 0);
  EXPECT_EQ(warnings.out, "");
  const Ended text = run_shell("groff -man -Tascii -P-c -P-b -P-u '" + page + "'");
  EXPECT_NE(text.out.find("train plan"), std::string::npos);
  EXPECT_NE(text.out.find("--world N"), std::string::npos);
  EXPECT_EQ(text.out.find("\\f"), std::string::npos) << "an escape is shown";
}

TEST(ManPage, takes_text_that_troff_would_read_as_its_own) {
  CommandText train;
  train.text = ".so /etc/passwd\n'ig\nback\\slash";
  train.options.push_back({{"--x"}, false, false, false, "N", {}, ".ig"});
  const std::string page = man_page({train});
  EXPECT_NE(page.find("\n\\&.so /etc/passwd\n\\&\\(aqig\nback\\eslash."), std::string::npos)
      << page;
  EXPECT_NE(page.find("\n\\&.ig"), std::string::npos);
}

}  // namespace
}  // namespace trireme
