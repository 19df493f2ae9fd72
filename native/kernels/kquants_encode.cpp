// Encoding Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: bytes equal to llama.cpp's quantize_row_*_ref and, with weights of the columns (an
// importance matrix), quantize_row_*_impl (ggml-quants.c, b11549, built for x86-64). One block in each lane; blocks are
// described in kquants.cpp.
//
// Every part of a block gets a scale and a minimum, or a scale with a sign, by a search (search.hpp). Then the parts'
// scales and minima are rounded to few bits, with weights by a second search, and the codes are recomputed from the
// rounded ones.
#include "blocks.hpp"
#include "search.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;

constexpr Ranges Q2_SEARCH = {16, 3, -0.5f, 0.1f, 15, true, false};
constexpr Ranges Q4_SEARCH = {32, 15, -1.0f, 0.1f, 20, false, false};
constexpr Ranges Q5_SEARCH = {32, 31, -0.5f, 0.1f, 15, false, false};
constexpr Ranges Q2_WEIGHTED = {16, 3, -0.9f, 0.05f, 36, false, true};
constexpr Ranges Q4_WEIGHTED = {32, 15, -0.9f, 0.05f, 36, false, true};
constexpr Ranges Q5_WEIGHTED = {32, 31, -0.9f, 0.05f, 36, false, true};
constexpr Signed Q3_SEARCH = {16, 4};
constexpr Signed Q6_SEARCH = {16, 32};
constexpr Signed SCALE_SEARCH = {16, 32};  // of Q3_K's scales

// How many runs of parts are searched side by side; the one that goes code by code waits the longest for itself.
constexpr int SIDE = 2, STEPS_SIDE = 4;

// What became of the scales in f16.
WB_INLINE F32 through_half(F32 x) {
  u32 scales[W];
  store(reinterpret_cast<u8*>(scales), 0, x);
  for (int i = 0; i < W; ++i) scales[i] = widen_f16(narrow_f16_ggml(scales[i]));
  return load<F32>(reinterpret_cast<const u8*>(scales));
}

// SubBlocks of W blocks, one block a lane. NaN lose sign and payload: ggml lets payloads into the codes, by an order of
// operands that is the compiler's choice (llama-quantize refuses NaN).
template <int size>
WB_INLINE void load_part(const u8* src, F32 (&x)[size], size_t stride = N * 4) {
  load_columns(src, stride, x);
  for (int i = 0; i < size; ++i) x[i] = select(x[i] == x[i], x[i], as_f32(splat(i32(F32_INF | F32_QUIET))));
}

// The mean square of W blocks, times `factor`.
WB_INLINE F32 mean_square(const u8* src, float factor) {
  F32 sum = splat(0.0f);
  for (size_t at = 0; at < N; at += 32) {
    F32 x[32];
    load_part(src + at * 4, x);
    for (int i = 0; i < 32; ++i) sum = sum + x[i] * x[i];
  }
  return splat(factor) * sum / splat(float(N));
}

// Weights of the elements of a part: a column's weight, times the root of the element's square and the mean square.
template <int size>
WB_INLINE void weigh_by(const u8* weights, F32 mean, const F32 (&x)[size], F32 (&w)[size]) {
  load_columns(weights, N * 4, w);
  for (int i = 0; i < size; ++i) w[i] = w[i] * square_root(mean + x[i] * x[i]);
}

// Without weights: |x| of 16, and |x| and the root of the mean square of 32.
template <int size>
WB_INLINE void weigh_alone(const F32 (&x)[size], F32 (&w)[size]) {
  F32 root = splat(0.0f);
  if constexpr (size == 32) {
    for (int i = 0; i < size; ++i) root = root + x[i] * x[i];
    root = square_root(root / splat(float(size)));
  }
  for (int i = 0; i < size; ++i) w[i] = size == 32 ? root + absolute(x[i]) : absolute(x[i]);
}

template <int size>
WB_INLINE F32 sum_of(const F32 (&w)[size]) {
  F32 sum = splat(0.0f);
  for (int i = 0; i < size; ++i) sum = sum + w[i];
  return sum;
}

// SubBlocks of W blocks: codes, scales and minima, and the sums of the weights.
template <const Ranges& S>
struct SubBlocks {
  static constexpr int count = int(N) / S.size;
  I32 codes[count][S.size];
  F32 scales[count], minima[count], weights[count];

  void search(const u8* src, const u8* weights_of, F32 mean) {
    for (int part = 0; part < count; part += SIDE) {
      F32 x[SIDE][S.size], w[SIDE][S.size];
      for (int p = 0; p < SIDE; ++p) {
        const size_t at = size_t(part + p) * S.size * 4;
        load_part(src + at, x[p]);
        if constexpr (S.bounded)
          weigh_by(weights_of + at, mean, x[p], w[p]);
        else
          weigh_alone(x[p], w[p]);
        weights[part + p] = sum_of(w[p]);
      }
      search_ranges<S, SIDE>(x, w, scales + part, minima + part, codes + part);
    }
  }

  // The codes of a part once more, for the scale and minimum that were stored; a scale of zero leaves the search's.
  void recode(const u8* src, int part, F32 scale, F32 low) {
    F32 x[S.size];
    load_part(src + size_t(part) * S.size * 4, x);
    for (int i = 0; i < S.size; ++i) {
      const I32 code = limit(nearest((x[i] + low) / scale), 0, S.top);
      codes[part][i] = select(scale != splat(0.0f), code, codes[part][i]);
    }
  }
};

template <int size>
WB_INLINE F32 largest(const F32 (&values)[size]) {
  F32 top = splat(0.0f);
  for (int i = 0; i < size; ++i) top = larger(values[i], top);
  return top;
}

// 256 codes of two bits in 64 bytes: byte l of a half of 128 has elements l, l + 32, l + 64, l + 96.
template <class B>
WB_INLINE void store_two_bit_codes(const I32* codes, B* dst) {
  I32 bytes[64];
  for (size_t i = 0; i < 64; ++i) {
    const I32* q = codes + i / 32 * 128 + i % 32;
    bytes[i] = q[0] | (q[32] << 2) | (q[64] << 4) | (q[96] << 6);
  }
  store_bytes<&B::qs>(bytes, dst);
}


template <const Ranges& S>
void encode_q2_k(const u8* src, const u8* weights, Q2_K* dst, Counts& counts) {
  constexpr i32 most = 15;
  SubBlocks<S> parts;
  parts.search(src, weights, S.bounded ? mean_square(src, 1.0f) : splat(0.0f));
  I32 scale[16], minimum[16], packed[16];
  F32 d, dmin;
  if constexpr (S.bounded) {
    d = search_scale(most, parts.scales, parts.weights, scale);
    dmin = search_scale(most, parts.minima, parts.weights, minimum);
  } else {
    const F32 top = largest(parts.scales), top_minimum = largest(parts.minima), zero = splat(0.0f);
    const I32 some = top > zero, some_minima = top_minimum > zero;
    d = select(some, top / splat(float(most)), zero), dmin = select(some_minima, top_minimum / splat(float(most)), zero);
    for (int part = 0; part < 16; ++part) {
      scale[part] = select(some, nearest(splat(float(most)) / top * parts.scales[part]), splat(i32(0)));
      minimum[part] =
          select(some_minima, nearest(splat(float(most)) / top_minimum * parts.minima[part]), splat(i32(0)));
    }
  }
  store_scales<&Q2_K::d>(d, dst, counts);
  store_scales<&Q2_K::dmin>(dmin, dst, counts);
  const F32 d_half = through_half(d), dmin_half = through_half(dmin);
  for (int part = 0; part < 16; ++part) {
    packed[part] = (scale[part] | (minimum[part] << 4)) & splat(i32(255));
    parts.recode(src, part, d_half * to_float(packed[part] & splat(i32(15))), dmin_half * to_float(packed[part] >> 4));
  }
  store_bytes<&Q2_K::scales>(packed, dst);
  store_two_bit_codes(parts.codes[0], dst);
}

// Eight scales and minima in twelve bytes (unpack_scales_q4 in kquants.cpp). ORs into whole bytes, as C does it: in range
// or not.
WB_INLINE void pack_scales_q4(const I32 (&scale)[8], const I32 (&minimum)[8], I32 (&packed)[12]) {
  const I32 nibble = splat(i32(15));
  for (int j = 0; j < 4; ++j) {
    packed[j] = (scale[j] | ((scale[j + 4] >> 4) << 6)) & splat(i32(255));
    packed[j + 4] = (minimum[j] | ((minimum[j + 4] >> 4) << 6)) & splat(i32(255));
    packed[j + 8] = (scale[j + 4] & nibble) | ((minimum[j + 4] & nibble) << 4);
  }
}

// Q4_K and Q5_K: the same but for the fifth bits.
template <const Ranges& S, class Block>
void encode_q45_k(const u8* src, const u8* weights, Block* dst, Counts& counts) {
  constexpr i32 most = 63;
  SubBlocks<S> parts;
  parts.search(src, weights, S.bounded ? mean_square(src, 2.0f) : splat(0.0f));
  I32 scale[8], minimum[8], packed[12];
  F32 d, dmin;
  if constexpr (S.bounded) {
    d = search_scale(most, parts.scales, parts.weights, scale);
    dmin = search_scale(most, parts.minima, parts.weights, minimum);
  } else {
    const F32 top = largest(parts.scales), top_minimum = largest(parts.minima), zero = splat(0.0f);
    d = top / splat(float(most)), dmin = top_minimum / splat(float(most));
    const F32 finer = select(top > zero, splat(float(most)) / top, zero);
    const F32 finer_minimum = select(top_minimum > zero, splat(float(most)) / top_minimum, zero);
    for (int part = 0; part < 8; ++part) {  // (uint8_t) of a code that may be negative, then at most 63
      scale[part] = limit(nearest(finer * parts.scales[part]) & splat(i32(255)), 0, most);
      minimum[part] = limit(nearest(finer_minimum * parts.minima[part]) & splat(i32(255)), 0, most);
    }
  }
  if constexpr (S.bounded && S.top == 31)  // Q4_K trusts them to be in range
    for (int part = 0; part < 8; ++part) scale[part] = limit(scale[part], 0, most), minimum[part] = limit(minimum[part], 0, most);
  store_scales<&Block::d>(d, dst, counts);
  store_scales<&Block::dmin>(dmin, dst, counts);
  pack_scales_q4(scale, minimum, packed);
  store_bytes<&Block::scales>(packed, dst);
  const F32 d_half = through_half(d), dmin_half = through_half(dmin);
  for (int part = 0; part < 8; ++part) {
    const int j = part % 4;  // as they are read again
    const I32 nibble = splat(i32(15)), six = splat(i32(63));
    const I32 s = part < 4 ? packed[j] & six : (packed[j + 8] & nibble) | ((packed[j] >> 6) << 4);
    const I32 m = part < 4 ? packed[j + 4] & six : (packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4);
    parts.recode(src, part, d_half * to_float(s), dmin_half * to_float(m));
  }
  const I32* codes = parts.codes[0];
  if constexpr (S.top == 31) {
    I32 high[32];
    for (size_t l = 0; l < 32; ++l) {
      high[l] = splat(i32(0));
      for (size_t part = 0; part < 8; ++part) high[l] = high[l] | ((codes[32 * part + l] >> 4) << int(part));
    }
    store_bytes<&Block::qh>(high, dst);
  }
  I32 low[128];
  for (size_t i = 0; i < 128; ++i) {
    const I32* q = codes + i / 32 * 64 + i % 32;
    low[i] = (q[0] & splat(i32(15))) | ((q[32] & splat(i32(15))) << 4);
  }
  store_bytes<&Block::qs>(low, dst);
}

// ---------------------------------------------------------------- a scale with a sign

// Codes and scales of the 16 parts of W blocks; `weigh` fills the weights of a part.
template <const Signed& S, class Weigh>
WB_INLINE void search_parts(const u8* src, Weigh weigh, F32 (&scales)[16], I32 (&codes)[16][16]) {
  for (int part = 0; part < 16; part += SIDE) {
    F32 x[SIDE][16], w[SIDE][16];
    for (int p = 0; p < SIDE; ++p) {
      load_part(src + size_t(part + p) * 64, x[p]);
      weigh(part + p, x[p], w[p]);
    }
    search_signed<S, SIDE>(x, w, scales + part, codes + part);
  }
}

// The codes once more, for the scale that was stored; a scale of zero leaves the search's.
template <const Signed& S>
WB_INLINE void recode_signed(const u8* src, int part, F32 scale, I32 (&codes)[16]) {
  F32 x[16];
  load_part(src + size_t(part) * 64, x);
  for (int i = 0; i < 16; ++i) {
    const I32 code = limit(nearest(x[i] / scale), -S.zero, S.zero - 1) + splat(S.zero);
    codes[i] = select(scale != splat(0.0f), code, codes[i]);
  }
}

// The scale of largest magnitude, with its sign; of equals the first.
WB_INLINE F32 extreme_scale(const F32 (&scales)[16], F32& magnitude) {
  F32 top = splat(0.0f);
  magnitude = splat(0.0f);
  for (int part = 0; part < 16; ++part) {
    const F32 a = absolute(scales[part]);
    const I32 larger = a > magnitude;
    magnitude = select(larger, a, magnitude);
    top = select(larger, scales[part], top);
  }
  return top;
}

WB_INLINE I32 int8(I32 x) { return (x << 24) >> 24; }

// Q3_K's parts, code by code: llama.cpp leaves a part when a round changed none of its codes, and four of five parts in
// the first. What is left of all W blocks' parts is gathered, so that lanes don't wait for one another.
WB_INLINE void search_q3_steps(const u8* src, F32 (&scales)[16], I32 (&codes)[16][16]) {
  constexpr int together = STEPS_SIDE * W;
  i32 left[16 * W], count = 0;
  for (int part = 0; part < 16; ++part) {
    F32 x[16];
    load_part(src + size_t(part) * 64, x);
    const I32 open = try_steps<Q3_SEARCH>(x, scales[part], codes[part]);
    for (u32 bits = lane_bits(open); bits; bits &= bits - 1) left[count++] = part * W + lowest_bit(bits);
  }
  for (int at = 0; at < count; at += together) {
    const int some = count - at < together ? count - at : together;
    u8 rows[together * 64] = {};
    F32 x[STEPS_SIDE][16], scale[STEPS_SIDE];
    I32 found[STEPS_SIDE][16];
    for (int k = 0; k < some; ++k)
      memcpy(rows + k * 64, src + size_t(left[at + k] % W) * N * 4 + size_t(left[at + k] / W) * 64, 64);
    for (int p = 0; p < STEPS_SIDE; ++p) load_part(rows + p * W * 64, x[p], 64);
    search_steps<Q3_SEARCH, STEPS_SIDE>(x, scale, found);
    for (int k = 0; k < some; ++k) {
      const int part = left[at + k] / W, lane = left[at + k] % W;
      scales[part][lane] = scale[k / W][k % W];
      for (int i = 0; i < 16; ++i) codes[part][i][lane] = found[k / W][i][k % W];
    }
  }
}


template <bool weighted>
void encode_q3_k(const u8* src, const u8* weights, Q3_K* dst, Counts& counts) {
  I32 codes[16][16], scale[1][16], packed[12];
  F32 scales[1][16], d[1];
  if constexpr (weighted) {
    F32 sums[1][16];
    const F32 mean = mean_square(src, 2.0f);
    const auto weigh = [&](int part, const F32(&x)[16], F32(&w)[16]) {
      weigh_by(weights + size_t(part) * 64, mean, x, w);
      sums[0][part] = sum_of(w);
    };
    search_parts<Q3_SEARCH>(src, weigh, scales[0], codes);
    search_signed<SCALE_SEARCH, 1>(scales, sums, d, scale);
  } else {
    search_q3_steps(src, scales[0], codes);
    F32 magnitude;
    const F32 top = extreme_scale(scales[0], magnitude), inverse = splat(-32.0f) / top;
    const I32 some = top != splat(0.0f);
    d[0] = select(some, splat(1.0f) / inverse, splat(0.0f));
    for (int part = 0; part < 16; ++part) {
      const I32 code = limit(int8(nearest(inverse * scales[0][part])), -32, 31) + splat(i32(32));
      scale[0][part] = select(some, code, splat(i32(0)));
    }
  }
  store_scales<&Q3_K::d>(d[0], dst, counts);
  const F32 d_half = through_half(d[0]);
  const I32 nibble = splat(i32(15)), two = splat(i32(3));
  for (int j = 0; j < 8; ++j) packed[j] = (scale[0][j] & nibble) | ((scale[0][j + 8] & nibble) << 4);
  for (int j = 0; j < 4; ++j) {
    packed[j + 8] = splat(i32(0));
    for (int k = 0; k < 4; ++k) packed[j + 8] = packed[j + 8] | (((scale[0][j + 4 * k] >> 4) & two) << (2 * k));
  }
  store_bytes<&Q3_K::scales>(packed, dst);
  for (int part = 0; part < 16; ++part)
    recode_signed<Q3_SEARCH>(src, part, d_half * to_float(scale[0][part] - splat(i32(32))), codes[part]);
  I32 high[32];
  for (int l = 0; l < 32; ++l) {
    high[l] = splat(i32(0));
    for (int bit = 0; bit < 8; ++bit) {
      I32& code = codes[bit * 2 + l / 16][l % 16];
      high[l] = high[l] | (((code >> 2) & splat(i32(1))) << bit);
      code = code & two;
    }
  }
  store_bytes<&Q3_K::hmask>(high, dst);
  store_two_bit_codes(codes[0], dst);
}

// A block of nothing is zeros throughout.
template <bool weighted>
void encode_q6_k(const u8* src, const u8* weights, Q6_K* dst, Counts& counts) {
  I32 parts[16][16], packed[16];
  F32 scales[16], magnitude;
  const auto weigh = [&](int part, const F32(&x)[16], F32(&w)[16]) {
    if constexpr (weighted) load_columns(weights + size_t(part) * 64, N * 4, w);
    if constexpr (!weighted)
      for (int i = 0; i < 16; ++i) w[i] = x[i] * x[i];
    (void)part, (void)x;
  };
  search_parts<Q6_SEARCH>(src, weigh, scales, parts);
  const F32 top = extreme_scale(scales, magnitude);
  const I32 nothing = magnitude < splat(NOTHING);
  const F32 inverse = splat(-128.0f) / top;
  const F32 d = select(nothing, splat(0.0f), splat(1.0f) / inverse);
  store_scales<&Q6_K::d>(d, dst, counts);
  const F32 d_half = through_half(d);
  for (int part = 0; part < 16; ++part) {
    I32 scale = nearest(inverse * scales[part]);
    scale = int8(select(scale < splat(i32(127)), scale, splat(i32(127))));
    packed[part] = select(nothing, splat(i32(0)), scale);
    recode_signed<Q6_SEARCH>(src, part, d_half * to_float(packed[part]), parts[part]);
    for (int i = 0; i < 16; ++i) parts[part][i] = select(nothing, splat(i32(0)), parts[part][i]);
  }
  const I32* codes = parts[0];
  I32 low[128], high[64];
  for (size_t i = 0; i < 64; ++i) {
    const I32* q = codes + i / 32 * 128 + i % 32;
    I32* l = low + i / 32 * 64 + i % 32;
    const I32 nibble = splat(i32(15));
    l[0] = (q[0] & nibble) | ((q[64] & nibble) << 4);
    l[32] = (q[32] & nibble) | ((q[96] & nibble) << 4);
    high[i] = (q[0] >> 4) | ((q[32] >> 4) << 2) | ((q[64] >> 4) << 4) | ((q[96] >> 4) << 6);
  }
  store_bytes<&Q6_K::ql>(low, dst);
  store_bytes<&Q6_K::qh>(high, dst);
  store_bytes<&Q6_K::scales>(packed, dst);
}

}  // namespace

// Without weights, and with.
#define WB_DEFINE_ENCODERS(name, Block, plain, weighted) \
  WB_DEFINE_ENCODER(name, Block, (plain))                \
  WB_DEFINE_WEIGHTED_ENCODER(name, Block, (weighted))
WB_DEFINE_ENCODERS(q2_k, Q2_K, encode_q2_k<Q2_SEARCH>, encode_q2_k<Q2_WEIGHTED>)
WB_DEFINE_ENCODERS(q3_k, Q3_K, encode_q3_k<false>, encode_q3_k<true>)
WB_DEFINE_ENCODERS(q4_k, Q4_K, (encode_q45_k<Q4_SEARCH, Q4_K>), (encode_q45_k<Q4_WEIGHTED, Q4_K>))
WB_DEFINE_ENCODERS(q5_k, Q5_K, (encode_q45_k<Q5_SEARCH, Q5_K>), (encode_q45_k<Q5_WEIGHTED, Q5_K>))
WB_DEFINE_ENCODERS(q6_k, Q6_K, encode_q6_k<false>, encode_q6_k<true>)
#undef WB_DEFINE_ENCODERS

}  // namespace weighbridge::WB_LEVEL
