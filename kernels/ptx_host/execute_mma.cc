// mma.sync, ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.15).
#include "kernels/ptx_host/fragments.h"
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/lexer.h"
#include "kernels/ptx_host/numbers.h"
#include "kernels/ptx_host/tensor_core.h"

namespace trireme::ptx {
namespace {

constexpr int kRows = 16, kColumns = 8;

struct Fragment {
  Type type;
  int k;
  int per_register() const { return 32 / type.bits; }
  std::uint32_t element(std::uint64_t bits, int e) const {
    return std::uint32_t(bits >> (e * type.bits)) & (type.bits == 32 ? ~0u : (1u << type.bits) - 1);
  }
};

void read_a(Warp& w, const Operand* op, const Fragment& f, float* a) {
  const int p = f.per_register(), registers = kRows * f.k / p / kLanes;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int j = 0; j < registers; ++j) {
      const std::uint64_t bits = w.get(op[j], lane);
      for (int e = 0; e < p; ++e) {
        const auto [row, column] = a_place(lane, j, e, p);
        a[row * f.k + column] = number_of(f.element(bits, e), f.type);
      }
    }
}

void read_b(Warp& w, const Operand* op, const Fragment& f, float* b) {
  const int p = f.per_register(), registers = kColumns * f.k / p / kLanes;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int j = 0; j < registers; ++j) {
      const std::uint64_t bits = w.get(op[j], lane);
      for (int e = 0; e < p; ++e) {
        const auto [row, column] = b_place(lane, j, e, p);
        b[row * kColumns + column] = number_of(f.element(bits, e), f.type);
      }
    }
}

// detail: A's type, B's, D's, k
bool run_mma(Warp& w, const Instruction& in, std::uint32_t) {
  const Fragment fa = {unpack(in.detail[0]), int(in.detail[3])},
                 fb = {unpack(in.detail[1]), int(in.detail[3])};
  const Type to = unpack(in.detail[2]);
  const int half = to.bits == 16, d_registers = half ? 2 : 4;
  const int a_registers = kRows * fa.k * fa.type.bits / 32 / kLanes, b_registers = a_registers / 2;
  float a[kRows * 32], b[32 * kColumns], d[kRows * kColumns];
  const Operand* op = in.op + d_registers;
  read_a(w, op, fa, a);
  read_b(w, op + a_registers, fb, b);
  op += a_registers + b_registers;
  const auto at = [](int lane, int i) {
    const auto [row, column] = d_place(lane, i);
    return row * kColumns + column;
  };
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 4; ++i)
      d[at(lane, i)] = half ? float_of_half(std::uint16_t(w.get(op[i / 2], lane) >> (16 * (i % 2))))
                            : std::bit_cast<float>(std::uint32_t(w.get(op[i], lane)));
  multiply({a, b, d, kRows, kColumns, fa.k}, core_numbers(fa.type, fb.type, to, false));
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4 && !half; ++i)
      w.set(in.op[i], lane, std::bit_cast<std::uint32_t>(d[at(lane, i)]));
    for (int i = 0; i < 2 && half; ++i)
      w.set(in.op[i], lane,
            std::uint64_t(half_of(double(d[at(lane, 2 * i + 1)]), Round::kNearest)) << 16 |
                half_of(double(d[at(lane, 2 * i)]), Round::kNearest));
  }
  return true;
}

void decode_mma(Decoder& d) {
  d.expect("sync");
  d.expect("aligned");
  const std::string_view shape = d.word();
  if (!shape.starts_with("m16n8k")) d.fail("only m16n8 shapes are known");
  d.expect("row");
  d.expect("col");
  const Type to = d.type(), a = d.type(), b = d.type(), from = d.type();
  if (to != from || to.kind != Kind::kFloat || to.bits == 64 || a.is_integer())
    d.fail("these types are not known");
  d.out().detail[0] = pack(a);
  d.out().detail[1] = pack(b);
  d.out().detail[2] = pack(to);
  d.out().detail[3] = std::uint32_t(integer_of(shape.substr(6)));
  if (d.count() != 4) d.fail("expected 4 operands");
  for (std::size_t i = 0; i < 4; ++i) d.add(i, {Kind::kBits, 32});
  d.out().flow = Flow::kAligned;
  use(d, &run_mma);
}

// ---- 8 x 8 matrices of 16 bits: lane 8 i + r has the address of row r of matrix i ----
// detail: matrices, transposed
bool run_ldmatrix(Warp& w, const Instruction& in, std::uint32_t) {
  const int matrices = int(in.detail[0]);
  for (int i = 0; i < matrices; ++i) {
    const std::uint8_t* rows[8];
    for (int r = 0; r < 8; ++r)
      rows[r] = find_shared(w, std::uint32_t(w.address(in.op[matrices], 8 * i + r)), 16, 8 * i + r);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::uint16_t pair[2];
      for (int e = 0; e < 2; ++e) {
        const int row = in.detail[1] ? 2 * (lane % 4) + e : lane / 4,
                  column = in.detail[1] ? lane / 4 : 2 * (lane % 4) + e;
        std::memcpy(&pair[e], rows[row] + 2 * column, 2);
      }
      w.set(in.op[i], lane, std::uint32_t(pair[1]) << 16 | pair[0]);
    }
  }
  return true;
}

bool run_stmatrix(Warp& w, const Instruction& in, std::uint32_t) {
  for (int i = 0; i < int(in.detail[0]); ++i)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int e = 0; e < 2; ++e) {
        const int row = in.detail[1] ? 2 * (lane % 4) + e : lane / 4,
                  column = in.detail[1] ? lane / 4 : 2 * (lane % 4) + e;
        const auto address = std::uint32_t(w.address(in.op[0], 8 * i + row));
        find_shared(w, address, 16, 8 * i + row);
        const auto value = std::uint16_t(w.get(in.op[1 + i], lane) >> (16 * e));
        std::memcpy(find_shared(w, address + std::uint32_t(2 * column), 2, lane), &value, 2);
        mark_unfenced(w, address + std::uint32_t(2 * column), 2, lane);
      }
  return true;
}

void decode_matrix(Decoder& d, bool load) {
  d.expect("sync");
  d.expect("aligned");
  // Old code writes these in another order than the manual.
  d.out().detail[0] = 0;
  bool shape = false;
  while (!d.next_is("b16")) {
    const std::string_view word = d.word();
    if (word == "x1" || word == "x2" || word == "x4") {
      d.out().detail[0] = std::uint32_t(word[1] - '0');
    } else if (word == "trans") {
      d.out().detail[1] = 1;
    } else if (word == "m8n8") {
      shape = true;
    } else if (word != "shared" && word != "shared::cta") {
      d.fail("\"." + std::string(word) + "\" is not known here");
    }
  }
  if (!shape || d.out().detail[0] == 0) d.fail("the shape or the number of matrices is missing");
  d.expect("b16");
  if (load) d.add(0, {Kind::kBits, 32});
  d.add_address(d.operands().at(load ? 1 : 0));
  if (!load) d.add(1, {Kind::kBits, 32});
  d.out().flow = Flow::kAligned;
  use(d, load ? &run_ldmatrix : &run_stmatrix);
}

bool run_movmatrix(Warp& w, const Instruction& in, std::uint32_t) {
  std::uint32_t before[kLanes];
  std::memcpy(before, w.row<std::uint32_t>(in.op[1]), sizeof before);
  for (int lane = 0; lane < kLanes; ++lane) {
    std::uint32_t value = 0;
    for (int e = 0; e < 2; ++e) {
      const int row = 2 * (lane % 4) + e, column = lane / 4;  // of the source
      value |= (before[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff) << (16 * e);
    }
    w.set(in.op[0], lane, value);
  }
  return true;
}
void decode_movmatrix(Decoder& d) {
  for (const char* word : {"sync", "aligned", "m8n8", "trans", "b16"}) d.expect(word);
  add_all(d, 2, {Kind::kBits, 32});
  d.out().flow = Flow::kAligned;
  use(d, &run_movmatrix);
}

}  // namespace

std::vector<Opcode> mma_opcodes() {
  return {{"mma", decode_mma},
          {"ldmatrix", [](Decoder& d) { decode_matrix(d, true); }},
          {"stmatrix", [](Decoder& d) { decode_matrix(d, false); }},
          {"movmatrix", decode_movmatrix}};
}

}  // namespace trireme::ptx
