#include "base/missing_path.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(MissingPath, the_part_that_is_not_there_is_named) {
  const TemporaryDirectory folder;
  const std::string text = missing_path_text(folder.path() / "runs" / "a" / "step-5");
  EXPECT_NE(text.find(folder.path().string() + " is there, and runs in it is not"),
            std::string::npos)
      << text;
}

TEST(MissingPath, what_is_called_nearly_so_is_named) {
  const TemporaryDirectory folder;
  for (const char* name : {"base.json", "toy.bin", "step-00000010"})
    std::ofstream(folder.path() / name) << "x";
  const auto near = [&](const char* name) {
    const std::string text = missing_path_text(folder.path() / name);
    const auto at = text.find("; nearest: ");
    return at == std::string::npos ? "" : text.substr(at + 11, text.size() - at - 12);
  };
  EXPECT_EQ(near("bsae.json"), "base.json");
  EXPECT_EQ(near("base"), "base.json");
  EXPECT_EQ(near("base.jsn"), "base.json");
  EXPECT_EQ(near("step-00000001/manifest.json"), "step-00000010");
  EXPECT_EQ(near("zzzz.json"), "");
  EXPECT_EQ(near("base.json/within"), "") << "a file that is there holds nothing";
}

TEST(MissingPath, a_name_of_the_hub_is_not_taken_for_a_path) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.1-8B"}) {
    const std::string text = missing_model_text(name);
    EXPECT_NE(text.find("nothing is downloaded"), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("hf download ") + name), std::string::npos) << text;
  }
  for (const char* path : {"./gpt2", "/gpt2", "a/b/c", "tokenizer.json", "some where"}) {
    EXPECT_EQ(missing_model_text(path).find("download"), std::string::npos) << path;
  }
}

TEST(MissingPath, a_name_too_long_for_a_file_is_missing_too) {
  EXPECT_NE(missing_path_text(std::string(5000, 'm')).find("no such file"), std::string::npos);
}

}  // namespace
}  // namespace trireme
