#pragma once

#include <utility>

namespace trireme {

/// Owns one C handle. Move-only. Traits: type Raw, static null(), static destroy(Raw) noexcept.
template <class Traits>
class UniqueHandle {
 public:
  using Raw = typename Traits::Raw;
  UniqueHandle() = default;
  explicit UniqueHandle(Raw raw) noexcept : raw_(raw) {}
  UniqueHandle(UniqueHandle&& other) noexcept : raw_(std::exchange(other.raw_, Traits::null())) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, Traits::null());
    }
    return *this;
  }
  ~UniqueHandle() { reset(); }

  [[nodiscard]] Raw get() const noexcept { return raw_; }
  [[nodiscard]] Raw release() noexcept { return std::exchange(raw_, Traits::null()); }
  explicit operator bool() const noexcept { return raw_ != Traits::null(); }
  void reset() noexcept {
    if (raw_ != Traits::null()) Traits::destroy(release());
  }

 private:
  Raw raw_ = Traits::null();
};

}  // namespace trireme
