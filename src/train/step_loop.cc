#include "train/step_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "optim/lr_schedule.h"
#include "train/device_choice.h"

namespace trireme {

StepLoop::StepLoop(Runtime& runtime, Loader& loader, StepLoopInputs inputs)
    : runtime_(runtime),
      loader_(loader),
      inputs_(std::move(inputs)),
      step_(runtime),
      timer_(runtime, step_),
      reports_(runtime.replica()),
      lookahead_(loader.lookahead()),
      committed_(inputs_.committed),
      handed_out_(inputs_.committed) {}

CommittedStep StepLoop::next() {
  if (handed_out_ == inputs_.committed) look_ahead();
  timer_.start();
  for (;;) {
    if (!std::exchange(has_gradients_, true)) forward_backward();
    if (ahead_) {
      receive_reports();
      if (nothing_clipped_) break;
      take_back();
      continue;
    }
    send_report();
    has_gradients_ = false;  // the update takes them
    if (may_run_ahead()) {
      run_ahead();
      continue;
    }
    receive_reports();
    update_or_skip();
    break;
  }
  timer_.stop();
  return commit();
}

void StepLoop::look_ahead() {
  loader_.seek(inputs_.first_sample);
  for (int i = 0; i < lookahead_; ++i) {
    std::int64_t& count = at(next_step() + i).target_count = targets_of(next_step() + i);
    runtime_.channels.peers->sum(std::span(&count, 1));
  }
}

std::int64_t StepLoop::targets_of(std::int64_t step) {
  if (step > inputs_.steps) return 0;  // an order may end with the run
  const Span span(runtime_.trace, Phase::kData);
  return loader_.target_count(static_cast<int>(step - handed_out_));
}

void StepLoop::forward_backward() {
  const std::int64_t k = next_step() + (ahead_ ? 1 : 0);
  Uncommitted& step = at(k);
  if (handed_out_ < k) {
    const Span span(runtime_.trace, Phase::kData);
    step.batch = loader_.next();
    handed_out_ = k;
  }
  step_.forward_backward(step.batch.micro_batches, step.target_count);
  loss_sum_ = step_.loss_sum();
}

void StepLoop::send_report() {
  // Tensor-parallel and pipeline ranks see the same tokens: one counts them. Losses are at the end.
  const bool first_of_tensor = runtime_.part.cut.tensor.index == 0;
  const bool counts = first_of_tensor && runtime_.pipeline_rank() == 0;
  const Executor::Occupation occupation = runtime_.executor.occupation();
  RankReport mine;
  mine.squares = step_.sum_of_squares().words();
  mine.loss_sum = first_of_tensor ? loss_sum_ : 0;
  if (counts) mine.target_count = targets_of(next_step() + lookahead_);
  mine.memory_bytes = memory_in_use(runtime_.context.device());
  mine.span_ns = occupation.span_ns;
  mine.busy_ns = occupation.busy_ns;
  inputs_.report(mine);
  const Span span(runtime_.trace, Phase::kOptimizer);
  reports_.start(mine, runtime_.stage.expert_totals());
}

void StepLoop::receive_reports() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  const std::int64_t k = next_step();
  const StepFacts& facts = now_.facts = reports_.finish();
  at(k + lookahead_).target_count = facts.target_count;
  // Without targets there is no mean, and the step is skipped as any that is not finite.
  now_.loss = at(k).target_count == 0 ? std::numeric_limits<double>::quiet_NaN()
                                      : facts.loss_sum / static_cast<double>(at(k).target_count);
  nothing_clipped_ =
      now_.finite() && clip_coefficient(facts.norm, runtime_.config.optimizer.clip_grad_norm) == 1;
}

bool StepLoop::may_run_ahead() const {
  const std::int64_t k = next_step();
  return runtime_.config.parallel.speculative_step && nothing_clipped_ && k < inputs_.steps &&
         !inputs_.stands_still_behind(k);
}

double StepLoop::learning_rate_of_step() const {
  return learning_rate(runtime_.config.lr_schedule, runtime_.config.optimizer.lr, inputs_.steps,
                       next_step());
}

void StepLoop::run_ahead() {
  step_.update_ahead(learning_rate_of_step());
  ahead_ = true;
  now_.times += timer_.lap();
}

void StepLoop::take_back() {
  step_.take_back();
  ahead_ = false;
  has_gradients_ = false;
  ++undone_steps_;
}

void StepLoop::update_or_skip() {
  if (now_.finite()) {
    const std::optional<ExpertReport>& experts = now_.facts.experts;
    step_.update(learning_rate_of_step(), now_.facts.norm, experts ? &*experts : nullptr);
  } else {
    now_.skip = find_skip();
  }
  now_.times += timer_.lap();
}

CommittedStep StepLoop::commit() {
  now_.lr = learning_rate_of_step();
  now_.step = ++committed_;
  if (std::exchange(ahead_, false)) step_.keep_update();
  return std::exchange(now_, {});
}

SkipLine StepLoop::find_skip() {
  SkipLine skip;
  skip.step = next_step();
  if (at(skip.step).target_count == 0) {
    skip.reason = kNoTargets;
    return skip;
  }
  skip.reason = std::isfinite(now_.loss) ? "non-finite gradient" : "non-finite loss";
  const Uncommitted& step = at(skip.step);
  const std::string tensor = step_.find_non_finite(step.batch.micro_batches, step.target_count);
  const std::vector<std::string> tensors = runtime_.replica().all_gather_text(tensor);
  for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
    if (tensors[rank].empty()) continue;
    skip.rank = static_cast<std::int64_t>(rank);
    skip.tensor = tensors[rank];
    return skip;
  }
  skip.tensor = "the sum over ranks";  // each part is finite, their sum is not
  return skip;
}

}  // namespace trireme
