#include "checkpoint/hdf5_file.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/unique_handle.h"
#include "checkpoint/hdf5_driver.h"

#if defined(__SANITIZE_ADDRESS__)
/// The library forgets memory when a write was refused; no leak of ours is hidden by this.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace trireme {

namespace {

static_assert(std::endian::native == std::endian::little, "memory is written as it is");

// One traits type for each kind, so that a dataset cannot be closed as a file.
template <herr_t (*kClose)(hid_t)>
struct Hdf5Traits {
  using Raw = hid_t;
  static Raw null() noexcept { return H5I_INVALID_HID; }
  static herr_t close(Raw raw) noexcept { return kClose(raw); }
  static void destroy(Raw raw) noexcept { kClose(raw); }
};
using FileTraits = Hdf5Traits<H5Fclose>;
using DatasetTraits = Hdf5Traits<H5Dclose>;
using SpaceTraits = Hdf5Traits<H5Sclose>;
using TypeTraits = Hdf5Traits<H5Tclose>;
using PropertiesTraits = Hdf5Traits<H5Pclose>;
using File = UniqueHandle<FileTraits>;
using Dataset = UniqueHandle<DatasetTraits>;
using Space = UniqueHandle<SpaceTraits>;
using Type = UniqueHandle<TypeTraits>;
using Properties = UniqueHandle<PropertiesTraits>;

herr_t keep_innermost(unsigned, const H5E_error2_t* entry, void* text) {
  auto& kept = *static_cast<std::string*>(text);
  if (kept.empty() && entry->desc != nullptr) kept = entry->desc;
  return 0;
}

/// The innermost entry of the library's error stack; the system's reason alone where it quotes one.
std::string library_reason() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  static constexpr std::string_view kQuote = "error message = '";
  if (const auto begin = text.find(kQuote); begin != std::string::npos) {
    const auto end = text.find('\'', begin + kQuote.size());
    text = text.substr(begin + kQuote.size(), end - begin - kQuote.size());
  }
  return text.empty() ? "the HDF5 library gives no reason" : text;
}

/// What is being done to which file, for the messages.
struct Place {
  const std::filesystem::path& path;
  std::string_view dataset = "";

  [[noreturn]] void fail(std::string_view what, std::string_view reason) const {
    throw DataError("{}{}{}: {}: {}", path.string(), dataset.empty() ? "" : ": ", dataset, what,
                    reason);
  }
  void check(herr_t status, std::string_view what) const {
    if (status < 0) fail(what, library_reason());
  }
  template <class Handle>
  [[nodiscard]] Handle made(hid_t raw, std::string_view what) const {
    if (raw < 0) fail(what, library_reason());
    return Handle(raw);
  }
  template <class Traits>
  void close(UniqueHandle<Traits>& handle, std::string_view what) const {
    check(Traits::close(handle.release()), what);
  }
};

Type type_of(DType dtype, const Place& at) {
  const auto copy = [&](hid_t standard) {
    return at.made<Type>(H5Tcopy(standard), "cannot make a type");
  };
  switch (dtype) {
    case DType::kF32:
      return copy(H5T_IEEE_F32LE);
    case DType::kF64:
      return copy(H5T_IEEE_F64LE);
    case DType::kI32:
      return copy(H5T_STD_I32LE);
    case DType::kBF16:
      break;
    case DType::kU8:
      return copy(H5T_STD_U8LE);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      throw InternalError("{} codes are in no file", name_of(dtype));
  }
  Type type = copy(H5T_IEEE_F32LE);
  at.check(H5Tset_fields(type.get(), 15, 7, 8, 0, 7), "cannot make a type");
  at.check(H5Tset_precision(type.get(), 16), "cannot make a type");
  at.check(H5Tset_size(type.get(), 2), "cannot make a type");
  at.check(H5Tset_ebias(type.get(), 127), "cannot make a type");
  return type;
}

using Sizes = std::array<hsize_t, Shape::kRankMax>;

Sizes sizes_of(const Shape& shape) {
  Sizes sizes{};
  for (int dim = 0; dim < shape.rank(); ++dim)
    sizes[static_cast<std::size_t>(dim)] = static_cast<hsize_t>(shape[dim]);
  return sizes;
}

Space space_of(const Shape& shape, const Place& at) {
  const Sizes sizes = sizes_of(shape);
  const hid_t raw = shape.rank() == 0 ? H5Screate(H5S_SCALAR)
                                      : H5Screate_simple(shape.rank(), sizes.data(), nullptr);
  return at.made<Space>(raw, "cannot make a dataspace");
}

void select(const Space& space, const Box& box, const Place& at) {
  if (box.shape.rank() == 0) return;  // a scalar is always selected whole
  const Sizes start = sizes_of(box.offset), count = sizes_of(box.shape);
  at.check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                               nullptr),
           "cannot select a box");
}

Properties file_access(const Place& at) {
  Properties access = at.made<Properties>(H5Pcreate(H5P_FILE_ACCESS), "cannot make properties");
  at.check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "cannot set the closing degree");
  // One writer, finished files: a lock protects nothing, and some network file systems refuse it.
  at.check(H5Pset_file_locking(access.get(), false, true), "cannot switch file locking off");
  return access;
}

/// NaN, so that what is missing is seen; integers have none.
void set_fill(const Properties& creation, const Type& type, DType dtype, const Place& at) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const double wide_nan = std::numeric_limits<double>::quiet_NaN();
  const BFloat16 narrow_nan = to_bfloat16(nan);
  const std::int32_t zero = 0;
  const void* value = dtype == DType::kF64    ? static_cast<const void*>(&wide_nan)
                      : dtype == DType::kBF16 ? static_cast<const void*>(&narrow_nan)
                      : dtype == DType::kI32 || dtype == DType::kU8
                          ? static_cast<const void*>(&zero)
                          : static_cast<const void*>(&nan);
  at.check(H5Pset_fill_value(creation.get(), type.get(), value), "cannot set the fill value");
}

/// The library expands "%b" in the names of a virtual source.
std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) out += c == '%' ? "%%" : std::string(1, c);
  return out;
}

}  // namespace

void initialise_hdf5() {
  static const bool done = [] {
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    std::signal(SIGXFSZ, SIG_IGN);
    return true;
  }();
  (void)done;
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  initialise_hdf5();
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

struct Hdf5Writer::Handles {
  std::filesystem::path path;
  DriverStatus status;  // outlives the file
  File file;
  Properties links;     // makes the groups on the way to a dataset
  Properties creation;  // contiguous, no fill

  ~Handles() {
    if (file) abandon();
  }
  /// The file must not survive a failure: its name goes before anything is closed.
  void abandon() noexcept {
    status.discard = true;
    ::unlink(path.c_str());
  }
  /// After every call of the library: what the system refused on the way.
  void check_written(const Place& at) const {
    if (status.error != 0) at.fail("cannot write", errno_text(status.error));
  }
  Stored write(const Type& type, const Shape& shape, std::span<const std::byte> bytes,
               const Place& at);
};

Hdf5Writer::Hdf5Writer(std::filesystem::path path) : handles_(std::make_unique<Handles>()) {
  initialise_hdf5();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // each thread has its own setting
  handles_->path = std::move(path);
  const Place at{handles_->path};
  const Properties access = file_access(at);
  use_noting_driver(access.get(), &handles_->status);
  at.check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110),
           "cannot set the format version");
  at.check(H5Pset_alignment(access.get(), 4096, 4096), "cannot set the alignment");
  const hid_t file = H5Fcreate(handles_->path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get());
  if (file < 0 && handles_->status.error != 0) {
    at.fail("cannot create", errno_text(handles_->status.error));
  }
  handles_->file = at.made<File>(file, "cannot create");
  handles_->check_written(at);
  handles_->links = at.made<Properties>(H5Pcreate(H5P_LINK_CREATE), "cannot make properties");
  at.check(H5Pset_create_intermediate_group(handles_->links.get(), 1), "cannot make properties");
  handles_->creation = at.made<Properties>(H5Pcreate(H5P_DATASET_CREATE), "cannot make properties");
  at.check(H5Pset_layout(handles_->creation.get(), H5D_CONTIGUOUS), "cannot set the layout");
  at.check(H5Pset_fill_time(handles_->creation.get(), H5D_FILL_TIME_NEVER),
           "cannot set the fill time");
}

Hdf5Writer::~Hdf5Writer() = default;

Hdf5Writer::Stored Hdf5Writer::write(const std::string& dataset, DType dtype, const Shape& shape,
                                     std::span<const std::byte> bytes) {
  expect(bytes.size() == static_cast<std::size_t>(shape.count()) * size_of(dtype),
         "{}: {} bytes for {}", dataset, bytes.size(), shape.text());
  const Place at{handles_->path, dataset};
  return handles_->write(type_of(dtype, at), shape, bytes, at);
}

Hdf5Writer::Stored Hdf5Writer::write_text(const std::string& dataset, std::string_view text) {
  expect(!text.empty(), "{}: an empty text", dataset);
  const Place at{handles_->path, dataset};
  Type type = at.made<Type>(H5Tcopy(H5T_C_S1), "cannot make a type");
  at.check(H5Tset_size(type.get(), text.size()), "cannot make a type");
  return handles_->write(type, Shape{}, std::as_bytes(std::span(text)), at);
}

Hdf5Writer::Stored Hdf5Writer::Handles::write(const Type& type, const Shape& shape,
                                              std::span<const std::byte> bytes, const Place& at) {
  const Space space = space_of(shape, at);
  Dataset made =
      at.made<Dataset>(H5Dcreate2(file.get(), std::string(at.dataset).c_str(), type.get(),
                                  space.get(), links.get(), creation.get(), H5P_DEFAULT),
                       "cannot create the dataset");
  StreamingHash hash;
  std::span<const std::byte> left = bytes;  // the library keeps small ones, and writes them later
  status.before_block = [&](std::span<const std::byte> block) {
    if (left.empty() || block.data() != left.data()) return;
    hash.update(block);
    left = left.subspan(block.size());
  };
  const herr_t written =
      H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
  status.before_block = {};
  at.check(written, "cannot write");
  const haddr_t begin = H5Dget_offset(made.get());
  if (!bytes.empty() && begin == HADDR_UNDEF) at.fail("cannot write", "it got no place");
  at.close(made, "cannot write");
  check_written(at);
  hash.update(left);
  return {bytes.empty() ? 0 : static_cast<std::int64_t>(begin), hash.hex()};
}

void Hdf5Writer::write_virtual(const std::string& dataset, DType dtype, const Shape& shape,
                               std::span<const VirtualPart> parts) {
  const Place at{handles_->path, dataset};
  const Type type = type_of(dtype, at);
  const Space space = space_of(shape, at);
  const Properties creation =
      at.made<Properties>(H5Pcreate(H5P_DATASET_CREATE), "cannot make properties");
  set_fill(creation, type, dtype, at);
  for (const VirtualPart& part : parts) {
    const Space source = space_of(part.box.shape, at);
    select(space, part.box, at);
    at.check(H5Pset_virtual(creation.get(), space.get(), escaped(part.file).c_str(),
                            escaped(part.dataset).c_str(), source.get()),
             "cannot map a part");
  }
  Dataset made =
      at.made<Dataset>(H5Dcreate2(handles_->file.get(), dataset.c_str(), type.get(), space.get(),
                                  handles_->links.get(), creation.get(), H5P_DEFAULT),
                       "cannot create the dataset");
  at.close(made, "cannot write");
  handles_->check_written(at);
}

void Hdf5Writer::finish() {
  const Place at{handles_->path};
  try {
    const herr_t closed = H5Fclose(handles_->file.release());  // a second try would not be safe
    handles_->check_written(at);
    at.check(closed, "cannot close");
    sync_path(handles_->path);  // the library never calls fsync
  } catch (...) {
    handles_->abandon();
    throw;
  }
}

}  // namespace trireme
