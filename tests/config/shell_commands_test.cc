#include "config/shell_commands.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

using Words = ShellScript::Words;

Words words_of(std::string_view text) {
  const ShellScript script = read_shell(text, "script");
  EXPECT_EQ(script.commands.size(), 1U) << text;
  Words words = script.commands.empty() ? Words() : script.commands.back();
  for (std::string& word : words) word = without_marks(word);
  return words;
}

std::string fault_of(std::string_view text) {
  try {
    read_shell(text, "script");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

struct Case {
  std::string_view text;
  Words words;
};

TEST(ShellCommands, words_are_what_a_shell_starts) {
  const Case cases[] = {
      {"a b\tc", {"a", "b", "c"}},
      {"a \\\n  b \\\r\n c", {"a", "b", "c"}},
      {"a 'b c' \"d e\" f\\ g", {"a", "b c", "d e", "f g"}},
      {"a \"\" ''", {"a", "", ""}},
      {"a b#c # d 'e", {"a", "b#c"}},
      {"X=1; a $X ${X} \"$X\" '$X' \\$X", {"a", "1", "1", "1", "$X", "$X"}},
      {"X='1 2'\na $X \"$X\" y$X", {"a", "1", "2", "1 2", "y1", "2"}},
      {"X=\"--b 1 \\\n --c 2\"\na $X", {"a", "--b", "1", "--c", "2"}},
      {"X=(1 '2 3' # no\n 4)\na ${X[@]} \"${X[@]}\" \"${X[*]}\" $X",
       {"a", "1", "2", "3", "4", "1", "2 3", "4", "1 2 3 4", "1"}},
      {"X=1\nX+=2\nY=(a)\nY+=(b $X)\nc ${Y[*]}", {"c", "a", "b", "12"}},
      {"a ${N:-7} ${N-8} ${N:-${M:-9}} ${E:=3} $E", {"a", "7", "8", "9", "3", "3"}},
      {"E=\na ${E:-x} \"${E-x}\" ${E:+y}", {"a", "x", "", "${E:+y}"}},
      {"N=8\na $((N * ($N + 2) / 4 % 100)) $(( -1 + 3 ))", {"a", "20", "2"}},
      {"export X=5 Y\nlocal Z=$X\nX=9 a $X $Z", {"a", "5", "5"}},
      {"a >out 2>&1 <in 3>>x b", {"a", "b"}},
      {"a <<END | tee x\n--not this\nEND\n", {"a"}},
      {"eval \"a 'b  c'\"", {"a", "b  c"}},
      {"C=\"a --b 1\"; eval $C", {"a", "--b", "1"}},
      {"true && a || b", {"a"}},
      {"( cd=1 ; a $cd )", {"a", "1"}},
      {"f() { a $X\n}\n", {"a", "$X"}},
      {"a --b=\"1 2\" c;", {"a", "--b=1 2", "c"}},
  };
  for (const Case& one : cases) {
    const ShellScript script = read_shell(one.text, "script");
    ASSERT_FALSE(script.commands.empty()) << one.text;
    Words words = script.commands.front();
    if (words[0] == "true") words = script.commands.at(1);
    for (std::string& word : words) word = without_marks(word);
    EXPECT_EQ(words, one.words) << one.text;
  }
}

TEST(ShellCommands, what_only_the_machine_knows_is_marked_and_stays_one_word) {
  const ShellScript script =
      read_shell("a $HERE ${THERE[@]} $1 \"$@\" $(date +%s -u) `b c` x$Y ${Z%y}", "script");
  ASSERT_EQ(script.commands.size(), 1U);
  const Words& words = script.commands[0];
  const Words plain = {"$HERE",          "${THERE[@]}", "$1",  "$@",
                       "$(date +%s -u)", "`b c`",       "x$Y", "${Z%y}"};
  ASSERT_EQ(words.size(), plain.size() + 1);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(without_marks(words[i + 1]), plain[i]);
    EXPECT_NE(words[i + 1].find(kUnknownMark), std::string::npos) << plain[i];
  }
  // Through a variable, too.
  EXPECT_EQ(words_of("D=\"--out /x/$(date +%d %m)\"\na $D"),
            (Words{"a", "--out", "/x/$(date +%d %m)"}));
}

TEST(ShellCommands, branches_are_taken_where_their_test_is_known) {
  const std::string script =
      "if [ \"$S\" == big ]; then X=1; elif [[ $S = small ]]; then X=2; else X=3; fi\na $X";
  EXPECT_EQ(words_of("S=big\n" + script)[1], "1");
  EXPECT_EQ(words_of("S=small\n" + script)[1], "2");
  EXPECT_EQ(words_of("S=other\n" + script)[1], "3");
  EXPECT_EQ(words_of("N=4\nif test $N -gt 3; then X=5; fi; a $X")[1], "5");
  EXPECT_EQ(words_of("N=4\nX=0\nif ! [ $N -le 4 ]; then X=5; fi; a $X")[1], "0");
  EXPECT_EQ(words_of("N=4\nX=0\n[ -z $N ] || X=5\na $X")[1], "5");
  EXPECT_EQ(
      words_of("A=y\nif [[ $A == x ]] || [[ -n \"$A\" ]]; then B+=(\"--c 3\"); fi\na ${B[@]}"),
      (Words{"a", "--c", "3"}));
  EXPECT_EQ(words_of("A=${1:-y}; a $A")[1], "y");

  const ShellScript unknown =
      read_shell("X=0\n" + script + "\nif [ -d /x ]; then\na 1\nfi", "script");
  EXPECT_EQ(unknown.commands.back(), (Words{"a", "0"}));
  ASSERT_EQ(unknown.remarks.size(), 2U);
  EXPECT_EQ(unknown.remarks[0].substr(0, 7), "line 2:");
  EXPECT_EQ(unknown.remarks[1].substr(0, 7), "line 4:");
}

TEST(ShellCommands, loops_and_cases_are_left_out_and_told) {
  const ShellScript script = read_shell(
      "for i in 1 2; do\n  if true; then x $i; fi\ndone\nwhile read y; do z; done <f\n"
      "case $1 in\n a) b;;\n *) c ;;\nesac\nlast 1",
      "script");
  ASSERT_EQ(script.commands.size(), 1U);
  EXPECT_EQ(script.commands[0], (Words{"last", "1"}));
  EXPECT_EQ(script.remarks.size(), 3U);
}

TEST(ShellCommands, what_is_no_script_is_refused_with_its_line) {
  EXPECT_NE(fault_of("a\nb 'c\nd").find("script: line 2: the quote ' is not closed"),
            std::string::npos);
  EXPECT_NE(fault_of("a \"b $(c").find("is not closed"), std::string::npos);
  EXPECT_NE(fault_of("a ${b").find("the bracket { is not closed"), std::string::npos);
  EXPECT_NE(fault_of("A=(b\nc").find("line 1: the array A=( is not closed"), std::string::npos);
  EXPECT_NE(fault_of("A=(b;c)").find("has no meaning in the array"), std::string::npos);
  EXPECT_NE(fault_of("a <<E\nb").find("the here-document that ends with E"), std::string::npos);
  EXPECT_NE(fault_of("if true\nthen a").find("if is not closed"), std::string::npos);
  EXPECT_NE(fault_of("( a").find("is not closed"), std::string::npos);
  EXPECT_NE(fault_of(std::string_view("a\0b", 3)).find("is no text"), std::string::npos);
  EXPECT_NE(fault_of("a \xff").find("is no text"), std::string::npos);
  EXPECT_NE(fault_of(std::string(5 << 20, 'a')).find("bytes long"), std::string::npos);
}

// Each would take a stack, or all memory, in a reader that trusts its input.
TEST(ShellCommands, what_has_no_end_is_refused) {
  std::string doubling = "A=0123456789\n";
  for (int i = 0; i < 40; ++i) doubling += "A=$A$A\n";
  EXPECT_NE(fault_of(doubling).find("expand to more than"), std::string::npos);
  std::string growing = "A=1234567890\nB=(x)\n";
  for (int i = 0; i < 30; ++i) growing += "A+=$A\nB+=(${B[@]})\n";
  EXPECT_NE(fault_of(growing).find("expand to more than"), std::string::npos);
  const auto times = [](std::string_view piece, int count) {
    std::string text;
    while (count-- > 0) text += piece;
    return text;
  };
  EXPECT_NE(fault_of("a " + times("\"$(", 200000)).find("too deep"), std::string::npos);
  EXPECT_NE(fault_of("a " + times("${b:-", 200000)).find("too deep"), std::string::npos);
  EXPECT_NE(fault_of(times("( ", 200000)).find("deep"), std::string::npos);
  EXPECT_NE(fault_of(times("! ", 200000)).find("deep"), std::string::npos);
  EXPECT_NE(fault_of(times("f() ", 200000)).find("deep"), std::string::npos);
  EXPECT_NE(fault_of(times("if ", 200000)).find("deep"), std::string::npos);
  EXPECT_NE(fault_of("A='eval $A'\neval $A").find("deep"), std::string::npos);
  fault_of(times("<<a ", 200000));
  fault_of(times("a && ", 200000));
  fault_of(times("X=1 ", 200000));
  std::string many;
  for (int i = 0; i < 10001; ++i) many += "V" + std::to_string(i) + "=1\n";
  EXPECT_NE(fault_of(many).find("variables"), std::string::npos);
}

TEST(ShellCommands, every_beginning_of_a_script_is_read_or_refused) {
  const std::string script =
      "#!/bin/sh\nA=(--x \"1 $B\" '2')\nif [ $Q == 1 ] && true; then C=${D:-$((1+2))}; else C=`e`; "
      "fi\n"
      "f() { g <<E >h 2>&1; }\nb\nE\ncase x in y) z;; esac\nfor i in 1; do j; done\n"
      "k \"${A[@]}\" ${A[*]} $C | l && (m; n) &\n";
  for (std::size_t length = 0; length <= script.size(); ++length)
    fault_of(script.substr(0, length));
  for (std::size_t at = 0; at < script.size(); ++at) {
    for (const char c : {'\'', '"', '(', ')', '{', '}', '$', '`', '\\', '\n', ';', '<'}) {
      std::string changed = script;
      changed[at] = c;
      fault_of(changed);
    }
  }
}

}  // namespace
}  // namespace trireme
