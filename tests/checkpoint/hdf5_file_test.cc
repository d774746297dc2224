// The library reads back what we read past it: h5py stands on the same code.
#include "checkpoint/hdf5_file.h"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <cstring>
#include <limits>

#include "base/hash.h"
#include "checkpoint/boxes.h"
#include "checkpoint/store_file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// A whole dataset of floats by the library; its place in the file, 0 where it has none.
std::vector<float> read_by_library(const std::filesystem::path& path, const char* dataset,
                                   std::int64_t* begin = nullptr) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, dataset, H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<float> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)), -1);
  EXPECT_GE(H5Dread(set, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  const haddr_t place = H5Dget_offset(set);
  if (begin != nullptr) *begin = place == HADDR_UNDEF ? 0 : static_cast<std::int64_t>(place);
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  return values;
}

std::vector<float> counted(std::int64_t count, float first) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

TEST(Hdf5Writer, tells_where_the_library_finds_the_bytes_of_a_dataset) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "a.h5";
  struct Written {
    std::string name;
    std::vector<float> values;
    std::int64_t begin;
  };
  std::vector<Written> all;
  {
    Hdf5Writer file(path);
    // More than eight in one group: the library then keeps their names in another structure.
    for (int i = 0; i < 40; ++i) {
      const Shape shape = i == 7 ? Shape{} : i == 8 ? Shape{0, 3} : Shape{i + 1, 3};
      std::vector<float> values = counted(shape.count(), static_cast<float>(100 * i));
      const std::string name = fmt::format("group/{}/at-0", i);
      const std::int64_t begin =
          file.write(name, DType::kF32, shape, std::as_bytes(std::span(values))).begin;
      all.push_back({name, std::move(values), begin});
    }
    file.finish();
  }
  const StoreFile store(path);
  std::vector<Extent> extents;
  for (const Written& written : all) {
    std::int64_t place = -1;
    EXPECT_EQ(read_by_library(path, written.name.c_str(), &place), written.values) << written.name;
    EXPECT_EQ(place, written.begin) << written.name;
    std::vector<float> values(written.values.size());
    store.read(written.begin, std::as_writable_bytes(std::span(values)));
    EXPECT_EQ(values, written.values) << written.name;
  }
}

TEST(Hdf5Writer, hashes_what_it_writes_in_blocks_of_any_number) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "a.h5";
  constexpr std::int64_t kBlock = 65536, kPart = 32 * kBlock;  // floats of the driver's
  Hdf5Writer file(path);
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, kBlock - 1,
                                   kBlock, kBlock + 1, 3 * kBlock, kPart, kPart + 5}) {
    const std::vector<float> values = counted(count, 0.5F);
    const auto bytes = std::as_bytes(std::span(values));
    const std::string name = fmt::format("of-{}", count);
    EXPECT_EQ(file.write(name, DType::kF32, Shape{count}, bytes).xxh3_128, xxh3_128_hex(bytes));
  }
  file.finish();
  EXPECT_EQ(read_by_library(path, "of-2097157"), counted(kPart + 5, 0.5F));
}

TEST(Hdf5Writer, a_view_shows_the_parts_of_other_files_as_one) {
  const TemporaryDirectory folder;
  for (const int part : {0, 1}) {
    Hdf5Writer file(folder / fmt::format("{}%b.h5", part));
    const std::vector<float> values = counted(6, static_cast<float>(10 * part));
    file.write("x", DType::kF32, Shape{2, 3}, std::as_bytes(std::span(values)));
    file.finish();
  }
  Hdf5Writer view(folder / "view.h5");
  const std::vector<Hdf5Writer::VirtualPart> parts = {{"0%b.h5", "x", {Shape{0, 0}, Shape{2, 3}}},
                                                      {"1%b.h5", "x", {Shape{2, 0}, Shape{2, 3}}}};
  view.write_virtual("all", DType::kF32, Shape{4, 3}, parts);
  view.finish();
  EXPECT_EQ(read_by_library(folder / "view.h5", "all"),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}));
}

TEST(StoreFile, the_frame_is_all_that_lies_outside_of_the_extents) {
  const TemporaryDirectory folder;
  const StoreFile file(folder.write("x", "aaaDDDbbDDDDc"));
  const std::string frame = StoreFile(folder.write("y", "aaabbc")).frame_hash({});
  EXPECT_EQ(file.frame_hash({{3, 3}, {8, 4}}), frame);
  EXPECT_EQ(file.frame_hash({{10, 2}, {8, 3}, {3, 2}, {4, 2}, {6, 0}}), frame);
  EXPECT_NE(file.frame_hash({{3, 3}}), frame);
  const std::string nothing = StoreFile(folder.write("z", "")).frame_hash({});
  EXPECT_EQ(file.frame_hash({{0, 13}}), nothing);
}

TEST(StoreFile, reads_nothing_beyond_its_end) {
  const TemporaryDirectory folder;
  const StoreFile file(folder.write("x", "0123456789"));
  std::array<std::byte, 4> bytes{};
  file.read(6, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "6789", 4), 0);
  for (const std::int64_t begin : {std::int64_t{7}, std::int64_t{-1}, std::int64_t{11},
                                   std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THROW(file.read(begin, bytes), DataError) << begin;
  }
  EXPECT_THROW(StoreFile(folder.path()), DataError);
  EXPECT_THROW(StoreFile(folder / "none"), DataError);
}

}  // namespace
}  // namespace trireme
