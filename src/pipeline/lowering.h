#pragma once
// From a schedule to a program: the same actions, and between them what each rank sends, receives
// and hands on. The executor follows the program and derives nothing itself.
//
// An activation goes from F of stage s to F of stage s+1, a gradient from B or BW of s to that of
// s-1: by a transfer where the two stages are on different ranks, else by a copy: of an activation
// before its use, as its memory may be another's until then; of a gradient when made, as its slot
// may soon be another's. All transfers are put into one order, that of the times at which a
// simulation makes them and has room for them, and every rank takes its own in that order: each
// after the action that makes it, before the one that needs it, and among its other actions by
// time. So the program cannot deadlock, however few transfers are under way at once: the first
// transfer that is not done waits only for actions, and those wait only for earlier transfers.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"
#include "pipeline/slots.h"
#include "pipeline/stage_program.h"

namespace trireme {

enum class StepKind : std::uint8_t { kAction, kSend, kReceive, kCopy };

struct ProgramStep {
  StepKind kind = StepKind::kAction;
  /// What to run; of a transfer or a copy what made it: kForward (an activation) or kBackwardInput
  /// (a gradient), with the stage and the micro-batch that it is the output of.
  Action action{};
  std::int32_t peer = -1;  ///< rank at the other end of a transfer
  /// A send and a receive side by side with one mark that is not 0 start together, at both ranks.
  std::int32_t batch = 0;
  /// Of a receive: it needs nothing of the action in front of it, so it may start before that. A
  /// transfer on a GPU is a kernel that spins until its other end is there: what it stands in front
  /// of may never run.
  bool ahead = false;
  /// Of W and BW: whether what its stage sums is complete after it, so that it may be reduced.
  LastMicroBatch last = LastMicroBatch::kNo;
  friend bool operator==(const ProgramStep&, const ProgramStep&) = default;
};

struct Program {
  std::vector<std::vector<ProgramStep>> ranks;
};

/// What an action leaves for the stage behind (F) or before it (B, BW).
struct Output {
  Action made{};  ///< kForward or kBackwardInput
  std::int32_t to_stage = -1, from = -1, to = -1;
  [[nodiscard]] bool goes() const { return to >= 0; }
  [[nodiscard]] bool travels() const { return goes() && from != to; }
};
Output output_of(const Action& action, const ScheduleShape& shape);
/// The one that an action takes. Goes nowhere where there is none.
Output input_of(const Action& action, const ScheduleShape& shape);

/// The program of a schedule that check_schedule accepts, or of a forward. Times decide the order.
Program lower(const Schedule& schedule, const ActionTimes& times = {});

/// What a transfer waits for beside its other end.
enum class TransferOrder : std::uint8_t {
  kOfChannel,  ///< those of its channel before it
  kOfRank,     ///< all that its rank has started before it (NCCL)
};
/// The steps of one rank as an executor takes them that starts transfers and waits for them where
/// they are used: a send starts when its output is made, a receive one action ahead where it may
/// and its memory is free then. That changes no channel's order, where `order` asks for it no
/// rank's either, and adds no waits, so what ends with blocking transfers ends so too. `slot_of` a
/// virtual stage of the rank and a micro-batch: of its ends, as slots_of.
using SlotOf = std::function<std::int32_t(std::int32_t, std::int32_t)>;
std::vector<ProgramStep> start_early(const std::vector<ProgramStep>& steps, const SlotOf& slot_of,
                                     TransferOrder order = TransferOrder::kOfChannel);

struct ProgramFault {
  std::string_view rule;
  std::int32_t rank = -1;
  std::int64_t position = -1;  ///< in the rank's steps
  std::string message;
};

/// Proves a program of a schedule that check_schedule accepts:
///
///   actions   without its other steps it is the schedule, and none of them divides a group
///   sums      the last W or BW of each stage is marked, and no other
///   matched   each edge between ranks is sent once and received once, by the right ranks; each
///             within a rank is copied once
///   use       a send or copy stands after what makes it, a receive or copy before what needs it
///   memory    what arrives and what is made finds its slot free (slots_of): of other activations,
///             and of what is still to be sent
///   channel   a channel (from rank, to rank, activations or gradients) is sent and received in one
///             order
///   batch     a mark joins a send to and a receive from one rank, which joins the same
///   blocking  with sends and receives that return only when both ends are there, all ranks end
///   early     no receive may start before an action that it depends on
std::optional<ProgramFault> check_program(const Schedule& schedule, const Program& program);

}  // namespace trireme
