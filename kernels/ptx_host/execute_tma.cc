// Bulk copies. A load arrives when no thread can go on, its bytes are poison until then; a store
// reads shared memory at its wait.
#include "kernels/ptx_host/execute_float.h"
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/mbarrier.h"
#include "kernels/ptx_host/shared_matrix.h"
#include "kernels/ptx_host/tma.h"

namespace trireme::ptx {

ElementType element_type(std::uint8_t type) {
  using enum Kind;
  static constexpr ElementType kTypes[] = {
      {1, {kUnsigned, 8}},  {2, {kUnsigned, 16}}, {4, {kUnsigned, 32}}, {4, {kSigned, 32}},
      {8, {kUnsigned, 64}}, {8, {kSigned, 64}},   {2, {kFloat, 16}},    {4, {kFloat, 32}},
      {8, {kFloat, 64}},    {2, {kBf16, 16}},     {4, {kFloat, 32}},    {4, {kFloat, 32}},
      {4, {kFloat, 32}}};
  return type < std::size(kTypes) ? kTypes[type] : ElementType{0, {}};
}

namespace {

constexpr std::uint8_t kPoison = 0xff;
enum Flag : std::uint32_t { kTensor = 1, kReduce = 2, kMulticast = 4 };

TensorMap read_map(Warp& w, std::uint64_t address, int lane) {
  if (address % 64) w.fail("a tensor map lies at an address that is not a multiple of 64", lane);
  TensorMap map;
  find(w, address + 64, 64, lane);
  std::memcpy(&map, find(w, address, 64, lane), sizeof map);
  if (map.mark != TensorMap::kMark) w.fail("these 128 bytes are no tensor map", lane);
  return map;
}

std::size_t box_bytes(const TensorMap& map) {
  std::size_t bytes = element_type(map.type).bytes;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

/// One box: where it lies in the tensor, and in shared memory.
struct Box {
  TensorMap map;
  std::int32_t at[5];
  std::uint32_t shared;
  int lane;
};

// f(shared address, device memory or null outside of the tensor), for each element of the box,
// dense in shared memory and swizzled.
template <class F>
void each_element(Warp& w, const Box& box, F f) {
  const TensorMap& map = box.map;
  const std::uint32_t size = element_type(map.type).bytes;
  std::uint32_t index[5] = {0, 0, 0, 0, 0}, linear = 0;
  for (;;) {
    std::uint64_t offset = 0;
    bool inside = true;
    for (int i = 0; i < map.rank; ++i) {
      const std::int64_t at = std::int64_t(box.at[i]) + index[i];
      inside &= at >= 0 && at < std::int64_t(map.dims[i]);
      offset += std::uint64_t(at) * (i == 0 ? size : map.strides[i - 1]);
    }
    const std::uint32_t to = swizzled(box.shared + linear * size, map.row_bytes);
    f(to, inside ? find(w, map.address + offset, size, box.lane) : nullptr, size);
    ++linear;
    int dim = 0;
    while (dim < map.rank && ++index[dim] == map.box[dim]) index[dim++] = 0;
    if (dim == map.rank) return;
  }
}

void load_box(Warp& w, const Box& box) {
  each_element(w, box, [&](std::uint32_t to, const std::uint8_t* from, std::uint32_t size) {
    std::uint8_t* at = find_shared(w, to, size, box.lane);
    if (from) {
      std::memcpy(at, from, size);
    } else {
      std::memset(at, box.map.nan_fill ? 0xff : 0, size);
    }
  });
}

void add_element(std::uint8_t* to, const std::uint8_t* from, Type t) {
  if (t.is_integer()) throw PtxError("a bulk reduction of this type is not known");
  std::uint64_t a = 0, b = 0;
  std::memcpy(&a, to, t.bits / 8);
  std::memcpy(&b, from, t.bits / 8);
  a = add_floats(t, a, b);
  std::memcpy(to, &a, t.bits / 8);
}

void store_box(Warp& w, const Box& box, bool adds) {
  const Type t = element_type(box.map.type).type;
  each_element(w, box, [&](std::uint32_t from, std::uint8_t* to, std::uint32_t size) {
    const std::uint8_t* at = find_shared(w, from, size, box.lane);
    if (!to) return;
    if (adds) {
      add_element(to, at, t);
    } else {
      std::memcpy(to, at, size);
    }
  });
}

Box read_box(Warp& w, const Operand* op, int lane, std::uint32_t shared) {
  Box box;
  box.map = read_map(w, w.address(op[0], lane), lane);
  for (int i = 0; i < box.map.rank; ++i) box.at[i] = std::int32_t(w.get(op[1 + i], lane));
  box.shared = shared;
  box.lane = lane;
  if (shared % 128)
    w.fail("a box of a tensor map begins at a shared address that is not a multiple of 128", lane);
  if (box.at[0] * int(element_type(box.map.type).bytes) % 16 != 0)
    w.fail("a box of a tensor map begins between 16 bytes of a row", lane);
  return box;
}

void check_rank(Warp& w, const Box& box, std::uint32_t rank, int lane) {
  if (box.map.rank != rank)
    w.fail("the tensor map has " + std::to_string(box.map.rank) + " dims, the instruction names " +
               std::to_string(rank),
           lane);
}

// detail: flags, rank. Operands: to, mbarrier, map, coordinates [, mask]
bool run_load(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const auto to = std::uint32_t(w.address(in.op[0], lane)),
               barrier = std::uint32_t(w.address(in.op[1], lane));
    Box box = read_box(w, in.op + 2, lane, to);
    check_rank(w, box, in.detail[1], lane);
    std::uint32_t blocks = 1u << (to >> kRankShift);
    if (in.detail[0] & kMulticast)
      blocks = std::uint32_t(w.get(in.op[3 + in.detail[1]], lane)) & 0xffff;
    for (std::uint32_t rest = blocks; rest; rest &= rest - 1) {
      const auto rank = std::uint32_t(__builtin_ctz(rest));
      box.shared = shared_offset(to) | rank << kRankShift;
      const std::uint32_t signal = blocks == 1u << (to >> kRankShift)
                                       ? barrier
                                       : shared_offset(barrier) | rank << kRankShift;
      const std::size_t bytes = box_bytes(box.map);
      find_shared(w, box.shared + std::uint32_t(bytes) - 1, 1, lane);
      std::memset(find_shared(w, box.shared, 1, lane), kPoison, bytes);
      w.block->cluster->pending.push_back([&w, box, signal, bytes, lane] {
        load_box(w, box);
        Mbarrier(w, signal, lane).complete(std::uint32_t(bytes));
      });
    }
  });
  return true;
}

// Operands: map, coordinates.., from
bool run_store(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const auto from = std::uint32_t(w.address(in.op[1 + in.detail[1]], lane));
    const Box box = read_box(w, in.op, lane, from);
    check_rank(w, box, in.detail[1], lane);
    check_fenced(w, from, box_bytes(box.map), lane);
    const bool adds = in.detail[0] & kReduce;
    w.stores.push_back({[&w, box, adds] { store_box(w, box, adds); }, w.store_group[lane], lane});
  });
  return true;
}

// Without a map. Operands: to, mbarrier, from, bytes
bool run_load_plain(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const auto to = std::uint32_t(w.address(in.op[0], lane)),
               signal = std::uint32_t(w.address(in.op[1], lane));
    const std::uint64_t from = w.address(in.op[2], lane);
    const auto bytes = std::uint32_t(w.get(in.op[3], lane));
    if ((to | from | bytes) % 16)
      w.fail("a bulk copy's addresses and size are multiples of 16", lane);
    find_shared(w, to + bytes - 1, 1, lane);
    std::memset(find_shared(w, to, 1, lane), kPoison, bytes);
    w.block->cluster->pending.push_back([&w, to, from, bytes, signal, lane] {
      std::memcpy(find_shared(w, to, 1, lane), find(w, from, 1, lane), bytes);
      Mbarrier(w, signal, lane).complete(bytes);
    });
  });
  return true;
}

// Operands: to, from, bytes. detail: flags, type of the sum
bool run_store_plain(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const std::uint64_t to = w.address(in.op[0], lane);
    const auto from = std::uint32_t(w.address(in.op[1], lane)),
               bytes = std::uint32_t(w.get(in.op[2], lane));
    if ((to | from | bytes) % 16)
      w.fail("a bulk copy's addresses and size are multiples of 16", lane);
    check_fenced(w, from, bytes, lane);
    const Type t = unpack(in.detail[1]);
    const bool adds = in.detail[0] & kReduce;
    w.stores.push_back({[&w, to, from, bytes, lane, adds, t] {
                          const std::uint8_t* source = find_shared(w, from, 1, lane);
                          for (std::uint32_t i = 0; i < bytes; i += adds ? t.bits / 8u : bytes) {
                            std::uint8_t* at = find(w, to + i, 1, lane);
                            if (adds) {
                              add_element(at, source + i, t);
                            } else {
                              std::memcpy(at, source, bytes);
                            }
                          }
                        },
                        w.store_group[lane], lane});
  });
  return true;
}

bool run_commit(Warp& w, const Instruction&, std::uint32_t mask) {
  each_lane(mask, [&](int lane) { ++w.store_group[lane]; });
  return true;
}
bool run_wait(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::erase_if(w.stores, [&](BulkStore& store) {
    if (!(mask >> store.lane & 1) || store.group + in.detail[0] >= w.store_group[store.lane])
      return false;
    store.perform();
    return true;
  });
  return true;
}

void add_box(Decoder& d, const Text& text) {
  Text map = text;
  const Text coordinates = map.parts.at(1);
  map.parts.resize(1);
  d.add_address(map);
  d.add(coordinates, {Kind::kSigned, 32});
}

// .shared::cluster.global[.tile].mbarrier::complete_tx::bytes[.multicast::cluster][.L2::cache_hint]
// to, from, [size,] mbarrier
void decode_bulk_load(Decoder& d, std::uint32_t flags) {
  d.expect("global");
  d.skip("tile");
  d.expect("mbarrier::complete_tx::bytes");
  if (d.skip("multicast::cluster")) flags |= kMulticast;
  d.skip("L2::cache_hint");
  const auto& text = d.operands();
  d.out().detail[0] = flags;
  d.add_address(text.at(0));
  d.add_address(text.at(flags & kTensor ? 2 : 3));
  if (flags & kTensor) {
    add_box(d, text.at(1));
    if (flags & kMulticast) d.add(text.at(3), {Kind::kUnsigned, 16});
    return use(d, &run_load);
  }
  if (flags & kMulticast) d.fail("multicast without a tensor map is not known");
  d.add_address(text.at(1));
  d.add(text.at(2), {Kind::kUnsigned, 32});
  use(d, &run_load_plain);
}

void decode_bulk_store(Decoder& d, std::uint32_t flags) {
  d.expect("shared::cta");
  if (flags & kTensor && flags & kReduce) d.expect("add");
  d.skip("tile");
  d.expect("bulk_group");
  d.skip("L2::cache_hint");
  if (!(flags & kTensor) && flags & kReduce) {
    d.expect("add");
    d.skip("noftz");
    d.out().detail[1] = pack(d.type());
  }
  const auto& text = d.operands();
  d.out().detail[0] = flags;
  if (flags & kTensor) {
    add_box(d, text.at(0));
    d.add_address(text.at(1));
    return use(d, &run_store);
  }
  d.add_address(text.at(0));
  d.add_address(text.at(1));
  d.add(text.at(2), {Kind::kUnsigned, 32});
  use(d, &run_store_plain);
}

}  // namespace

void decode_bulk(Decoder& d, bool reduces) {
  d.expect("bulk");
  if (d.skip("commit_group")) return use(d, &run_commit);
  if (d.skip("wait_group")) {
    d.skip("read");
    d.out().detail[0] = std::uint32_t(d.constant(d.operands().at(0)));
    return use(d, &run_wait);
  }
  if (d.skip("prefetch")) {
    static constexpr std::string_view kWords[] = {
        "tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile", "L2::cache_hint"};
    d.skip_all(kWords);
    return use(d, &run_nothing);
  }
  std::uint32_t flags = reduces ? std::uint32_t(kReduce) : 0u;
  if (d.skip("tensor")) {
    flags |= kTensor;
    const std::string_view dims = d.word();
    if (dims.size() != 2 || dims[0] < '1' || dims[0] > '5' || dims[1] != 'd')
      d.fail("1d to 5d are known");
    d.out().detail[1] = std::uint32_t(dims[0] - '0');
  }
  if (d.skip("global")) return decode_bulk_store(d, flags);
  if (!d.skip("shared::cta")) d.expect("shared::cluster");
  if (d.next_is("shared::cta")) d.fail("bulk copies between blocks are not known");
  decode_bulk_load(d, flags);
}

}  // namespace trireme::ptx
