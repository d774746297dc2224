#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

/// A file that comes with this program, such as "scripts/run.sh" or "configs/tiny_llama.json": in
/// PREFIX/share/trireme of a program that is installed in PREFIX/bin, else in the tree that it was
/// built from. Empty where neither is there.
std::filesystem::path find_program_file(std::string_view name);

/// The same as a person types it: where it is installed, else `name`.
std::string program_file_to_type(std::string_view name);

}  // namespace trireme
