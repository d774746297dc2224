#pragma once
// HDF5 files as a checkpoint uses them: written once by one rank, never opened by the library again
// (store_file.h reads them). hdf5.h is included by hdf5_file.cc and hdf5_driver.cc alone. The rules
// and the measurements behind them: a file is either whole or refuses to open (bounds V110); the
// library never runs at exit (H5dont_atexit); it never hears of a refused write (hdf5_driver.h), as
// its clean-up crashes or leaves a wrong file; a file whose writing failed is unlinked before it is
// closed. HDF5 has one global lock and this class no lock of its own: one thread at a time.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace trireme {

/// Called before anything else touches HDF5, first thing in main; again is harmless. HDF5 then runs
/// nothing at exit and prints no errors; a file-size limit (SIGXFSZ) is a failed write.
void initialise_hdf5();

/// "1.10.8"
std::string hdf5_version();

/// Writes one new file. Every method throws DataError naming file, dataset and the system's reason;
/// after that, and where `finish` was never reached, the file is removed.
class Hdf5Writer {
 public:
  /// The file must not exist.
  explicit Hdf5Writer(std::filesystem::path path);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  /// What became of a dataset's bytes.
  struct Stored {
    std::int64_t begin = 0;  ///< where they stand in the file; 0 for none
    std::string xxh3_128;    ///< of them, 32 hex digits
  };
  /// A contiguous little-endian dataset; groups on the way to "a/b/c" are made. bf16 is HDF5's own
  /// 16-bit float with 8 exponent bits. Bytes are hashed block by block as they go to the system,
  /// which then finds each block in the cache: one pass over memory serves both.
  Stored write(const std::string& dataset, DType dtype, const Shape& shape,
               std::span<const std::byte> bytes);

  /// A dataset of one string, not empty.
  Stored write_text(const std::string& dataset, std::string_view text);

  /// A box of a virtual dataset and where it comes from; `file` is relative to this file.
  struct VirtualPart {
    std::string file, dataset;
    Box box;
  };
  /// A dataset made of others; what is missing reads as NaN (0 for integers).
  void write_virtual(const std::string& dataset, DType dtype, const Shape& shape,
                     std::span<const VirtualPart> parts);

  /// Closes, checks every step, and makes the file durable.
  void finish();

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace trireme
