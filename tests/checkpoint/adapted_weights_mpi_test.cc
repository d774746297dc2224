// Adapters merged while weights are loaded, on ranks that have boxes of them.

#include <gtest/gtest.h>

#include "adapter_fixture.h"
#include "base/math.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "shared_directory.h"

namespace trireme {
namespace {

class AdaptedWeightsOnRanks : public testing::TestWithParam<std::string> {
 protected:
  /// Matrices are cut along `dim` over the ranks but the last, which holds a copy of the box of the
  /// one before: its squares must not be counted twice.
  void merge(int dim, const std::function<void(State&)>& load) {
    TestState state;
    const int rank = world_.rank(), ways = world_.size() - 1, index = std::min(rank, ways - 1);
    for (const auto& [name, tensor] : merged_.base()) {
      const Shape shape(tensor.shape);
      Box box = whole(shape);
      int first = 0;  // rank of those that hold this box
      if (shape.rank() == 2) {
        const Slice slice = even_slice(shape[dim], ways, index);
        box.offset.set(dim, slice.begin);
        box.shape.set(dim, slice.size);
        first = ways - 1;
      }
      const bool shared = rank >= first;
      state.add({"parameters/" + name, DType::kF32, shape, box, shared ? rank - first : 0,
                 shared ? world_.size() - first : 1});
    }
    import_weights(golden_.base, state.state(), world_);
    add_adapters(golden_.model, state.state(), load, world_);
    int compared = 0;
    for (const StateTensor& tensor : state.state().tensors) {
      if (!golden_.facts.lora.dora) {
        EXPECT_EQ(bits(tensor), bits_of_whole(tensor)) << tensor.name;
      }
      compared += merged_.expect_box(tensor.name.substr(std::string("parameters/").size()),
                                     {tensor.data, tensor.box});
    }
    EXPECT_EQ(compared, merged_.changed());
  }

  static std::string bits(const StateTensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.data),
            static_cast<std::size_t>(tensor.box.shape.count()) * sizeof(float)};
  }
  /// The same box of what one rank makes of the whole weight.
  std::string bits_of_whole(const StateTensor& tensor) {
    const std::unique_ptr<Communicator> self = make_self_communicator();
    if (alone_.state().tensors.empty()) {
      for (const auto& [name, golden] : merged_.base())
        alone_.add_whole("parameters/" + name, Shape(golden.shape));
      import_weights(golden_.base, alone_.state(), *self);
      add_adapters(
          golden_.model, alone_.state(),
          [&](State& adapters) { import_adapter(golden_.folder, golden_.model, adapters, *self); },
          *self);
    }
    const auto& all = alone_.state().tensors;
    const auto whole_one = std::find_if(
        all.begin(), all.end(), [&](const StateTensor& one) { return one.name == tensor.name; });
    std::string box(bits(tensor).size(), '\0');
    copy_box({whole_one->data, whole_one->box},
             {reinterpret_cast<std::byte*>(box.data()), tensor.box}, tensor.box, sizeof(float));
    return box;
  }

  TestState alone_;
  Communicator& world_ = test_world();
  AdapterGolden golden_{GetParam()};
  MergedGolden merged_{golden_};
};

TEST_P(AdaptedWeightsOnRanks, are_pefts_however_they_are_cut) {
  for (const int dim : {0, 1})
    merge(dim, [&](State& adapters) {
      import_adapter(golden_.folder, golden_.model, adapters, world_);
    });
}

TEST_P(AdaptedWeightsOnRanks, come_from_a_checkpoint_too) {
  const SharedDirectory directory;
  std::filesystem::path step;
  if (world_.rank() == 0) step = save_adapters(golden_, directory.path() / "run", golden_.base);
  step = world_.broadcast_text(step.string(), 0);
  merge(1, [&](State& adapters) { load_state(step, adapters, world_, LoadScope::kParameters); });
}

INSTANTIATE_TEST_SUITE_P(Golden, AdaptedWeightsOnRanks, testing::ValuesIn(adapter_cases()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace trireme
