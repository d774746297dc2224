// What CuTe's host code says of layouts: swizzles, the descriptors of wgmma operands with every
// element's place, the fragments of mma.sync and wgmma. Writes the table
// tests/golden/cute_layouts.txt; needs no GPU.
#include <cstdio>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

using namespace cute;

namespace {

FILE* out;

template <int kBits>
void swizzle(int row_bytes) {
  std::fprintf(out, "swizzle %d:", row_bytes);
  for (int address = 0; address < 2048; address += 16)
    std::fprintf(out, " %d", int(Swizzle<kBits, 4, 3>::apply(address)));
  std::fprintf(out, "\n");
}

// The first 16 values of k, for which one wgmma has the descriptor; places in bytes.
template <SM90::GMMA::Major kMajor, class T, class Atom>
void matrix(const char* name, Atom atom) {
  constexpr int kK = 32 / sizeof(T);
  const auto layout = tile_to_shape(atom, Shape<_128, Int<4 * kK>>{});
  alignas(1024) static T memory[128 * 4 * kK];
  const auto tensor = make_tensor(make_smem_ptr(memory), layout);  // its pointers swizzle

  const auto piece = local_tile(tensor, Shape<_128, Int<kK>>{}, make_coord(0, 0));
  const auto descriptor = SM90::GMMA::make_gmma_desc<kMajor>(piece);
  std::fprintf(out, "matrix %s %d %d 0x%llx:", name, int(sizeof(T)),
               kMajor == SM90::GMMA::Major::MN, static_cast<unsigned long long>(descriptor.desc_));
  for (int k = 0; k < kK; ++k)
    for (int mn = 0; mn < 128; ++mn)
      std::fprintf(out, " %d",
                   int(reinterpret_cast<char*>(&tensor(mn, k)) - reinterpret_cast<char*>(memory)));
  std::fprintf(out, "\n");
}

// Element by element: row * columns + column, thread after thread.
template <class Layout>
void fragment(const char* name, Layout layout, int rows, int columns) {
  std::fprintf(out, "fragment %s %d %d:", name, int(size<0>(layout)), int(size<1>(layout)));
  for (int t = 0; t < int(size<0>(layout)); ++t)
    for (int v = 0; v < int(size<1>(layout)); ++v) {
      const int at = layout(t, v);  // column-major in CuTe
      std::fprintf(out, " %d", at % rows * columns + at / rows);
    }
  std::fprintf(out, "\n");
}

}  // namespace

int main(int, char** argv) {
  out = std::fopen(argv[1], "w");
  if (!out) return 1;
  swizzle<1>(32);
  swizzle<2>(64);
  swizzle<3>(128);
  using SM90::GMMA::Major;
  using BF = cute::bfloat16_t;
  using E4 = cute::float_e4m3_t;
  matrix<Major::K, BF>("none", SM90::GMMA::Layout_K_INTER_Atom<BF>{});
  matrix<Major::K, BF>("32", SM90::GMMA::Layout_K_SW32_Atom<BF>{});
  matrix<Major::K, BF>("64", SM90::GMMA::Layout_K_SW64_Atom<BF>{});
  matrix<Major::K, BF>("128", SM90::GMMA::Layout_K_SW128_Atom<BF>{});
  matrix<Major::MN, BF>("none", SM90::GMMA::Layout_MN_INTER_Atom<BF>{});
  matrix<Major::MN, BF>("32", SM90::GMMA::Layout_MN_SW32_Atom<BF>{});
  matrix<Major::MN, BF>("64", SM90::GMMA::Layout_MN_SW64_Atom<BF>{});
  matrix<Major::MN, BF>("128", SM90::GMMA::Layout_MN_SW128_Atom<BF>{});
  matrix<Major::K, E4>("128", SM90::GMMA::Layout_K_SW128_Atom<E4>{});
  matrix<Major::K, E4>("64", SM90::GMMA::Layout_K_SW64_Atom<E4>{});
  using Mma = MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>;
  fragment("mma_a_16", Mma::ALayout{}, 16, 16);
  fragment("mma_b_16", Mma::BLayout{}, 8, 16);
  fragment("mma_c", Mma::CLayout{}, 16, 8);
  using Wgmma = MMA_Traits<SM90_64x32x16_F32BF16BF16_RS<Major::K, Major::K>>;
  fragment("wgmma_a_16", Wgmma::ALayout{}, 64, 16);
  fragment("wgmma_c", Wgmma::CLayout{}, 64, 32);
  using Wgmma8 = MMA_Traits<SM90_64x32x32_F32E4M3E4M3_RS_TN<>>;
  fragment("wgmma_a_32", Wgmma8::ALayout{}, 64, 32);
  std::fclose(out);
  return 0;
}
