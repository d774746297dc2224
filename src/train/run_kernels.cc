#include "train/run_kernels.h"

#include <cstdlib>

#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "device/gpu.h"
#include "kernels/attention/attention_backend.h"
#include "kernels/gemm/gemm.h"

namespace trireme {
namespace {

struct ChoicesFile {
  Json device, libraries;
  KernelChoices choices;
};

ChoicesFile parse(std::string_view text, std::string_view source) {
  const Json json = parse_json(text, source);
  const auto member = [&](const char* key) -> const Json& {
    const Json* value = json.find(key);
    if (value == nullptr) {
      throw DataError(
          "{}: has no \"{}\" (legal: {{\"device\", \"libraries\", \"products\"}}, as {} of a run)",
          source, key, RunKernels::kFileName);
    }
    return *value;
  };
  (void)member("products");
  return {member("device"), member("libraries"), KernelChoices::parse(json, source)};
}

Json libraries(const Context& context) {
  Json libraries = Json::object();
  libraries["trireme"] = program_version();
  libraries["cublaslt"] = gemm_gpu_library_version();
  const AttentionBackend& attention = *context.attention_backend();
  if (attention.library != nullptr) libraries[attention.library] = attention.version();
  return libraries;
}

}  // namespace

RunKernels::RunKernels(Runtime& runtime, const std::filesystem::path& checkpoint)
    : runtime_(runtime) {
  if (!runtime.context.on_gpu()) return;
  device_ = gpu::info(runtime.context.device().index).name;
  libraries_ = libraries(runtime.context);
  read(checkpoint);
  runtime.context.set_kernel_choices(&choices_);
}

RunKernels::~RunKernels() { runtime_.context.set_kernel_choices(nullptr); }

void RunKernels::read(const std::filesystem::path& checkpoint) {
  const char* variable = std::getenv("TRIREME_KERNEL_CHOICES");
  const std::string wish =
      runtime_.replica().broadcast_text(variable == nullptr ? "" : variable, 0);
  const bool anew = wish == "measure", pinned = !wish.empty() && !anew;
  choices_.set_measuring(anew || (!pinned && gpu::backend_name() == "cuda"));
  if (anew) return;
  std::string text;
  const std::filesystem::path path = pinned ? std::filesystem::path(wish) : checkpoint / kFileName;
  run_together(runtime_.replica(), [&] {
    if (runtime_.replica().rank() != 0) return;
    // A checkpoint of a CPU, or of a run whose products had one kernel each, has none.
    if (!pinned && (checkpoint.empty() || !std::filesystem::exists(path))) return;
    text = read_file(path, std::size_t{64} << 20);
    (void)parse(text, path.string());
  });
  text = runtime_.replica().broadcast_text(text, 0);
  if (text.empty()) return;
  const ChoicesFile file = parse(text, path.string());
  const bool same = file.device == device_ && file.libraries == libraries_;
  if (same || pinned) choices_.add(file.choices);
  if (same) {
    log_info("{} kernels are those of {}", choices_.size(), path.string());
  } else {
    log_warning("{} was made on {} with {}, this is {} with {}: {}, and bits may differ",
                path.string(), file.device.dump(), file.libraries.dump(), device_.dump(),
                libraries_.dump(),
                pinned ? "its kernels are used all the same where there are such"
                       : "kernels are chosen anew");
  }
}

void RunKernels::measure(const std::function<void()>& rehearsal) {
  if (!choices_.measuring()) return;
  rehearsal();
  agree();
}

void RunKernels::agree() {
  choices_.set_measuring(false);
  const auto parse = [](const std::string& text) {
    return KernelChoices::parse(parse_json(text, "kernels"), "the kernels of a rank");
  };
  Communicator& replica = runtime_.replica();
  const std::string agreed = replica.reduce_text(
      choices_.json().dump(), [&](const std::string& lower, const std::string& higher) {
        KernelChoices both = parse(lower);
        both.add(parse(higher));
        return both.json().dump();
      });
  choices_ = parse(replica.broadcast_text(agreed, 0));
}

std::string RunKernels::text() const {
  if (choices_.size() == 0) return "";
  Json file = Json::object();
  file["device"] = device_;
  file["libraries"] = libraries_;
  const Json choices = choices_.json();
  for (const auto& [list, of_list] : choices.as_object()) file[list] = of_list;
  return file.dump(1) + "\n";
}

}  // namespace trireme
