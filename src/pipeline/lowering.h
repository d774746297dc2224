#pragma once
// From a plan to a program: the same actions, and between them what each rank sends and receives.
//
// An activation travels from F of stage s to F of stage s+1, a gradient from B or BW of s to that
// of s-1, where the two stages are on different ranks. All transfers are put into one order, that
// of the times at which a simulation makes them, and every rank takes its own in that order: each
// after the action that makes it, before the one that needs it, and among its other actions by
// time. So the program cannot deadlock, however few transfers are under way at once: the first
// transfer that is not done waits only for actions, and those wait only for earlier transfers.
//
// An executor may start transfers earlier and end them later than the program says, as long as each
// channel (from rank, to rank, activations or gradients) keeps its order.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/simulate.h"

namespace trireme {

enum class StepKind : std::uint8_t { kAction, kSend, kReceive };

struct Step {
  StepKind kind = StepKind::kAction;
  /// What to run; of a transfer what made it: kForward (an activation) or kBackwardInput (a
  /// gradient), with the stage and the micro-batch that it is the output of.
  Action action{};
  std::int32_t peer = -1;  ///< rank at the other end of a transfer
  /// A send and a receive side by side with one mark other than 0 are started together; the same
  /// two stand so at the peer.
  std::int32_t batch = 0;
  friend bool operator==(const Step&, const Step&) = default;
};

struct Program {
  std::vector<std::vector<Step>> ranks;
};

/// The program of a plan that check_plan accepts. Times decide the order alone.
Program lower(const Plan& plan, const ActionTimes& times);

struct ProgramFault {
  std::string_view rule;
  std::int32_t rank = -1;
  std::int64_t position = -1;  ///< in the rank's steps
  std::string message;
};

/// Proves a program of a plan that check_plan accepts:
///
///   actions   without its transfers it is the plan, and no transfer divides a group
///   matched   each edge between ranks is sent once and received once, by the right ranks
///   use       a send stands after what makes it, a receive before what needs it
///   channel   a channel is sent and received in one order
///   batch     a mark joins a send to and a receive from one peer, which joins the same
///   blocking  with sends and receives that return only when both ends are there, all ranks end
std::optional<ProgramFault> check_program(const Plan& plan, const Program& program);

}  // namespace trireme
