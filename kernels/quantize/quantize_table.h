#pragma once

#include <cstdint>

#include "base/float8.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// A ScaleDim as the loops read it: its parts that have indices, in order.
struct QuantizedDim {
  struct Part {
    std::int64_t begin, size;  ///< indices of the tensor
    std::int64_t first_block;  ///< of the dim's blocks, where `begin` lies
    std::int64_t phase;        ///< of `begin` in that block
    std::int64_t lead;         ///< of `begin` in its first tile of 128 of the padded order
    std::int64_t at;           ///< where `begin` lies in a row of codes
    std::int64_t first_tile;   ///< of the dim's tiles, the one of `begin`
  };
  Part parts[4];
  std::int64_t part_count;
  std::int64_t block;  ///< indices; more than there are where a part is one
  std::int64_t size, blocks;
  std::int64_t width;  ///< of a row of codes that are this dim's
  std::int64_t tiles;  ///< of 128
  int tile_shift;      ///< a tile's indices share a block where these are equal >> tile_shift
  bool whole;          ///< a block is all of a part
  bool padded;         ///< a row of codes is, if they lie along it
};

/// amax[i, j] = bits of max |x| of each block.
struct AbsoluteMaxArgs {
  Exec exec;
  std::int32_t* amax;
  const void* x;
  QuantizedDim rows, columns;  ///< of x
  std::int32_t* partial;       ///< CPU, where rows.whole: an amax for each thread
  DType x_type;
};

/// scales = 1 / s; s too, where asked for.
struct ScalesArgs {
  Exec exec;
  float* scales;
  float* factors;  ///< s; may be null
  const std::int32_t* amax;
  std::int64_t count;
  DType format;
};

/// Codes of x [rows, columns], and scales. Codes are [rows.size, columns.width] or, transposed,
/// [columns.size, rows.width]; what is no index in a row of them becomes 0.
struct QuantizeArgs {
  Exec exec;
  void* codes;
  float* scales;  ///< may be null
  const void* x;
  std::int32_t* amax;  ///< of x's blocks
  float* factors;      ///< scratch for as many
  std::int32_t* partial;
  QuantizedDim rows, columns;  ///< of x
  bool find_amax;              ///< else it is given
  bool transpose;
  DType x_type, format;
};

/// Codes of x and, transposed, of x again; of one x, type and format. The maxima of both stand at
/// one place where their blocks are the same and are found apart from the codes.
struct QuantizeBothArgs {
  QuantizeArgs along, across;
};

/// x [rows, columns] = codes [rows.size, columns.width] times scales.
struct DequantizeArgs {
  Exec exec;
  void* x;
  const void* codes;
  const float* scales;
  QuantizedDim rows, columns;
  DType x_type, format;
};

/// f32 panel [row_count, column_count] = values of rows [first_row, ...) and of columns
/// [first_column, ...) of the codes' order, 0 where there is no index.
struct DecodePanelArgs {
  Exec exec;
  float* panel;
  const void* codes;
  const float* scales;
  QuantizedDim rows, columns;
  std::int64_t first_row, row_count, first_column, column_count;
  DType format;
};

/// The same codes and scales in another order; dims are those of `from`.
struct ReorderArgs {
  Exec exec;
  std::uint8_t* to;
  float* to_scales;
  const std::uint8_t* from;
  const float* from_scales;
  QuantizedDim rows, columns;
  QuantizedDim along;  ///< columns or, transposed, rows, as they lie in a row of `to`
  bool transpose;
};

/// most[i] = the largest of most[i] and others[p, i].
struct JoinMaximaArgs {
  Exec exec;
  std::int32_t* most;
  const std::int32_t* others;
  std::int64_t count, parts;
};

/// Where an op leaves what QuantizedOutput says of the rows that it makes; null: not wanted.
struct RowCodes {
  static constexpr std::int64_t kBlock = 128;
  std::uint8_t* codes;
  float* scales;
  std::int64_t width;  ///< of a row of codes: whole blocks
  std::int32_t* amax;
};

struct QuantizeKernels {
  void (*absolute_max)(const AbsoluteMaxArgs&);
  void (*scales)(const ScalesArgs&);
  void (*quantize)(const QuantizeArgs&);
  void (*quantize_both)(const QuantizeBothArgs&);
  void (*dequantize)(const DequantizeArgs&);
  void (*reorder)(const ReorderArgs&);
  void (*join_maxima)(const JoinMaximaArgs&);
  void (*decode_panel)(const DecodePanelArgs&);  ///< CPU
};
TRIREME_CPU_TABLES(QuantizeKernels, quantize_cpu);
namespace cuda {
extern const QuantizeKernels quantize_cuda;
}

}  // namespace trireme
