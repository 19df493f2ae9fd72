// Encoding Q2_K, Q4_K, Q5_K, Q6_K: bytes equal to llama.cpp's quantize_row_*_ref (ggml-quants.c, b11549, built for x86-64), that
// is without an importance matrix. One block in each lane; blocks are drawn in kquants.cpp.
//
// Every part of a block gets a scale and a minimum by a search over 16 or 21 grids (make_qkx2_quants), in Q6_K a scale
// with a sign by a search over 19 (make_qx_quants). Then the parts'
// scales and minima are rounded to few bits, and the codes made anew from what was rounded.
#include "blocks.hpp"

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;

// Round to nearest even by the bits of a float that is too large for fractions (nearest_int). Beyond 2^22 it is
// nonsense, and the same nonsense.
WB_INLINE I32 nearest(F32 x) {
  return (as_i32(x + splat(12582912.0f)) & splat(i32(0x007FFFFF))) - splat(i32(0x00400000));
}

WB_INLINE I32 clamp(I32 x, i32 top) {
  x = select(x < splat(top), x, splat(top));
  return select(x > splat(i32(0)), x, splat(i32(0)));
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

// What became of the scales in f16.
WB_INLINE F32 through_half(F32 x) {
  for (int i = 0; i < W; ++i) {
    const float scale = x[i];
    x[i] = bit_cast<float>(widen_f16(narrow_f16_ggml(bit_cast<u32>(scale))));
  }
  return x;
}

// How the parts of a type are searched: `size` elements, codes up to `top`, grids (start + step / 10) finer than the
// plain one, and the error they are chosen by: weighted magnitude of differences, or their square.
struct Search {
  int size;
  i32 top;
  float start;
  int steps;
  bool magnitude;
};
constexpr Search Q2_SEARCH = {16, 3, -0.5f, 15, true};
constexpr Search Q4_SEARCH = {32, 15, -1.0f, 20, false};
constexpr Search Q5_SEARCH = {32, 31, -0.5f, 15, false};

template <const Search& S>
WB_INLINE F32 error_of(const F32* x, const F32* w, const I32* codes, F32 scale, F32 low) {
  F32 error = splat(0.0f);
  for (int i = 0; i < S.size; ++i) {
    const F32 difference = scale * to_float(codes[i]) + low - x[i];
    error = error + w[i] * (S.magnitude ? absolute(difference) : difference * difference);
  }
  return error;
}

// The best scale of a part; `least` becomes its minimum (times -1), codes the best codes.
template <const Search& S>
F32 search(const F32* x, const F32* w, I32* codes, F32& least) {
  const F32 zero = splat(0.0f);
  F32 low = x[0], high = x[0], sum_w = w[0], sum_x = w[0] * x[0];
  for (int i = 1; i < S.size; ++i) {
    low = select(x[i] < low, x[i], low);
    high = select(x[i] > high, x[i], high);
    sum_w = sum_w + w[i];
    sum_x = sum_x + w[i] * x[i];
  }
  low = select(low > zero, zero, low);
  const F32 start = low;
  const I32 flat = high == low;
  const F32 plain = splat(float(S.top)) / (high - low);
  F32 scale = splat(1.0f) / plain;
  for (int i = 0; i < S.size; ++i) codes[i] = clamp(nearest(plain * (x[i] - low)), S.top);
  F32 best = error_of<S>(x, w, codes, scale, low);
  for (int step = 0; step <= S.steps; ++step) {
    const F32 finer = splat(S.start + 0.1f * float(step) + float(S.top)) / (high - low);  // of the minimum found so far
    I32 tried[S.size];
    F32 sum_l = zero, sum_l2 = zero, sum_xl = zero;
    for (int i = 0; i < S.size; ++i) {
      tried[i] = clamp(nearest(finer * (x[i] - low)), S.top);
      const F32 l = to_float(tried[i]), wl = w[i] * l;
      sum_l = sum_l + wl;
      sum_l2 = sum_l2 + wl * l;
      sum_xl = sum_xl + wl * x[i];
    }
    const F32 determinant = sum_w * sum_l2 - sum_l * sum_l;
    F32 this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    F32 this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    const I32 above = this_low > zero;
    this_scale = select(above, sum_xl / sum_l2, this_scale);
    this_low = select(above, zero, this_low);
    const F32 error = error_of<S>(x, w, tried, this_scale, this_low);
    const I32 better = (determinant > zero) & (error < best);
    for (int i = 0; i < S.size; ++i) codes[i] = select(better, tried[i], codes[i]);
    best = select(better, error, best);
    scale = select(better, this_scale, scale);
    low = select(better, this_low, low);
  }
  for (int i = 0; i < S.size; ++i) codes[i] = select(flat, splat(i32(0)), codes[i]);
  least = zero - select(flat, start, low);
  return select(flat, zero, scale);
}

// The codes of a part once more, for the scale and minimum that were stored; a scale of zero leaves the search's.
template <const Search& S>
WB_INLINE void recode(const F32* x, F32 scale, F32 low, I32* codes) {
  for (int i = 0; i < S.size; ++i)
    codes[i] = select(scale != splat(0.0f), clamp(nearest((x[i] + low) / scale), S.top), codes[i]);
}

// Parts of W blocks, one block a lane. NaN lose sign and payload: ggml lets payloads into the codes, by an order of
// operands that is the compiler's choice (llama-quantize refuses NaN).
template <int size>
WB_INLINE void load_part(const u8* src, F32 (&x)[size]) {
  load_columns(src, N * 4, x);
  for (int i = 0; i < size; ++i) x[i] = select(x[i] == x[i], x[i], as_f32(splat(i32(F32_INF | F32_QUIET))));
}

WB_INLINE F32 larger(F32 a, F32 b) { return select(b > a, b, a); }

// Search all parts of W blocks; their largest scale and minimum.
template <const Search& S, void weigh(const F32*, F32*)>
WB_INLINE void search_parts(const u8* src, I32* codes, F32* scales, F32* minima, F32& top_scale, F32& top_minimum) {
  top_scale = top_minimum = splat(0.0f);
  for (size_t part = 0; part < N / S.size; ++part) {
    F32 x[S.size], w[S.size];
    load_part(src + part * S.size * 4, x);
    weigh(x, w);
    scales[part] = search<S>(x, w, codes + part * S.size, minima[part]);
    top_scale = larger(top_scale, scales[part]);
    top_minimum = larger(top_minimum, minima[part]);
  }
}

// |x| of 16, and |x| and the root of the mean square of 32.
WB_INLINE void weigh_q2(const F32* x, F32* w) {
  for (int i = 0; i < 16; ++i) w[i] = absolute(x[i]);
}
WB_INLINE void weigh_q45(const F32* x, F32* w) {
  F32 squares = splat(0.0f);
  for (int i = 0; i < 32; ++i) squares = squares + x[i] * x[i];
  const F32 mean = square_root(squares / splat(32.0f));
  for (int i = 0; i < 32; ++i) w[i] = mean + absolute(x[i]);
}

// W blocks to W * 84 bytes.
void encode_q2_k(const u8* src, u8* dst, Counts& counts) {
  constexpr size_t size = 84;
  I32 codes[N], packed[16];
  F32 scales[16], minima[16], top_scale, top_minimum;
  search_parts<Q2_SEARCH, weigh_q2>(src, codes, scales, minima, top_scale, top_minimum);
  const F32 fifteen = splat(15.0f), zero = splat(0.0f);
  const I32 some = top_scale > zero, some_minima = top_minimum > zero;
  const F32 d = select(some, top_scale / fifteen, zero), dmin = select(some_minima, top_minimum / fifteen, zero);
  store_scales(d, dst + 80, size, counts);
  store_scales(dmin, dst + 82, size, counts);
  const F32 d_half = through_half(d), dmin_half = through_half(dmin);
  for (size_t part = 0; part < 16; ++part) {
    const I32 scale = select(some, nearest(fifteen / top_scale * scales[part]), splat(i32(0)));
    const I32 minimum = select(some_minima, nearest(fifteen / top_minimum * minima[part]), splat(i32(0)));
    packed[part] = (scale | (minimum << 4)) & splat(i32(255));
    F32 x[16];
    load_part(src + part * 64, x);
    recode<Q2_SEARCH>(x, d_half * to_float(packed[part] & splat(i32(15))), dmin_half * to_float(packed[part] >> 4),
                      codes + part * 16);
  }
  store_bytes(packed, dst, size);
  I32 bytes[64];
  for (size_t i = 0; i < 64; ++i) {
    const I32* q = codes + i / 32 * 128 + i % 32;
    bytes[i] = q[0] | (q[32] << 2) | (q[64] << 4) | (q[96] << 6);
  }
  store_bytes(bytes, dst + 16, size);
}

// Q4_K and Q5_K: the same but for the fifth bits.
template <const Search& S, size_t size>
WB_INLINE void encode_q45_k(const u8* src, u8* dst, Counts& counts) {
  I32 codes[N], packed[12];
  F32 scales[8], minima[8], top_scale, top_minimum;
  search_parts<S, weigh_q45>(src, codes, scales, minima, top_scale, top_minimum);
  const F32 most = splat(63.0f), zero = splat(0.0f);
  const F32 inverse_scale = select(top_scale > zero, most / top_scale, zero);
  const F32 inverse_minimum = select(top_minimum > zero, most / top_minimum, zero);
  store_scales(top_scale / most, dst, size, counts);
  store_scales(top_minimum / most, dst + 2, size, counts);
  const F32 d = through_half(top_scale / most), dmin = through_half(top_minimum / most);
  for (size_t part = 0; part < 8; ++part) {
    // (uint8_t) of a code that may be negative, then at most 63
    const I32 scale = clamp(nearest(inverse_scale * scales[part]) & splat(i32(255)), 63);
    const I32 minimum = clamp(nearest(inverse_minimum * minima[part]) & splat(i32(255)), 63);
    if (part < 4) {
      packed[part] = scale;
      packed[part + 4] = minimum;
    } else {
      packed[part + 4] = (scale & splat(i32(15))) | ((minimum & splat(i32(15))) << 4);
      packed[part - 4] = packed[part - 4] | ((scale >> 4) << 6);
      packed[part] = packed[part] | ((minimum >> 4) << 6);
    }
    F32 x[32];
    load_part(src + part * 128, x);
    recode<S>(x, d * to_float(scale), dmin * to_float(minimum), codes + part * 32);
  }
  store_bytes(packed, dst + 4, size);
  if constexpr (S.top == 31) {
    I32 high[32];
    for (size_t l = 0; l < 32; ++l) {
      high[l] = splat(i32(0));
      for (size_t part = 0; part < 8; ++part) high[l] = high[l] | ((codes[32 * part + l] >> 4) << int(part));
    }
    store_bytes(high, dst + 16, size);
  }
  I32 low[128];
  for (size_t i = 0; i < 128; ++i) {
    const I32* q = codes + i / 32 * 64 + i % 32;
    low[i] = (q[0] & splat(i32(15))) | ((q[32] & splat(i32(15))) << 4);
  }
  store_bytes(low, dst + size - 128, size);
}

void encode_q4_k(const u8* src, u8* dst, Counts& counts) { encode_q45_k<Q4_SEARCH, 144>(src, dst, counts); }
void encode_q5_k(const u8* src, u8* dst, Counts& counts) { encode_q45_k<Q5_SEARCH, 176>(src, dst, counts); }

constexpr float NOTHING = 1e-15f;  // magnitudes below are zero (GROUP_MAX_EPS)

// Q6_K's codes, -32..31 around zero.
WB_INLINE I32 signed_code(F32 x) {
  I32 l = nearest(x);
  l = select(l < splat(i32(31)), l, splat(i32(31)));
  return select(l > splat(i32(-32)), l, splat(i32(-32)));
}

// The signed scale of 16 elements, weighted by their squares; codes are shifted by 32.
F32 search_signed(const F32* x, I32* codes) {
  F32 amax = splat(0.0f), extreme = splat(0.0f), scale = splat(0.0f), best = splat(0.0f);
  for (int i = 0; i < 16; ++i) {
    const F32 a = absolute(x[i]);
    const I32 larger = a > amax;
    amax = select(larger, a, amax);
    extreme = select(larger, x[i], extreme);
  }
  const I32 nothing = amax < splat(NOTHING);
  for (int k = -10; k <= 9; ++k) {  // the plain grid first, then nine finer or coarser ones each way
    if (k == 0) continue;
    const bool plain = k == -10;
    const F32 inverse = splat(plain ? -32.0f : -(32.0f + 0.1f * float(k))) / extreme;
    I32 tried[16];
    F32 sum_lx = splat(0.0f), sum_l2 = splat(0.0f);
    for (int i = 0; i < 16; ++i) {
      tried[i] = signed_code(inverse * x[i]);
      const F32 l = to_float(tried[i]), w = x[i] * x[i];
      sum_lx = sum_lx + w * x[i] * l;
      sum_l2 = sum_l2 + w * l * l;
    }
    const F32 found = sum_lx / sum_l2;
    const I32 better = plain ? splat(i32(-1)) : (sum_l2 > splat(0.0f)) & (sum_lx * sum_lx > best * sum_l2);
    const F32 taken = plain ? select(sum_l2 != splat(0.0f), found, splat(0.0f)) : found;
    for (int i = 0; i < 16; ++i) codes[i] = select(better, tried[i] + splat(i32(32)), codes[i]);
    scale = select(better, taken, scale);
    best = select(better, taken * sum_lx, best);
  }
  for (int i = 0; i < 16; ++i) codes[i] = select(nothing, splat(i32(0)), codes[i]);
  return select(nothing, splat(0.0f), scale);
}

// W blocks to W * 210 bytes. A block of nothing is zeros throughout.
void encode_q6_k(const u8* src, u8* dst, Counts& counts) {
  constexpr size_t size = 210;
  I32 codes[N], packed[16];
  F32 scales[16], most = splat(0.0f), top = splat(0.0f);
  for (size_t part = 0; part < 16; ++part) {
    F32 x[16];
    load_part(src + part * 64, x);
    for (int i = 0; i < 16; ++i) codes[part * 16 + size_t(i)] = splat(i32(0));
    scales[part] = search_signed(x, codes + part * 16);
    const F32 a = absolute(scales[part]);
    const I32 larger = a > most;
    most = select(larger, a, most);
    top = select(larger, scales[part], top);
  }
  const I32 nothing = most < splat(NOTHING);
  const F32 inverse = splat(-128.0f) / top;
  const F32 d = select(nothing, splat(0.0f), splat(1.0f) / inverse);
  store_scales(d, dst + 208, size, counts);
  const F32 d_half = through_half(d);
  for (size_t part = 0; part < 16; ++part) {
    I32 scale = nearest(inverse * scales[part]);
    scale = (select(scale < splat(i32(127)), scale, splat(i32(127))) << 24) >> 24;  // int8_t
    packed[part] = select(nothing, splat(i32(0)), scale);
    F32 x[16];
    load_part(src + part * 64, x);
    const F32 by = d_half * to_float(packed[part]);
    for (size_t i = 0; i < 16; ++i) {
      I32& code = codes[part * 16 + i];
      code = select(by != splat(0.0f), signed_code(x[i] / by) + splat(i32(32)), code);
      code = select(nothing, splat(i32(0)), code);
    }
  }
  I32 low[128], high[64];
  for (size_t i = 0; i < 64; ++i) {
    const I32* q = codes + i / 32 * 128 + i % 32;
    I32* l = low + i / 32 * 64 + i % 32;
    const I32 nibble = splat(i32(15));
    l[0] = (q[0] & nibble) | ((q[64] & nibble) << 4);
    l[32] = (q[32] & nibble) | ((q[96] & nibble) << 4);
    high[i] = (q[0] >> 4) | ((q[32] >> 4) << 2) | ((q[64] >> 4) << 4) | ((q[96] >> 4) << 6);
  }
  store_bytes(low, dst, size);
  store_bytes(high, dst + 128, size);
  store_bytes(packed, dst + 192, size);
}

}  // namespace

void q6_k_encode(const u8* src, u8* dst, size_t n, Counts& c) { encode_blocks<encode_q6_k, N, 210>(src, dst, n, c); }
void q2_k_encode(const u8* src, u8* dst, size_t n, Counts& c) { encode_blocks<encode_q2_k, N, 84>(src, dst, n, c); }
void q4_k_encode(const u8* src, u8* dst, size_t n, Counts& c) { encode_blocks<encode_q4_k, N, 144>(src, dst, n, c); }
void q5_k_encode(const u8* src, u8* dst, size_t n, Counts& c) { encode_blocks<encode_q5_k, N, 176>(src, dst, n, c); }

}  // namespace weighbridge::WB_LEVEL
