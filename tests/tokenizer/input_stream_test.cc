#include "tokenizer/input_stream.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

// gzip and zstd of "one\ntwo\n" and "three\n", as those programs write them.
const std::string kGzipOne(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xcb\xcf\x4b\xe5\x2a\x29\xcf\xe7\x02\x00"
    "\xe6\x0b\xba\x12\x08\x00\x00\x00",
    28);
const std::string kGzipTwo(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x2b\xc9\x28\x4a\x4d\xe5\x02\x00\xd8\xc5"
    "\x46\xff\x06\x00\x00\x00",
    26);
const std::string kZstdOne(
    "\x28\xb5\x2f\xfd\x04\x58\x41\x00\x00\x6f\x6e\x65\x0a\x74\x77\x6f\x0a\xe6\xa6\x0e"
    "\x40",
    21);
const std::string kZstdTwo(
    "\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00\x74\x68\x72\x65\x65\x0a\xd7\x06\xfd\x28", 19);

class InputStreamTest : public testing::Test {
 protected:
  std::string path_of(const std::string& bytes) {
    return folder_.write("input.txt", bytes).string();
  }
  static std::string all_of(const std::string& path, std::size_t step = 7) {
    InputStream stream(path);
    std::string text, part(step, ' ');
    while (const std::size_t count = stream.read(part.data(), step)) text.append(part, 0, count);
    return text;
  }
  std::string text_of(const std::string& bytes) { return all_of(path_of(bytes)); }
  /// The message of a DataError; "text: ..." where there is none.
  std::string fault_of(const std::string& bytes) {
    try {
      return "text: " + text_of(bytes);
    } catch (const DataError& error) {
      return error.what();
    }
  }
  /// Both forms, of one or more members; a build without libzstd leaves the second out.
  std::vector<std::pair<std::string, std::string>> forms() {
    std::vector<std::pair<std::string, std::string>> made = {{kGzipOne, kGzipTwo}};
    try {
      (void)text_of(kZstdOne);
      made.emplace_back(kZstdOne, kZstdTwo);
    } catch (const EnvironmentError&) {
    }
    return made;
  }
  TemporaryDirectory folder_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(InputStreamTest, plain_text_passes_as_it_is) {
  for (const std::string text : {"", "x", "one\ntwo\n", "\x1f\x8b", "(\xb5/"})
    EXPECT_EQ(text_of(text), text);
  std::string large;
  while (large.size() < 1'000'000) large += "seven: " + std::to_string(large.size());
  EXPECT_EQ(all_of(path_of(large), 300'001), large);
}

TEST_F(InputStreamTest, packed_text_is_known_by_its_first_bytes_and_unpacked) {
  for (const auto& [one, two] : forms()) {
    EXPECT_EQ(text_of(one), "one\ntwo\n");
    EXPECT_EQ(text_of(one + two + one), "one\ntwo\nthree\none\ntwo\n") << "members that follow";
  }
  EXPECT_EQ(text_of(kGzipOne + std::string(700'000, '\0')), "one\ntwo\n") << "zeros of a tape";
}

TEST_F(InputStreamTest, many_members_over_many_buffers_are_one_text) {
  for (const auto& [one, two] : forms()) {
    std::string packed, text;
    while (packed.size() < 700'000) {
      packed += two;
      text += "three\n";
    }
    const std::string path = path_of(packed);
    EXPECT_EQ(all_of(path, 1), text);
    EXPECT_EQ(all_of(path, 1 << 20), text);
    InputStream stream(path);
    std::string part(text.size(), ' ');
    EXPECT_EQ(stream.read(part.data(), part.size()), text.size());
    EXPECT_EQ(stream.read(part.data(), 1), 0u);
    EXPECT_EQ(stream.taken(), static_cast<std::int64_t>(packed.size()));
  }
}

TEST_F(InputStreamTest, a_file_that_is_cut_off_anywhere_is_an_error_that_names_it) {
  for (const auto& [one, two] : forms()) {
    const std::string both = one + two;
    for (std::size_t size = 4; size < both.size(); ++size) {
      if (size == one.size()) continue;
      const std::string fault = fault_of(both.substr(0, size));
      if (size > one.size() && size < one.size() + 4 && one[0] == '\x1f') {
        EXPECT_HAS(fault, "input.txt: ") << size;  // no member begins so
        continue;
      }
      EXPECT_HAS(fault, "input.txt: its ") << size;
      EXPECT_HAS(fault, "cut off") << size;
    }
  }
}

TEST_F(InputStreamTest, a_damaged_byte_gives_the_text_or_an_error_and_nothing_else) {
  for (const auto& [one, two] : forms()) {
    int errors = 0;
    for (std::size_t at = 4; at < one.size(); ++at) {
      std::string damaged = one;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      const std::string fault = fault_of(damaged);
      if (fault == "text: one\ntwo\n") continue;  // a time or a system in the header
      ++errors;
      EXPECT_HAS(fault, "input.txt: its ") << at;
    }
    EXPECT_GT(errors, 12);
    EXPECT_HAS(fault_of(one + "more"), "input.txt: its ");
  }
}

TEST_F(InputStreamTest, what_is_no_text_is_refused_by_name) {
  EXPECT_HAS(fault_of(std::string("\xfd"
                                  "7zXZ\0 more",
                                  11)),
             "packed by xz");
  EXPECT_HAS(fault_of("BZh91AY&SY"), "packed by bzip2");
  EXPECT_HAS(fault_of("BZh9\x17rE8P\x90"), "packed by bzip2");
  EXPECT_HAS(fault_of("PAR1\x15\x04...."), "Parquet");
  EXPECT_HAS(fault_of(std::string("PK\3\4....", 8)), "a zip archive");
}

TEST_F(InputStreamTest, words_that_begin_as_other_formats_do_are_text) {
  for (const char* text : {"BZh is a name", "BZh9 too", "PAR1 is a receptor"})
    EXPECT_EQ(text_of(text), text);
}

TEST_F(InputStreamTest, a_missing_file_is_a_data_error) {
  EXPECT_THROW(InputStream((folder_ / "absent").string()), DataError);
}

}  // namespace
}  // namespace trireme
