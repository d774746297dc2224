#include "checkpoint/hdf5_driver.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/file.h"

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace trireme {

namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>);

constexpr haddr_t kAddressMax = (haddr_t{1} << 62) - 1;

/// One open file; the library sees its first member.
struct OpenFile {
  H5FD_t base;
  FileDescriptor descriptor;
  DriverStatus* status;
  haddr_t end_of_allocation, end_of_file;
  dev_t device;
  ino_t inode;
};
static_assert(std::is_standard_layout_v<OpenFile>);

OpenFile& file_of(H5FD_t* base) { return *reinterpret_cast<OpenFile*>(base); }
const OpenFile& file_of(const H5FD_t* base) { return *reinterpret_cast<const OpenFile*>(base); }

void note(DriverStatus& status) {
  if (status.error == 0) status.error = errno;
}

H5FD_t* open_new(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* status = static_cast<DriverStatus* const*>(H5Pget_driver_info(access));
  if (status == nullptr || (flags & H5F_ACC_EXCL) == 0) return nullptr;
  auto file = std::make_unique<OpenFile>();
  file->status = *status;
  file->descriptor = FileDescriptor(::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  struct stat about {};
  if (!file->descriptor || ::fstat(file->descriptor.get(), &about) != 0) {
    note(**status);
    return nullptr;
  }
  file->device = about.st_dev;
  file->inode = about.st_ino;
  return &file.release()->base;
}

herr_t close_file(H5FD_t* base) {
  std::unique_ptr<OpenFile> file(&file_of(base));
  if (::close(file->descriptor.release()) != 0) note(*file->status);
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const auto identity = [](const H5FD_t* file) {
    return std::pair(file_of(file).device, file_of(file).inode);
  };
  if (identity(a) == identity(b)) return 0;
  return identity(a) < identity(b) ? -1 : 1;
}

herr_t query(const H5FD_t*, unsigned long* features) {
  *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
              H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t end_of_allocation(const H5FD_t* base, H5FD_mem_t) {
  return file_of(base).end_of_allocation;
}
herr_t set_end_of_allocation(H5FD_t* base, H5FD_mem_t, haddr_t address) {
  file_of(base).end_of_allocation = address;
  return 0;
}
haddr_t end_of_file(const H5FD_t* base, H5FD_mem_t) { return file_of(base).end_of_file; }

/// What was never written reads as zeros, as in the library's driver.
herr_t read_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* out) {
  auto* to = static_cast<std::byte*>(out);
  while (size > 0) {
    const ssize_t count =
        ::pread(file_of(base).descriptor.get(), to, size, static_cast<off_t>(address));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      note(*file_of(base).status);
      return -1;
    }
    if (count == 0) {
      std::memset(to, 0, size);
      break;
    }
    to += count;
    address += static_cast<haddr_t>(count);
    size -= static_cast<std::size_t>(count);
  }
  return 0;
}

/// Parts of a write that are handed to the disk at once, where they are not small. Without that a
/// system holds back tens of percent of its memory, and then stops the writer until most of it is
/// out (a third of the rate, measured); the fsync at the end finds little left to do.
constexpr std::size_t kPartBytes = std::size_t{8} << 20, kWriteBackBytes = std::size_t{1} << 20;

/// Of one call of the system: who looked at the bytes before has left them in the cache for it.
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

/// Starts the writing of these bytes and does not wait. fsync reports what fails.
void start_write_back(int descriptor, haddr_t address, std::size_t bytes) {
  (void)::sync_file_range(descriptor, static_cast<off_t>(address), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE);
}

/// False where nothing more is to be written.
bool write_block(const OpenFile& file, haddr_t address, std::span<const std::byte> block) {
  while (!block.empty()) {
    const ssize_t count =
        ::pwrite(file.descriptor.get(), block.data(), block.size(), static_cast<off_t>(address));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      note(*file.status);
      return false;
    }
    block = block.subspan(static_cast<std::size_t>(count));
    address += static_cast<haddr_t>(count);
  }
  return true;
}

bool write_part(const OpenFile& file, haddr_t address, std::span<const std::byte> part) {
  const DriverStatus& status = *file.status;
  while (!part.empty() && !status.discard && status.error == 0) {
    const std::span<const std::byte> block = part.first(std::min(part.size(), kBlockBytes));
    if (status.before_block) status.before_block(block);
    if (!write_block(file, address, block)) return false;
    part = part.subspan(block.size());
    address += block.size();
  }
  return part.empty();
}

herr_t write_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
                   const void* bytes) {
  OpenFile& file = file_of(base);
  file.end_of_file = std::max(file.end_of_file, address + size);
  std::span<const std::byte> left(static_cast<const std::byte*>(bytes), size);
  while (!left.empty()) {
    const std::span<const std::byte> part = left.first(std::min(left.size(), kPartBytes));
    if (!write_part(file, address, part)) break;
    if (part.size() >= kWriteBackBytes)
      start_write_back(file.descriptor.get(), address, part.size());
    left = left.subspan(part.size());
    address += part.size();
  }
  return 0;
}

herr_t truncate_file(H5FD_t* base, hid_t, hbool_t) {
  OpenFile& file = file_of(base);
  if (file.end_of_file == file.end_of_allocation) return 0;
  file.end_of_file = file.end_of_allocation;
  if (file.status->discard || file.status->error != 0) return 0;
  if (::ftruncate(file.descriptor.get(), static_cast<off_t>(file.end_of_file)) != 0) {
    note(*file.status);
  }
  return 0;
}

hid_t register_driver() {
  // Members by name: their order and number differ between versions of the library.
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value =
      static_cast<H5FD_class_value_t>(510);  // of the range for drivers that are not shared
#endif
  driver.name = "trireme_noting";
  driver.maxaddr = kAddressMax;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverStatus*);
  driver.open = open_new;
  driver.close = close_file;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = end_of_file;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  constexpr H5FD_mem_t kRawApart[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kRawApart), std::end(kRawApart), std::begin(driver.fl_map));
  return H5FDregister(&driver);
}

}  // namespace

void use_noting_driver(std::int64_t access_properties, DriverStatus* status) {
  static const hid_t driver = register_driver();
  expect(driver >= 0 && H5Pset_driver(access_properties, driver, &status) >= 0,
         "the HDF5 library refuses a file driver");
}

}  // namespace trireme
