#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "commands/commands.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace trireme {

/// Reads the arguments into what the options of `app` are bound to. False where help was asked for
/// (it is then on standard output, and the command has nothing more to do). Throws ConfigError for
/// every fault of usage: what was found, what is legal, and for an option that is none what was
/// probably meant, a config key of another system's name included.
bool parse_options(CLI::App& app, Arguments arguments);

// What an option takes, for option->check(). Faults say what is legal. Integers may have units: 2M.
CLI::Validator integer_from(std::int64_t least,
                            std::int64_t most = std::numeric_limits<std::int64_t>::max());
CLI::Validator number_from(double least, double most = std::numeric_limits<double>::infinity());
CLI::Validator number_above(double bound);
CLI::Validator one_of(std::vector<std::string> words);

/// The word nearest to one that is none of them, reported as "; nearest: WORD", else "".
std::string nearest_text(const std::string& word, const std::vector<std::string>& words);

}  // namespace trireme
