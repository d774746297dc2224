#include "train/kept_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/reader.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

namespace {

constexpr std::string_view kByte = "byte";

/// What a folder's tokenizer is to the run's.
enum class Tokenizers { kEqual, kOther, kUnknown };

Tokenizers compare_tokenizers(const std::filesystem::path& folder, const std::string& hash) {
  if (hash == kByte) return Tokenizers::kOther;
  if (!is_there(folder / kTokenizerName)) return Tokenizers::kUnknown;
  try {
    const bool equal = load_tokenizer((folder / kTokenizerName).string())->hash() == hash;
    return equal ? Tokenizers::kEqual : Tokenizers::kOther;
  } catch (const Error&) {
    return Tokenizers::kOther;  // one that is not understood is not the run's
  }
}

void add(std::vector<ExtraFile>& kept, ExtraFile file) {
  const bool there = std::any_of(kept.begin(), kept.end(),
                                 [&](const ExtraFile& one) { return one.name == file.name; });
  if (!there) kept.push_back(std::move(file));
}

void add_all(std::vector<ExtraFile>& kept, const std::filesystem::path& folder,
             const std::string& hash) {
  const bool of_run = compare_tokenizers(folder, hash) != Tokenizers::kOther;
  for (ExtraFile& file : read_companions(folder)) {
    if (of_run || !belongs_to_tokenizer(file.name)) add(kept, std::move(file));
  }
}

/// A checkpoint's step folder, or the Hugging Face directory itself; empty where there is none.
std::filesystem::path folder_of_weights(const std::string& weights) {
  if (weights == "random" || !is_folder(weights)) return {};
  if (!looks_like_checkpoint(weights)) return weights;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  return resolve_checkpoint_argument(weights, *self);
}

}  // namespace

std::vector<ExtraFile> kept_files(const RunConfig& config, const std::string& tokenizer_hash,
                                  const std::filesystem::path& resumed) {
  std::vector<ExtraFile> kept;
  if (config.tokenizer != kByte) {
    std::filesystem::path file = config.tokenizer;
    if (std::filesystem::is_directory(file)) file /= kTokenizerName;
    kept.push_back({std::string(kTokenizerName), read_file(file)});
    if (file.filename() == kTokenizerName)
      add_all(kept, std::filesystem::absolute(file).parent_path(), tokenizer_hash);
  }
  // A run's checkpoint goes on with what its first life found, also without init.weights.
  if (!resumed.empty()) add_all(kept, resumed, tokenizer_hash);
  const std::filesystem::path weights = folder_of_weights(config.init.weights);
  if (!weights.empty()) add_all(kept, weights, tokenizer_hash);
  return kept;
}

}  // namespace trireme
