#include "base/hash.h"

#include <fmt/core.h>
#include <xxhash.h>

namespace trireme {

namespace {
std::string hex_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}
}  // namespace

std::string xxh3_128_hex(std::span<const std::byte> bytes) {
  return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string xxh3_128_hex(std::string_view text) {
  return xxh3_128_hex(std::as_bytes(std::span(text)));
}

struct StreamingHash::State {
  XXH3_state_t* raw = XXH3_createState();
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->raw);
}
StreamingHash::~StreamingHash() { XXH3_freeState(state_->raw); }

void StreamingHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->raw, bytes.data(), bytes.size());
}

std::string StreamingHash::hex() const { return hex_of(XXH3_128bits_digest(state_->raw)); }

}  // namespace trireme
