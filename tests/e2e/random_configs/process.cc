#include "e2e/random_configs/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

namespace {
// Far beyond anything that these runs take, also on a machine with other work.
constexpr unsigned kSecondsMax = 900;

[[noreturn]] void become(const std::vector<std::string>& arguments,
                         const std::filesystem::path& folder, const std::string& name) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (::chdir(folder.c_str()) != 0) ::_exit(126);
  const int out = ::open((name + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int log = ::open((name + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int in = ::open("/dev/null", O_RDONLY);
  if (out < 0 || log < 0 || in < 0) ::_exit(126);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(log, 2);
  ::alarm(kSecondsMax);  // lasts over exec: a hang ends with SIGALRM
  ::execv(argv[0], argv.data());
  ::_exit(127);
}
}  // namespace

Ended run_program(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                  const std::string& name) {
  const pid_t child = ::fork();
  expect(child >= 0, "fork: {}", errno_text(errno));
  if (child == 0) become(arguments, folder, name);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) expect(errno == EINTR, "waitpid");
  Ended ended;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.out = read_file(folder / (name + ".out"));
  ended.log = read_file(folder / (name + ".log"));
  return ended;
}

}  // namespace trireme
