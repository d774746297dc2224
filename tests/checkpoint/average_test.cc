#include "checkpoint/average.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "adapter_fixture.h"
#include "base/file.h"
#include "checkpoint/async_writer.h"
#include "support/golden.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

using Bits = std::vector<std::uint16_t>;

std::string bytes_of(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]};
}

/// Folders with one tensor or more each, of types of their own.
class AverageTest : public testing::Test {
 protected:
  struct Weight {
    std::string name, dtype;
    Shape shape;
    std::string bytes;
  };
  std::filesystem::path folder(const std::string& name, const std::vector<Weight>& weights,
                               std::int64_t file_bytes_max = 1 << 20) {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directory(path);
    directory_.write(name + "/config.json", R"({"model_type":"llama","of":")" + name + R"("})");
    directory_.write(name + "/tokenizer.model", "pieces of " + name);
    directory_.write(name + "/optimizer.pt", "not the model's");
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Weight& weight : weights)
      tensors.push_back({weight.name, weight.shape, weight.dtype});
    SafetensorsWriter writer(path, DType::kF32, tensors, file_bytes_max);
    for (const Weight& weight : weights) writer.write_bytes(weight.bytes);
    writer.finish();
    return path;
  }
  std::filesystem::path fp32(const std::string& name, const std::vector<float>& values) {
    return folder(
        name, {{"w", "F32", Shape{static_cast<std::int64_t>(values.size())}, bytes_of(values)}});
  }
  std::filesystem::path half(const std::string& name, const std::string& dtype,
                             const Bits& values) {
    return folder(
        name, {{"w", dtype, Shape{static_cast<std::int64_t>(values.size())}, bytes_of(values)}});
  }
  /// The bytes of tensor w of the mean; a new output each time.
  std::string mean(const std::vector<std::filesystem::path>& sources,
                   const std::string& tensor = "w") {
    output_ = directory_ / ("mean" + std::to_string(++outputs_));
    average_weights(sources, output_, {});
    const SafetensorsFolder weights(output_);
    const auto& located = weights.tensors().at(tensor);
    std::string bytes(located.tensor->end - located.tensor->begin, '\0');
    located.file->read_bytes(*located.tensor, std::as_writable_bytes(std::span(bytes)));
    dtype_ = located.tensor->dtype;
    return bytes;
  }
  std::string fault(const std::vector<std::filesystem::path>& sources,
                    ExitCode expected = ExitCode::kConfig) {
    try {
      average_weights(sources, directory_ / "refused", {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), expected) << error.what();
      for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
        EXPECT_FALSE(entry.path().filename().string().starts_with("."))
            << entry.path() << " is left";
      EXPECT_FALSE(std::filesystem::exists(directory_ / "refused"));
      return error.what();
    }
    return "none";
  }

  TemporaryDirectory directory_;
  std::filesystem::path output_;
  std::string dtype_;
  int outputs_ = 0;
};

TEST_F(AverageTest, sums_in_fp64_in_the_order_given_and_rounds_once) {
  const float tiny = 0x1p-30F;
  const auto a = fp32("a", {1, -0.0F, 3e38F, 1});
  const auto b = fp32("b", {tiny, -0.0F, 3e38F, tiny});
  const auto c = fp32("c", {tiny, -0.0F, 3e38F, -1});
  std::vector<float> expected(4);
  expected[0] = static_cast<float>((1.0 + 0x1p-30 + 0x1p-30) / 3);
  expected[1] = -0.0F;
  expected[2] = static_cast<float>((3.0 * static_cast<double>(3e38F)) /
                                   3);                            // a sum in fp32 would be infinite
  expected[3] = static_cast<float>(((1.0 + 0x1p-30) - 1.0) / 3);  // and here 0
  EXPECT_EQ(mean({a, b, c}), bytes_of(expected));
  EXPECT_EQ(dtype_, "F32");
  // 2^60 + 1 - 2^60 is 0 in fp64 in this order, 2^60 - 2^60 + 1 is 1.
  const auto big = fp32("big", {0x1p60F}), one = fp32("one", {1}), less = fp32("less", {-0x1p60F});
  EXPECT_EQ(mean({big, one, less}), bytes_of(std::vector<float>{0}));
  EXPECT_EQ(mean({big, less, one}), bytes_of(std::vector<float>{1.0F / 3}));
}

TEST_F(AverageTest, has_the_type_of_the_first_and_rounds_to_nearest_even_once) {
  // bf16 has 8 bits of significand: 1 and 1 + 2^-7 are neighbours.
  const auto a = half("a", "BF16", {0x3f80, 0x3f81, 0x0001, 0x7f80});
  const auto b = half("b", "BF16", {0x3f81, 0x3f82, 0x0002, 0x3f80});
  EXPECT_EQ(mean({a, b}), bytes_of(Bits{0x3f80, 0x3f82, 0x0002, 0x7f80}))
      << "ties to even, subnormals too";
  EXPECT_EQ(dtype_, "BF16");
  // Just above the tie: through fp32, 1 + 2^-8 + 2^-30 would first become the tie and then 1.
  const auto tie = half("tie", "BF16", {0x3f80}),
             above = fp32("above", {1.0F + 0x1p-7F + 0x1p-23F});
  const auto zero = half("zero", "BF16", {0x3f80});
  static_cast<void>(zero);
  EXPECT_EQ(mean({tie, above}), bytes_of(Bits{0x3f81}));
  EXPECT_EQ(rounded_to_16_bits(1 + 0x1p-8 + 0x1p-40, 8, 7), 0x3f81);
  EXPECT_EQ(rounded_to_16_bits(1 + 0x1p-8, 8, 7), 0x3f80);
  // fp16.
  const auto c = half("c", "F16", {0x3c00, 0x0001, 0x7bff, 0xfc00}),
             d = half("d", "F16", {0x3c01, 0x0002, 0x7bff, 0x3c00});
  EXPECT_EQ(mean({c, d}), bytes_of(Bits{0x3c00, 0x0002, 0x7bff, 0xfc00}));
  EXPECT_EQ(dtype_, "F16");
  // Types may be mixed: bf16 1, fp16 1, fp32 4.
  const auto x = half("x", "BF16", {0x3f80}), y = half("y", "F16", {0x3c00}), z = fp32("z", {4});
  EXPECT_EQ(mean({x, y, z}), bytes_of(Bits{0x4000}));
  EXPECT_EQ(mean({z, y, x}), bytes_of(std::vector<float>{2}));
  EXPECT_EQ(mean({y, x, z}), bytes_of(Bits{0x4000}));
}

TEST_F(AverageTest, rounds_every_bf16_and_fp16_and_what_lies_between_as_arithmetic_says) {
  const auto value = [](std::uint16_t bits, int exponent_bits, int mantissa_bits) {
    const int exponent = bits >> mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    return exponent == 0
               ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
               : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  };
  for (const auto& [exponent_bits, mantissa_bits] : {std::pair(8, 7), std::pair(5, 10)}) {
    const int infinite = ((1 << exponent_bits) - 1) << mantissa_bits;
    for (int bits = 0; bits + 1 < infinite; ++bits) {
      const auto at = [&, e = exponent_bits, m = mantissa_bits](int b) {
        return value(static_cast<std::uint16_t>(b), e, m);
      };
      const auto rounded = [&, e = exponent_bits, m = mantissa_bits](double x) {
        return int{rounded_to_16_bits(x, e, m)};
      };
      const double low = at(bits), high = at(bits + 1), middle = (low + high) / 2;
      ASSERT_EQ(rounded(low), bits);
      ASSERT_EQ(rounded(middle), bits + bits % 2) << low;
      ASSERT_EQ(rounded(std::nextafter(middle, 0)), bits) << low;
      ASSERT_EQ(rounded(std::nextafter(middle, high)), bits + 1) << low;
      ASSERT_EQ(rounded(-high), (bits + 1) | 0x8000);
    }
    const auto last = value(static_cast<std::uint16_t>(infinite - 1), exponent_bits, mantissa_bits);
    EXPECT_EQ(rounded_to_16_bits(last * 1.01, exponent_bits, mantissa_bits), infinite);
    EXPECT_EQ(rounded_to_16_bits(1e300, exponent_bits, mantissa_bits), infinite);
    EXPECT_EQ(rounded_to_16_bits(-INFINITY, exponent_bits, mantissa_bits), infinite | 0x8000);
    EXPECT_GT(rounded_to_16_bits(NAN, exponent_bits, mantissa_bits) & 0x7fff, infinite);
    EXPECT_EQ(rounded_to_16_bits(-0.0, exponent_bits, mantissa_bits), 0x8000);
  }
}

TEST_F(AverageTest, of_one_is_that_one_in_bits_with_its_files) {
  const Bits odd = {0x7fc1, 0x7f81, 0x8000, 0x0001};  // NaNs of both kinds
  const auto a = folder("a", {{"m", "F32", Shape{1}, bytes_of(std::vector<float>{5})},
                              {"w", "BF16", Shape{2, 2}, bytes_of(odd)}});
  EXPECT_EQ(mean({a}), bytes_of(odd));
  EXPECT_EQ(read_file(output_ / "config.json"), read_file(a / "config.json"));
  EXPECT_EQ(read_file(output_ / "tokenizer.model"), "pieces of a");
  EXPECT_FALSE(std::filesystem::exists(output_ / "optimizer.pt"));
  EXPECT_EQ(read_file(output_ / "model.safetensors"), read_file(a / "model.safetensors"));
}

TEST_F(AverageTest, reads_and_writes_several_files) {
  std::vector<Weight> weights;
  for (const char* name : {"a", "b", "c"})
    weights.push_back({name, "F32", Shape{4}, bytes_of(std::vector<float>(4, 2))});
  const auto one = folder("one", weights, 20), other = folder("other", weights);
  AverageOptions options;
  options.file_bytes_max = 32;
  int calls = 0;
  options.after_tensor = [&] { ++calls; };
  const AverageResult result = average_weights({one, other}, directory_ / "out", options);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(result.tensors, 3);
  EXPECT_EQ(result.parameters, 12);
  EXPECT_EQ(result.bytes, 48);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "out/model-00002-of-00002.safetensors"));
  EXPECT_EQ(SafetensorsFolder(directory_ / "out").tensors().size(), 3U);
}

TEST_F(AverageTest, refuses_other_models_and_names_the_tensor) {
  const auto a = fp32("a", {1, 2}), longer = fp32("longer", {1, 2, 3});
  EXPECT_EQ(fault({a, longer}), (directory_ / "longer").string() + ": w is F32 [3], in " +
                                    a.string() + " it is F32 [2] (they are not of one model)");
  const auto more = folder("more", {{"v", "F32", Shape{1}, bytes_of(std::vector<float>{1})},
                                    {"w", "F32", Shape{2}, bytes_of(std::vector<float>{1, 2})}});
  EXPECT_NE(fault({a, more}).find("has v, which"), std::string::npos);
  EXPECT_NE(fault({more, a}).find("has no v, which"), std::string::npos);
  EXPECT_NE(fault({a, directory_ / "absent"}, ExitCode::kData).find("absent"), std::string::npos);
  EXPECT_NE(fault({a, directory_.write("file", "")}, ExitCode::kData).find("is a file"),
            std::string::npos);
  const auto heads = fp32("heads", {3, 4});
  for (const auto& [name, count] : {std::pair{"a", "2"}, {"heads", "4"}}) {
    directory_.write(std::string(name) + "/config.json",
                     std::string(R"({"model_type":"llama","num_attention_heads":)") + count + "}");
  }
  EXPECT_EQ(fault({a, heads}), "model.num_attention_heads: 4 in " + heads.string() + ", 2 in " +
                                   a.string() + " (they are not of one model)");
}

TEST_F(AverageTest, overwrites_nothing_and_leaves_nothing_behind) {
  const auto a = fp32("a", {1});
  std::filesystem::create_directory(directory_ / "refused");
  average_weights({a}, directory_ / "refused", {});
  const auto refused = [&](const std::filesystem::path& output) {
    try {
      average_weights({a}, output, {});
    } catch (const ConfigError& error) {
      return std::string(error.what()).find("nothing is overwritten") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(directory_ / "refused")) << "an earlier mean";
  EXPECT_TRUE(refused(a));
  EXPECT_TRUE(refused(directory_.write("file", "")));
  std::filesystem::create_symlink("nowhere", directory_ / "link");
  EXPECT_TRUE(refused(directory_ / "link"));
  AverageOptions options;
  options.after_tensor = [] { throw DataError("stopped"); };
  EXPECT_THROW(average_weights({a}, directory_ / "new", options), DataError);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "new"));
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos);
}

TEST_F(AverageTest, takes_checkpoints_of_ours_and_gpt2_without_its_prefix) {
  const std::filesystem::path golden = golden_path("model/" + golden_model_cases().front());
  const auto world = make_self_communicator();
  std::vector<std::filesystem::path> steps;
  for (const int step : {1, 2}) {
    TestState state;
    state.add_whole("parameters/transformer.w", Shape{2, 3});
    state.add_whole("optimizer/transformer.w/exp_avg", Shape{2, 3});
    float* values = reinterpret_cast<float*>(state.state().tensors.front().data);
    for (int i = 0; i < 6; ++i) values[i] = static_cast<float>(step * 10 + i);
    SaveRequest request = request_for(directory_ / "checkpoints", step, state.state());
    request.model = parse_json(read_file(golden / "config.json"), "config.json");
    const SaveResult saved = save_checkpoint(request, *world);
    ASSERT_EQ(saved.error, "");
    steps.push_back(saved.path);
  }
  EXPECT_EQ(mean(steps, "transformer.w"), bytes_of(std::vector<float>{15, 16, 17, 18, 19, 20}));
  for (const char* name : {"config.json", "generation_config.json"})
    EXPECT_TRUE(std::filesystem::exists(output_ / name));
  EXPECT_EQ(SafetensorsFolder(output_).tensors().size(), 1U) << "no optimizer";
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto other = folder("other", {{"w", "F32", Shape{2, 3}, bytes_of(values)}});
  EXPECT_EQ(mean({other, steps[0]}), bytes_of(std::vector<float>{5.5, 6.5, 7.5, 8.5, 9.5, 10.5}));
  // A flipped bit is found by its hash.
  const std::filesystem::path damaged = steps[1] / "rank-00000.h5";
  std::string bytes = read_file(damaged);
  const float stored = 23;
  const std::size_t at =
      bytes.find(std::string_view(reinterpret_cast<const char*>(&stored), sizeof stored));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_file_atomically(damaged, bytes);
  EXPECT_NE(fault(steps, ExitCode::kData).find("transformer.w"), std::string::npos);
}

/// Adapters of one model, as peft has them and as a run saves them.
class AdapterAverage : public AverageTest {
 protected:
  /// The golden folder's with every value times two, and another text in place of one of its
  /// config's.
  std::filesystem::path doubled(const std::string& name, const std::string& text = "",
                                const std::string& other = "") {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directory(path);
    std::string config = read_file(golden_.folder / kAdapterConfigName);
    if (!text.empty()) config.replace(config.find(text), text.size(), other);
    directory_.write(name + "/adapter_config.json", config);
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const auto& [tensor, values] : values_) tensors.push_back({tensor, Shape(values.shape)});
    SafetensorsWriter writer(path, DType::kF32, tensors);
    for (const auto& [tensor, values] : values_) {
      std::vector<float> twice;
      for (const double value : values.values) twice.push_back(static_cast<float>(2 * value));
      writer.write(twice);
    }
    writer.finish();
    std::filesystem::rename(path / "model.safetensors", path / kAdapterWeightsName);
    return path;
  }

  AdapterGolden golden_{"qwen2_rslora_dora"};
  GoldenTensors values_ = read_tensors(golden_.folder / kAdapterWeightsName);
};

TEST_F(AdapterAverage, is_an_adapter_with_the_means_of_its_factors) {
  const auto step = save_adapters(golden_, directory_ / "run", golden_.base), other = doubled("b");
  average_weights({golden_.folder, other, doubled("c")}, directory_ / "peft", {});
  average_weights({step, step}, directory_ / "run_alone", {});
  const GoldenTensors mean = read_tensors(directory_ / "peft" / std::string(kAdapterWeightsName)),
                      same =
                          read_tensors(directory_ / "run_alone" / std::string(kAdapterWeightsName));
  ASSERT_EQ(mean.size(), values_.size());
  for (const auto& [name, tensor] : values_) {
    EXPECT_EQ(same.at(name).values, tensor.values) << name;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      EXPECT_EQ(mean.at(name).values[i],
                static_cast<double>(static_cast<float>(5 * tensor.values[i] / 3)))
          << name;
    }
  }
  EXPECT_EQ(read_file(directory_ / "peft/adapter_config.json"),
            read_file(golden_.folder / kAdapterConfigName));
  EXPECT_EQ(adapter_difference(read_adapter_config(directory_ / "run_alone").lora,
                               golden_.facts.lora, golden_.model, "peft"),
            "");
}

TEST_F(AdapterAverage, refuses_adapters_that_mean_something_else) {
  const auto& a = golden_.folder;
  EXPECT_NE(fault({a, doubled("b", R"("r": 4)", R"("r": 8)")}).find("rank 8"), std::string::npos);
  EXPECT_NE(fault({a, doubled("c", R"("lora_alpha": 6)", R"("lora_alpha": 7)")}).find("scale 3.5"),
            std::string::npos);
  EXPECT_NE(fault({a, doubled("d", "model/qwen2", "model/other")}).find("model/other"),
            std::string::npos);
  EXPECT_NE(fault({a, fp32("whole", {1})}).find("holds a whole model"), std::string::npos);
  EXPECT_NE(fault({a, doubled("e", "LORA", "IA3")}, ExitCode::kData).find("peft_type"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
