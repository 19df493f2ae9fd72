// Encoding IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: bytes equal to llama.cpp's quantize_iq2_* and quantize_iq3_* (ggml-quants.c,
// b11549, built for x86-64), with and without importances. One block in each lane; blocks are drawn in iquants.cpp.
//
// A part of a block, 16 or 32 elements, is searched on grids around the one on which its largest magnitude is the largest
// coordinate: the magnitudes are rounded to points of the lattice, and where such a point isn't in the codebook, the
// nearest of its neighbours there is taken (points.hpp). A weighted least-squares fit decides. Then the points are sought
// once more for the scale that was found, and the scales are rounded to four bits.
#include "blocks.hpp"
#include "points.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;

// Which groups of a part are sought anew for the scale that was found: all; all, if one wasn't in the codebook; or those
// that weren't.
enum class Again { all, all_if_any, outside };

// One type. Signs go with eight elements: free, or (`even`) flipped at the cheapest element so that minuses are even.
struct Type {
  Codebook codebook;
  size_t size;    // bytes of a block
  int part;       // elements that share a scale
  int point;      // coordinates of a point
  float largest;  // value of the largest coordinate; values are the odd numbers
  int tries;      // grids on each side
  float step;     // from one to the next
  bool even;
  Again again;
  float nothing;  // a largest magnitude below this is zero (0: only zero is)
  float mean;     // times the mean square, for weights of importance
  float flat;     // the same for weights without: flat * mean square + square
  float fudge;    // on the block's scale
};
constexpr Type IQ2_XXS = {Codebook::iq2_xxs, 66, 32, 8, 5, 6, 0.1f, true, Again::all, 1e-15f, 1, 0, 1};
constexpr Type IQ2_XS = {Codebook::iq2_xs, 74, 16, 8, 5, 9, 0.1f, true, Again::outside, 1e-15f, 1, 0, 1};
constexpr Type IQ2_S = {Codebook::iq2_s, 82, 16, 8, 5, 9, 0.1f, false, Again::outside, 1e-8f, 2, 0.25f, 0.9875f};
constexpr Type IQ3_XXS = {Codebook::iq3_xxs, 98, 32, 4, 15, 15, 0.2f, true, Again::outside, 1e-8f, 2, 0, 1.0125f};
constexpr Type IQ3_S = {Codebook::iq3_s, 110, 32, 4, 15, 9, 0.2f, false, Again::all_if_any, 0, 2, 0, 1.033f};

// One part of W blocks: magnitudes (an element whose sign was flipped is negative), weights and their roots.
template <const Type& T>
struct Part {
  using S = Shape<T.point>;
  static constexpr int signs = T.part / 8, groups = T.part / T.point;

  F32 x[T.part], w[T.part], root[T.part];
  I32 sign[signs];    // eight bits each
  I32 point[groups];  // packed
  F32 scale;
  I32 some, lost;     // lanes with something to search; and those where llama.cpp would stop
};

WB_INLINE F32 larger(F32 a, F32 b) { return select(a > b, a, b); }

// Magnitudes and signs of eight elements.
template <bool even>
WB_INLINE I32 fold(F32* x, const F32* w) {
  const F32 zero = splat(0.0f);
  I32 signs = splat(i32(0)), odd = splat(i32(0));
  F32 cost[8];
  for (int i = 0; i < 8; ++i) {
    const I32 plus = x[i] >= zero;
    cost[i] = w[i] * x[i] * x[i];
    x[i] = select(plus, x[i], negative(x[i]));
    signs = signs | select(plus, splat(i32(0)), splat(i32(1 << i)));
    odd = odd ^ plus;
  }
  if (!even) return signs;
  F32 least = cost[0];
  I32 cheapest = splat(i32(0));
  for (int i = 1; i < 8; ++i) {
    const I32 cheaper = cost[i] < least;
    least = select(cheaper, cost[i], least);
    cheapest = select(cheaper, splat(i32(i)), cheapest);
  }
  for (int i = 0; i < 8; ++i) {
    const I32 flip = odd & (cheapest == splat(i32(i)));
    x[i] = select(flip, negative(x[i]), x[i]);
    signs = signs ^ (flip & splat(i32(1 << i)));
  }
  return signs & splat(i32(127));
}

template <const Type& T>
WB_INLINE void weigh(Part<T>& p, const u8* weights, F32 squares) {
  if (weights) {
    const F32 mean = splat(T.mean) * squares / splat(float(N));
    load_columns(weights, N * 4, p.w);
    for (int i = 0; i < T.part; ++i) p.w[i] = p.w[i] * square_root(mean + p.x[i] * p.x[i]);
  } else {
    const F32 mean = splat(2.0f) * squares / splat(float(N));
    for (int i = 0; i < T.part; ++i) p.w[i] = (T.flat ? splat(T.flat) * mean : splat(0.0f)) + p.x[i] * p.x[i];
  }
  for (int i = 0; i < T.part; ++i) p.root[i] = square_root(p.w[i]);
}

// Of the lanes in `active`, group g on the grid of `scale` (whose inverse is given too): its point, and whether it had
// to be looked for outside.
template <const Type& T>
WB_INLINE I32 find_point(Part<T>& p, int g, F32 scale, F32 inverse, I32 active, const Neighbours& near, I32& outside) {
  using S = typename Part<T>::S;
  constexpr i32 top = S::base - 1;
  constexpr float values[8] = {1, 3, 5, 7, top == 2 ? 1 : 9, top == 2 ? 3 : 11, top == 2 ? 5 : 13, top == 2 ? 7 : 15};
  const F32* x = p.x + g * T.point;
  I32 packed = splat(i32(0));
  for (int i = 0; i < T.point; ++i)
    packed = packed | (limit(nearest(splat(0.5f) * (inverse * x[i] - splat(1.0f))), 0, top) << (S::bits * i));
  const auto scaled = [&](int lane) {
    Eight out = eight(values);
    for (F32& v : out.v) v = splat(scale[lane]) * v;
    return out;
  };
  return into_codebook<S>(x, p.root + g * T.point, scaled, packed, active, near, outside, p.lost);
}

// The least-squares fit of a scale to points: sum_qx / sum_q2.
template <const Type& T>
WB_INLINE void fit(const Part<T>& p, const I32* points, F32& sum_qx, F32& sum_q2) {
  using S = typename Part<T>::S;
  sum_qx = sum_q2 = splat(0.0f);
  for (int i = 0; i < T.part; ++i) {
    const I32 coordinate = (points[i / T.point] >> (S::bits * (i % T.point))) & splat(S::mask);
    const F32 q = to_float(coordinate + coordinate + splat(i32(1)));
    sum_qx = sum_qx + p.w[i] * p.x[i] * q;
    sum_q2 = sum_q2 + p.w[i] * q * q;
  }
}

// Scale and points of a part; `span` is what the largest coordinate stands for on the plain grid.
template <const Type& T>
WB_INLINE void search(Part<T>& p, F32 span, const Neighbours& near) {
  constexpr int groups = Part<T>::groups;
  const F32 zero = splat(0.0f);
  F32 best = zero;
  I32 outside[groups];
  for (int g = 0; g < groups; ++g) {
    p.point[g] = splat(i32(0));
    outside[g] = splat(i32(T.again == Again::outside ? 0 : -1));
  }
  for (int k = -T.tries; k <= T.tries; ++k) {
    const F32 inverse = splat(T.largest + float(k) * T.step) / span, scale = splat(1.0f) / inverse;
    I32 tried[groups], had[groups];
    for (int g = 0; g < groups; ++g) tried[g] = find_point(p, g, scale, inverse, p.some, near, had[g]);
    F32 sum_qx, sum_q2;
    fit(p, tried, sum_qx, sum_q2);
    const I32 better = (sum_q2 > zero) & (sum_qx * sum_qx > best * sum_q2);
    p.scale = select(better, sum_qx / sum_q2, p.scale);
    best = select(better, p.scale * sum_qx, best);
    for (int g = 0; g < groups; ++g) {
      p.point[g] = select(better, tried[g], p.point[g]);
      outside[g] = select(better, had[g], outside[g]);
    }
  }
  I32 any = splat(i32(T.again == Again::all ? -1 : 0));
  for (int g = 0; g < groups; ++g) any = any | outside[g];
  any = any & p.some & (p.scale > zero);
  const F32 scale = p.scale, inverse = splat(1.0f) / scale;
  for (int g = 0; g < groups; ++g) {
    I32 had;
    const I32 these = T.again == Again::outside ? any & outside[g] : any;
    p.point[g] = select(these, find_point(p, g, scale, inverse, these, near, had), p.point[g]);
  }
  F32 sum_qx, sum_q2;
  fit(p, p.point, sum_qx, sum_q2);
  p.scale = select(any & (sum_q2 > zero), sum_qx / sum_q2, p.scale);
}

// A part from src to its points' numbers in the codebook, signs and scale.
template <const Type& T>
WB_INLINE void encode_part(Part<T>& p, const u8* src, const u8* weights, F32 squares, const Neighbours& near) {
  const F32 zero = splat(0.0f);
  load_columns(src, N * 4, p.x);
  weigh(p, weights, squares);
  for (int k = 0; k < Part<T>::signs; ++k) p.sign[k] = fold<T.even>(p.x + 8 * k, p.w + 8 * k);
  F32 most = p.x[0];
  for (int i = 1; i < T.part; ++i) most = larger(most, p.x[i]);
  p.lost = splat(i32(0));
  const I32 nothing = T.nothing ? most < splat(T.nothing) : most == zero;
  p.some = nothing == splat(i32(0));
  F32 span = most;
  if constexpr (T.again == Again::all) {
    I32 codes[T.part];
    p.scale = search_ladder<T.part>(4, p.x, p.w, codes);
    span = p.scale * splat(3.0f);
    p.some = p.some & ((span <= zero) == splat(i32(0)));
  } else {
    p.scale = most / splat(T.largest);
  }
  search(p, span, near);
  const I32 minus = p.scale < zero;
  p.scale = select(p.some, select(minus, negative(p.scale), p.scale), zero);
  for (int k = 0; k < Part<T>::signs; ++k)
    p.sign[k] = (p.sign[k] ^ (minus & splat(i32(T.even ? 127 : 255)))) & p.some;
  for (int g = 0; g < Part<T>::groups; ++g) p.point[g] = places_of<typename Part<T>::S>(p.point[g], near) & p.some;
  p.lost = (p.lost | (p.scale != p.scale)) & p.some;
}

// What becomes of W blocks, in lanes: the points' numbers and the signs in the order of elements, the scales' four bits.
template <const Type& T>
struct Found {
  static constexpr int parts = int(N) / T.part;
  I32 point[int(N) / T.point], sign[int(N) / 8], scale[parts];
  I32 empty[parts];  // lanes without anything to search
  I32 some;          // and with a scale
};

template <const Type& T>
WB_INLINE void encode_parts(const u8* src, const u8* weights, u8* dst, Found<T>& found, Counts& counts) {
  const Neighbours& near = neighbours(T.codebook);
  F32 squares = splat(0.0f), most = splat(0.0f), scales[Found<T>::parts];
  for (size_t at = 0; at < N; at += 16) {
    F32 x[16];
    load_columns(src + at * 4, N * 4, x);
    for (int i = 0; i < 16; ++i) squares = squares + x[i] * x[i];
  }
  I32 lost = no_lanes();
  for (int part = 0; part < Found<T>::parts; ++part) {
    Part<T> p;
    const size_t at = size_t(part) * T.part * 4;
    encode_part(p, src + at, weights ? weights + at : nullptr, squares, near);
    for (int k = 0; k < Part<T>::signs; ++k) found.sign[part * Part<T>::signs + k] = p.sign[k];
    for (int g = 0; g < Part<T>::groups; ++g) found.point[part * Part<T>::groups + g] = p.point[g];
    scales[part] = p.scale;
    found.empty[part] = p.some == splat(i32(0));
    most = larger(most, p.scale);
    lost = lost | p.lost;
  }
  found.some = most != splat(0.0f);
  const F32 d = most / splat(31.0f), inverse = splat(1.0f) / d;
  for (int part = 0; part < Found<T>::parts; ++part)
    found.scale[part] = limit(nearest(splat(0.5f) * (inverse * scales[part] - splat(1.0f))), 0, 15) & found.some;
  store_scales(select(found.some, d * splat(T.fudge), splat(0.0f)), dst, T.size, counts);  // `most` may be -0
  refuse(lost, counts);
}

// Two scales a byte.
template <size_t count>
WB_INLINE void store_nibbles(const I32* codes, u8* dst, size_t size) {
  I32 bytes[count];
  for (size_t i = 0; i < count; ++i) bytes[i] = codes[2 * i] | (codes[2 * i + 1] << 4);
  store_bytes(bytes, dst, size);
}

// What codes have above eight bits, `bits` each, from the lowest.
template <size_t count, int bits>
WB_INLINE void store_upper(const I32* codes, u8* dst, size_t size) {
  I32 bytes[count];
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = splat(i32(0));
    for (int k = 0; k < 8 / bits; ++k) bytes[i] = bytes[i] | ((codes[int(i) * 8 / bits + k] >> 8) << (bits * k));
  }
  store_bytes(bytes, dst, size);
}

// The u32 of a run: four times seven signs and a scale.
WB_INLINE void store_signs_and_scale(const I32* signs, I32 scale, I32 some, u8* dst, size_t size) {
  I32 word = scale << 28;
  for (int k = 0; k < 4; ++k) word = word | (signs[k] << (7 * k));
  for (int i = 0; i < W; ++i) store(dst + size_t(i) * size, 0, i32((word & some)[i]));
}

void encode_iq2_xxs(const u8* src, const u8* weights, u8* dst, Counts& counts) {
  constexpr size_t size = IQ2_XXS.size;
  Found<IQ2_XXS> found;
  encode_parts<IQ2_XXS>(src, weights, dst, found, counts);
  for (size_t run = 0; run < 8; ++run) {
    I32 points[4];
    for (size_t k = 0; k < 4; ++k) points[k] = found.point[4 * run + k] & found.some;
    store_bytes(points, dst + 2 + 8 * run, size);
    store_signs_and_scale(found.sign + 4 * run, found.scale[run], found.some, dst + 6 + 8 * run, size);
  }
}

void encode_iq2_xs(const u8* src, const u8* weights, u8* dst, Counts& counts) {
  constexpr size_t size = IQ2_XS.size;
  Found<IQ2_XS> found;
  encode_parts<IQ2_XS>(src, weights, dst, found, counts);
  I32 bytes[64];
  for (size_t k = 0; k < 32; ++k) {
    bytes[2 * k] = found.point[k] & found.some;
    bytes[2 * k + 1] = ((found.point[k] >> 8) | (found.sign[k] << 1)) & found.some;
  }
  store_bytes(bytes, dst + 2, size);
  store_nibbles<8>(found.scale, dst + 66, size);
}

void encode_iq2_s(const u8* src, const u8* weights, u8* dst, Counts& counts) {
  constexpr size_t size = IQ2_S.size;
  Found<IQ2_S> found;
  encode_parts<IQ2_S>(src, weights, dst, found, counts);
  store_bytes(found.point, dst + 2, size);
  store_bytes(found.sign, dst + 34, size);
  store_upper<8, 2>(found.point, dst + 66, size);
  store_nibbles<8>(found.scale, dst + 74, size);
}

void encode_iq3_xxs(const u8* src, const u8* weights, u8* dst, Counts& counts) {
  constexpr size_t size = IQ3_XXS.size;
  Found<IQ3_XXS> found;
  encode_parts<IQ3_XXS>(src, weights, dst, found, counts);
  for (I32& point : found.point) point = point & found.some;
  store_bytes(found.point, dst + 2, size);
  for (size_t run = 0; run < 8; ++run)
    store_signs_and_scale(found.sign + 4 * run, found.scale[run], found.some, dst + 66 + 4 * run, size);
}

// quantize_iq3_s steps over a run of zeros without stepping on in its codes' low bits and signs: those of later runs stand
// where the empty one's should (upper bits and scales don't), and what was written reads as something else. So do ours.
WB_INLINE void close_up(Found<IQ3_S>& found) {
  I32 any_empty = no_lanes();
  for (const I32& empty : found.empty) any_empty = any_empty | empty;
  for (u32 lanes = lane_bits(any_empty); lanes; lanes &= lanes - 1) {
    const int lane = lowest_bit(lanes);
    int to = 0;
    for (int run = 0; run < 8; ++run) {
      if (found.empty[run][lane]) continue;
      for (int k = 0; k < 8; ++k) found.point[8 * to + k][lane] = found.point[8 * run + k][lane];
      for (int k = 0; k < 4; ++k) found.sign[4 * to + k][lane] = found.sign[4 * run + k][lane];
      ++to;
    }
    for (; to < 8; ++to) {
      for (int k = 0; k < 8; ++k) found.point[8 * to + k][lane] = 0;
      for (int k = 0; k < 4; ++k) found.sign[4 * to + k][lane] = 0;
    }
  }
}

void encode_iq3_s(const u8* src, const u8* weights, u8* dst, Counts& counts) {
  constexpr size_t size = IQ3_S.size;
  Found<IQ3_S> found;
  encode_parts<IQ3_S>(src, weights, dst, found, counts);
  store_upper<8, 1>(found.point, dst + 66, size);
  close_up(found);
  store_bytes(found.point, dst + 2, size);
  store_bytes(found.sign, dst + 74, size);
  store_nibbles<4>(found.scale, dst + 106, size);
}

}  // namespace

#define WB_WEIGHTED(name, size)                                                                                          \
  void name##_encode_weighted(const Weighted& rows, u8* dst, Counts& counts) {                                           \
    encode_weighted_blocks<encode_##name, N, size>(rows, dst, counts);                                                   \
  }
#define WB_EITHER(name, size)                                                                                            \
  WB_WEIGHTED(name, size)                                                                                                \
  void name##_encode(const u8* src, u8* dst, size_t n, Counts& counts) {                                                 \
    encode_blocks<unweighted<encode_##name>, N, size>(src, dst, n, counts);                                              \
  }
WB_WEIGHTED(iq2_xxs, 66)
WB_WEIGHTED(iq2_xs, 74)
WB_EITHER(iq2_s, 82)
WB_EITHER(iq3_xxs, 98)
WB_EITHER(iq3_s, 110)

}  // namespace weighbridge::WB_LEVEL
