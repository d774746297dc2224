#pragma once
// A file or standard input from begin to end. gzip (RFC 1952) and Zstandard (RFC 8878) are unpacked
// as they come, told by first bytes, not names; members in a row are one text, as for gzip -dc.

#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"

namespace trireme {

class InputStream {
 public:
  /// "-" is standard input. Throws DataError where the file cannot be opened.
  explicit InputStream(const std::string& name);
  InputStream(InputStream&&) noexcept;
  ~InputStream();

  /// The file's name, or "standard input".
  [[nodiscard]] const std::string& source() const;
  /// Bytes taken from the file so far, as it stands: packed, where it is.
  [[nodiscard]] std::int64_t taken() const;

  /// Up to `size` bytes of text; fewer only at the end, 0 there. Throws DataError naming the file
  /// and what it is: a packed file that is cut off or damaged, one packed in a way that is not
  /// known. Throws EnvironmentError for Zstandard in a build without its library.
  std::size_t read(char* text, std::size_t size);

 private:
  class Bytes;     // of the file as it stands
  class Unpacker;  // gzip, Zstandard
  class Gzip;
  class Zstandard;
  void recognise();

  std::unique_ptr<Bytes> bytes_;
  std::unique_ptr<Unpacker> unpacker_;
  bool recognised_ = false;
};

}  // namespace trireme
