#include "kernels/ptx_host/options.h"

#include <cstdlib>
#include <string_view>

namespace trireme::ptx {
namespace {

bool is_set(const char* name, std::string_view value) {
  const char* text = std::getenv(name);
  return text != nullptr && value == text;
}

}  // namespace

const Options& options() {
  static const Options all = {is_set("TRIREME_PTX_SUMS", "tensor-core"),
                              is_set("TRIREME_PTX_APPROXIMATE", "worst"),
                              is_set("TRIREME_PTX_OPEN_LOADS", "allowed")};
  return all;
}

}  // namespace trireme::ptx
