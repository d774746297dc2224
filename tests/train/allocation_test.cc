// The steady state of training takes no memory: counted at operator new, after the first steps.
// oneDNN's own is not counted: its version 3 takes some for each product, and frees it.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "base/op_trace.h"
#include "optim/optimizer.h"
#include "support/gradient_norm.h"
#include "support/model_fixture.h"

namespace {
std::atomic<long> allocations{0};
std::atomic<bool> counting{false};

bool is_of_onednn(const void* caller) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::string_view(info.dli_fname).find("libdnnl") != std::string_view::npos;
}
}  // namespace

// GCC 12 inlines these and then takes malloc and free for a mismatch.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  if (counting && !is_of_onednn(__builtin_return_address(0))) ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace trireme {
namespace {

class SteadyState : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(families, SteadyState, testing::Values("llama_gqa", "gpt2", "qwen3"));

void expect_no_allocation(const std::string& family, const RunConfig::Optimizer& config) {
  std::string name;
  for (const std::string& each : golden_model_cases()) {
    if (each.starts_with(family)) name = name.empty() ? each : name;
  }
  ASSERT_FALSE(name.empty());
  const ModelGolden golden = read_model_golden(name);
  const OwnedBatch batch(golden.batch, golden.tokens, golden.input_ids, golden.targets);
  ModelFixture model(load_model_config(golden.directory), {golden.batch, golden.tokens},
                     DType::kF32, 1, Optimizer::contents(config));
  OpTrace ops(model.trace);
  model.context.set_op_trace(&ops);
  model.store.initialise(model.context, 1);
  Optimizer optimizer(config, model.store);
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  const std::vector<MicroBatch> batches(2, batch.view);
  Executor executor(lower(make_1f1b(1, 2)).ranks.front(), model.stage);
  const auto step = [&] {
    model.run(batches, executor);
    optimizer.step(model.context, 1e-3,
                   clip_coefficient(gradient_norm(model.context, model.store, *alone), 1));
  };
  step();
  step();
  const std::size_t scratch = model.context.scratch_bytes();

  allocations = 0;
  counting = true;
  step();
  counting = false;

  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(model.context.scratch_bytes(), scratch);
  EXPECT_GT(ops.totals().size(), 10U);
}

TEST_P(SteadyState, a_step_allocates_nothing) { expect_no_allocation(GetParam(), {}); }

TEST_P(SteadyState, a_step_of_whole_matrices_allocates_nothing) {
  RunConfig::Optimizer muon;
  muon.kind = OptimizerKind::kMuon;
  expect_no_allocation(GetParam(), muon);
}

}  // namespace
}  // namespace trireme
