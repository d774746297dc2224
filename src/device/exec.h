#pragma once

namespace trireme {

/// A Context's part for op tables: plain data, as files of one instruction set see no library type.
struct Exec {
  int threads = 1;
  void* stream = nullptr;  ///< cudaStream_t; null on the CPU
};

}  // namespace trireme
