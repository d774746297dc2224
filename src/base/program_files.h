#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

/// A file that comes with this program, such as "scripts/run.sh" or "configs/tiny_llama.json": in
/// PREFIX/share/trireme for a program in PREFIX/bin, else in the tree of its build. Else empty.
std::filesystem::path find_program_file(std::string_view name);

/// The same as a person types it: where it is installed, else `name`.
std::string program_file_to_type(std::string_view name);

}  // namespace trireme
