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

// Seven signs and the eighth that makes their number even.
WB_INLINE u32 even_signs(u32 seven) {
  const u32 folded = seven ^ (seven >> 4);
  return seven | ((0x6996u >> (folded & 15) & 1) << 7);  // 0x6996: the parity of each nibble
}

// Two points of four neighbours as one of eight.
WB_INLINE u64 both(u32 first, u32 second) { return first | u64(second) << 32; }

// Two points of eight neighbours, and a bit for each minus.
WB_INLINE void put_points(u64 first, u64 second, u32 minuses, float scale, u8* dst) {
  put_signed(join(first, second), spread_bits(minuses), scale, dst);
}

// Eight eighths, or minus as many.
WB_INLINE u64 eighths(u32 minus) { return minus ? 0xFFFFFFFFFFFFFFFFu : 0x0101010101010101u; }

void decode_iq2_xxs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ2_XXS_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = src + 2 + 8 * run;
      const u32 rest = load<u32>(codes + 4);
      const float scale = d * (0.5f + float(rest >> 28)) * 0.25f;
      for (size_t l = 0; l < 4; l += 2, dst += 16 * 4) {
        const u32 minuses = even_signs(rest >> 7 * l & 127) | even_signs(rest >> 7 * (l + 1) & 127) << 8;
        put_points(grids.iq2_xxs[codes[l]], grids.iq2_xxs[codes[l + 1]], minuses, scale, dst);
      }
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
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const u32 first = load<u16>(src + 2, 2 * part), second = load<u16>(src + 2, 2 * part + 1);
      const u32 minuses = even_signs(first >> 9) | even_signs(second >> 9) << 8;
      const float scale = quarter_scale(d, src[66 + part / 2], part % 2);
      put_points(grids.iq2_xs[first & 511], grids.iq2_xs[second & 511], minuses, scale, dst);
    }
  }
}

void decode_iq2_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ2_S_SIZE) {
    const float d = half(src);
    const u8 *codes = src + 2, *upper = src + 66, *scales = src + 74;
    const auto point = [&](size_t l) { return grids.iq2_s[codes[l] | (u32(upper[l / 4]) >> 2 * (l % 4) & 3) << 8]; };
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4)
      put_points(point(2 * part), point(2 * part + 1), load<u16>(src + 34, part),
                 quarter_scale(d, scales[part / 2], part % 2), dst);
  }
}

void decode_iq3_xxs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ3_XXS_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = src + 2 + 8 * run;
      const u32 rest = load<u32>(src + 66, run);
      const float scale = d * (0.5f + float(rest >> 28)) * 0.5f;
      const auto point = [&](size_t l) { return both(grids.iq3_xxs[codes[2 * l]], grids.iq3_xxs[codes[2 * l + 1]]); };
      for (size_t l = 0; l < 4; l += 2, dst += 16 * 4) {
        const u32 minuses = even_signs(rest >> 7 * l & 127) | even_signs(rest >> 7 * (l + 1) & 127) << 8;
        put_points(point(l), point(l + 1), minuses, scale, dst);
      }
    }
  }
}

void decode_iq3_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ3_S_SIZE) {
    const float d = half(src);
    const u8 *codes = src + 2, *upper = src + 66, *scales = src + 106;
    const auto point = [&](size_t k) { return grids.iq3_s[codes[k] | (u32(upper[k / 8]) >> k % 8 & 1) << 8]; };
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const float scale = d * float(1 + 2 * (scales[part / 4] >> 4 * (part / 2 % 2) & 15));
      const u64 first = both(point(4 * part), point(4 * part + 1)), second = both(point(4 * part + 2), point(4 * part + 3));
      put_points(first, second, load<u16>(src + 74, part), scale, dst);
    }
  }
}

void decode_iq1_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ1_S_SIZE) {
    const float d = half(src);
    for (size_t run = 0; run < RUNS; ++run) {
      const u32 rest = load<u16>(src + 34, run);
      const float scale = d * float(2 * (rest >> 12 & 7) + 1);
      const u64 shift = eighths(rest & 0x8000);
      const auto point = [&](size_t l) { return grids.iq1_s[src[2 + 4 * run + l] | (rest >> 3 * l & 7) << 8]; };
      for (size_t l = 0; l < 4; l += 2, dst += 16 * 4)
        put_shifted(join(point(l), point(l + 1)), join(shift, shift), scale, dst);
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
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const u32 rest = src[32 + part];
      const float scale = d * float(2 * (load<u16>(src + 48, part / 4) >> 3 * (part % 4) & 7) + 1);
      const u64 first = grids.iq1_s[src[2 * part] | (rest & 7) << 8];
      const u64 second = grids.iq1_s[src[2 * part + 1] | (rest >> 4 & 7) << 8];
      put_shifted(join(first, second), join(eighths(rest & 8), eighths(rest & 128)), scale, dst);
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
    {"IQ1_S", N, IQ1_S_SIZE, decode_iq1_s, nullptr, nullptr, 1, half_scales<IQ1_S_SIZE, 0>,
     iq1_s_encode_weighted},
    {"IQ1_M", N, IQ1_M_SIZE, decode_iq1_m, iq1_m_encode, nullptr, 1, iq1_m_scales,
     iq1_m_encode_weighted},
    {"IQ2_XXS", N, IQ2_XXS_SIZE, decode_iq2_xxs, nullptr, nullptr, 1, half_scales<IQ2_XXS_SIZE, 0>,
     iq2_xxs_encode_weighted},
    {"IQ2_XS", N, IQ2_XS_SIZE, decode_iq2_xs, nullptr, nullptr, 1, half_scales<IQ2_XS_SIZE, 0>,
     iq2_xs_encode_weighted},
    {"IQ2_S", N, IQ2_S_SIZE, decode_iq2_s, iq2_s_encode, nullptr, 1, half_scales<IQ2_S_SIZE, 0>,
     iq2_s_encode_weighted},
    {"IQ3_XXS", N, IQ3_XXS_SIZE, decode_iq3_xxs, iq3_xxs_encode, nullptr, 1, half_scales<IQ3_XXS_SIZE, 0>,
     iq3_xxs_encode_weighted},
    {"IQ3_S", N, IQ3_S_SIZE, decode_iq3_s, iq3_s_encode, nullptr, 1, half_scales<IQ3_S_SIZE, 0>,
     iq3_s_encode_weighted},
    {"IQ4_XS", N, IQ4_XS_SIZE, decode_iq4_xs, iq4_xs_encode, nullptr, 1, half_scales<IQ4_XS_SIZE, 0>,
     iq4_xs_encode_weighted},
};
const Family iquants = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
