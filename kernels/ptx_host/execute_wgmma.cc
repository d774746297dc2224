// wgmma: products of a warpgroup, here of each of its warps for its 16 rows. They are made at the
// wait that covers them, from what shared memory holds then; until then nobody may read their
// accumulators, but copy them.
#include "kernels/ptx_host/fragments.h"
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/lexer.h"
#include "kernels/ptx_host/numbers.h"
#include "kernels/ptx_host/shared_matrix.h"
#include "kernels/ptx_host/tensor_core.h"

namespace trireme::ptx {
namespace {

constexpr int kRows = 16;

// A's 16 rows of this warp, or all columns of B, as floats: [mn][k] or, transposed for multiply(),
// [k][mn].
struct Operands {
  Warp& w;
  Type type;
  int k;
  float value(const SharedMatrix& matrix, int mn, int i, bool mn_major) const {
    const std::uint32_t size = type.bits / 8;
    const std::uint32_t at =
        matrix.address(std::uint32_t(mn), std::uint32_t(i), size, mn_major) & 0x3ffff;
    if (at < kSharedBegin || at - kSharedBegin + size > w.block->shared.size())
      w.fail("a wgmma descriptor points outside the block's shared memory");
    check_fenced(w, at | w.block->rank << kRankShift, size, -1);
    std::uint32_t bits = 0;
    std::memcpy(&bits, w.block->shared.data() + (at - kSharedBegin), size);
    return number_of(bits, type);
  }
};

Type product_type(std::uint32_t kind, int which) {
  static constexpr Type kTypes[] = {
      {Kind::kBf16, 16}, {Kind::kFloat, 16}, {Kind::kTf32, 32}, {Kind::kE4m3, 8}, {Kind::kE5m2, 8}};
  return kTypes[kind >> (4 * which) & 15];
}
std::uint32_t kind_of(Decoder& d, Type t) {
  const Kind kinds[] = {Kind::kBf16, Kind::kFloat, Kind::kTf32, Kind::kE4m3, Kind::kE5m2};
  for (std::uint32_t i = 0; i < 5; ++i)
    if (kinds[i] == t.kind && !(t.kind == Kind::kFloat && t.bits != 16)) return i;
  d.fail("this type is not known here");
}

int accumulator_at(int lane, int i, int n) {
  const auto [row, column] = d_place(lane, i);
  return row * n + column;
}

void read_a(const Operands& operands, const Product& p, std::vector<float>& a) {
  const int k = operands.k, per = 32 / operands.type.bits;
  if (p.a_registers.empty()) {
    const SharedMatrix matrix = SharedMatrix::of(p.a);
    const int first = int(operands.w.index % 4) * kRows;
    for (int m = 0; m < kRows; ++m)
      for (int i = 0; i < k; ++i)
        a[std::size_t(m * k + i)] = operands.value(matrix, first + m, i, p.transpose_a);
  } else {
    for (int lane = 0; lane < kLanes; ++lane)
      for (int j = 0; j < 4; ++j)
        for (int e = 0; e < per; ++e) {
          const std::uint32_t bits =
              p.a_registers[std::size_t(j * kLanes + lane)] >> (e * operands.type.bits % 32);
          const auto [row, column] = a_place(lane, j, e, per);
          a[std::size_t(row * k + column)] = number_of(bits, operands.type);
        }
  }
  if (p.negate_a)
    for (float& x : a) x = -x;
}

void perform(Warp& w, const Product& p, std::vector<float>& d, bool half) {
  const Operands of_a = {w, product_type(p.kind, 0), 256 / product_type(p.kind, 0).bits};
  const Operands of_b = {w, product_type(p.kind, 1), of_a.k};
  const int n = int(p.shape_n), k = of_a.k;
  std::vector<float> a(std::size_t(kRows * k)), b(std::size_t(n * k));
  read_a(of_a, p, a);
  const SharedMatrix matrix = SharedMatrix::of(p.b);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < k; ++i)
      b[std::size_t(i * n + j)] =
          of_b.value(matrix, j, i, p.transpose_b) * (p.negate_b ? -1.0F : 1.0F);
  if (!p.accumulate) std::fill(d.begin(), d.end(), 0.0F);
  const Type to = {Kind::kFloat, std::uint8_t(half ? 16 : 32)};
  multiply({a.data(), b.data(), d.data(), kRows, n, k},
           core_numbers(of_a.type, of_b.type, to, true));
  if (half)
    for (float& x : d) x = float_of_half(half_of(double(x), Round::kNearest));
}

std::vector<float> start_values(const Flight& flight, int n, bool half) {
  std::vector<float> d(std::size_t(kRows * n));
  for (std::size_t j = 0; j < flight.registers; ++j)
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t bits = flight.start[j * kLanes + std::size_t(lane)];
      if (half) {
        for (int e = 0; e < 2; ++e)
          d[std::size_t(accumulator_at(lane, int(2 * j) + e, n))] =
              float_of_half(std::uint16_t(bits >> (16 * e)));
      } else {
        d[std::size_t(accumulator_at(lane, int(j), n))] = std::bit_cast<float>(bits);
      }
    }
  return d;
}

void keep_values(Flight& flight, const std::vector<float>& d, int n, bool half) {
  for (std::size_t j = 0; j < flight.registers; ++j)
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto value = [&](std::size_t i) {
        return d[std::size_t(accumulator_at(lane, int(i), n))];
      };
      flight.start[j * kLanes + std::size_t(lane)] =
          half ? std::uint32_t(half_of(double(value(2 * j + 1)), Round::kNearest)) << 16 |
                     half_of(double(value(2 * j)), Round::kNearest)
               : std::bit_cast<std::uint32_t>(value(j));
    }
}

// Makes the products of groups before `end`.
void finish(Warp& w, Flight& flight, std::uint32_t end) {
  std::size_t ready = 0;
  while (ready < flight.products.size() && flight.products[ready].group < end) ++ready;
  if (ready == 0) return;
  const int n = int(flight.products[0].shape_n);
  const bool half = flight.registers * 2 == std::size_t(n) / 2;
  std::vector<float> d = start_values(flight, n, half);
  for (std::size_t i = 0; i < ready; ++i) perform(w, flight.products[i], d, half);
  keep_values(flight, d, n, half);
  flight.products.erase(flight.products.begin(), flight.products.begin() + std::ptrdiff_t(ready));
}

Flight& flight_of(Warp& w, const Instruction& in, std::size_t registers) {
  for (const auto& flight : w.flights) {
    std::size_t found = 0;
    for (std::size_t j = 0; j < registers; ++j)
      for (const auto& [row, element] : flight->rows)
        found += row == in.op[j].row && std::size_t(element) == j;
    if (found == registers && flight->registers == registers) return *flight;
    if (found) w.fail("a wgmma takes some accumulators of one that has not been waited for");
  }
  auto flight = std::make_unique<Flight>();
  flight->registers = registers;
  flight->start.resize(registers * kLanes);
  for (std::size_t j = 0; j < registers; ++j) {
    flight->rows.emplace_back(in.op[j].row, int(j));
    std::memcpy(flight->start.data() + j * kLanes, w.row<std::uint32_t>(in.op[j]), kLanes * 4);
  }
  w.flights.push_back(std::move(flight));
  return *w.flights.back();
}

// detail: n, kinds | A in registers << 8, accumulators, flags (negate A, B, transpose A, B).
// Operands: D.., A (1 or 4), B, scale-d
bool run_wgmma(Warp& w, const Instruction& in, std::uint32_t) {
  const std::size_t registers = in.detail[2];
  Product p;
  p.shape_n = in.detail[0];
  p.kind = in.detail[1] & 0xff;
  const bool from_registers = (in.detail[1] >> 8 & 1) != 0;
  const Operand* op = in.op + registers;
  if (from_registers) {
    p.a_registers.resize(4 * kLanes);
    for (std::size_t j = 0; j < 4; ++j)
      std::memcpy(p.a_registers.data() + j * kLanes, w.row<std::uint32_t>(op[j]), kLanes * 4);
    op += 4;
  } else {
    p.a = w.get(*op++, 0);
  }
  p.b = w.get(op[0], 0);
  const std::uint32_t scale = w.predicate_value(op[1]);
  if (scale != 0 && scale != kAllLanes) w.fail("scale-d differs between lanes");
  p.accumulate = scale != 0;
  p.negate_a = in.detail[3] & 1;
  p.negate_b = in.detail[3] & 2;
  p.transpose_a = in.detail[3] & 4;
  p.transpose_b = in.detail[3] & 8;
  p.group = w.wgmma_group;
  flight_of(w, in, registers).products.push_back(std::move(p));
  return true;
}

void read_immediates(Decoder& d, std::size_t from, bool a_in_registers) {
  const auto& text = d.operands();
  const auto constant = [&](std::size_t i) { return std::int64_t(d.constant(text.at(i))); };
  const auto flag = [&](std::size_t i) {
    if (constant(i) != 0 && constant(i) != 1) d.fail("a transposition is 0 or 1");
    return constant(i) == 1;
  };
  for (std::size_t i = from; i < from + 2; ++i)
    if (constant(i) != 1 && constant(i) != -1) d.fail("a scale of an operand is 1 or -1");
  std::uint32_t& flags = d.out().detail[3];
  if (constant(from) < 0) flags |= 1;
  if (constant(from + 1) < 0) flags |= 2;
  std::size_t next = from + 2;
  if (!a_in_registers && next + 1 < text.size() && flag(next++)) flags |= 4;
  if (next < text.size() && flag(next++)) flags |= 8;
  if (next < text.size()) d.fail("too many operands");
}

void decode_product(Decoder& d) {
  d.expect("sync");
  d.expect("aligned");
  const std::string_view shape = d.word();
  const std::size_t k_at = shape.rfind('k');
  if (!shape.starts_with("m64n") || k_at == std::string_view::npos)
    d.fail("this shape is not known");
  Instruction& out = d.out();
  out.detail[0] = std::uint32_t(integer_of(shape.substr(4, k_at - 4)));
  const Type to = d.type(), a = d.type(), b = d.type();
  if (to.kind != Kind::kFloat || to.bits == 64) d.fail("sums of this type are not known");
  if (integer_of(shape.substr(k_at + 1)) != 256u / a.bits)
    d.fail("the shape does not fit the types");
  out.detail[1] = kind_of(d, a) | kind_of(d, b) << 4;
  out.detail[2] = out.detail[0] / (to.bits == 16 ? 4 : 2);
  const auto& text = d.operands();
  if (text.size() < 6 || text[0].parts.size() != out.detail[2])
    d.fail("the accumulators do not fit the shape");
  const bool a_in_registers = text[1].form == Form::kVector;
  d.add(0, {Kind::kBits, 32});
  d.add(1, a_in_registers ? Type{Kind::kBits, 32} : Type{Kind::kBits, 64});
  out.detail[1] |= std::uint32_t(a_in_registers) << 8;
  d.add(2, {Kind::kBits, 64});
  d.add_predicate(text[3]);
  read_immediates(d, 4, a_in_registers);
  out.flow = Flow::kAligned;
  out.moves = true;  // flight_of() has its own checks
  use(d, &run_wgmma);
}

bool run_commit(Warp& w, const Instruction&, std::uint32_t) {
  ++w.wgmma_group;
  return true;
}
bool run_wait(Warp& w, const Instruction& in, std::uint32_t) {
  const std::uint32_t open = in.detail[0];
  if (w.wgmma_group < open) return true;
  for (auto& flight : w.flights) {
    finish(w, *flight, w.wgmma_group - open);
    if (!flight->products.empty()) continue;
    for (const auto& [row, element] : flight->rows)
      std::memcpy(w.file.data() + row, flight->start.data() + std::size_t(element) * kLanes,
                  kLanes * 4);
  }
  std::erase_if(w.flights, [](const auto& flight) { return flight->products.empty(); });
  return true;
}

void decode_wgmma(Decoder& d) {
  if (d.skip("mma_async")) return decode_product(d);
  const bool fence = d.skip("fence"), commit = !fence && d.skip("commit_group");
  if (!fence && !commit) d.expect("wait_group");
  d.expect("sync");
  d.expect("aligned");
  d.out().flow = Flow::kAligned;
  if (!fence && !commit) d.out().detail[0] = std::uint32_t(d.constant(d.operands().at(0)));
  use(d, fence ? &run_nothing : commit ? &run_commit : &run_wait);
}

}  // namespace

std::vector<Opcode> wgmma_opcodes() { return {{"wgmma", decode_wgmma}}; }

}  // namespace trireme::ptx
