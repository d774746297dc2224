#pragma once

namespace trireme {

/// The part of a Context that crosses into op tables: plain data, so that files compiled for one
/// instruction set see no library type.
struct Exec {
  int threads = 1;
  void* stream = nullptr;  ///< cudaStream_t; null on the CPU
};

}  // namespace trireme
