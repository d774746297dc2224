#pragma once
// A path that a person gave and that is not there: what is missing, and what they may have meant.

#include <filesystem>
#include <string>

namespace trireme {

/// "runs/a/step-5: there is no such file or folder (runs/a is there; nearest: step-50)".
std::string missing_path_text(const std::filesystem::path& path);

/// The same of a model, tokenizer or weights; a name as these have on the Hugging Face Hub ("gpt2",
/// "meta-llama/Llama-3.1-8B") is told apart: nothing is downloaded by name, and how one gets it.
std::string missing_model_text(const std::filesystem::path& path);

}  // namespace trireme
