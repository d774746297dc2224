#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "checkpoint/boxes.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

/// What reading these bytes as a safetensors file says; "" where it is accepted.
std::string fault_of(const std::string& bytes) {
  TemporaryDirectory directory;
  try {
    const SafetensorsFile file(directory.write("x.safetensors", bytes));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    return error.what();
  }
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, accepts_every_legal_oddity) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":)" + tensor("F32", "[]", "[0,4]") + R"(,"empty":)" +
      tensor("BF16", "[0,7]", "[4,4]") + R"(,"a":)" + tensor("F4", "[3,2]", "[4,7]") +
      R"(,"mask":)" + tensor("BOOL", "[1,1,1,1,1,1]", "[7,8]") + "}      ";
  EXPECT_EQ(fault_of(file_of(header, "12345678")), "");
  EXPECT_EQ(fault_of(file_of("{}", "")), "");
}

TEST(Safetensors, refuses_every_false_claim_and_names_the_tensor) {
  const auto one = [](const std::string& entry) { return R"({"t":)" + entry + "}"; };
  const std::string four(4, 'x');
  const struct {
    std::string bytes, message;
  } cases[] = {
      {"", "too few"},
      {"1234567", "too few"},
      {std::string(8, '\xff') + "{}", "header has 18446744073709551615 bytes"},
      {file_of(std::string("{}"), "").replace(0, 1, 1, '\x03'), "header has 3 bytes"},
      {file_of(" {}", ""), "does not begin with {"},
      {file_of("", ""), "does not begin with {"},
      {file_of("{", ""), "header"},
      {file_of("{\"\xff\":1}", ""), "header"},
      {file_of(R"({"t":1})", ""), "t must be an object"},
      {file_of(std::string(R"({"t":)") + tensor("F32", "[1]", "[0,4]") + R"(,"t":)" +
                   tensor("F32", "[1]", "[0,4]") + "}",
               four),
       "stands twice"},
      {file_of(R"({"__metadata__":{"step":1}})", ""), "step must be a string"},
      {file_of(one(tensor("F33", "[1]", "[0,4]")), four), "t: unknown dtype \"F33\""},
      {file_of(one(tensor("F32", "[1]", "[0,8]")), four + four), "t: F32 [1] takes 4 bytes"},
      {file_of(one(tensor("F32", "[1]", "[4,0]")), four), "data_offsets"},
      {file_of(one(tensor("F32", "[1]", "[0]")), four), "two integers"},
      {file_of(one(tensor("F32", "[1]", "[0,4.0]")), four), "integer of 0 or more"},
      {file_of(one(tensor("F32", "[-1]", "[0,4]")), four), "integer of 0 or more"},
      {file_of(one(tensor("F32", "1", "[0,4]")), four), "shape must be an array"},
      {file_of(one(tensor("F32", "[1]", "[0,4]")), ""), "t: its data end at 4, past the end"},
      {file_of(one(tensor("F32", "[1]", "[4,8]")), four + four), "a hole"},
      {file_of(one(tensor("F32", "[1]", "[0,4]")), four + "y"), "1 bytes behind the last tensor"},
      {file_of(one(tensor("F32", "[4294967296,4294967296]", "[0,0]")), ""), "too large"},
      {file_of(one(tensor("F32", "[1099511627776]", "[0,4398046511104]")), four), "past the end"},
      {file_of(one(tensor("F6_E2M3", "[1]", "[0,1]")), "x"), "do not fill bytes"},
      {file_of(one(R"({"dtype":"F32","shape":[1]})"), four), "data_offsets is missing"},
      {file_of(R"({"a":)" + tensor("F32", "[1]", "[0,4]") + R"(,"b":)" +
                   tensor("F32", "[1]", "[0,4]") + "}",
               four),
       "overlap"},
      {file_of(R"({"a":)" + tensor("F32", "[2]", "[0,8]") + R"(,"b":)" +
                   tensor("F32", "[1]", "[4,8]") + "}",
               four + four),
       "b: its data begin at 4, the tensor before ends at 8 (they overlap)"},
      {file_of(std::string(100, '['), ""), "does not begin"},
      {file_of("{\"a\":" + std::string(5000, '['), ""), "header"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string fault = fault_of(bytes);
    EXPECT_NE(fault.find(message), std::string::npos)
        << "wanted \"" << message << "\", got \"" << fault << '"';
    EXPECT_NE(fault.find("x.safetensors"), std::string::npos) << fault;
  }
}

TEST(Safetensors, every_half_precision_number_widens_exactly) {
  TemporaryDirectory directory;
  std::string halves(65536 * 2, '\0');
  for (unsigned i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(halves.data() + 2 * i, &bits, 2);
  }
  for (const char* dtype : {"F16", "BF16"}) {
    const std::string header = R"({"t":)" + tensor(dtype, "[65536]", "[0,131072]") + "}";
    const SafetensorsFile file(directory.write("x.safetensors", file_of(header, halves)));
    std::vector<float> values(65536);
    file.read_fp32(file.tensors()[0], whole(Shape{65536}), values.data());
    const int mantissa_bits = dtype[0] == 'F' ? 10 : 7, bias = dtype[0] == 'F' ? 15 : 127;
    for (int i = 0; i < 65536; ++i) {
      const int sign = i >> 15, exponent = (i & 0x7fff) >> mantissa_bits,
                mantissa = i & ((1 << mantissa_bits) - 1);
      const int special = (0x7fff >> mantissa_bits);
      if (exponent == special && mantissa != 0) {
        ASSERT_TRUE(std::isnan(values[static_cast<std::size_t>(i)])) << dtype << ' ' << i;
        continue;
      }
      double expected = exponent == special ? INFINITY
                        : exponent == 0     ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                            : std::ldexp(mantissa + (1 << mantissa_bits),
                                                         exponent - bias - mantissa_bits);
      if (sign == 1) expected = -expected;
      ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(expected))
          << dtype << ' ' << i;
      ASSERT_EQ(std::signbit(values[static_cast<std::size_t>(i)]), sign == 1) << dtype << ' ' << i;
    }
  }
}

TEST(Safetensors, a_tensor_of_another_type_is_refused_when_it_is_read) {
  TemporaryDirectory directory;
  const SafetensorsFile file(directory.write(
      "x.safetensors", file_of(R"({"t":)" + tensor("I64", "[1]", "[0,8]") + "}", "12345678")));
  float value = 0;
  EXPECT_THROW(file.read_fp32(file.tensors()[0], whole(Shape{1}), &value), DataError);
}

std::vector<float> ramp(std::int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

const std::vector<SafetensorsWriter::Tensor> kTensors = {{"a.weight", Shape{4, 6}},
                                                         {"b.weight", Shape{5}},
                                                         {"c.empty", Shape{0, 3}},
                                                         {"d.scale", Shape{}}};

void write_ramps(const std::filesystem::path& folder, DType dtype, std::int64_t file_bytes_max) {
  SafetensorsWriter writer(folder, dtype, kTensors, file_bytes_max);
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    writer.write(ramp(kTensors[i].shape.count(), 100.0F * static_cast<float>(i)));
  }
  writer.finish();
}

TEST(Safetensors, what_is_written_is_read_in_one_file_and_in_several) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t file_bytes_max :
         {std::int64_t{1} << 30, std::int64_t{40}, std::int64_t{1}}) {
      TemporaryDirectory directory;
      write_ramps(directory.path(), dtype, file_bytes_max);
      EXPECT_EQ(std::filesystem::exists(directory / "model.safetensors.index.json"),
                file_bytes_max < 100);
      const SafetensorsFolder folder(directory.path());
      ASSERT_EQ(folder.tensors().size(), kTensors.size());
      for (std::size_t i = 0; i < kTensors.size(); ++i) {
        const auto& [file, stored] = folder.tensors().at(kTensors[i].name);
        const Box box = whole(kTensors[i].shape);
        std::vector<float> values(static_cast<std::size_t>(box.shape.count()));
        file->read_fp32(*stored, box, values.data());
        EXPECT_EQ(values, ramp(box.shape.count(), 100.0F * static_cast<float>(i)));
        EXPECT_EQ(stored->dtype, dtype == DType::kF32 ? "F32" : "BF16");
      }
      for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
        EXPECT_EQ(entry.path().filename().string().find("tmp"), std::string::npos);
      }
    }
  }
}

TEST(Safetensors, reads_a_box_of_columns) {
  TemporaryDirectory directory;
  write_ramps(directory.path(), DType::kF32, 1 << 30);
  const SafetensorsFolder folder(directory.path());
  const auto& [file, stored] = folder.tensors().at("a.weight");
  std::vector<float> values(4);
  file->read_fp32(*stored, {Shape{1, 3}, Shape{2, 2}}, values.data());
  EXPECT_EQ(values, (std::vector<float>{9, 10, 15, 16}));
}

TEST(Safetensors, many_reads_at_once_give_what_each_gives) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TemporaryDirectory directory;
    constexpr std::int64_t kRows = 3000, kColumns = 1001;  // several blocks, the last a short one
    std::vector<float> stored(kRows * kColumns);
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i % 251);
    SafetensorsWriter writer(directory.path(), dtype, {{"t", Shape{kRows, kColumns}}});
    writer.write(stored);
    writer.finish();
    const SafetensorsFolder folder(directory.path());
    const auto& [file, tensor] = folder.tensors().at("t");
    SafetensorsReads reads;
    std::vector<float> all(stored.size()), rows(2000 * kColumns), columns(kRows * 7), none(1);
    reads.add(*file, *tensor, whole(Shape{kRows, kColumns}), all.data());
    reads.add(*file, *tensor, {Shape{999, 0}, Shape{2000, kColumns}}, rows.data());
    reads.add(*file, *tensor, {Shape{0, 500}, Shape{kRows, 7}}, columns.data());
    reads.add(*file, *tensor, {Shape{5, 5}, Shape{0, 3}}, none.data());
    reads.run();
    EXPECT_EQ(all, stored);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), stored.begin() + 999 * kColumns));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < 7; ++i) {
        ASSERT_EQ(columns[static_cast<std::size_t>(row * 7 + i)],
                  stored[static_cast<std::size_t>(row * kColumns + 500 + i)]);
      }
    }
  }
}

TEST(Safetensors, a_file_that_shrinks_while_many_read_it_is_named) {
  TemporaryDirectory directory;
  SafetensorsWriter writer(directory.path(), DType::kF32, {{"t", Shape{4'000'000}}});
  writer.write(std::vector<float>(4'000'000));
  writer.finish();
  const SafetensorsFolder folder(directory.path());
  const auto& [file, tensor] = folder.tensors().at("t");
  std::filesystem::resize_file(directory / "model.safetensors", 9'000'000);
  SafetensorsReads reads;
  std::vector<float> values(4'000'000);
  reads.add(*file, *tensor, whole(Shape{4'000'000}), values.data());
  try {
    reads.run();
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos);
  }
}

TEST(Safetensors, the_data_begin_at_a_multiple_of_eight) {
  TemporaryDirectory directory;
  write_ramps(directory.path(), DType::kF32, 1 << 30);
  const std::string bytes = read_file(directory / "model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_NE(bytes.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
}

TEST(Safetensors, a_false_index_is_refused) {
  TemporaryDirectory directory;
  write_ramps(directory.path(), DType::kF32, 1);
  const auto fault = [&] {
    try {
      const SafetensorsFolder folder(directory.path());
      return std::string();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  ASSERT_EQ(fault(), "");
  const std::string index = read_file(directory / "model.safetensors.index.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = index;
    changed.replace(changed.find(from), from.size(), to);
    directory.write("model.safetensors.index.json", changed);
    return fault();
  };
  EXPECT_NE(with("a.weight", "z.weight").find("z.weight is not in model-00001"), std::string::npos);
  EXPECT_NE(with("model-00001", "model-00002").find("a.weight is not in model-00002"),
            std::string::npos);
  EXPECT_NE(with("model-00001", "../model-00001").find("is not the name of a file"),
            std::string::npos);
  EXPECT_NE(with("model-00001", "model-00009").find("cannot open"), std::string::npos);
  EXPECT_NE(with("\"weight_map\"", "\"weights\"").find("weight_map is missing"), std::string::npos);
  std::filesystem::remove(directory / "model.safetensors.index.json");
  EXPECT_NE(fault().find("holds neither model.safetensors nor"), std::string::npos);
}

}  // namespace
}  // namespace trireme
