#pragma once
// An mbarrier object: 64 bits of shared memory (PTX ISA 9.7.13.15).
#include <cstdint>

#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {

class Mbarrier {
 public:
  /// The object at a shared address, of any block of the cluster.
  Mbarrier(Warp& warp, std::uint32_t address, int lane);
  void init(std::uint32_t count);
  void invalidate();
  void arrive(std::uint32_t count);
  void drop(std::uint32_t count);
  void expect(std::uint32_t bytes);
  void complete(std::uint32_t bytes);
  std::uint64_t state() const;
  /// The parity of the phase that is under way.
  bool parity() const;

 private:
  struct Fields;
  Fields read() const;
  void write(Fields fields);
  void end_phase_if_complete(Fields& fields);
  Warp& warp_;
  std::uint8_t* at_;
  int lane_;
};

}  // namespace trireme::ptx
