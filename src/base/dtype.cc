#include "base/dtype.h"

namespace trireme {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "fp64";
    case DType::kI32:
      return "int32";
    case DType::kF8E4M3:
      return "e4m3";
    case DType::kF8E5M2:
      return "e5m2";
    case DType::kU8:
      return "uint8";
  }
  return "?";
}

}  // namespace trireme
