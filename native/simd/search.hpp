// The searches for scales that ggml's types share (ggml-quants.c, b11549): W parts at once, one a lane, and P such runs
// of parts side by side, so that a sum that must go in order doesn't wait for itself.
//
//     search_signed    make_qx_quants     a scale with a sign; codes around zero
//     search_ranges    make_qkx2_quants, make_qkx3_quants    a scale and a minimum
//     search_scale    make_qp_quants     a scale of numbers that aren't negative: the scales and minima themselves
//     search_steps     make_q3_quants     a scale with a sign, code by code
//
// A grid's codes follow from its step: only the best step is kept, and its codes are made once more at the end. While
// every product is far below 2^22, "round, then limit" equals "limit, then round" and codes stay floats; runs that have
// something larger (or not finite) take the long way.
#pragma once

#include "lanes.hpp"

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr float NOTHING = 1e-15f;      // magnitudes below are zero (GROUP_MAX_EPS)
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: too large for fractions
constexpr float TAME = 2097152.0f;

WB_INLINE I32 no_lanes() { return splat(i32(0)); }

WB_INLINE bool any(I32 mask) { return lane_bits(mask) != 0; }
// Round to nearest even by the bits of a float that is too large for fractions (nearest_int). Beyond 2^22 it is
// nonsense, and the same nonsense.
WB_INLINE I32 nearest(F32 x) {
  return (as_i32(x + splat(ROUNDER)) & splat(i32(0x007FFFFF))) - splat(i32(0x00400000));
}

WB_INLINE I32 limit(I32 x, i32 low, i32 high) {
  return larger(smaller(x, splat(high)), splat(low));
}

// nearest(x) as a float, where |x| < 2^22. (The instruction leaves -0 where the sum makes it 0: no sum or difference that the
// searches make of codes keeps that sign.)
WB_INLINE F32 nearest_float(F32 x) {
#if WB_LANES == 16
  return bit_cast<F32>(_mm512_roundscale_ps(bit_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif WB_LANES == 8
  return bit_cast<F32>(_mm256_round_ps(bit_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  return (x + splat(ROUNDER)) - splat(ROUNDER);
#endif
}

// limit(nearest(x), low, high) as a float, where |x| < 2^22. A NaN becomes `low`.
WB_INLINE F32 limited(F32 x, float low, float high) {
  return nearest_float(smaller(larger(x, splat(low)), splat(high)));
}

WB_INLINE F32 square_root(F32 x) {
  F32 out = x;
#if defined(_MSC_VER) && !defined(__clang__)
  for (int i = 0; i < W; ++i) out[i] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x[i])));
#else
  for (int i = 0; i < W; ++i) out[i] = __builtin_sqrtf(x[i]);
#endif
  return out;
}

// ---------------------------------------------------------------- a scale with a sign

// `size` elements, codes -zero..zero - 1. The scale; codes have `zero` added. Where all is nothing, scale and codes are 0.
struct Signed {
  int size;
  i32 zero;
};

template <const Signed& S, bool tame>
WB_INLINE F32 signed_code(F32 x) {
  if constexpr (tame) return limited(x, float(-S.zero), float(S.zero - 1));
  return to_float(limit(nearest(x), -S.zero, S.zero - 1));
}

// Sums of one grid. Unless it is `finer` than the plain one, no product rounds to less than -zero.
template <const Signed& S, bool tame, bool finer, int P>
WB_INLINE void signed_sums(const F32 (&x)[P][S.size], const F32 (&w)[P][S.size], const F32 (&wx)[P][S.size],
                           const F32 (&tried)[P], F32 (&sum_lx)[P], F32 (&sum_l2)[P]) {
  for (int p = 0; p < P; ++p) sum_lx[p] = sum_l2[p] = splat(0.0f);
  for (int i = 0; i < S.size; ++i)
    for (int p = 0; p < P; ++p) {
      const F32 v = tried[p] * x[p][i];
      F32 l = v;
      if constexpr (tame && !finer)
        l = nearest_float(smaller(v, splat(float(S.zero - 1))));
      else
        l = signed_code<S, tame>(v);
      sum_lx[p] = sum_lx[p] + wx[p][i] * l;
      sum_l2[p] = sum_l2[p] + w[p][i] * l * l;
    }
}

// Nine finer and nine coarser grids than the plain one.
template <const Signed& S, bool tame, int P>
WB_INLINE void signed_grids(const F32 (&x)[P][S.size], const F32 (&w)[P][S.size], const F32 (&extreme)[P],
                            F32* scale, I32 (*codes)[S.size]) {
  F32 wx[P][S.size], best[P], step[P];
  for (int i = 0; i < S.size; ++i)
    for (int p = 0; p < P; ++p) wx[p][i] = w[p][i] * x[p][i];
  for (int p = 0; p < P; ++p) best[p] = step[p] = splat(0.0f);
  for (int k = -10; k <= 9; ++k) {
    if (k == 0) continue;
    const bool plain = k == -10;
    const float grid = plain ? float(-S.zero) : -(float(S.zero) + 0.1f * float(k));
    F32 tried[P], sum_lx[P], sum_l2[P];
    for (int p = 0; p < P; ++p) tried[p] = splat(grid) / extreme[p];
    if (k <= 4)  // the extreme's product is at most -zero - 0.4, which rounds to -zero
      signed_sums<S, tame, false, P>(x, w, wx, tried, sum_lx, sum_l2);
    else
      signed_sums<S, tame, true, P>(x, w, wx, tried, sum_lx, sum_l2);
    for (int p = 0; p < P; ++p) {
      const F32 found = sum_lx[p] / sum_l2[p];
      if (plain) {
        scale[p] = select(sum_l2[p] != splat(0.0f), found, splat(0.0f));
        best[p] = scale[p] * sum_lx[p];
        step[p] = tried[p];
        continue;
      }
      const I32 better = (sum_l2[p] > splat(0.0f)) & (sum_lx[p] * sum_lx[p] > best[p] * sum_l2[p]);
      scale[p] = select(better, found, scale[p]);
      best[p] = select(better, found * sum_lx[p], best[p]);
      step[p] = select(better, tried[p], step[p]);
    }
  }
  for (int i = 0; i < S.size; ++i)
    for (int p = 0; p < P; ++p) codes[p][i] = convert(signed_code<S, tame>(step[p] * x[p][i])) + splat(S.zero);
}

template <const Signed& S, int P>
void search_signed(const F32 (&x)[P][S.size], const F32 (&w)[P][S.size], F32* scale, I32 (*codes)[S.size]) {
  F32 extreme[P];
  I32 nothing[P], wild = no_lanes();
  for (int p = 0; p < P; ++p) {
    F32 amax = splat(0.0f);
    extreme[p] = splat(0.0f);
    for (int i = 0; i < S.size; ++i) {
      const F32 a = absolute(x[p][i]);
      const I32 larger = a > amax;
      amax = select(larger, a, amax);
      extreme[p] = select(larger, x[p][i], extreme[p]);
      wild = wild | (as_i32(a) > splat(i32(0x7F7FFFFF)));
    }
    nothing[p] = amax < splat(NOTHING);
  }
  if (any(wild))
    signed_grids<S, false, P>(x, w, extreme, scale, codes);
  else
    signed_grids<S, true, P>(x, w, extreme, scale, codes);
  for (int p = 0; p < P; ++p) {
    scale[p] = select(nothing[p], splat(0.0f), scale[p]);
    for (int i = 0; i < S.size; ++i) codes[p][i] = select(nothing[p], splat(i32(0)), codes[p][i]);
  }
}

// ---------------------------------------------------------------- a scale and a minimum

// `size` elements, codes up to `top`, grids (start + step * delta) finer than the plain one, and the error they are
// chosen by: weighted magnitude of differences, or their square. `bounded`: products are limited before they are
// rounded, so that nothing is nonsense (make_qkx3_quants).
struct Ranges {
  int size;
  i32 top;
  float start;
  float delta;
  int steps;
  bool magnitude;
  bool bounded;
};

template <const Ranges& S, bool tame>
WB_INLINE F32 range_code(F32 v) {
  if constexpr (tame || S.bounded) return limited(v, 0.0f, float(S.top));
  return to_float(limit(nearest(v), 0, S.top));
}

template <const Ranges& S>
WB_INLINE F32 range_error(F32 x, F32 w, F32 code, F32 scale, F32 low) {
  const F32 difference = scale * code + low - x;
  return w * (S.magnitude ? absolute(difference) : difference * difference);
}

// What a search goes through: the ends and sums of the elements, and the best so far.
struct Range {
  F32 low, high, sum_w, sum_x;  // low of the elements, and at most 0
  F32 scale, minimum, error;           // the best grid's
  F32 step, from;                      // of the best grid's codes: nearest(step * (x - from))
  I32 found;                           // for grids other than the plain one
};

// One grid: codes, the least squares of scale and minimum for them, their error.
template <const Ranges& S, bool tame, int P>
WB_INLINE void range_grid(const F32 (&x)[P][S.size], const F32 (&w)[P][S.size], const F32 (&finer)[P], Range (&r)[P]) {
  F32 tried[P][S.size], sum_l[P], sum_l2[P], sum_xl[P], scale[P], low[P], error[P], determinant[P];
  for (int p = 0; p < P; ++p) sum_l[p] = sum_l2[p] = sum_xl[p] = error[p] = splat(0.0f);
  for (int i = 0; i < S.size; ++i)
    for (int p = 0; p < P; ++p) {
      const F32 l = range_code<S, tame>(finer[p] * (x[p][i] - r[p].minimum)), wl = w[p][i] * l;
      tried[p][i] = l;
      sum_l[p] = sum_l[p] + wl;
      sum_l2[p] = sum_l2[p] + wl * l;
      sum_xl[p] = sum_xl[p] + wl * x[p][i];
    }
  for (int p = 0; p < P; ++p) {
    determinant[p] = r[p].sum_w * sum_l2[p] - sum_l[p] * sum_l[p];
    scale[p] = (r[p].sum_w * sum_xl[p] - r[p].sum_x * sum_l[p]) / determinant[p];
    low[p] = (sum_l2[p] * r[p].sum_x - sum_l[p] * sum_xl[p]) / determinant[p];
    const I32 above = low[p] > splat(0.0f);
    scale[p] = select(above, sum_xl[p] / sum_l2[p], scale[p]);
    low[p] = select(above, splat(0.0f), low[p]);
  }
  for (int i = 0; i < S.size; ++i)
    for (int p = 0; p < P; ++p)
      error[p] = error[p] + range_error<S>(x[p][i], w[p][i], tried[p][i], scale[p], low[p]);
  for (int p = 0; p < P; ++p) {
    const I32 better = (determinant[p] > splat(0.0f)) & (error[p] < r[p].error);
    r[p].found = r[p].found | better;
    r[p].step = select(better, finer[p], r[p].step);
    r[p].from = select(better, r[p].minimum, r[p].from);
    r[p].error = select(better, error[p], r[p].error);
    r[p].scale = select(better, scale[p], r[p].scale);
    r[p].minimum = select(better, low[p], r[p].minimum);
  }
}

// The ends, sums, and the plain grid.
template <const Ranges& S>
WB_INLINE Range plain_range(const F32 (&x)[S.size], const F32 (&w)[S.size]) {
  Range r;
  F32 lowest = x[0];
  r.high = x[0], r.sum_w = w[0], r.sum_x = w[0] * x[0];
  for (int i = 1; i < S.size; ++i) {
    lowest = smaller(x[i], lowest);
    r.high = larger(x[i], r.high);
    r.sum_w = r.sum_w + w[i];
    r.sum_x = r.sum_x + w[i] * x[i];
  }
  r.low = r.minimum = r.from = select(lowest > splat(0.0f), splat(0.0f), lowest);
  r.step = splat(float(S.top)) / (r.high - r.low);
  r.scale = splat(1.0f) / r.step;
  r.error = splat(0.0f);
  r.found = no_lanes();
  for (int i = 0; i < S.size; ++i) {
    const F32 code = to_float(limit(nearest(r.step * (x[i] - r.low)), 0, S.top));
    r.error = r.error + range_error<S>(x[i], w[i], code, r.scale, r.low);
  }
  return r;
}

// The best scale of each part; `least` becomes its minimum (times -1), codes the best codes.
template <const Ranges& S, int P>
void search_ranges(const F32 (&x)[P][S.size], const F32 (&w)[P][S.size], F32* scale, F32* least,
                   I32 (*codes)[S.size]) {
  Range r[P];
  for (int p = 0; p < P; ++p) r[p] = plain_range<S>(x[p], w[p]);
  for (int step = 0; step <= S.steps; ++step) {
    const float grid = S.start + S.delta * float(step) + float(S.top);
    F32 finer[P];
    I32 wild = no_lanes();
    for (int p = 0; p < P; ++p) {
      finer[p] = splat(grid) / (r[p].high - r[p].minimum);  // of the minimum found so far
      if (S.bounded) continue;
      // Products only grow from one end of the elements to the other. (Where all are above 0, `low` is below the lowest.)
      const F32 first = absolute(finer[p] * (r[p].low - r[p].minimum));
      const F32 last = absolute(finer[p] * (r[p].high - r[p].minimum));
      wild = wild | (((first < splat(TAME)) & (last < splat(TAME))) + splat(i32(1)));
    }
    if (!S.bounded && any(wild))
      range_grid<S, false, P>(x, w, finer, r);
    else
      range_grid<S, true, P>(x, w, finer, r);
  }
  for (int p = 0; p < P; ++p) {
    const I32 flat = r[p].high == r[p].low;
    for (int i = 0; i < S.size; ++i) {
      const F32 v = r[p].step * (x[p][i] - r[p].from);
      I32 code = limit(nearest(v), 0, S.top);
      if (S.bounded) code = select(r[p].found, convert(range_code<S, true>(v)), code);
      codes[p][i] = select(flat, splat(i32(0)), code);
    }
    least[p] = negative(select(flat, r[p].low, r[p].minimum));
    scale[p] = select(flat, splat(0.0f), r[p].scale);
  }
}

// ---------------------------------------------------------------- scales of scales, code by code

// How a code changes sums of w * x * l and w * l * l, and whether it is better there.
struct Sums {
  F32 lx, l2;
};

// `size` numbers that are not negative and their weights: the scale, and codes up to `top` as the bytes they are kept in.
template <int size>
F32 search_scale(i32 top, const F32 (&x)[size], const F32 (&w)[size], I32 (&codes)[size]) {
  F32 most = splat(0.0f), least = splat(0.0f);
  for (int i = 0; i < size; ++i) most = larger(most, x[i]);
  const I32 nothing = most < splat(NOTHING), byte = splat(i32(255));
  F32 step = splat(float(top)) / most;
  const F32 plain = splat(1.0f) / step;
  for (int i = 0; i < size; ++i) {
    const F32 difference = x[i] - plain * to_float(nearest(step * x[i]) & byte);
    least = least + w[i] * difference * difference;
  }
  for (int k = -4; k <= 4; ++k) {
    if (k == 0) continue;
    const F32 tried = splat(0.1f * float(k) + float(top)) / most, scale = splat(1.0f) / tried;
    F32 error = splat(0.0f);
    for (int i = 0; i < size; ++i) {
      const I32 l = nearest(tried * x[i]);
      const F32 difference = x[i] - scale * to_float(smaller(l, splat(top)));
      error = error + w[i] * difference * difference;
    }
    const I32 better = error < least;
    least = select(better, error, least);
    step = select(better, tried, step);
  }
  Sums sums{splat(0.0f), splat(0.0f)};
  for (int i = 0; i < size; ++i) {
    I32 l = nearest(step * x[i]);
    l = smaller(l, splat(top));
    codes[i] = l & byte;
    sums.lx = sums.lx + w[i] * x[i] * to_float(l);
    sums.l2 = sums.l2 + w[i] * to_float(l) * to_float(l);
  }
  for (int round = 0; round < 5; ++round) {
    I32 changed = no_lanes();
    for (int i = 0; i < size; ++i) {
      const F32 old = to_float(codes[i]), wx = w[i] * x[i];
      F32 lx = sums.lx - wx * old, l2 = sums.l2 - w[i] * old * old;
      I32 l = nearest(x[i] * l2 / lx);
      l = smaller(l, splat(top));
      I32 better = (I32(lx > splat(0.0f))) & (l2 > splat(0.0f)) & (l != codes[i]);
      lx = lx + wx * to_float(l);
      l2 = l2 + w[i] * to_float(l) * to_float(l);
      better = better & (lx * lx * sums.l2 > sums.lx * sums.lx * l2);
      codes[i] = select(better, l & byte, codes[i]);
      sums.lx = select(better, lx, sums.lx);
      sums.l2 = select(better, l2, sums.l2);
      changed = changed | better;
    }
    if (!any(changed)) break;
  }
  for (int i = 0; i < size; ++i) codes[i] = select(nothing, splat(i32(0)), codes[i]);
  const F32 scale = select(sums.l2 > splat(0.0f), sums.lx / sums.l2, splat(0.0f));
  return select(nothing, splat(0.0f), scale);
}

// A part weighted by its squares: sums of its elements' codes for a scale of `extreme`, and those codes.
template <const Signed& S>
WB_INLINE Sums plain_steps(const F32 (&x)[S.size], F32 (&kept)[S.size], I32& nothing) {
  F32 amax = splat(0.0f), extreme = splat(0.0f);
  for (int i = 0; i < S.size; ++i) {
    const F32 a = absolute(x[i]);
    const I32 larger = a > amax;
    amax = select(larger, a, amax);
    extreme = select(larger, x[i], extreme);
  }
  nothing = amax < splat(NOTHING);
  const F32 step = splat(float(-S.zero)) / extreme;
  Sums sums{splat(0.0f), splat(0.0f)};
  for (int i = 0; i < S.size; ++i) {
    const F32 l = to_float(limit(nearest(step * x[i]), -S.zero, S.zero - 1)), w = x[i] * x[i];
    kept[i] = l;
    sums.lx = sums.lx + w * x[i] * l;
    sums.l2 = sums.l2 + w * l * l;
  }
  return sums;
}

// The scale from sums, and codes with `zero` added.
template <const Signed& S>
WB_INLINE F32 finish_steps(const F32 (&kept)[S.size], Sums sums, I32 nothing, I32 (&codes)[S.size]) {
  for (int i = 0; i < S.size; ++i) codes[i] = select(nothing, splat(i32(0)), convert(kept[i]) + splat(S.zero));
  const F32 scale = select(sums.l2 > splat(0.0f), sums.lx / sums.l2, splat(0.0f));
  return select(nothing, splat(0.0f), scale);
}

// The plain codes of parts, and in which lanes a step may be better: few. Nothing steps where `lx` isn't positive: half
// of all parts, those whose extreme is. For the others it shows without dividing: what would be rounded is so near to the code
// that no rounding of these products leads elsewhere, or beyond the last code. (Denormal products could.)
template <const Signed& S>
WB_INLINE I32 try_steps(const F32 (&x)[S.size], F32& scale, I32 (&codes)[S.size]) {
  constexpr float SURE = 0.4999f, NORMAL = 1e-36f;
  F32 kept[S.size];
  I32 nothing, open = no_lanes();
  const Sums sums = plain_steps<S>(x, kept, nothing);
  for (int i = 0; i < S.size; ++i) {
    const F32 l = kept[i], w = x[i] * x[i];
    const F32 lx = sums.lx - w * x[i] * l, product = x[i] * (sums.l2 - w * l * l);
    const F32 low = select(l > splat(float(-S.zero)), l - splat(SURE), splat(-TAME));
    const F32 high = select(l < splat(float(S.zero - 1)), l + splat(SURE), splat(TAME));
    const I32 sure = (lx > splat(NORMAL)) & (product > low * lx) & (product < high * lx);
    open = open | select(sure, no_lanes(), I32(lx > splat(0.0f)));
  }
  scale = finish_steps<S>(kept, sums, nothing, codes);
  return select(nothing, no_lanes(), open);
}

// Code by code, up to five rounds.
template <const Signed& S, int P>
void search_steps(const F32 (&x)[P][S.size], F32 (&scale)[P], I32 (&codes)[P][S.size]) {
  I32 nothing[P];
  Sums sums[P];
  F32 w[P][S.size], wx[P][S.size], kept[P][S.size];
  for (int p = 0; p < P; ++p) {
    sums[p] = plain_steps<S>(x[p], kept[p], nothing[p]);
    for (int i = 0; i < S.size; ++i) {
      w[p][i] = x[p][i] * x[p][i];
      wx[p][i] = w[p][i] * x[p][i];
    }
  }
  for (int round = 0; round < 5; ++round) {
    I32 changed = no_lanes();
    for (int i = 0; i < S.size; ++i)
      for (int p = 0; p < P; ++p) {
        const F32 old = kept[p][i];
        F32 lx = sums[p].lx - wx[p][i] * old, l2 = sums[p].l2 - w[p][i] * old * old;
        const F32 l = to_float(limit(nearest(x[p][i] * l2 / lx), -S.zero, S.zero - 1));
        I32 better = (I32(lx > splat(0.0f))) & (l != old);
        lx = lx + wx[p][i] * l;
        l2 = l2 + w[p][i] * l * l;
        better = better & (l2 > splat(0.0f)) & (lx * lx * sums[p].l2 > sums[p].lx * sums[p].lx * l2);
        kept[p][i] = select(better, l, old);
        sums[p].lx = select(better, lx, sums[p].lx);
        sums[p].l2 = select(better, l2, sums[p].l2);
        changed = changed | better;
      }
    if (!any(changed)) break;
  }
  for (int p = 0; p < P; ++p) scale[p] = finish_steps<S>(kept[p], sums[p], nothing[p], codes[p]);
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
