// What ranks have written, joined on its way to rank 0.

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "checkpoint/manifest.h"

namespace trireme {

namespace {

/// Where `b` goes on where `a` ends, with equal pieces at equal distances of ranks: `a` gets it.
bool continues(ManifestRun& a, const ManifestRun& b) {
  if (a.box.shape.rank() == 0) return false;
  const std::int64_t rows = a.box.shape[0] / a.count;
  const std::int64_t stride = b.rank - a.rank_of(a.count - 1);
  const auto fits = [&](const ManifestRun& run) { return run.count == 1 || run.stride == stride; };
  if (stride <= 0 || !fits(a) || !fits(b) || rows * b.count != b.box.shape[0]) return false;
  Box joint = a.box;
  joint.offset.set(0, a.box.offset[0] + a.box.shape[0]);
  joint.shape.set(0, b.box.shape[0]);
  if (joint != b.box) return false;
  a.box.shape.set(0, a.box.shape[0] + b.box.shape[0]);
  a.count += b.count;
  a.stride = stride;
  return true;
}

/// In an order in which adjacent rows of the same columns follow each other.
bool before(const ManifestRun& a, const ManifestRun& b) {
  const auto x = a.box.offset.sizes(), y = b.box.offset.sizes();
  if (x.empty() || y.empty()) return false;
  const auto columns = [](const auto& sizes) { return sizes.subspan(1); };
  const auto p = columns(x), q = columns(y);
  if (!std::equal(p.begin(), p.end(), q.begin(), q.end()))
    return std::lexicographical_compare(p.begin(), p.end(), q.begin(), q.end());
  return x[0] < y[0];
}

void join_runs(std::vector<ManifestRun>& runs) {
  std::stable_sort(runs.begin(), runs.end(), before);
  std::vector<ManifestRun> joined;
  for (const ManifestRun& run : runs) {
    if (joined.empty() || !continues(joined.back(), run)) joined.push_back(run);
  }
  runs = std::move(joined);
}

void join_tensor(ManifestTensor& tensor, ManifestTensor more) {
  expect(tensor.dtype == more.dtype && tensor.shape == more.shape,
         "{}: one rank has {} {}, another {} {}", tensor.name, name_of(tensor.dtype),
         tensor.shape.text(), name_of(more.dtype), more.shape.text());
  std::move(more.shards.begin(), more.shards.end(), std::back_inserter(tensor.shards));
  std::sort(tensor.shards.begin(), tensor.shards.end(),
            [](const ManifestShard& a, const ManifestShard& b) {
              const auto x = a.box.offset.sizes(), y = b.box.offset.sizes();
              return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
            });
  tensor.runs.insert(tensor.runs.end(), more.runs.begin(), more.runs.end());
  join_runs(tensor.runs);
}

}  // namespace

Box ManifestRun::piece(std::int64_t i) const {
  Box piece = box;
  if (count == 1) return piece;
  const std::int64_t rows = box.shape[0] / count;
  piece.offset.set(0, box.offset[0] + i * rows);
  piece.shape.set(0, rows);
  return piece;
}

std::int64_t ManifestTensor::shard_count() const {
  std::int64_t shard_count = std::ssize(shards);
  for (const ManifestRun& run : runs) shard_count += run.count;
  return shard_count;
}

void join_contents(Manifest& manifest, Manifest more) {
  std::move(more.stores.begin(), more.stores.end(), std::back_inserter(manifest.stores));
  std::vector<ManifestTensor> joined;
  auto mine = manifest.tensors.begin();
  for (ManifestTensor& theirs : more.tensors) {
    while (mine != manifest.tensors.end() && mine->name < theirs.name)
      joined.push_back(std::move(*mine++));
    if (mine == manifest.tensors.end() || mine->name != theirs.name) {
      joined.push_back(std::move(theirs));
    } else {
      join_tensor(*mine, std::move(theirs));
      joined.push_back(std::move(*mine++));
    }
  }
  std::move(mine, manifest.tensors.end(), std::back_inserter(joined));
  manifest.tensors = std::move(joined);
}

}  // namespace trireme
