#pragma once
// What every fuzzer holds its reader to: hostile bytes end in an Error of the documented codes,
// soon, with one readable sentence that names the file. Anything else aborts, which libFuzzer and
// replay_main.cc report with the input.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trireme::fuzz {

[[noreturn]] void defect(std::string_view what);
inline void require(bool condition, std::string_view what) {
  if (!condition) defect(what);
}

/// Valid UTF-8, no control characters (line feeds only where `lines_max` > 1), of bounded length.
void require_readable(std::string_view message, int lines_max);

struct Expected {
  std::initializer_list<ExitCode> codes = {ExitCode::kData};
  std::string_view place;  ///< what a DataError must name; empty: nothing
};
/// True where `body` returned, false where it threw an Error as expected. Aborts on every other
/// exception, on an unreadable message, and where it took more than a second of processor time
/// (ten under a sanitizer).
bool accepted(const Expected& expected, const std::function<void()>& body);

/// A folder of this process in memory where the system has one, removed at exit.
const std::filesystem::path& folder();
/// Writes a file of the folder and returns its path.
std::filesystem::path put(const std::string& name, std::string_view bytes);

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Inputs of several texts: lines "%%" divide them. Exactly `count` parts, missing ones empty.
std::vector<std::string> split_texts(std::string_view input, std::size_t count);

/// Inputs of several binary parts: count - 1 sizes (32 bits, little-endian), then the bytes of each
/// part; the last takes the rest. A size beyond the input means what there is.
std::vector<std::string> split_parts(std::string_view input, std::size_t count);
std::string join_parts(std::span<const std::string> parts);

/// Mutates one part by libFuzzer's own mutations.
void mutate_part(std::string& part, std::size_t size_max);
/// Copies a mutated input back; the new size.
std::size_t give_back(std::string_view input, std::uint8_t* data, std::size_t size_max);

}  // namespace trireme::fuzz

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Weak: the program that makes seeds has none.
[[gnu::weak]] std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                           std::size_t size_max);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                    unsigned seed);
}
