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

// The groups of a part that are searched again for the best scale: all; all, if one wasn't in the codebook; or those
// that weren't.
enum class Again { all, all_if_any, outside };

// How a type is searched. Signs go with eight elements: free, or (`even`) flipped at the cheapest element so that minuses are even.
struct Search {
  Codebook codebook;
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
constexpr Search IQ2_XXS_SEARCH = {.codebook = Codebook::iq2_xxs, .part = 32, .point = 8, .largest = 5, .tries = 6,
    .step = 0.1f, .even = true, .again = Again::all, .nothing = 1e-15f, .mean = 1, .flat = 0, .fudge = 1};
constexpr Search IQ2_XS_SEARCH = {.codebook = Codebook::iq2_xs, .part = 16, .point = 8, .largest = 5, .tries = 9,
    .step = 0.1f, .even = true, .again = Again::outside, .nothing = 1e-15f, .mean = 1, .flat = 0, .fudge = 1};
constexpr Search IQ2_S_SEARCH = {.codebook = Codebook::iq2_s, .part = 16, .point = 8, .largest = 5, .tries = 9,
    .step = 0.1f, .even = false, .again = Again::outside, .nothing = 1e-8f, .mean = 2, .flat = 0.25f, .fudge = 0.9875f};
constexpr Search IQ3_XXS_SEARCH = {.codebook = Codebook::iq3_xxs, .part = 32, .point = 4, .largest = 15, .tries = 15,
    .step = 0.2f, .even = true, .again = Again::outside, .nothing = 1e-8f, .mean = 2, .flat = 0, .fudge = 1.0125f};
constexpr Search IQ3_S_SEARCH = {.codebook = Codebook::iq3_s, .part = 32, .point = 4, .largest = 15, .tries = 9,
    .step = 0.2f, .even = false, .again = Again::all_if_any, .nothing = 0, .mean = 2, .flat = 0, .fudge = 1.033f};

// One sub-block of W blocks: magnitudes (an element whose sign was flipped is negative), weights and their roots.
template <const Search& T>
struct SubBlock {
  using S = Shape<T.point>;
  static constexpr int signs = T.part / 8, groups = T.part / T.point;

  F32 x[T.part], w[T.part], root[T.part];
  I32 sign[signs];    // eight bits each
  I32 point[groups];  // packed
  F32 scale;
  I32 some, lost;     // lanes with something to search; and those where llama.cpp would stop
};

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

template <const Search& T>
WB_INLINE void weigh(SubBlock<T>& p, const u8* weights, F32 squares) {
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
template <const Search& T>
WB_INLINE I32 find_point(SubBlock<T>& p, int g, F32 scale, F32 inverse, I32 active, const Neighbours& near, I32& outside) {
  using S = typename SubBlock<T>::S;
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
template <const Search& T>
WB_INLINE void fit(const SubBlock<T>& p, const I32* points, F32& sum_qx, F32& sum_q2) {
  using S = typename SubBlock<T>::S;
  sum_qx = sum_q2 = splat(0.0f);
  for (int i = 0; i < T.part; ++i) {
    const I32 coordinate = (points[i / T.point] >> (S::bits * (i % T.point))) & splat(S::mask);
    const F32 q = to_float(coordinate + coordinate + splat(i32(1)));
    sum_qx = sum_qx + p.w[i] * p.x[i] * q;
    sum_q2 = sum_q2 + p.w[i] * q * q;
  }
}

// Scale and points of a part; `span`: the value of the largest coordinate on the plain grid.
template <const Search& T>
WB_INLINE void search(SubBlock<T>& p, F32 span, const Neighbours& near) {
  constexpr int groups = SubBlock<T>::groups;
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
template <const Search& T>
WB_INLINE void encode_part(SubBlock<T>& p, const u8* src, const u8* weights, F32 squares, const Neighbours& near) {
  const F32 zero = splat(0.0f);
  load_columns(src, N * 4, p.x);
  weigh(p, weights, squares);
  for (int k = 0; k < SubBlock<T>::signs; ++k) p.sign[k] = fold<T.even>(p.x + 8 * k, p.w + 8 * k);
  F32 most = p.x[0];
  for (int i = 1; i < T.part; ++i) most = larger(most, p.x[i]);
  p.lost = splat(i32(0));
  const I32 nothing = T.nothing ? most < splat(T.nothing) : most == zero;
  p.some = nothing == splat(i32(0));
  F32 span = most;
  if constexpr (T.again == Again::all) {
    I32 codes[T.part];
    p.scale = search_scale<T.part>(4, p.x, p.w, codes);
    span = p.scale * splat(3.0f);
    p.some = p.some & ((span <= zero) == splat(i32(0)));
  } else {
    p.scale = most / splat(T.largest);
  }
  search(p, span, near);
  const I32 minus = p.scale < zero;
  p.scale = select(p.some, select(minus, negative(p.scale), p.scale), zero);
  for (int k = 0; k < SubBlock<T>::signs; ++k)
    p.sign[k] = (p.sign[k] ^ (minus & splat(i32(T.even ? 127 : 255)))) & p.some;
  for (int g = 0; g < SubBlock<T>::groups; ++g) p.point[g] = places_of<typename SubBlock<T>::S>(p.point[g], near) & p.some;
  p.lost = (p.lost | (p.scale != p.scale)) & p.some;
}

// What becomes of W blocks, in lanes: the points' numbers and the signs in the order of elements, the scales' four bits.
template <const Search& T>
struct Found {
  static constexpr int parts = int(N) / T.part;
  I32 point[int(N) / T.point], sign[int(N) / 8], scale[parts];
  I32 empty[parts];  // lanes without anything to search
  I32 some;          // and with a scale
};

template <const Search& T, class B>
WB_INLINE void encode_parts(const u8* src, const u8* weights, B* dst, Found<T>& found, Counts& counts) {
  const Neighbours& near = neighbours(T.codebook);
  F32 squares = splat(0.0f), most = splat(0.0f), scales[Found<T>::parts];
  for (size_t at = 0; at < N; at += 16) {
    F32 x[16];
    load_columns(src + at * 4, N * 4, x);
    for (int i = 0; i < 16; ++i) squares = squares + x[i] * x[i];
  }
  I32 lost = no_lanes();
  for (int part = 0; part < Found<T>::parts; ++part) {
    SubBlock<T> p;
    const size_t at = size_t(part) * T.part * 4;
    encode_part(p, src + at, weights ? weights + at : nullptr, squares, near);
    for (int k = 0; k < SubBlock<T>::signs; ++k) found.sign[part * SubBlock<T>::signs + k] = p.sign[k];
    for (int g = 0; g < SubBlock<T>::groups; ++g) found.point[part * SubBlock<T>::groups + g] = p.point[g];
    scales[part] = p.scale;
    found.empty[part] = p.some == splat(i32(0));
    most = larger(most, p.scale);
    lost = lost | p.lost;
  }
  found.some = most != splat(0.0f);
  const F32 d = most / splat(31.0f), inverse = splat(1.0f) / d;
  for (int part = 0; part < Found<T>::parts; ++part)
    found.scale[part] = limit(nearest(splat(0.5f) * (inverse * scales[part] - splat(1.0f))), 0, 15) & found.some;
  store_scales<&B::d>(select(found.some, d * splat(T.fudge), splat(0.0f)), dst, counts);  // `most` may be -0
  refuse(lost, counts);
}

// Two scales a byte.
template <auto field, size_t count, class B>
WB_INLINE void store_scale_nibbles(const I32* codes, B* dst) {
  I32 bytes[count];
  for (size_t i = 0; i < count; ++i) bytes[i] = codes[2 * i] | (codes[2 * i + 1] << 4);
  store_bytes<field>(bytes, dst);
}

// What codes have above eight bits, `bits` each, from the lowest.
template <int bits, class B>
WB_INLINE void store_upper(const I32* codes, B* dst) {
  constexpr size_t count = sizeof dst->qh;
  I32 bytes[count];
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = splat(i32(0));
    for (int k = 0; k < 8 / bits; ++k) bytes[i] = bytes[i] | ((codes[int(i) * 8 / bits + k] >> 8) << (bits * k));
  }
  store_bytes<&B::qh>(bytes, dst);
}

// The u32 of a run: four times seven signs and a scale.
template <auto field, class B>
WB_INLINE void store_signs_and_scale(const I32* signs, I32 scale, I32 some, B* dst, size_t at) {
  I32 word = scale << 28;
  for (int k = 0; k < 4; ++k) word = word | (signs[k] << (7 * k));
  store_words<field>(word & some, dst, at);
}

void encode_iq2_xxs(const u8* src, const u8* weights, IQ2_XXS* dst, Counts& counts) {
  Found<IQ2_XXS_SEARCH> found;
  encode_parts<IQ2_XXS_SEARCH>(src, weights, dst, found, counts);
  for (size_t run = 0; run < 8; ++run) {
    I32 points[4];
    for (size_t k = 0; k < 4; ++k) points[k] = found.point[4 * run + k] & found.some;
    store_bytes<&IQ2_XXS::qs>(points, dst, 8 * run);
    store_signs_and_scale<&IQ2_XXS::qs>(found.sign + 4 * run, found.scale[run], found.some, dst, 8 * run + 4);
  }
}

void encode_iq2_xs(const u8* src, const u8* weights, IQ2_XS* dst, Counts& counts) {
  Found<IQ2_XS_SEARCH> found;
  encode_parts<IQ2_XS_SEARCH>(src, weights, dst, found, counts);
  I32 bytes[64];
  for (size_t k = 0; k < 32; ++k) {
    bytes[2 * k] = found.point[k] & found.some;
    bytes[2 * k + 1] = ((found.point[k] >> 8) | (found.sign[k] << 1)) & found.some;
  }
  store_bytes<&IQ2_XS::qs>(bytes, dst);
  store_scale_nibbles<&IQ2_XS::scales, 8>(found.scale, dst);
}

void encode_iq2_s(const u8* src, const u8* weights, IQ2_S* dst, Counts& counts) {
  Found<IQ2_S_SEARCH> found;
  encode_parts<IQ2_S_SEARCH>(src, weights, dst, found, counts);
  store_bytes<&IQ2_S::qs>(found.point, dst);
  store_bytes<&IQ2_S::signs>(found.sign, dst);
  store_upper<2>(found.point, dst);
  store_scale_nibbles<&IQ2_S::scales, 8>(found.scale, dst);
}

void encode_iq3_xxs(const u8* src, const u8* weights, IQ3_XXS* dst, Counts& counts) {
  Found<IQ3_XXS_SEARCH> found;
  encode_parts<IQ3_XXS_SEARCH>(src, weights, dst, found, counts);
  for (I32& point : found.point) point = point & found.some;
  store_bytes<&IQ3_XXS::qs>(found.point, dst);
  for (size_t run = 0; run < 8; ++run)
    store_signs_and_scale<&IQ3_XXS::signs>(found.sign + 4 * run, found.scale[run], found.some, dst, 4 * run);
}

// quantize_iq3_s steps over a run of zeros without stepping on in its codes' low bits and signs: those of later runs stand
// where the empty one's should (upper bits and scales don't), and the result decodes to other values. This encoder does the same.
WB_INLINE void close_up(Found<IQ3_S_SEARCH>& found) {
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

void encode_iq3_s(const u8* src, const u8* weights, IQ3_S* dst, Counts& counts) {
  Found<IQ3_S_SEARCH> found;
  encode_parts<IQ3_S_SEARCH>(src, weights, dst, found, counts);
  store_upper<1>(found.point, dst);
  close_up(found);
  store_bytes<&IQ3_S::qs>(found.point, dst);
  store_bytes<&IQ3_S::signs>(found.sign, dst);
  store_scale_nibbles<&IQ3_S::scales, 4>(found.scale, dst);
}

}  // namespace

WB_DEFINE_WEIGHTED_ENCODER(iq2_xxs, IQ2_XXS, encode_iq2_xxs)
WB_DEFINE_WEIGHTED_ENCODER(iq2_xs, IQ2_XS, encode_iq2_xs)
WB_DEFINE_WEIGHTED_ENCODER(iq2_s, IQ2_S, encode_iq2_s)
WB_DEFINE_WEIGHTED_ENCODER(iq3_xxs, IQ3_XXS, encode_iq3_xxs)
WB_DEFINE_WEIGHTED_ENCODER(iq3_s, IQ3_S, encode_iq3_s)
WB_DEFINE_ENCODER(iq2_s, IQ2_S, encode_iq2_s)
WB_DEFINE_ENCODER(iq3_xxs, IQ3_XXS, encode_iq3_xxs)
WB_DEFINE_ENCODER(iq3_s, IQ3_S, encode_iq3_s)

}  // namespace weighbridge::WB_LEVEL
