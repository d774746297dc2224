// Runs a fuzzer's body over files and folders without libFuzzer, so that seeds and past findings
// are tests of every build: fuzz_replay_READER [--mutations N] PATH...
// Each input is also changed N times by a fixed stream of random numbers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "fuzz_support.h"

extern "C" [[gnu::weak]] std::size_t LLVMFuzzerCustomMutator(std::uint8_t*, std::size_t,
                                                             std::size_t, unsigned);

namespace {

std::uint64_t stream = 0, drawn = 0;

std::size_t below(std::size_t bound) {
  return trireme::uniform_below(stream, std::max<std::size_t>(bound, 1), &drawn);
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  return files;
}

void run(const std::string& input) {
  // A copy of exactly this size, so that a sanitizer sees reads beyond it.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string mutated(const std::string& input) {
  const std::size_t size_max = input.size() + 64;
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  bytes.resize(size_max);
  std::size_t size = input.size();
  const auto seed = static_cast<unsigned>(below(1U << 31));
  size = LLVMFuzzerCustomMutator != nullptr
             ? LLVMFuzzerCustomMutator(bytes.data(), size, size_max, seed)
             : LLVMFuzzerMutate(bytes.data(), size, size_max);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

/// One small change; what libFuzzer offers under this name, without its memory of the past.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max) {
  const std::size_t at = below(size + 1);
  switch (below(5)) {
    case 0:
      if (at < size) data[at] = static_cast<std::uint8_t>(data[at] ^ (1U << below(8)));
      return size;
    case 1:
      if (at < size) data[at] = static_cast<std::uint8_t>(below(256));
      return size;
    case 2: {
      const std::size_t count = std::min(below(9), size - at);
      std::memmove(data + at, data + at + count, size - at - count);
      return size - count;
    }
    case 3: {
      const std::size_t count = std::min(below(9), size_max - size);
      std::memmove(data + at + count, data + at, size - at);
      for (std::size_t i = 0; i < count; ++i) data[at + i] = static_cast<std::uint8_t>(below(256));
      return size + count;
    }
    default: {
      constexpr std::uint64_t kExtremes[] = {0,      1,          0x7F,       0xFF,
                                             0xFFFF, 0x7FFFFFFF, ~0ULL >> 1, ~0ULL};
      const std::uint64_t value = kExtremes[below(std::size(kExtremes))];
      std::memcpy(data + at, &value, std::min(std::size_t{1} << below(4), size - at));
      return size;
    }
  }
}

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::size_t mutations = 0;
  if (arguments.size() >= 2 && arguments[0] == "--mutations") {
    mutations = std::strtoul(arguments[1].c_str(), nullptr, 10);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  std::vector<std::pair<std::filesystem::path, std::string>> inputs;
  for (const std::string& argument : arguments) {  // all first: a body may change the folder
    for (const auto& file : files_of(argument)) inputs.emplace_back(file, trireme::read_file(file));
  }
  for (const auto& [file, input] : inputs) {
    std::fprintf(stderr, "%s\n", file.c_str());
    run(input);
    stream = trireme::stream_key(drawn, "replay");
    for (std::size_t i = 0; i < mutations; ++i) {
      std::string changed = mutated(input);
      while (below(3) == 0) changed = mutated(changed);
      run(changed);
    }
  }
  std::fprintf(stderr, "%zu inputs, %zu mutations of each\n", inputs.size(), mutations);
  return inputs.empty() ? 1 : 0;  // nothing to replay proves nothing
}
