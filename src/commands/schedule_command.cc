#include "base/error.h"
#include "commands/commands.h"

namespace trireme {

int schedule_command(Arguments) {
  throw ConfigError("train schedule: not in this version (one pipeline stage needs no schedule)");
}

}  // namespace trireme
