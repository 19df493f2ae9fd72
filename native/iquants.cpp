// ggml's super-blocks of 256 over codebooks: IQ1_S to IQ4_XS. Floats equal to llama.cpp's dequantize_row_*
// (ggml-quants.c, b11549).
//
// A code names a point of a codebook (grids.cpp): the magnitudes of eight neighbours (of four in IQ3). Their signs are
// eight bits more, or seven, the eighth then making an even number of minuses. 32 elements ("run") go together.
#include "blocks.hpp"
#include "codes.hpp"
#include "grids.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256, RUNS = 8;

// IQ2_XXS, 66 bytes: d, then for each run 8 bytes: four codes of 8 bits, and a u32 of four times seven signs and, on
// top, four bits of scale.                               x = d * (0.5 + scale) / 4 * point * sign
constexpr size_t IQ2_XXS_SIZE = 66;

// IQ2_XS, 74 bytes: d, then 32 x u16 (nine bits of code, seven signs), then for each run a nibble of scale for its first
// half and one for its second.
constexpr size_t IQ2_XS_SIZE = 74;

// IQ2_S, 82 bytes: d, 32 codes of eight low bits, 32 x 8 signs, 8 bytes with two upper bits for each code of a run, scales
// as in IQ2_XS.
constexpr size_t IQ2_S_SIZE = 82;

// IQ3_XXS, 98 bytes: d, 64 codes of 8 bits, then for each run a u32 of signs and scale as in IQ2_XXS.
//                                                        x = d * (0.5 + scale) / 2 * point * sign
constexpr size_t IQ3_XXS_SIZE = 98;

// IQ3_S, 110 bytes: d, 64 codes of eight low bits, 8 bytes with one upper bit for each code of a run, 32 x 8 signs, a
// nibble of scale for each run.                          x = d * (1 + 2 * scale) * point * sign
constexpr size_t IQ3_S_SIZE = 110;

// IQ1_S, 50 bytes: d, 32 codes of eight low bits, then for each run a u16: three upper bits for each of its codes, three
// bits of scale, a sign.                                 x = d * (2 * scale + 1) * (point +- 1/8)
constexpr size_t IQ1_S_SIZE = 50;

// IQ1_M, 56 bytes: 32 codes of eight low bits, 32 nibbles of three upper bits and a sign, four u16 of four times three
// bits of scale (for 16 elements). On top of these stand four bits each of d, the lowest first.
constexpr size_t IQ1_M_SIZE = 56;

// IQ4_XS, 136 bytes: d, 16 bits of two upper bits of scale for each run, 4 bytes of low nibbles of these, 8 x 16 bytes of
// nibbles.                                               x = d * (scale - 32) * IQ4_VALUES[q]
constexpr size_t IQ4_XS_SIZE = 136;

constexpr float IQ1_DELTA = 0.125f;

// Seven signs and the eighth that makes their number even.
WB_INLINE u32 even_signs(u32 seven) {
  const u32 folded = seven ^ (seven >> 4);
  return seven | ((0x6996u >> (folded & 15) & 1) << 7);  // 0x6996: the parity of each nibble
}

// Neighbours of one point. The sign of a NaN flips too: ggml multiplies by -1, of which compilers make a negation.
template <class Point>
WB_INLINE void store_point(Point point, float scale, u32 signs, u8* WB_RESTRICT dst) {
  u8 magnitude[sizeof(Point)];
  memcpy(magnitude, &point, sizeof point);
  for (size_t j = 0; j < sizeof(Point); ++j)
    store(dst, j, bit_cast<u32>(scale * float(magnitude[j])) ^ (signs >> j & 1) << 31);
}

WB_INLINE void store_ternary(u64 point, float scale, float delta, u8* WB_RESTRICT dst) {
  i8 trit[8];
  memcpy(trit, &point, 8);
  for (size_t j = 0; j < 8; ++j) store(dst, j, scale * (float(trit[j]) + delta));
}

void decode_iq2_xxs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ2_XXS_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = src + 2 + 8 * run;
      const u32 rest = load<u32>(codes + 4);
      const float scale = d * (0.5f + float(rest >> 28)) * 0.25f;
      for (size_t l = 0; l < 4; ++l, dst += 8 * 4)
        store_point(grids.iq2_xxs[codes[l]], scale, even_signs(rest >> 7 * l & 127), dst);
    }
  }
}

// Scales of the halves of a run from two nibbles.
WB_INLINE float quarter_scale(float d, u8 nibbles, size_t part) {
  return d * (0.5f + float(nibbles >> 4 * part & 15)) * 0.25f;
}

void decode_iq2_xs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ2_XS_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run)
      for (size_t l = 0; l < 4; ++l, dst += 8 * 4) {
        const u32 code = load<u16>(src + 2, 4 * run + l);
        store_point(grids.iq2_xs[code & 511], quarter_scale(d, src[66 + run], l / 2), even_signs(code >> 9), dst);
      }
  }
}

void decode_iq2_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ2_S_SIZE) {
    const float d = half(src);
    const u8 *codes = src + 2, *signs = src + 34, *upper = src + 66, *scales = src + 74;
    for (size_t run = 0; run < RUNS; ++run)
      for (size_t l = 0; l < 4; ++l, dst += 8 * 4) {
        const u32 code = codes[4 * run + l] | (u32(upper[run]) >> 2 * l & 3) << 8;
        store_point(grids.iq2_s[code], quarter_scale(d, scales[run], l / 2), signs[4 * run + l], dst);
      }
  }
}

void decode_iq3_xxs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ3_XXS_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = src + 2 + 8 * run;
      const u32 rest = load<u32>(src + 66, run);
      const float scale = d * (0.5f + float(rest >> 28)) * 0.5f;
      for (size_t l = 0; l < 4; ++l, dst += 8 * 4) {
        const u32 signs = even_signs(rest >> 7 * l & 127);
        store_point(grids.iq3_xxs[codes[2 * l]], scale, signs, dst);
        store_point(grids.iq3_xxs[codes[2 * l + 1]], scale, signs >> 4, dst + 16);
      }
    }
  }
}

void decode_iq3_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ3_S_SIZE) {
    const float d = half(src);
    const u8 *codes = src + 2, *upper = src + 66, *signs = src + 74, *scales = src + 106;
    for (size_t run = 0; run < RUNS; ++run) {
      const float scale = d * float(1 + 2 * (scales[run / 2] >> 4 * (run % 2) & 15));
      for (size_t k = 0; k < 8; ++k, dst += 4 * 4) {
        const u32 code = codes[8 * run + k] | (u32(upper[run]) >> k & 1) << 8;
        store_point(grids.iq3_s[code], scale, u32(signs[4 * run + k / 2]) >> 4 * (k % 2), dst);
      }
    }
  }
}

void decode_iq1_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ1_S_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u32 rest = load<u16>(src + 34, run);
      const float scale = d * float(2 * (rest >> 12 & 7) + 1), delta = rest & 0x8000 ? -IQ1_DELTA : IQ1_DELTA;
      for (size_t l = 0; l < 4; ++l, dst += 8 * 4)
        store_ternary(grids.iq1_s[src[2 + 4 * run + l] | (rest >> 3 * l & 7) << 8], scale, delta, dst);
    }
  }
}

// d of IQ1_M, out of the tops of the four words of scales.
WB_INLINE u32 iq1_m_half(const u8* scales) {
  return load<u16>(scales, 0) >> 12 | (load<u16>(scales, 1) >> 12 << 4) | (load<u16>(scales, 2) >> 12 << 8) |
         (load<u16>(scales, 3) >> 12 << 12);
}

void decode_iq1_m(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ1_M_SIZE) {
    const float d = bit_cast<float>(widen_f16(iq1_m_half(src + 48)));
    for (size_t k = 0; k < 32; ++k, dst += 8 * 4) {
      const u32 rest = src[32 + k / 2] >> 4 * (k % 2) & 15;
      const float scale = d * float(2 * (load<u16>(src + 48, k / 8) >> 3 * (k / 2 % 4) & 7) + 1);
      store_ternary(grids.iq1_s[src[k] | (rest & 7) << 8], scale, rest & 8 ? -IQ1_DELTA : IQ1_DELTA, dst);
    }
  }
}

void iq1_m_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b) store(dst, b, widen_f16(iq1_m_half(src + b * IQ1_M_SIZE + 48)));
}

void decode_iq4_xs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ4_XS_SIZE) {
    const float d = half(src);
    const int upper = load<u16>(src + 2);
    for (size_t run = 0; run < RUNS; ++run, dst += 32 * 4) {
      const int scale = (src[4 + run / 2] >> 4 * (run % 2) & 15) | (upper >> 2 * run & 3) << 4;
      decode_nibbles<32>(src + 8 + 16 * run, d * float(scale - 32), IQ4_VALUES, dst);
    }
  }
}

}  // namespace

static const Format formats[] = {
    {"IQ1_S", N, IQ1_S_SIZE, decode_iq1_s, nullptr, nullptr, 1, half_scales<IQ1_S_SIZE, 0>},
    {"IQ1_M", N, IQ1_M_SIZE, decode_iq1_m, nullptr, nullptr, 1, iq1_m_scales},
    {"IQ2_XXS", N, IQ2_XXS_SIZE, decode_iq2_xxs, nullptr, nullptr, 1, half_scales<IQ2_XXS_SIZE, 0>},
    {"IQ2_XS", N, IQ2_XS_SIZE, decode_iq2_xs, nullptr, nullptr, 1, half_scales<IQ2_XS_SIZE, 0>},
    {"IQ2_S", N, IQ2_S_SIZE, decode_iq2_s, nullptr, nullptr, 1, half_scales<IQ2_S_SIZE, 0>},
    {"IQ3_XXS", N, IQ3_XXS_SIZE, decode_iq3_xxs, nullptr, nullptr, 1, half_scales<IQ3_XXS_SIZE, 0>},
    {"IQ3_S", N, IQ3_S_SIZE, decode_iq3_s, nullptr, nullptr, 1, half_scales<IQ3_S_SIZE, 0>},
    {"IQ4_XS", N, IQ4_XS_SIZE, decode_iq4_xs, nullptr, nullptr, 1, half_scales<IQ4_XS_SIZE, 0>},
};
const Family iquants = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
