#pragma once

#include <cstdint>
#include <string_view>

namespace trireme {

/// "80GiB", "1.5 GB", "4096": bytes. Units B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB,
/// TiB (of 1024). Throws ConfigError naming `what`.
std::int64_t parse_bytes(std::string_view text, std::string_view what);

}  // namespace trireme
