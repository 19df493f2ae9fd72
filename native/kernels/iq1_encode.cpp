// Encoding IQ1_S and IQ1_M: bytes equal to llama.cpp's quantize_iq1_s and quantize_iq1_m (ggml-quants.c, b11549, built for
// x86-64), with and without importances (IQ1_S only with). One block in each lane; blocks are drawn in iquants.cpp.
//
// The elements of a part, 32 or 16, are sorted; every way to cut them into three (-1, 0, 1) is tried with values shifted up
// and down by an eighth, in IQ1_M up and down for each half. The best cut's points that aren't in the codebook become the
// nearest of their neighbours (points.hpp), and the scale is fitted again. Scales are rounded to three bits.
#include "blocks.hpp"
#include "points.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;
constexpr float DELTA = 0.125f;
using S = Shape<8>;

// What -1, 0 and 1 stand for, shifted up and down.
constexpr float UP[3] = {-1 + DELTA, DELTA, 1 + DELTA}, DOWN[3] = {-1 - DELTA, -DELTA, 1 - DELTA};

// A sub-block of W blocks. `down`: lanes whose first or second half is shifted down (in IQ1_S both are).
template <int size>
struct SubBlock {
  F32 x[size], w[size];
  I32 rank[size];      // place in order; of equals the first is before
  I32 point[size / 8];  // packed, then the number in the codebook
  I32 down[2];
  F32 scale;
  I32 some, lost;

  static constexpr int half(int group) { return group * 2 / (size / 8); }
};

// The best cut so far: elements before `first` are -1, those from `second` on 1. `way`: how values are shifted.
struct Cut {
  F32 scale, score;
  I32 first, second, way;
  I32 found;
};
WB_INLINE Cut no_cut() { return {splat(0.0f), splat(-LARGEST), no_lanes(), no_lanes(), no_lanes(), no_lanes()}; }

WB_INLINE void consider(Cut& best, F32 sum_qx, F32 sum_q2, int first, int second, int way) {
  const I32 better = (sum_q2 > splat(0.0f)) & (sum_qx * sum_qx > best.score * sum_q2);
  if (!lane_bits(better)) return;
  best.scale = select(better, sum_qx / sum_q2, best.scale);
  best.score = select(better, best.scale * sum_qx, best.score);
  best.first = select(better, splat(i32(first)), best.first);
  best.second = select(better, splat(i32(second)), best.second);
  best.way = select(better, splat(i32(way)), best.way);
  best.found = best.found | better;
}

template <int size>
WB_INLINE void weigh(SubBlock<size>& p, const u8* weights, F32 mean) {
  if (weights) {
    load_columns(weights, N * 4, p.w);
    for (int i = 0; i < size; ++i) p.w[i] = p.w[i] * square_root(mean + p.x[i] * p.x[i]);
  } else {
    for (int i = 0; i < size; ++i) p.w[i] = p.x[i] * p.x[i];
  }
}

template <int size>
WB_INLINE void sort(SubBlock<size>& p) {
  for (int j = 0; j < size; ++j) p.rank[j] = splat(i32(0));
  for (int j = 1; j < size; ++j)
    for (int i = 0; i < j; ++i) {
      const I32 after = p.x[i] > p.x[j];  // the earlier element comes after
      p.rank[i] = p.rank[i] - after;
      p.rank[j] = p.rank[j] + after + splat(i32(1));
    }
}

// values[r] of the element of rank r.
template <int size>
WB_INLINE void in_order(const SubBlock<size>& p, const F32 (&values)[size], F32 (&sorted)[size]) {
  for (int j = 0; j < size; ++j)
    for (int i = 0; i < W; ++i) sorted[p.rank[j][i]][i] = values[j][i];
}

// IQ1_S: one shift for all 32.
WB_INLINE Cut best_cut(const SubBlock<32>& p) {
  F32 wx[32], sorted_x[32], sorted_w[32], sum_x[33], sum_w[33];
  for (int j = 0; j < 32; ++j) wx[j] = p.w[j] * p.x[j];
  in_order(p, wx, sorted_x);
  in_order(p, p.w, sorted_w);
  sum_x[0] = sum_w[0] = splat(0.0f);
  for (int j = 0; j < 32; ++j) {
    sum_x[j + 1] = sum_x[j] + sorted_x[j];
    sum_w[j + 1] = sum_w[j] + sorted_w[j];
  }
  Cut best = no_cut();
  for (int first = 0; first <= 32; ++first)
    for (int second = first; second <= 32; ++second)
      for (int way = 0; way < 2; ++way) {
        const float* q = way ? DOWN : UP;
        const F32 low = splat(q[0]), middle = splat(q[1]), high = splat(q[2]);
        const F32 qx = sum_x[first] * low + (sum_x[second] - sum_x[first]) * middle + (sum_x[32] - sum_x[second]) * high;
        const F32 q2 = sum_w[first] * low * low + (sum_w[second] - sum_w[first]) * middle * middle +
                       (sum_w[32] - sum_w[second]) * high * high;
        consider(best, qx, q2, first, second, way ? 3 : 0);
      }
  return best;
}

// IQ1_M: a shift for each half of 16. Sums go by halves, so each is had from its total: the step between the values is one
// either way.
WB_INLINE Cut best_cut(const SubBlock<16>& p) {
  constexpr float square[2][3] = {{UP[2], UP[0] * UP[0] - UP[1] * UP[1], UP[1] * UP[1] - UP[2] * UP[2]},
                                  {DOWN[2], DOWN[0] * DOWN[0] - DOWN[1] * DOWN[1], DOWN[1] * DOWN[1] - DOWN[2] * DOWN[2]}};
  F32 sum_x[2][17], sum_w[2][17], total_w[2][2];
  for (int h = 0; h < 2; ++h) {
    F32 wx[16], w[16], sorted_x[16], sorted_w[16];
    for (int j = 0; j < 16; ++j) {
      wx[j] = j / 8 == h ? p.w[j] * p.x[j] : splat(0.0f);
      w[j] = j / 8 == h ? p.w[j] : splat(0.0f);
    }
    in_order(p, wx, sorted_x);
    in_order(p, w, sorted_w);
    sum_x[h][0] = sum_w[h][0] = splat(0.0f);
    for (int j = 0; j < 16; ++j) {
      sum_x[h][j + 1] = sum_x[h][j] + sorted_x[j];
      sum_w[h][j + 1] = sum_w[h][j] + sorted_w[j];
    }
    for (int s = 0; s < 2; ++s) total_w[h][s] = sum_w[h][16] * splat(square[s][0]) * splat(square[s][0]);
  }
  Cut best = no_cut();
  for (int first = 0; first <= 16; ++first)
    for (int second = first; second <= 16; ++second) {
      F32 qx[2][2], q2[2][2];  // [half][shift]
      for (int h = 0; h < 2; ++h)
        for (int s = 0; s < 2; ++s) {
          qx[h][s] = sum_x[h][16] * splat(square[s][0]) - (sum_x[h][first] + sum_x[h][second]);
          q2[h][s] = total_w[h][s] + sum_w[h][first] * splat(square[s][1]) + sum_w[h][second] * splat(square[s][2]);
        }
      for (int way = 0; way < 4; ++way)
        consider(best, qx[0][way / 2] + qx[1][way % 2], q2[0][way / 2] + q2[1][way % 2], first, second, way);
    }
  return best;
}

// The value of a point's coordinate.
WB_INLINE F32 value(I32 point, int i, I32 down) {
  const F32 q = to_float(((point >> (S::bits * i)) & splat(S::mask)) - splat(i32(1)));
  return q + select(down, splat(-DELTA), splat(DELTA));
}

// A part from its elements to points, scale and shifts.
template <int size>
WB_INLINE void encode_part(SubBlock<size>& p, float nothing, const Neighbours& near) {
  const F32 zero = splat(0.0f);
  F32 most = absolute(p.x[0]);
  for (int i = 1; i < size; ++i) {
    const F32 a = absolute(p.x[i]);
    most = select(most > a, most, a);
  }
  sort(p);
  const Cut cut = best_cut(p);
  p.some = cut.found & ((most < splat(nothing)) == splat(i32(0)));
  const I32 minus = cut.scale < zero;
  p.scale = select(minus, negative(cut.scale), cut.scale);
  const I32 way = select(minus, splat(i32(3)) - cut.way, cut.way);
  p.down[0] = way > splat(i32(1));
  p.down[1] = (way & splat(i32(1))) != splat(i32(0));
  p.lost = no_lanes();
  I32 any_outside = no_lanes();
  const F32 scale = p.scale;
  for (int g = 0; g < size / 8; ++g) {
    I32 packed = splat(i32(0)), outside;
    for (int i = 0; i < 8; ++i) {
      const I32 rank = p.rank[g * 8 + i];
      I32 code = splat(i32(0)) - (rank >= cut.first) - (rank >= cut.second);
      code = select(minus, splat(i32(2)) - code, code);
      packed = packed | (code << (S::bits * i));
    }
    const I32 down = p.down[SubBlock<size>::half(g)];
    const auto values = [&](int lane) {
      const float* q = down[lane] ? DOWN : UP;
      Eight out = eight({q[0], q[1], q[2], 0, q[0], q[1], q[2], 0});
      for (F32& v : out.v) v = splat(scale[lane]) * v;
      return out;
    };
    p.point[g] = into_codebook<S>(p.x + g * 8, p.w + g * 8, values, packed, p.some, near, outside, p.lost) & p.some;
    any_outside = any_outside | outside;
  }
  F32 sum_qx = zero, sum_q2 = zero;
  for (int i = 0; i < size; ++i) {
    const F32 q = value(p.point[i / 8], i % 8, p.down[SubBlock<size>::half(i / 8)]), wq = p.w[i] * q;
    sum_qx = sum_qx + wq * p.x[i];
    sum_q2 = sum_q2 + wq * q;
  }
  p.scale = select(any_outside & (sum_qx > zero) & (sum_q2 > zero), sum_qx / sum_q2, p.scale);
  p.lost = (p.lost | (p.scale != p.scale)) & p.some;
  p.scale = select(p.some, p.scale, zero);
  for (I32& down : p.down) down = down & p.some;
}

WB_INLINE F32 mean_square(const u8* src) {
  F32 squares = splat(0.0f);
  for (size_t at = 0; at < N; at += 16) {
    F32 x[16];
    load_columns(src + at * 4, N * 4, x);
    for (int i = 0; i < 16; ++i) squares = squares + x[i] * x[i];
  }
  return splat(2.0f) * squares / splat(float(N));
}

WB_INLINE I32 scale_code(F32 scale, F32 inverse) {
  return limit(nearest(splat(0.5f) * (inverse * scale - splat(1.0f))), 0, 7);
}

void encode_iq1_s(const u8* src, const u8* weights, IQ1_S* dst, Counts& counts) {
  constexpr size_t part = 32;
  const Neighbours& near = neighbours(Codebook::iq1);
  const F32 mean = mean_square(src);
  F32 scales[8], most = splat(0.0f);
  I32 low[32], upper[8], down[8], lost = no_lanes();
  for (size_t run = 0; run < 8; ++run) {
    SubBlock<part> p;
    load_columns(src + run * part * 4, N * 4, p.x);
    weigh(p, weights + run * part * 4, mean);
    encode_part(p, 1e-12f, near);
    upper[run] = no_lanes();
    for (size_t k = 0; k < 4; ++k) {
      low[4 * run + k] = places_of<S>(p.point[k], near);
      upper[run] = upper[run] | ((low[4 * run + k] >> 8) << int(3 * k));
    }
    scales[run] = p.scale;
    down[run] = p.down[0];
    most = select(most > p.scale, most, p.scale);
    lost = lost | p.lost;
  }
  const I32 some = most != splat(0.0f);
  const F32 d = most / splat(15.0f), inverse = splat(1.0f) / d;
  store_scales<&IQ1_S::d>(select(some, d * splat(1.125f), splat(0.0f)), dst, counts);  // `most` may be -0
  store_bytes<&IQ1_S::qs>(low, dst);
  for (size_t run = 0; run < 8; ++run) {
    const I32 code = (scale_code(scales[run], inverse) | (down[run] & splat(i32(8)))) & some;
    store_halves<&IQ1_S::qh>(upper[run] | (code << 12), dst, 2 * run);
  }
  refuse(lost, counts);
}

void encode_iq1_m(const u8* src, const u8* weights, IQ1_M* dst, Counts& counts) {
  constexpr size_t part = 16, parts = N / part;
  const Neighbours& near = neighbours(Codebook::iq1);
  const F32 zero = splat(0.0f), mean = mean_square(src);
  F32 scales[parts], most = zero;
  I32 points[2 * parts], low[2 * parts], upper[parts], down[2 * parts], lost = no_lanes();
  const auto load_part = [&](SubBlock<part>& p, size_t at) {
    load_columns(src + at * part * 4, N * 4, p.x);
    weigh(p, weights ? weights + at * part * 4 : nullptr, mean);
  };
  for (size_t at = 0; at < parts; ++at) {
    SubBlock<part> p;
    load_part(p, at);
    encode_part(p, 1e-7f, near);
    upper[at] = no_lanes();
    for (size_t k = 0; k < 2; ++k) {
      points[2 * at + k] = p.point[k];
      down[2 * at + k] = p.down[k];
      low[2 * at + k] = places_of<S>(p.point[k], near);
      upper[at] = upper[at] | ((low[2 * at + k] >> 8) << int(4 * k));
    }
    scales[at] = p.scale;
    most = select(most > p.scale, most, p.scale);
    lost = lost | p.lost;
  }
  const I32 some = most != zero;
  const F32 plain = most / splat(15.0f), inverse = splat(1.0f) / plain;
  F32 sum_qx = zero, sum_q2 = zero;
  I32 words[4] = {no_lanes(), no_lanes(), no_lanes(), no_lanes()};
  for (size_t at = 0; at < parts; ++at) {
    SubBlock<part> p;
    load_part(p, at);
    const I32 code = scale_code(scales[at], inverse) & some;
    words[at / 4] = words[at / 4] | (code << int(3 * (at % 4)));
    upper[at] = upper[at] | (down[2 * at] & some & splat(i32(8))) | (down[2 * at + 1] & some & splat(i32(128)));
    for (int i = 0; i < int(part); ++i) {
      const size_t k = 2 * at + size_t(i / 8);
      const F32 q = value(points[k], i % 8, down[k]) * to_float(code + code + splat(i32(1))), wq = p.w[i] * q;
      sum_qx = sum_qx + wq * p.x[i];
      sum_q2 = sum_q2 + wq * q;
    }
  }
  const F32 d = select(some, select(sum_q2 > zero, sum_qx / sum_q2, plain) * splat(1.1125f), zero);
  const I32 half = narrow_scales(d, counts);
  for (int k = 0; k < 4; ++k)
    store_halves<&IQ1_M::scales>(words[k] | (((half >> (4 * k)) & splat(i32(15))) << 12), dst, 2 * size_t(k));
  store_bytes<&IQ1_M::qs>(low, dst);
  store_bytes<&IQ1_M::qh>(upper, dst);
  refuse(lost, counts);
}

}  // namespace

WB_DEFINE_WEIGHTED_ENCODER(iq1_s, IQ1_S, encode_iq1_s)
WB_DEFINE_WEIGHTED_ENCODER(iq1_m, IQ1_M, encode_iq1_m)
WB_DEFINE_ENCODER(iq1_m, IQ1_M, encode_iq1_m)

}  // namespace weighbridge::WB_LEVEL
