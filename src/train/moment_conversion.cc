#include "train/moment_conversion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/reader.h"
#include "kernels/update/moment_codes.h"
#include "store/moment_blocks.h"

namespace trireme {

namespace {

constexpr std::string_view kAbsmax = "_absmax";

bool is_absmax(std::string_view name) { return name.ends_with(kAbsmax); }

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// f(element of the tensor, element of the box, count) for elements of a box that follow each other
/// in both, in order.
template <class F>
void for_each_run(const Box& box, const Shape& shape, const F& f) {
  if (box.shape.count() == 0) return;
  const bool matrix = shape.rank() == 2;
  const std::int64_t row = matrix ? shape[1] : 1, width = matrix ? box.shape[1] : 1;
  const std::int64_t first = box.offset[0] * row + (matrix ? box.offset[1] : 0);
  if (width == row) return f(first, std::int64_t{0}, box.shape.count());
  for (std::int64_t r = 0; r < box.shape[0]; ++r) f(first + r * row, r * width, width);
}

/// One moment of a parameter.
struct Moment {
  std::string name;
  std::vector<StateTensor> values, absmax;  ///< of the run, on this rank
};

/// What is read of a moment: its boxes in the checkpoint's type, and of codes all magnitudes.
class Source {
 public:
  explicit Source(const Moment& moment) : of_(moment) {}

  void ask_for(State& state, const Manifest& manifest) {
    const ManifestTensor& stored = *manifest.find(of_.name);
    shape_ = stored.shape;
    coded_ = stored.dtype == DType::kU8;
    // Where every rank has all magnitudes, a rank's own elements do not give them.
    const bool crossed = std::any_of(of_.absmax.begin(), of_.absmax.end(), [](const auto& part) {
      return part.box.shape == part.global_shape;
    });
    if (crossed) {
      boxes_.push_back(whole(shape_));
    } else {
      for (const StateTensor& part : of_.values) boxes_.push_back(part.box);
    }
    for (const Box& box : boxes_) read(state, of_.name, stored, box);
    if (!coded_) return;
    const std::string name = of_.name + std::string(kAbsmax);
    read(state, name, *manifest.find(name), whole(moment_blocks_shape(shape_)));
  }

  void give() const { coded_ ? widen() : round(); }

 private:
  void read(State& state, const std::string& name, const ManifestTensor& stored, const Box& box) {
    StateTensor tensor;
    tensor.name = name;
    tensor.dtype = stored.dtype;
    tensor.global_shape = stored.shape;
    tensor.box = box;
    memory_.emplace_back(at(box.shape.count()) * size_of(stored.dtype));
    tensor.data = memory_.back().data();
    state.tensors.push_back(tensor);
  }
  [[nodiscard]] const MomentCodes& map() const {
    const bool squares = of_.name.ends_with("_sq");
    return squares ? moment_tables().of_unsigned : moment_tables().of_signed;
  }
  [[nodiscard]] const float* floats(std::size_t i) const {
    return reinterpret_cast<const float*>(memory_[i].data());
  }

  void widen() const {
    const float* absmax = floats(boxes_.size());
    for (std::size_t i = 0; i < of_.values.size(); ++i) {
      auto* to = reinterpret_cast<float*>(of_.values[i].data);
      const auto* codes = reinterpret_cast<const std::uint8_t*>(memory_[i].data());
      for_each_run(boxes_[i], shape_, [&](std::int64_t first, std::int64_t begin, std::int64_t n) {
        for (std::int64_t k = 0; k < n; ++k)
          to[begin + k] = map().value[codes[begin + k]] * absmax[(first + k) / kMomentBlock];
      });
    }
  }

  void round() const {
    std::vector<std::uint32_t> most(at(moment_blocks_shape(shape_).count()));
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      for_each_run(boxes_[i], shape_, [&](std::int64_t first, std::int64_t begin, std::int64_t n) {
        for (std::int64_t k = 0; k < n; ++k) {
          std::uint32_t& of_block = most[at((first + k) / kMomentBlock)];
          of_block =
              std::max(of_block, std::bit_cast<std::uint32_t>(std::abs(floats(i)[begin + k])));
        }
      });
    }
    const auto absmax = [&](std::int64_t block) { return std::bit_cast<float>(most[at(block)]); };
    const bool all = boxes_.size() == 1 && boxes_.front().shape == shape_;
    for (std::size_t i = 0; i < of_.values.size(); ++i) {
      auto* codes = reinterpret_cast<std::uint8_t*>(of_.values[i].data);
      const Box& box = of_.values[i].box;
      for_each_run(box, shape_, [&](std::int64_t first, std::int64_t begin, std::int64_t n) {
        const float* from = all ? floats(0) + first : floats(i) + begin;
        for (std::int64_t k = 0; k < n; ++k)
          codes[begin + k] = moment_code(map(), from[k], absmax((first + k) / kMomentBlock));
      });
    }
    for (const StateTensor& part : of_.absmax) {
      auto* to = reinterpret_cast<float*>(part.data);
      for_each_run(part.box, part.global_shape,
                   [&](std::int64_t first, std::int64_t begin, std::int64_t n) {
                     for (std::int64_t k = 0; k < n; ++k) to[begin + k] = absmax(first + k);
                   });
    }
  }

  const Moment& of_;
  Shape shape_;
  bool coded_ = false;
  std::vector<Box> boxes_;
  std::deque<std::vector<std::byte>> memory_;  // of each of boxes_; of codes that of absmax behind
};

}  // namespace

void convert_moments(State& state, const std::filesystem::path& folder, const Manifest& manifest,
                     MomentType wanted, Communicator& replica) {
  const bool saved_codes =
      std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                  [](const ManifestTensor& tensor) { return is_absmax(tensor.name); });
  if (saved_codes == (wanted == MomentType::k8bit)) return;
  std::map<std::string, Moment> moments;
  std::erase_if(state.tensors, [&](const StateTensor& tensor) {
    const bool absmax = is_absmax(tensor.name);
    const std::string name =
        absmax ? tensor.name.substr(0, tensor.name.size() - kAbsmax.size()) : tensor.name;
    const ManifestTensor* stored = manifest.find(name);
    if (!name.starts_with("optimizer/") || stored == nullptr) return false;
    if (!absmax && stored->dtype == tensor.dtype) return false;
    Moment& moment = moments.try_emplace(name, Moment{name, {}, {}}).first->second;
    (absmax ? moment.absmax : moment.values).push_back(tensor);
    return true;
  });
  State read;
  std::deque<Source> sources;
  for (const auto& [name, moment] : moments) sources.emplace_back(moment).ask_for(read, manifest);
  load_state(folder, read, replica, LoadScope::kSome);
  for (const Source& source : sources) source.give();
}

}  // namespace trireme
