#include "dataset/loader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/signal_free_thread.h"
#include "dataset/batch_builder.h"

namespace trireme {
namespace {
/// The memory of one step.
struct Step {
  std::vector<BatchBuilder> builders;  // one for each micro-batch
  std::vector<MicroBatch> micro_batches;
  std::int64_t first_sample = 0, samples = 0;  // of all ranks
  std::int64_t target_count = 0;
  std::exception_ptr fault;
};
}  // namespace

struct Loader::State {
  State(std::shared_ptr<const SampleSource> source, const BatchRules& rules,
        const BatchShape& batch_shape);
  ~State();
  void run();
  void build(Step& step);
  /// Where the step that is built next begins.
  [[nodiscard]] std::int64_t next_to_build() {
    if (built == handed_out) return next_sample;
    const Step& last = at(built - 1);
    return last.first_sample + last.samples;
  }
  Step& at(std::int64_t number) { return steps[static_cast<std::size_t>(number) % steps.size()]; }
  /// The step handed out `ahead` calls from now, once it is built; throws what building it met.
  Step& wait_for(std::unique_lock<std::mutex>& lock, int ahead);

  BatchShape shape;
  std::vector<std::int64_t> samples;  // of one micro-batch; the thread's
  // As many are handed out and whole as are built ahead.
  std::vector<Step> steps;

  // Guarded by `mutex`. Steps are numbered as handed out; `built` is the thread's while `building`.
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t handed_out = 0, built = 0;
  bool building = false, ended = false;
  std::int64_t next_sample = 0;  // where the step that is handed out next begins
  std::thread thread;            // last: it uses all of the above
};

Loader::State::State(std::shared_ptr<const SampleSource> source, const BatchRules& rules,
                     const BatchShape& batch_shape)
    : shape(batch_shape),
      samples(batch_shape.micro),
      steps(2 * static_cast<std::size_t>(batch_shape.lookahead)) {
  const std::int64_t largest = shape.global.largest();
  expect(largest == shape.micro * shape.accumulation * shape.data_ranks,
         "a global batch of {} as {} x {} x {}", largest, shape.micro, shape.accumulation,
         shape.data_ranks);
  expect(shape.data_rank >= 0 && shape.data_rank < shape.data_ranks, "data rank {} of {}",
         shape.data_rank, shape.data_ranks);
  expect(shape.tokens == source->length(), "samples of {} tokens from a source of {}", shape.tokens,
         source->length());
  for (Step& step : steps) {
    for (std::int64_t i = 0; i < shape.accumulation; ++i)
      step.builders.emplace_back(source, rules, shape.micro, shape.context);
    step.micro_batches.resize(shape.accumulation);
  }
  thread = signal_free_thread([this] { run(); });
}

Loader::State::~State() {
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_all();
  thread.join();
}

void Loader::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return built < handed_out + shape.lookahead || ended; });
    if (ended) return;
    Step& step = at(built);
    step.first_sample = next_to_build();
    step.samples = shape.global.size_at(step.first_sample);
    building = true;
    lock.unlock();
    build(step);
    lock.lock();
    building = false;
    ++built;
    changed.notify_all();
  }
}

void Loader::State::build(Step& step) {
  step.fault = nullptr;
  step.target_count = 0;
  step.micro_batches.resize(step.samples / (shape.micro * shape.data_ranks));
  try {
    for (std::size_t m = 0; m < step.micro_batches.size(); ++m) {
      const std::int64_t first =
          step.first_sample +
          (static_cast<std::int64_t>(m) * shape.data_ranks + shape.data_rank) * shape.micro;
      for (std::int64_t row = 0; row < shape.micro; ++row) samples[row] = first + row;
      step.builders[m].build(samples);
      step.micro_batches[m] = step.builders[m].micro_batch();
      step.target_count += step.micro_batches[m].target_count;
    }
  } catch (...) {
    step.fault = std::current_exception();
  }
}

Step& Loader::State::wait_for(std::unique_lock<std::mutex>& lock, int ahead) {
  changed.wait(lock, [&] { return built >= handed_out + ahead; });
  Step& step = at(handed_out + ahead - 1);
  // A step that could not be built stays, so that a second call says the same.
  if (step.fault != nullptr) std::rethrow_exception(step.fault);
  return step;
}

Loader::Loader(std::shared_ptr<const SampleSource> source, const RunConfig::Data& data,
               const BatchShape& shape, std::int64_t end_token, std::int64_t vocab_size) {
  BatchRules rules = make_batch_rules(data, end_token, vocab_size);
  rules.numbered = shape.numbered;
  state_ = std::make_unique<State>(std::move(source), rules, shape);
}

Loader::~Loader() = default;

int Loader::lookahead() const { return state_->shape.lookahead; }

void Loader::seek(std::int64_t consumed_samples) {
  expect(consumed_samples >= 0, "sample {}", consumed_samples);
  std::unique_lock lock(state_->mutex);
  if (state_->next_sample == consumed_samples) return;
  state_->changed.wait(lock, [this] { return !state_->building; });
  state_->next_sample = consumed_samples;
  state_->built = state_->handed_out;
  state_->changed.notify_all();
}

StepBatch Loader::next() {
  std::unique_lock lock(state_->mutex);
  const Step& step = state_->wait_for(lock, 1);
  ++state_->handed_out;
  state_->next_sample += step.samples;
  state_->changed.notify_all();
  return {step.micro_batches, step.target_count};
}

std::int64_t Loader::target_count(int ahead) {
  expect(ahead >= 1 && ahead <= state_->shape.lookahead, "the {}-th step ahead of {}", ahead,
         state_->shape.lookahead);
  std::unique_lock lock(state_->mutex);
  return state_->wait_for(lock, ahead).target_count;
}

}  // namespace trireme
