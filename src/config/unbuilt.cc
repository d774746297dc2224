#include "config/unbuilt.h"

#include <algorithm>

#include "config/fields.h"

namespace trireme {

bool is_future_key(std::string_view path) {
  static constexpr std::string_view kKeys[] = {"parallel.offload"};
  return find_field(path) == nullptr &&
         std::find(std::begin(kKeys), std::end(kKeys), path) != std::end(kKeys);
}

}  // namespace trireme
