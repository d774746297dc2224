// What the lanes of a warp and the threads of a block do together: shuffles, votes, barriers.
#include "kernels/ptx_host/lanes.h"

namespace trireme::ptx {
namespace {

enum class Shuffle : std::uint32_t { kUp, kDown, kBfly, kIdx };

// The lane that is read, and whether it lies within the segment that c names: clamp below, segment
// mask from bit 8.
std::pair<int, bool> shuffle_source(Shuffle how, int lane, std::uint32_t b, std::uint32_t c) {
  const int segment = int(c >> 8 & 31), clamp = int(c & 31), by = int(b & 31);
  const int max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
  int source = 0;
  bool inside = false;
  switch (how) {
    case Shuffle::kUp:
      source = lane - by, inside = source >= max_lane;
      break;
    case Shuffle::kDown:
      source = lane + by, inside = source <= max_lane;
      break;
    case Shuffle::kBfly:
      source = lane ^ by, inside = source <= max_lane;
      break;
    case Shuffle::kIdx:
      source = min_lane | (by & ~segment), inside = source <= max_lane;
      break;
  }
  return {inside ? source : lane, inside};
}

// operands: d, p, a, b, c, members
bool run_shuffle(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t before[kLanes], inside_all = 0;
  std::memcpy(before, w.row<std::uint32_t>(in.op[2]), sizeof before);
  each_lane(mask, [&](int lane) {
    const auto [source, inside] =
        shuffle_source(Shuffle(in.detail[0]), lane, std::uint32_t(w.get(in.op[3], lane)),
                       std::uint32_t(w.get(in.op[4], lane)));
    if (!(mask >> source & 1))
      w.fail("a shuffle reads lane " + std::to_string(source) + ", which does not take part", lane);
    w.set(in.op[0], lane, before[source]);
    inside_all |= std::uint32_t(inside) << lane;
  });
  w.set_predicate(in.op[1], inside_all, mask);
  return true;
}
void decode_shuffle(Decoder& d) {
  d.expect("sync");
  static constexpr std::string_view kWords[] = {"up", "down", "bfly", "idx"};
  d.out().detail[0] = d.choose(kWords);
  d.expect("b32");
  const auto& text = d.operands();
  if (text.size() != 5) d.fail("expected 5 operands");
  const Type t = {Kind::kBits, 32};
  const bool pair = text[0].form == Form::kPair;
  d.add(pair ? text[0].parts[0] : text[0], t);
  if (pair) {
    d.add_predicate(text[0].parts[1]);
  } else {
    d.add_sink();
  }
  for (std::size_t i = 1; i < 5; ++i) d.add(i, t);
  d.out().flow = Flow::kMembers;
  d.out().members = 5;
  use(d, &run_shuffle);
}

// ---- votes: detail 0 all, 1 any, 2 uni, 3 ballot. Each set of lanes with one member mask votes by
// itself. ----
bool run_vote(Warp& w, const Instruction& in, std::uint32_t mask) {
  const std::uint32_t p = w.predicate_value(in.op[1]);
  std::uint32_t result = 0;
  each_lane(mask, [&](int lane) {
    const auto members = std::uint32_t(w.get(in.op[2], lane));
    const std::uint32_t yes = p & members;
    if (in.detail[0] == 3) return w.set(in.op[0], lane, yes);
    const bool value = in.detail[0] == 0   ? yes == members
                       : in.detail[0] == 1 ? yes != 0
                                           : yes == members || yes == 0;
    result |= std::uint32_t(value) << lane;
  });
  if (in.detail[0] != 3) w.set_predicate(in.op[0], result, mask);
  return true;
}
void decode_vote(Decoder& d) {
  d.expect("sync");
  static constexpr std::string_view kWords[] = {"all", "any", "uni", "ballot"};
  d.out().detail[0] = d.choose(kWords);
  d.type();
  d.add(0, d.out().detail[0] == 3 ? Type{Kind::kBits, 32} : Type{Kind::kPredicate, 1});
  d.add_predicate(d.operands().at(1));
  d.add(2, {Kind::kBits, 32});
  d.out().flow = Flow::kMembers;
  d.out().members = 2;
  use(d, &run_vote);
}

bool run_match(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t all = 0;
  each_lane(mask, [&](int lane) {
    const auto members = std::uint32_t(w.get(in.op[3], lane));
    std::uint32_t same = 0;
    each_lane(members, [&](int other) {
      same |= std::uint32_t(w.get(in.op[2], other) == w.get(in.op[2], lane)) << other;
    });
    if (in.detail[0] && same != members) same = 0;
    all |= std::uint32_t(same != 0) << lane;
    w.set(in.op[0], lane, same);
  });
  w.set_predicate(in.op[1], all, mask);
  return true;
}
void decode_match(Decoder& d) {
  d.out().detail[0] = d.skip("all");
  if (!d.out().detail[0]) d.expect("any");
  d.expect("sync");
  const Type t = d.type();
  const Text& result = d.operands().at(0);
  d.add(result.form == Form::kPair ? result.parts[0] : result, {Kind::kBits, 32});
  if (result.form == Form::kPair) {
    d.add_predicate(result.parts[1]);
  } else {
    d.add_sink();
  }
  d.add(1, t);
  d.add(2, {Kind::kBits, 32});
  d.out().flow = Flow::kMembers;
  d.out().members = 3;
  use(d, &run_match);
}

bool run_redux(Warp& w, const Instruction& in, std::uint32_t mask) {
  const bool sign = in.detail[1] != 0;
  std::uint32_t results[kLanes];
  each_lane(mask, [&](int lane) {
    const auto members = std::uint32_t(w.get(in.op[2], lane));
    auto result = std::uint32_t(w.get(in.op[1], __builtin_ctz(members)));
    each_lane(members & (members - 1), [&](int other) {
      const auto v = std::uint32_t(w.get(in.op[1], other));
      const bool less = sign ? std::int32_t(v) < std::int32_t(result) : v < result;
      switch (in.detail[0]) {
        case 0:
          result += v;
          break;
        case 1:
          result = less ? v : result;
          break;
        case 2:
          result = less ? result : v;
          break;
        case 3:
          result &= v;
          break;
        case 4:
          result |= v;
          break;
        default:
          result ^= v;
      }
    });
    results[lane] = result;
  });
  each_lane(mask, [&](int lane) { w.set(in.op[0], lane, results[lane]); });
  return true;
}
void decode_redux(Decoder& d) {
  d.expect("sync");
  static constexpr std::string_view kWords[] = {"add", "min", "max", "and", "or", "xor"};
  d.out().detail[0] = d.choose(kWords);
  const Type t = d.type();
  if (!t.is_integer()) d.fail("only integers are known here");
  d.out().detail[1] = t.is_signed();
  add_all(d, 3, t);
  d.out().flow = Flow::kMembers;
  d.out().members = 2;
  use(d, &run_redux);
}

bool run_activemask(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) { w.set(in.op[0], lane, mask); });
  return true;
}
void decode_activemask(Decoder& d) {
  d.expect("b32");
  d.add(0, {Kind::kBits, 32});
  use(d, &run_activemask);
}

// The lowest lane of the members leads.
bool run_elect(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t leads = 0;
  each_lane(mask, [&](int lane) {
    const int leader = __builtin_ctz(std::uint32_t(w.get(in.op[2], lane)));
    w.set(in.op[0], lane, std::uint64_t(leader));
    leads |= std::uint32_t(leader == lane) << lane;
  });
  w.set_predicate(in.op[1], leads, mask);
  return true;
}
void decode_elect(Decoder& d) {
  d.expect("sync");
  const Text& result = d.operands().at(0);
  if (result.form != Form::kPair) d.fail("a pair is expected");
  d.add(result.parts[0], {Kind::kBits, 32});
  d.add_predicate(result.parts[1]);
  d.add(1, {Kind::kBits, 32});
  d.out().flow = Flow::kMembers;
  d.out().members = 2;
  use(d, &run_elect);
}

// ---- barriers of a block ----

// detail: arrive only, all threads of the block, kind of reduction. Counts go by whole warps, as
// the machine's do.
bool run_barrier(Warp& w, const Instruction& in, std::uint32_t mask) {
  Block& block = *w.block;
  const int lane = __builtin_ctz(mask);
  const std::uint64_t id = w.get(in.op[0], lane);
  if (id >= 16) w.fail("there are 16 barriers, and this is number " + std::to_string(id), lane);
  const std::uint32_t all = std::uint32_t(block.warps.size()) * kLanes;
  const std::uint32_t count = in.detail[1] ? all : std::uint32_t(w.get(in.op[1], lane));
  if (count == 0 || count % kLanes != 0 || count > all)
    w.fail("a barrier of " + std::to_string(count) + " threads of " + std::to_string(all), lane);
  Barrier& barrier = block.barriers[id];
  if (w.now->token) {
    if (barrier.generation < w.now->token) return false;
    w.now->token = 0;
    return true;
  }
  if (barrier.arrived == 0) barrier.expected = count;
  if (barrier.expected != count)
    w.fail("barrier " + std::to_string(id) + " is met with " + std::to_string(count) +
               " threads and with " + std::to_string(barrier.expected),
           lane);
  barrier.arrived += kLanes;
  const std::uint64_t generation = barrier.generation + 1;
  if (barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    barrier.generation = generation;
    return true;
  }
  if (in.detail[0]) return true;
  w.now->token = generation;
  return false;
}

void decode_bar(Decoder& d) {
  if (d.skip("warp")) {
    d.expect("sync");
    d.add(0, {Kind::kBits, 32});
    d.out().flow = Flow::kMembers;
    d.out().members = 0;
    return use(d, &run_nothing);
  }
  d.skip("cta");
  const bool arrive = d.skip("arrive");
  if (!arrive) d.expect("sync");
  d.skip("aligned");
  d.out().detail[0] = arrive;
  d.out().detail[1] = d.count() == 1;
  for (std::size_t i = 0; i < d.count(); ++i) d.add(i, {Kind::kUnsigned, 32});
  d.out().flow = Flow::kAligned;
  use(d, &run_barrier);
}

// ---- barriers of a cluster: a phase ends when all threads that live have arrived ----
void end_phase_if_full(Cluster& cluster) {
  if (cluster.arrived < cluster.live_threads()) return;
  cluster.arrived = 0;
  ++cluster.phase;
}
bool run_cluster_arrive(Warp& w, const Instruction&, std::uint32_t mask) {
  Cluster& cluster = *w.block->cluster;
  w.cluster_phase = cluster.phase + 1;
  cluster.arrived += std::uint32_t(__builtin_popcount(mask));
  end_phase_if_full(cluster);
  return true;
}
bool run_cluster_wait(Warp& w, const Instruction&, std::uint32_t) {
  end_phase_if_full(*w.block->cluster);  // others may have ended since
  return w.block->cluster->phase >= w.cluster_phase;
}
void decode_barrier(Decoder& d) {
  if (!d.skip("cluster")) return decode_bar(d);
  const bool arrive = d.skip("arrive");
  if (!arrive) d.expect("wait");
  if (!d.skip("release") && !d.skip("relaxed")) d.skip("acquire");
  d.skip("aligned");
  d.out().flow = Flow::kAligned;
  use(d, arrive ? &run_cluster_arrive : &run_cluster_wait);
}

}  // namespace

std::vector<Opcode> collective_opcodes() {
  return {{"shfl", decode_shuffle},
          {"vote", decode_vote},
          {"match", decode_match},
          {"redux", decode_redux},
          {"activemask", decode_activemask},
          {"elect", decode_elect},
          {"bar", decode_bar},
          {"barrier", decode_barrier}};
}

}  // namespace trireme::ptx
