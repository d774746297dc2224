#pragma once
// Cells of meshes that are made by hand, beside the table of all (mesh_table.h).

#include <vector>

#include "train/mesh_table.h"

namespace trireme {

/// Every axis and stage of ZeRO with adapters beside a base that stands still, which stages 1 and 2
/// leave whole on every rank.
std::vector<MeshCell> adapter_cells(int ranks);
/// Parameters of every kind stand still, on every axis and stage of ZeRO, tied ones too.
std::vector<MeshCell> group_cells(int ranks, OptimizerKind optimizer);
/// The same meshes with moments in 8 bits, whose blocks no cut of these models fits.
std::vector<MeshCell> coded_cells(int ranks);
/// Those of Muon, and matrices in parts of every kind: of several axes, of experts, of latents.
std::vector<MeshCell> muon_cells(int ranks);
/// Beside the head too, whose rows no number of ranks divides, and beside it alone: no gradient
/// goes below it.
std::vector<MeshCell> head_adapter_cells(int ranks);
/// Dropout on every axis, by every way of attention, with what is computed again and apart.
std::vector<MeshCell> dropout_cells(int ranks);
/// Adapters of experts that ranks share out whole, or in parts, by either way of their tokens.
std::vector<MeshCell> expert_adapter_cells(int ranks);
/// Sizes that no mesh cuts at blocks of 128. Bits are equal within the classes of any other type.
std::vector<MeshCell> fp8_cells(int ranks);
/// A row's scales are those of its source, so that bits do not depend on who has its expert.
std::vector<MeshCell> fp8_expert_cells(int ranks);

}  // namespace trireme
