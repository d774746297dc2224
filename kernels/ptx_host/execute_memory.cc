// Loads, stores, atomics, addresses.
#include "kernels/ptx_host/execute_float.h"
#include "kernels/ptx_host/lanes.h"

namespace trireme::ptx {
namespace {

enum class Space : std::uint32_t { kGeneric, kGlobal, kShared, kCluster, kLocal, kParam, kConst };

Space read_space(Decoder& d) {
  if (d.skip("global")) return Space::kGlobal;
  if (d.skip("shared") || d.skip("shared::cta")) return Space::kShared;
  if (d.skip("shared::cluster")) return Space::kCluster;
  if (d.skip("local")) return Space::kLocal;
  if (d.skip("param") || d.skip("param::entry")) return Space::kParam;
  if (d.skip("const")) return Space::kConst;
  return Space::kGeneric;
}

// What a word of ld and st may say of caches and order: one block after another, in order, needs
// none of it.
bool skip_hint(Decoder& d) {
  static constexpr std::string_view kWords[] = {"volatile",
                                                "relaxed",
                                                "acquire",
                                                "release",
                                                "acq_rel",
                                                "weak",
                                                "cta",
                                                "cluster",
                                                "gpu",
                                                "sys",
                                                "nc",
                                                "ca",
                                                "cg",
                                                "cs",
                                                "lu",
                                                "cv",
                                                "wb",
                                                "wt",
                                                "L1::evict_normal",
                                                "L1::evict_unchanged",
                                                "L1::evict_first",
                                                "L1::evict_last",
                                                "L1::no_allocate",
                                                "L2::evict_first",
                                                "L2::evict_last",
                                                "L2::evict_normal",
                                                "L2::64B",
                                                "L2::128B",
                                                "L2::256B",
                                                "noftz",
                                                "aligned",
                                                "sync",
                                                "mmio"};
  for (const std::string_view word : kWords)
    if (d.skip(word)) return true;
  return false;
}

std::uint64_t generic_of(Space space, std::uint64_t address) {
  return space == Space::kShared || space == Space::kCluster
             ? kSharedWindow | (address & 0xffff'ffff)
         : space == Space::kLocal && address < kLocalWindow ? kLocalWindow + address
                                                            : address;
}

bool is_shared(std::uint64_t generic) { return generic >> 32 == kSharedWindow >> 32; }

// detail: space, type, elements. Operands: elements, address.
bool run_load(Warp& w, const Instruction& in, std::uint32_t mask) {
  const auto space = Space(in.detail[0]);
  const Type t = unpack(in.detail[1]);
  const std::size_t size = t.bits / 8, count = in.detail[2];
  each_lane(mask, [&](int lane) {
    const std::uint64_t generic = generic_of(space, w.address(in.op[count], lane));
    const std::uint8_t* from = find(w, generic, size * count, lane);
    for (std::size_t k = 0; k < count; ++k) {
      std::uint64_t value = 0;
      std::memcpy(&value, from + k * size, size);
      if (t.is_signed() && size < 8 && value >> (8 * size - 1))
        value |= ~std::uint64_t(0) << (8 * size);
      w.set(in.op[k], lane, value);
    }
  });
  return true;
}

bool run_store(Warp& w, const Instruction& in, std::uint32_t mask) {
  const auto space = Space(in.detail[0]);
  const std::size_t size = unpack(in.detail[1]).bits / 8, count = in.detail[2];
  each_lane(mask, [&](int lane) {
    const std::uint64_t generic = generic_of(space, w.address(in.op[0], lane));
    std::uint8_t* to = find(w, generic, size * count, lane);
    if (is_shared(generic)) mark_unfenced(w, std::uint32_t(generic), size * count, lane);
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint64_t value = w.get(in.op[1 + k], lane);
      std::memcpy(to + k * size, &value, size);
    }
  });
  return true;
}

// Parameters are the same for all lanes, and an array indexed by a register is not: both are loads.
void decode_access(Decoder& d, bool load) {
  Space space = Space::kGeneric;
  while (d.words_left() && !d.has_type() && !d.next_is("v2") && !d.next_is("v4") &&
         !d.next_is("v8")) {
    if (skip_hint(d)) continue;
    const Space named = read_space(d);
    if (named != Space::kGeneric) {
      space = named;
    } else if (!d.skip("L2::cache_hint")) {
      d.fail("\"." + std::string(d.word()) + "\" is not known here");
    }
  }
  const std::uint32_t count = d.skip("v2") ? 2 : d.skip("v4") ? 4 : d.skip("v8") ? 8 : 1;
  const Type t = d.type();
  if (t.bits > 64) d.fail("128 bits are known as vectors only");
  d.out().detail[0] = std::uint32_t(space);
  d.out().detail[1] = pack(t);
  d.out().detail[2] = count;
  const auto& text = d.operands();
  if (text.size() < 2) d.fail("expected 2 operands");
  if (load) d.add(text[0], t);
  d.add_address(text[load ? 1 : 0]);
  if (!load) d.add(text[1], t);
  use(d, load ? &run_load : &run_store);
}
void decode_load(Decoder& d) { decode_access(d, true); }
void decode_store(Decoder& d) { decode_access(d, false); }

// ---- atomics ----
enum class Atomic : std::uint32_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };
constexpr std::string_view kAtomicWords[] = {"add", "min",  "max", "and", "or",
                                             "xor", "exch", "cas", "inc", "dec"};

std::uint64_t signed_value(std::uint64_t v, Type t) {
  return t.bits == 32 && t.is_signed() ? std::uint64_t(std::int64_t(std::int32_t(v))) : v;
}

std::uint64_t combine_integers(Atomic what, Type t, std::uint64_t old, std::uint64_t value) {
  const bool less = t.is_signed()
                        ? std::int64_t(signed_value(value, t)) < std::int64_t(signed_value(old, t))
                        : value < old;
  switch (what) {
    case Atomic::kAdd:
      return old + value;
    case Atomic::kMin:
      return less ? value : old;
    case Atomic::kMax:
      return less ? old : value;
    case Atomic::kAnd:
      return old & value;
    case Atomic::kOr:
      return old | value;
    case Atomic::kXor:
      return old ^ value;
    case Atomic::kInc:
      return old >= value ? 0 : old + 1;
    case Atomic::kDec:
      return old == 0 || old > value ? value : old - 1;
    default:
      return value;
  }
}

// detail: space, type, what, elements. Operands: results, address, values [, other value of cas].
// Lanes go one after another.
bool run_atomic(Warp& w, const Instruction& in, std::uint32_t mask) {
  const auto space = Space(in.detail[0]);
  const Type t = unpack(in.detail[1]);
  const auto what = Atomic(in.detail[2]);
  const std::size_t count = in.detail[3], size = std::size_t(t.bits) * t.lanes / 8;
  each_lane(mask, [&](int lane) {
    const std::uint64_t generic = generic_of(space, w.address(in.op[count], lane));
    std::uint8_t* at = find(w, generic, size * count, lane);
    if (is_shared(generic)) mark_unfenced(w, std::uint32_t(generic), size * count, lane);
    for (std::size_t k = 0; k < count; ++k, at += size) {
      std::uint64_t old = 0;
      std::memcpy(&old, at, size);
      std::uint64_t value = w.get(in.op[count + 1 + k], lane);
      if (size < 8) value &= (std::uint64_t(1) << (8 * size)) - 1;
      std::uint64_t fresh = t.is_integer() || what == Atomic::kExch || what == Atomic::kCas
                                ? combine_integers(what, t, old, value)
                                : add_floats(t, old, value);
      if (what == Atomic::kCas) fresh = old == value ? w.get(in.op[count + 2], lane) : old;
      std::memcpy(at, &fresh, size);
      w.set(in.op[k], lane, old);
    }
  });
  return true;
}

void decode_atomic(Decoder& d, bool returns) {
  Space space = Space::kGeneric;
  std::uint32_t what = 0, count = 1;
  bool found = false;
  while (d.words_left() && !d.has_type()) {
    if (skip_hint(d)) continue;
    const Space named = read_space(d);
    if (named != Space::kGeneric) {
      space = named;
    } else if (d.skip("v2")) {
      count = 2;
    } else if (d.skip("v4")) {
      count = 4;
    } else {
      const std::string_view word = d.word();
      for (std::uint32_t i = 0; i < 10; ++i)
        if (kAtomicWords[i] == word) what = i, found = true;
      if (!found) d.fail("\"." + std::string(word) + "\" is not known here");
    }
  }
  const Type t = d.type();
  if (!found) d.fail("which operation is not said");
  d.out().detail[0] = std::uint32_t(space);
  d.out().detail[1] = pack(t);
  d.out().detail[2] = what;
  d.out().detail[3] = count;
  const auto& text = d.operands();
  std::size_t next = 0;
  if (returns) {
    d.add(text[next++], t);
  } else {
    for (std::uint32_t k = 0; k < count; ++k) d.add_sink();
  }
  d.add_address(text[next++]);
  for (; next < text.size(); ++next) d.add(text[next], t);
  use(d, &run_atomic);
}
void decode_atom(Decoder& d) { decode_atomic(d, true); }
void decode_red(Decoder& d) {
  if (d.next_is("async")) d.fail("asynchronous reductions are not known");
  decode_atomic(d, false);
}

// ---- addresses ----
// Shared addresses have 32 bits, their generic form the window above them; device memory is the
// same in both.
bool run_to_generic(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) {
    w.set(in.op[0], i, generic_of(Space(in.detail[0]), w.address(in.op[1], i)));
  });
  return true;
}
bool run_from_generic(Warp& w, const Instruction& in, std::uint32_t mask) {
  const auto space = Space(in.detail[0]);
  for_lanes(mask, [&](int i) {
    const std::uint64_t address = w.address(in.op[1], i);
    w.set(in.op[0], i,
          space == Space::kShared || space == Space::kCluster ? address & 0xffff'ffff : address);
  });
  return true;
}
void decode_cvta(Decoder& d) {
  const bool to = d.skip("to");
  const Space space = read_space(d);
  if (space == Space::kGeneric) d.fail("the space is not named");
  const Type t = d.type();
  d.out().detail[0] = std::uint32_t(space);
  add_all(d, 2, t);
  use(d, to ? &run_from_generic : &run_to_generic);
}

bool run_isspacep(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t value = 0;
  for_lanes(mask, [&](int i) {
    const std::uint64_t window = w.get(in.op[1], i) >> 56;
    const auto space = Space(in.detail[0]);
    value |= std::uint32_t(space == Space::kShared || space == Space::kCluster ? window == 1
                           : space == Space::kLocal                            ? window == 2
                                                                               : window == 0)
             << i;
  });
  w.set_predicate(in.op[0], value, mask);
  return true;
}
void decode_isspacep(Decoder& d) {
  d.out().detail[0] = std::uint32_t(read_space(d));
  d.add_predicate(d.operands().at(0));
  d.add(1, {Kind::kBits, 64});
  use(d, &run_isspacep);
}

// The same variable in another block of the cluster.
bool run_mapa(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) {
    const std::uint64_t address = w.address(in.op[1], i), rank = w.get(in.op[2], i) & 0xffff'ffff;
    if (rank >= w.block->cluster->blocks.size())
      w.fail("the cluster has no block " + std::to_string(rank), i);
    w.set(in.op[0], i, (address & ~(std::uint64_t(0xff) << kRankShift)) | rank << kRankShift);
  });
  return true;
}
void decode_mapa(Decoder& d) {
  d.skip("shared::cluster");
  const Type t = d.type();
  d.add(0, t);
  d.add(1, t);
  d.add(2, {Kind::kUnsigned, 32});
  use(d, &run_mapa);
}
bool run_getctarank(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask,
            [&](int i) { w.set(in.op[0], i, (w.get(in.op[1], i) & 0xffff'ffff) >> kRankShift); });
  return true;
}
void decode_getctarank(Decoder& d) {
  d.skip("shared::cluster");
  const Type t = d.type();
  d.add(0, {Kind::kUnsigned, 32});
  d.add(1, t);
  use(d, &run_getctarank);
}

constexpr std::string_view kCacheWords[] = {"global",
                                            "local",
                                            "const",
                                            "param",
                                            "tensormap",
                                            "L1",
                                            "L2",
                                            "L2::evict_last",
                                            "L2::evict_normal",
                                            "L2::evict_first",
                                            "L2::evict_unchanged"};
void decode_hint(Decoder& d) {
  d.skip_all(kCacheWords);
  use(d, &run_nothing);
}
void decode_policy(Decoder& d) {
  static constexpr std::string_view kWords[] = {"fractional", "range", "cvt"};
  d.choose(kWords);
  d.skip_all(kCacheWords);
  d.expect("b64");
  d.add(0, {Kind::kBits, 64});
  use(
      d, +[](Warp& w, const Instruction& in, std::uint32_t mask) {
        for_lanes(mask, [&](int i) { w.set(in.op[0], i, 0); });
        return true;
      });
}

}  // namespace

std::vector<Opcode> memory_opcodes() {
  return {{"ld", decode_load},
          {"ldu", decode_load},
          {"st", decode_store},
          {"atom", decode_atom},
          {"red", decode_red},
          {"cvta", decode_cvta},
          {"isspacep", decode_isspacep},
          {"mapa", decode_mapa},
          {"getctarank", decode_getctarank},
          {"prefetch", decode_hint},
          {"prefetchu", decode_hint},
          {"discard", decode_hint},
          {"applypriority", decode_hint},
          {"createpolicy", decode_policy}};
}

}  // namespace trireme::ptx
