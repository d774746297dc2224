#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace trireme {

/// What became of the writes of one file.
struct DriverStatus {
  int error = 0;         ///< errno of the first call that the system refused; 0: none
  bool discard = false;  ///< set by the owner: nothing more is written
  /// Called with each block of a write right before it goes to the system, blocks so small that a
  /// core's cache keeps them from one to the other. May be empty; throws nothing.
  std::function<void(std::span<const std::byte>)> before_block;
};

/// Makes files created with these access properties (an hid_t) go through a driver of our own. It
/// does what the library's POSIX driver does, except that a refused write is noted in `status` and
/// the library is told that all is well: 1.10 crashes in H5Fclose, at once or at the next file,
/// once a write of its own clean-up has failed. `status` outlives the file; after every call look
/// there. Throws InternalError where the library refuses the driver.
void use_noting_driver(std::int64_t access_properties, DriverStatus* status);

}  // namespace trireme
