#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

/// XXH3-128 as 32 lower-case hex digits (the canonical big-endian form that `xxh128sum` prints).
std::string xxh3_128_hex(std::span<const std::byte> bytes);
std::string xxh3_128_hex(std::string_view text);

/// The same over bytes that arrive in pieces.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(const StreamingHash&) = delete;
  StreamingHash& operator=(const StreamingHash&) = delete;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
