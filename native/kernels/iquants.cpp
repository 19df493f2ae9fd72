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

// Fields are drawn in docs/block-types.md. Codes of more than eight bits have the rest in qh.
//
//   IQ2_XXS  x = d * (0.5 + scale) / 4 * point * sign    qs: for each run four codes of 8 bits, then a u32 of four times seven
//                                                        signs and, on top, four bits of scale
//   IQ2_XS   as above                                    qs: nine bits of code, seven signs; scales: for each run a nibble
//                                                        for its first half and one for its second
//   IQ2_S    as above                                    qh: two upper bits for each code of a run; scales as in IQ2_XS
//   IQ3_XXS  x = d * (0.5 + scale) / 2 * point * sign    signs: for each run a u32 of signs and scale as in IQ2_XXS
//   IQ3_S    x = d * (1 + 2 * scale) * point * sign      qh: an upper bit for each code of a run; scales: a nibble for each
//   IQ1_S    x = d * (2 * scale + 1) * (point +- 1/8)    qh: for each run three upper bits for each of its codes, three bits
//                                                        of scale, a sign
//   IQ1_M    as above                                    qh: nibbles of three upper bits and a sign; scales: four times three
//                                                        bits of scale (for 16 elements). On top of these stand four bits
//                                                        each of d, the lowest first
//   IQ4_XS   x = d * (scale - 32) * IQ4_VALUES[q]        scales_h: two upper bits of scale for each run; scales_l: nibbles

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
  for (const IQ2_XXS& b : Blocks<IQ2_XXS>{src, n}) {
    const float d = half(b.d);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = b.qs + 8 * run;
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
  for (const IQ2_XS& b : Blocks<IQ2_XS>{src, n}) {
    const float d = half(b.d);
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const u32 first = load(b.qs[2 * part]), second = load(b.qs[2 * part + 1]);
      const u32 minuses = even_signs(first >> 9) | even_signs(second >> 9) << 8;
      const float scale = quarter_scale(d, b.scales[part / 2], part % 2);
      put_points(grids.iq2_xs[first & 511], grids.iq2_xs[second & 511], minuses, scale, dst);
    }
  }
}

void decode_iq2_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ2_S& b : Blocks<IQ2_S>{src, n}) {
    const float d = half(b.d);
    const auto point = [&](size_t l) { return grids.iq2_s[b.qs[l] | (u32(b.qh[l / 4]) >> 2 * (l % 4) & 3) << 8]; };
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4)
      put_points(point(2 * part), point(2 * part + 1), load<u16>(b.signs, part),
                 quarter_scale(d, b.scales[part / 2], part % 2), dst);
  }
}

void decode_iq3_xxs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ3_XXS& b : Blocks<IQ3_XXS>{src, n}) {
    const float d = half(b.d);
    for (size_t run = 0; run < RUNS; ++run) {
      const u8* codes = b.qs + 8 * run;
      const u32 rest = load(b.signs[run]);
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
  for (const IQ3_S& b : Blocks<IQ3_S>{src, n}) {
    const float d = half(b.d);
    const auto point = [&](size_t k) { return grids.iq3_s[b.qs[k] | (u32(b.qh[k / 8]) >> k % 8 & 1) << 8]; };
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const float scale = d * float(1 + 2 * (b.scales[part / 4] >> 4 * (part / 2 % 2) & 15));
      const u64 first = both(point(4 * part), point(4 * part + 1)), second = both(point(4 * part + 2), point(4 * part + 3));
      put_points(first, second, load<u16>(b.signs, part), scale, dst);
    }
  }
}

void decode_iq1_s(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ1_S& b : Blocks<IQ1_S>{src, n}) {
    const float d = half(b.d);
    for (size_t run = 0; run < RUNS; ++run) {
      const u32 rest = load(b.qh[run]);
      const float scale = d * float(2 * (rest >> 12 & 7) + 1);
      const u64 shift = eighths(rest & 0x8000);
      const auto point = [&](size_t l) { return grids.iq1_s[b.qs[4 * run + l] | (rest >> 3 * l & 7) << 8]; };
      for (size_t l = 0; l < 4; l += 2, dst += 16 * 4)
        put_shifted(join(point(l), point(l + 1)), join(shift, shift), scale, dst);
    }
  }
}

// d of IQ1_M, out of the tops of the four words of scales.
WB_INLINE u32 iq1_m_half(const IQ1_M& b) {
  u32 half = 0;
  for (int k = 0; k < 4; ++k) half |= load(b.scales[k]) >> 12 << (4 * k);
  return half;
}

void decode_iq1_m(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ1_M& b : Blocks<IQ1_M>{src, n}) {
    const float d = bit_cast<float>(widen_f16(iq1_m_half(b)));
    for (size_t part = 0; part < 16; ++part, dst += 16 * 4) {
      const u32 rest = b.qh[part];
      const float scale = d * float(2 * (load(b.scales[part / 4]) >> 3 * (part % 4) & 7) + 1);
      const u64 first = grids.iq1_s[b.qs[2 * part] | (rest & 7) << 8];
      const u64 second = grids.iq1_s[b.qs[2 * part + 1] | (rest >> 4 & 7) << 8];
      put_shifted(join(first, second), join(eighths(rest & 8), eighths(rest & 128)), scale, dst);
    }
  }
}

void iq1_m_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ1_M& b : Blocks<IQ1_M>{src, n}) {
    store(dst, 0, widen_f16(iq1_m_half(b)));
    dst += 4;
  }
}

void decode_iq4_xs(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ4_XS& b : Blocks<IQ4_XS>{src, n}) {
    const float d = half(b.d);
    const u32 upper = load(b.scales_h);
    for (size_t run = 0; run < RUNS; ++run, dst += 32 * 4) {
      const int scale = (b.scales_l[run / 2] >> 4 * (run % 2) & 15) | int(upper >> 2 * run & 3) << 4;
      decode_nibbles<32>(b.qs + 16 * run, d * float(scale - 32), IQ4_VALUES, dst);
    }
  }
}

}  // namespace

#define WB_IQ_TYPE(Type, name, scales_of) \
  WB_BLOCK(Type), .decode = decode_##name, .encode_weighted = name##_encode_weighted, .scales = scales_of
#define WB_IQ_BOTH(Type, name, scales_of)                                          \
  WB_BLOCK(Type), .decode = decode_##name, .encode = name##_encode,                \
      .encode_weighted = name##_encode_weighted, .scales = scales_of
constinit static const Format formats[] = {
    {WB_IQ_TYPE(IQ1_S, iq1_s, (half_scales<IQ1_S, &IQ1_S::d>))},
    {WB_IQ_BOTH(IQ1_M, iq1_m, (Scales{1, iq1_m_scales}))},
    {WB_IQ_TYPE(IQ2_XXS, iq2_xxs, (half_scales<IQ2_XXS, &IQ2_XXS::d>))},
    {WB_IQ_TYPE(IQ2_XS, iq2_xs, (half_scales<IQ2_XS, &IQ2_XS::d>))},
    {WB_IQ_BOTH(IQ2_S, iq2_s, (half_scales<IQ2_S, &IQ2_S::d>))},
    {WB_IQ_BOTH(IQ3_XXS, iq3_xxs, (half_scales<IQ3_XXS, &IQ3_XXS::d>))},
    {WB_IQ_BOTH(IQ3_S, iq3_s, (half_scales<IQ3_S, &IQ3_S::d>))},
    {WB_IQ_BOTH(IQ4_XS, iq4_xs, (half_scales<IQ4_XS, &IQ4_XS::d>))},
};
#undef WB_IQ_TYPE
#undef WB_IQ_BOTH
const Rows<Format> iquants = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
