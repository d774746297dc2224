#include "train/step_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "optim/lr_schedule.h"
#include "train/block_norms.h"
#include "train/device_choice.h"

namespace trireme {

namespace {
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
}

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
    if (passes_over(next_step())) {  // nothing is ahead of the step before
      pass_over();
      break;
    }
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

bool StepLoop::passes_over(std::int64_t step) const {
  return contains_step(inputs_.passed_over, step);
}

StepLoop::Uncommitted& StepLoop::bring(std::int64_t step) {
  Uncommitted& brought = at(step);
  if (handed_out_ < step) {
    const Span span(runtime_.trace, Phase::kData);
    brought.batch = loader_.next();
    handed_out_ = step;
  }
  return brought;
}

void StepLoop::forward_backward() {
  Uncommitted& step = bring(next_step() + (ahead_ ? 1 : 0));
  step_.forward_backward(step.batch.micro_batches, step.target_count);
  loss_sum_ = step_.loss_sum();
  square_sum_ = step_.square_sum();
  if (runtime_.noise) micro_batch_square_ = runtime_.noise->of_micro_batch();
}

void StepLoop::pass_over() {
  bring(next_step());
  send_report();
  receive_reports();
  now_.loss = now_.z_loss = now_.facts.norm = kNaN;
  nothing_clipped_ = false;
  now_.skip = SkipLine{next_step(), std::string(kPassedOver), 0, ""};
  now_.times += timer_.lap();
}

void StepLoop::send_report() {
  // Tensor-parallel and pipeline ranks see the same tokens: one counts them. Losses are at the end.
  const bool first_of_tensor = runtime_.part.cut.tensor.index == 0;
  const bool counts = first_of_tensor && runtime_.pipeline_rank() == 0;
  RankReport mine;
  if (has_gradients_) {
    const Executor::Occupation occupation = runtime_.executor().occupation();
    mine.squares = step_.sum_of_squares().words();
    mine.loss_sum = first_of_tensor ? loss_sum_ : 0;
    mine.square_sum = first_of_tensor ? square_sum_ : 0;
    mine.micro_batch_square = micro_batch_square_;
    if (runtime_.noise) mine.step_square = runtime_.noise->of_step();
    mine.span_ns = occupation.span_ns;
    mine.busy_ns = occupation.busy_ns;
  }
  if (counts) mine.target_count = targets_of(next_step() + lookahead_);
  mine.memory_bytes = memory_in_use(runtime_.context.device());
  inputs_.report(mine);
  const Span span(runtime_.trace, Phase::kOptimizer);
  reports_.start(mine, has_gradients_ ? runtime_.stage.expert_totals() : Stage::ExpertTotals());
}

void StepLoop::receive_reports() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  const std::int64_t k = next_step();
  const StepFacts& facts = now_.facts = reports_.finish();
  at(k + lookahead_).target_count = facts.target_count;
  // Without targets there is no mean, and the step is skipped as any that is not finite.
  const auto targets = static_cast<double>(at(k).target_count);
  now_.loss = targets == 0 ? kNaN : facts.loss_sum / targets;
  now_.z_loss = runtime_.config.stability.z_loss * facts.square_sum / targets;
  const bool watched = now_.finite() && inputs_.spikes != nullptr;
  spike_ = watched ? inputs_.spikes->spike_of(now_.loss, facts.norm) : "";
  nothing_clipped_ = now_.finite() && spike_.empty() &&
                     clip_coefficient(facts.norm, runtime_.config.optimizer.clip_grad_norm) == 1;
}

bool StepLoop::may_run_ahead() const {
  const std::int64_t k = next_step();
  return runtime_.config.parallel.speculative_step && nothing_clipped_ && k < inputs_.steps &&
         !inputs_.stands_still_behind(k) && !passes_over(k + 1) && !is_measured(k);
}

bool StepLoop::is_measured(std::int64_t step) const {
  return runtime_.block_meter &&
         (step % runtime_.config.log.interval_steps == 0 || step == inputs_.steps);
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
  if (!now_.finite()) {
    now_.skip = find_skip();
  } else if (!spike_.empty()) {
    now_.skip = SkipLine{next_step(), std::string(spike_), 0, ""};
  } else {
    const std::optional<ExpertReport>& experts = now_.facts.experts;
    BlockMeter* const meter = is_measured(next_step()) ? &*runtime_.block_meter : nullptr;
    step_.update(learning_rate_of_step(), now_.facts.norm, experts ? &*experts : nullptr, meter);
    if (meter != nullptr)
      now_.blocks = norms_of_blocks(runtime_.replica(), meter->squares(), runtime_.model);
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
