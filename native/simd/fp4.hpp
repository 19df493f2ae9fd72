// The codes of FP4, for encoders of MXFP4 and NVFP4.
#pragma once

#include "codes.hpp"
#include "rows.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// The code nearest to x where d is the scale; of equals the first (best_index_mxfp4). Code 8 is 0 again, and never nearer.
WB_INLINE I32 nearest_fp4(F32 x, F32 d) {
  F32 least = absolute(splat(0.0f) * d - x);
  I32 best = splat(i32(0));
  for (i32 code = 1; code < 16; ++code) {
    if (code == 8) continue;
    const F32 error = absolute(splat(float(FP4_VALUES[code])) * d - x);
    const I32 nearer = error < least;
    best = select(nearer, splat(code), best);
    least = select(nearer, error, least);
  }
  return best;
}

// ggml compares the distances |value * d - x|, rounded. Up to 24 d that is "nearest, halves to the smaller magnitude":
// products are exact (d has at most four digits), the distance to one of the two neighbours is too, and rounding the other one's
// keeps the order. So a code follows from the halves of d that x exceeds: 0 | 1 2 | 3 4 | 5 6 | 7..9 | 10..13 | 14..19 | 20...
//
// Their number is the product with the float below the rounded inverse of d / 2, cut. For each of the eight mantissas that d can
// have, and each of these borders, the product of the border itself falls below, and that of the next float doesn't; a border of
// a larger or smaller power of two is the same. (With fourteen distances MXFP4 took 1.9 ns a weight; it takes 0.23.) Zeros are 0, and a NaN becomes INT_MIN, whose lowest byte is 0.
WB_INLINE F32 halves_in_one(F32 d) { return as_f32(as_i32(splat(1.0f) / (splat(0.5f) * d)) - splat(i32(1))); }

WB_INLINE B32 fp4_of_halves(const I32 (&halves)[32 / W]) {
#if WB_LANES > 4  // all 32 at once: 8 instructions instead of 18
  constexpr i8 CODES[16] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 6};  // 7 from 20 on
#if WB_LANES == 16
  const __m128i first = _mm512_cvtepi32_epi8(bit_cast<__m512i>(halves[0]));
  const __m256i h = _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm512_cvtepi32_epi8(bit_cast<__m512i>(halves[1])), 1);
#else
  __m256i words[2];  // saturation leaves 0 in the lowest byte of INT_MIN; the others fit
  for (int k = 0; k < 2; ++k)
    words[k] = _mm256_and_si256(_mm256_packs_epi32(bit_cast<__m256i>(halves[2 * k]), bit_cast<__m256i>(halves[2 * k + 1])),
                                _mm256_set1_epi16(255));
  const __m256i h = in_order(words[0], words[1]);
#endif
  const __m256i n = _mm256_abs_epi8(h), sign = _mm256_srli_epi16(_mm256_and_si256(h, _mm256_set1_epi8(-128)), 4);
  const __m256i table = _mm256_broadcastsi128_si256(load<__m128i>(reinterpret_cast<const u8*>(CODES)));
  const __m256i code = _mm256_shuffle_epi8(table, _mm256_min_epu8(n, _mm256_set1_epi8(15)));
  return halved(_mm256_or_si256(_mm256_sub_epi8(code, _mm256_cmpgt_epi8(n, _mm256_set1_epi8(19))), sign));
#else
  const auto codes = [](B16 h) {
    constexpr int BORDERS[7] = {0, 2, 4, 6, 9, 13, 19};
    const B16 minus = above(splat16(0), h), n = (h ^ minus) - minus;
    B16 code = minus & splat16(8);
    for (const int border : BORDERS) code = code - above(n, splat16(border));
    return code;
  };
  const B32 h = narrowed(halves);
  return {codes(h.first), codes(h.second)};
#endif
}

// Codes of ROWS parts of `part` elements. `scale_of`: the scales of W parts with these largest magnitudes, and what is stored for
// them; it is told which the first part is. `put` gets 32 codes and their place. A part whose products aren't finite or normal, or that
// has something beyond 24 d, is compared with every value, as ggml does it.
template <size_t part, class ScaleOf, class Put>
WB_INLINE void fp4_rows(const u8* src, ScaleOf scale_of, Put put) {
  constexpr size_t N = 32;
  const F32 zero = splat(0.0f);
  Spread factor, scale;
  I32 wild[ROUNDS];
  for (size_t r = 0; r < ROUNDS; ++r) {
    auto most = largest(zero);
    reduce_elements<part>(src + r * size_t(W) * part * 4, F32_ABS, most);
    const F32 amax = most.result(), d = scale_of(amax, r * size_t(W));
    const I32 nothing = (d == zero) | (amax == zero);
    const I32 tame = (amax <= splat(24.0f) * d) & (d > splat(2.4e-38f)) & (d < splat(2.2e37f));
    wild[r] = (nothing | tame) ^ splat(i32(-1));
    factor.put(r, select(nothing, zero, halves_in_one(d)));
    scale.put(r, d);
  }
  const auto distances = [&](F32 x, size_t i) { return nearest_fp4(x, scale[i]); };
  code_rows<N, part>(src, [&](F32 x, size_t i) { return truncate(x * factor[i]); },
                     [&](const auto& halves, size_t row) { put(fp4_of_halves(halves), row); });
  for (size_t r = 0; r < ROUNDS; ++r)
    each_lane(wild[r], [&](int lane) {
      const size_t row = (r * size_t(W) + size_t(lane)) * part / N;
      I32 q[N / size_t(W)];
      code_row<N, part>(src, row, distances, q);
      put(narrowed(q), row);
    });
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
