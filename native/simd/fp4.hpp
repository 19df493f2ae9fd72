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

WB_INLINE B16 fp4_of_halves(B16 halves) {
  const B16 minus = above(splat16(0), halves), n = (halves ^ minus) - minus;
#if WB_LANES > 4
  constexpr i8 CODES[16] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 6};
  const B16 code = look_up(at_most(n, 15), CODES) - above(n, splat16(19));
#else
  constexpr int BORDERS[7] = {0, 2, 4, 6, 9, 13, 19};
  B16 code = splat16(0);
  for (const int border : BORDERS) code = code - above(n, splat16(border));
#endif
  return code | (minus & splat16(8));
}
WB_INLINE B32 fp4_of_halves(B32 halves) { return {fp4_of_halves(halves.first), fp4_of_halves(halves.second)}; }

// Codes of W rows of N elements with these largest magnitudes and scales. A row whose products aren't finite or normal, or that
// has something beyond 24 d, is compared with every value, as ggml does it.
template <size_t N, class Put>
WB_INLINE void fp4_rows(const u8* src, F32 amax, F32 d, Put put) {
  const F32 zero = splat(0.0f);
  const I32 nothing = (d == zero) | (amax == zero);
  const I32 tame = (amax <= splat(24.0f) * d) & (d > splat(2.4e-38f)) & (d < splat(2.2e37f));
  const Spread factor(select(nothing, zero, halves_in_one(d))), scale(d);
  code_rows<N>(src, [&](F32 x, int i) { return truncate(x * factor[i]); },
               [&](auto halves, int i) { put(fp4_of_halves(halves), i); });
  each_lane((nothing | tame) ^ splat(i32(-1)), [&](int i) {
    I32 q[N / size_t(W)];
    for (size_t k = 0; k < N / size_t(W); ++k) q[k] = nearest_fp4(load<F32>(src + size_t(i) * N * 4, k), scale[i]);
    put(narrowed(q), i);
  });
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
