#include "train/mesh_cells.h"

namespace trireme {

std::vector<MeshCell> adapter_cells(int ranks) {
  MeshCell tensor, sequence, context, pipeline;
  tensor.tensor = sequence.tensor = context.context = pipeline.pipeline = ranks;
  sequence.sequence_parallel = true;
  sequence.recompute = Recompute::kFull;
  pipeline.schedule = "zb-h1";
  pipeline.layers = ranks;
  pipeline.accumulation = 2;
  std::vector<MeshCell> cells = {tensor, sequence, context};
  if (ranks > 1) cells.push_back(pipeline);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    cells[i].magnitudes = i % 2 != 0;
    const bool own_keys = cells[i].tensor > 2 || i % 3 == 2;
    cells[i].model = own_keys ? MeshModel::kGpt2Sixteens : MeshModel::kSixteens;
  }
  // All stages of ZeRO have the bits of one another.
  for (int stage = 0; stage < 4; ++stage) {
    MeshCell data;
    data.data = ranks;
    data.zero_stage = stage;
    data.magnitudes = true;
    cells.push_back(data);
  }
  // Stages below the last have nothing to train, and get no gradients.
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    if (ranks == 1) break;
    MeshCell frozen = pipeline;
    frozen.model = MeshModel::kSixteens;
    frozen.schedule = schedule;
    frozen.adapted = AdaptedPart::kLast;
    cells.push_back(frozen);
  }
  for (MeshCell& cell : cells) cell.adapter_rank = 3;
  return cells;
}

std::vector<MeshCell> group_cells(int ranks, OptimizerKind optimizer) {
  MeshCell tensor, context, data, experts, pipeline;
  tensor.tensor = context.context = pipeline.pipeline = pipeline.layers = ranks;
  data.data = experts.data = experts.expert = ranks;
  tensor.model = MeshModel::kOneKey;  // of 12 heads
  tensor.sequence_parallel = true;
  context.model = pipeline.model = MeshModel::kGpt2;
  pipeline.schedule = "zb-h1";
  data.accumulation = pipeline.accumulation = 2;
  experts.model = MeshModel::kQwen2Moe;
  std::vector<MeshCell> cells = {tensor, context, experts};
  for (data.zero_stage = 0; data.zero_stage < 4; ++data.zero_stage) cells.push_back(data);
  if (ranks > 1) cells.push_back(pipeline);
  for (MeshCell& cell : cells) {
    cell.groups = true;
    cell.optimizer = optimizer;
  }
  return cells;
}

std::vector<MeshCell> coded_cells(int ranks) {
  std::vector<MeshCell> cells = group_cells(ranks, OptimizerKind::kAdamW);
  MeshCell segments = cells.front();  // q, k and v in the columns of one matrix
  segments.model = MeshModel::kGpt2Sixteens;
  cells.push_back(segments);
  for (MeshCell& cell : cells) {
    cell.groups = false;
    cell.coded = true;
    // Those whose tensors are large enough.
    if (cell.expert > 1) cell.model = MeshModel::kExpertSixteens;
    if (cell.context > 1 || cell.pipeline > 1) cell.model = MeshModel::kSixteens;
    if (cell.data > 1 && cell.expert == 1)
      cell.model = cell.zero_stage < 2 ? MeshModel::kOneKey : MeshModel::kSixteens;
  }
  return cells;
}

std::vector<MeshCell> muon_cells(int ranks) {
  std::vector<MeshCell> cells = group_cells(ranks, OptimizerKind::kMuon);
  MeshCell data, latents, adapters;
  data.data = adapters.data = ranks;
  data.bf16 = true;
  data.zero_stage = adapters.zero_stage = 1;
  adapters.adapter_rank = 3;
  latents.model = MeshModel::kLatents;
  latents.data = latents.expert = ranks;
  latents.zero_stage = 3;
  for (const MeshCell& cell : {data, latents, adapters}) cells.push_back(cell);
  if (ranks == 4) {
    MeshCell both, hybrid, experts;
    both.tensor = both.data = 2;
    hybrid.data = 4;
    hybrid.hybrid = true;
    experts.model = MeshModel::kQwen2Moe;
    experts.data = 4;
    experts.expert = experts.expert_tensor = 2;
    hybrid.zero_stage = experts.zero_stage = 2;
    for (both.zero_stage = 0; both.zero_stage < 4; ++both.zero_stage) cells.push_back(both);
    cells.push_back(hybrid);
    cells.push_back(experts);
    experts.expert = 1;  // parts of experts in shards
    cells.push_back(experts);
  }
  for (MeshCell& cell : cells) cell.optimizer = OptimizerKind::kMuon;
  return cells;
}

std::vector<MeshCell> head_adapter_cells(int ranks) {
  MeshCell tensor, sequence, context, data, pipeline;
  tensor.tensor = sequence.tensor = context.context = data.data = pipeline.pipeline = ranks;
  if (ranks == 3) tensor.model = sequence.model = MeshModel::kOneKey;  // of 12 heads
  sequence.sequence_parallel = true;
  sequence.recompute = Recompute::kFull;
  data.accumulation = pipeline.accumulation = 2;
  pipeline.layers = ranks;
  std::vector<MeshCell> meshes = {tensor, sequence, context};
  for (data.zero_stage = 0; data.zero_stage < 4; ++data.zero_stage) meshes.push_back(data);
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    pipeline.schedule = schedule;
    if (ranks > 1) meshes.push_back(pipeline);
  }
  std::vector<MeshCell> cells;
  for (MeshCell cell : meshes) {
    cell.adapter_rank = 3;
    for (const AdaptedPart adapted : {AdaptedPart::kHead, AdaptedPart::kHeadAlone}) {
      cell.adapted = adapted;
      cell.magnitudes = cells.size() % 4 > 1;
      cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<MeshCell> dropout_cells(int ranks) {
  std::vector<MeshCell> cells;
  const auto add = [&](MeshCell cell) {
    cell.dropout = true;
    cells.push_back(cell);
  };
  for (const MeshModel model : {MeshModel::kGpt2, MeshModel::kOneKey}) {
    MeshCell tensor, sequence, pipeline, data;
    for (MeshCell* cell : {&tensor, &sequence, &pipeline, &data}) cell->model = model;
    tensor.tensor = sequence.tensor = pipeline.pipeline = data.data = ranks;
    sequence.sequence_parallel = ranks > 1;
    sequence.recompute = Recompute::kFull;
    data.accumulation = pipeline.accumulation = 2;
    data.documents = true;
    pipeline.schedule = "zb-h1";
    pipeline.layers = ranks;
    add(tensor);
    add(sequence);
    add(data);
    data.zero_stage = 3;
    data.recompute = Recompute::kSelective;
    add(data);
    for (const ContextMethod method :
         {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
      MeshCell context;
      context.model = model;
      context.context = ranks;
      context.context_method = method;
      context.documents = model == MeshModel::kOneKey;
      if (ranks > 1) add(context);
    }
    if (ranks == 1) continue;
    add(pipeline);
    pipeline.recompute = Recompute::kFull;
    add(pipeline);
  }
  MeshCell latents, sinks;  // of 4 heads and 12 experts
  latents.model = MeshModel::kLatents;
  sinks.model = MeshModel::kGptOss;
  (ranks == 3 ? latents.data : latents.tensor) = ranks;
  sinks.context = ranks;
  add(latents);
  add(sinks);
  return cells;
}

std::vector<MeshCell> expert_adapter_cells(int ranks) {
  MeshCell data, tensor, pipeline, parts;
  data.data = pipeline.pipeline = data.expert = tensor.expert = ranks;
  (ranks == 3 ? tensor.context : tensor.tensor) = ranks;  // of four heads
  data.model = MeshModel::kQwen2Moe;
  data.accumulation = 2;
  tensor.model = MeshModel::kGptOss;
  tensor.sequence_parallel = tensor.tensor > 1;
  tensor.recompute = Recompute::kFull;
  tensor.dispatch = DispatchMethod::kAllGather;
  pipeline.model = MeshModel::kMixtral;
  pipeline.schedule = "zb-h1";
  pipeline.layers = ranks;
  pipeline.accumulation = 2;
  std::vector<MeshCell> cells = {tensor};
  for (data.zero_stage = 0; data.zero_stage < 4; ++data.zero_stage) cells.push_back(data);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    pipeline.recompute = recompute;
    if (ranks > 1) cells.push_back(pipeline);
  }
  if (ranks % 2 == 0) {
    parts.data = ranks;
    parts.model = MeshModel::kMixtral;
    parts.expert_tensor = 2;
    for (const int stage : {0, 2, 3}) {
      parts.zero_stage = stage;
      parts.accumulation = stage == 2 ? 2 : 1;
      cells.push_back(parts);
    }
    parts.data = ranks / 2;
    parts.tensor = 2;
    parts.model = MeshModel::kGptOss;
    parts.expert = ranks / 2;
    cells.push_back(parts);
  }
  for (MeshCell& cell : cells) {
    cell.adapter_rank = 3;
    cell.adapted = AdaptedPart::kExperts;
  }
  return cells;
}

std::vector<MeshCell> fp8_cells(int ranks) {
  MeshCell tensor, sequence, context, zero, pipeline;
  tensor.tensor = sequence.tensor = context.context = zero.data = ranks;
  sequence.sequence_parallel = true;
  sequence.recompute = Recompute::kFull;
  context.context_method = ContextMethod::kAllGather;
  context.recompute = Recompute::kSelective;
  std::vector<MeshCell> cells;
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    for (MeshCell cell : {tensor, sequence, context, zero}) {
      cell.fp8.emplace();
      cell.fp8->recipe = recipe;
      if (recipe == Fp8Recipe::kBlock) cell.fp8->gradients = DType::kF8E4M3;
      cell.model = MeshModel::kSixteens;
      if (cell.tensor > 2 || (cell.data > 1) == (recipe == Fp8Recipe::kBlock))
        cell.model = MeshModel::kGpt2Sixteens;
      cells.push_back(cell);
      if (cell.data == 1) continue;
      for (cell.zero_stage = 1; cell.zero_stage < 4; ++cell.zero_stage) cells.push_back(cell);
      // Two of three layers take turns in one place.
      cell.layers = 3;
      cell.accumulation = 2;
      cell.recompute = Recompute::kFull;
      for (cell.zero_stage = 2; cell.zero_stage < 4; ++cell.zero_stage) cells.push_back(cell);
    }
    // Adapters beside a base of codes.
    for (MeshCell cell : {tensor, sequence, zero}) {
      cell.fp8.emplace();
      cell.fp8->recipe = recipe;
      cell.model = cell.tensor > 2 ? MeshModel::kGpt2Sixteens : MeshModel::kSixteens;
      cell.adapter_rank = 3;
      cell.magnitudes = recipe == Fp8Recipe::kBlock;
      cells.push_back(cell);
      if (cell.data == 1) continue;
      for (cell.zero_stage = 1; cell.zero_stage < 4; cell.zero_stage += 2) cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<MeshCell> fp8_expert_cells(int ranks) {
  std::vector<MeshCell> cells;
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    MeshCell data;
    data.model = MeshModel::kExpertSixteens;
    data.fp8.emplace();
    data.fp8->recipe = recipe;
    data.data = ranks;
    cells.push_back(data);
    if (ranks == 1) continue;
    for (data.expert = 2; data.expert <= ranks; ++data.expert)
      if (ranks % data.expert == 0) cells.push_back(data);
    MeshCell tensor = data, gathered = data;
    data.expert = gathered.expert = tensor.expert = tensor.tensor = ranks;
    data.zero_stage = 3;
    gathered.dispatch = DispatchMethod::kAllGather;
    gathered.recompute = Recompute::kFull;
    tensor.data = 1;
    tensor.sequence_parallel = true;
    tensor.accumulation = 2;
    cells.insert(cells.end(), {data, gathered, tensor});
    tensor.model = MeshModel::kLatentSixteens;
    tensor.fp8->gradients = DType::kF8E4M3;
    if (recipe == Fp8Recipe::kBlock) cells.push_back(tensor);
    if (ranks % 2 != 0) continue;
    gathered.expert = ranks / 2;
    gathered.expert_tensor = 2;
    gathered.zero_stage = 2;
    cells.push_back(gathered);
    gathered.adapter_rank = 3;
    gathered.adapted = AdaptedPart::kExperts;
    if (recipe == Fp8Recipe::kBlock) cells.push_back(gathered);
  }
  return cells;
}

}  // namespace trireme
