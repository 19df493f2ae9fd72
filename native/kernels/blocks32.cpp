// ggml's blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4. Bytes equal to llama.cpp's quantize_row_*_ref and dequantize_row_*
// (ggml-quants.c, b11549, built for x86-64), hostile input included.
//
// Encoding reduces each block to its ends and codes it row by row, and has W blocks' scales side by side (rows.hpp); decoding is a
// plain loop, since each output depends on one code.
#include "blocks.hpp"
#include "codes.hpp"
#include "fp4.hpp"
#include "rows.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 32;  // elements of a block

// Fields are drawn in docs/block-types.md. Nibbles are in halves: byte j of qs has code j low and code j + 16 high, so that
// one AND and one shift give two vectors of consecutive codes.
//
//   Q8_0    x[j] = d * qs[j]
//   Q4_0    x[j] = d * (q[j] - 8)
//   Q4_1    x[j] = d * q[j] + m
//   Q5_0    x[j] = d * (q[j] - 16)         bit j of qh is the fifth bit of q[j]
//   Q5_1    x[j] = d * q[j] + m
//   IQ4_NL  x[j] = d * IQ4_VALUES[q[j]]
//   MXFP4   x[j] = 2^(e - 128) * FP4_VALUES[q[j]]     (FP4_VALUES are doubled to be integers, so 2^(e - 127) is halved)

// ---------------------------------------------------------------- decode

void decode_q8_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q8_0& b : Blocks<Q8_0>{src, n}) {
    const float d = half(b.d);
    put_scaled(load16(b.qs), d, dst);
    put_scaled(load16(b.qs + 16), d, dst + 64);
    dst += N * 4;
  }
}

void decode_q4_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q4_0& b : Blocks<Q4_0>{src, n}) {
    const float d = half(b.d);
    const B16 q = load16(b.qs);
    put_scaled((q & splat16(15)) - splat16(8), d, dst);
    put_scaled((q >> 4) - splat16(8), d, dst + 64);
    dst += N * 4;
  }
}

void decode_q4_1(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q4_1& b : Blocks<Q4_1>{src, n}) {
    const float d = half(b.d), m = half(b.m);
    const B16 q = load16(b.qs);
    put_scaled_plus(q & splat16(15), d, m, dst);
    put_scaled_plus(q >> 4, d, m, dst + 64);
    dst += N * 4;
  }
}

// The fifth bits of sixteen elements, in place.
WB_INLINE B16 fifth(u32 bits) { return spread_bits(bits) & splat16(16); }

void decode_q5_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q5_0& b : Blocks<Q5_0>{src, n}) {
    const float d = half(b.d);
    const B16 q = load16(b.qs);
    put_scaled(((q & splat16(15)) | fifth(load(b.qh) & 0xFFFF)) - splat16(16), d, dst);
    put_scaled(((q >> 4) | fifth(load(b.qh) >> 16)) - splat16(16), d, dst + 64);
    dst += N * 4;
  }
}

void decode_q5_1(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q5_1& b : Blocks<Q5_1>{src, n}) {
    const float d = half(b.d), m = half(b.m);
    const B16 q = load16(b.qs);
    put_scaled_plus((q & splat16(15)) | fifth(load(b.qh) & 0xFFFF), d, m, dst);
    put_scaled_plus((q >> 4) | fifth(load(b.qh) >> 16), d, m, dst + 64);
    dst += N * 4;
  }
}

void decode_iq4_nl(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const IQ4_NL& b : Blocks<IQ4_NL>{src, n}) {
    decode_nibbles<N>(b.qs, half(b.d), IQ4_VALUES, dst);
    dst += N * 4;
  }
}

// Code 255, a NaN in OCP MX, is 2^127 here as in ggml (ggml_e8m0_to_fp32_half).
WB_INLINE float half_e8m0(u32 e) { return bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

void decode_mxfp4(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const MXFP4& b : Blocks<MXFP4>{src, n}) {
    decode_nibbles<N>(b.qs, half_e8m0(b.e), FP4_VALUES, dst);
    dst += N * 4;
  }
}

// As OCP MX reads the scale: 255 is NaN. No quantizer writes it, so it is worth telling.
void mxfp4_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const MXFP4& b : Blocks<MXFP4>{src, n}) {
    store(dst, 0, widen_e8m0(b.e));
    dst += 4;
  }
}

// ---------------------------------------------------------------- encode

WB_INLINE const u8* row_of(const u8* src, size_t i) { return src + i * N * 4; }

// MAX(amax, |x|) over a block: a NaN is taken, and dropped at the next element.
float running_max_of(const u8* row) {
  float amax = 0;
  for (size_t j = 0; j < N; ++j) {
    const float a = bit_cast<float>(load<u32>(row, j) & F32_ABS);
    amax = amax > a ? amax : a;
  }
  return amax;
}

// Bits of floats without a sign are in the order of the floats, with NaN above all: where there is one, one goes by one.
WB_INLINE F32 running_max(const u8* src) {
  auto most = largest(splat(i32(0)));
  reduce_elements<N>(src, F32_ABS, most);
  const I32 found = most.result();
  F32 amax = as_f32(found);
  each_lane(found > splat(i32(F32_INF)), [&](int i) { amax[i] = running_max_of(row_of(src, size_t(i))); });
  return amax;
}

void encode_q8_0(const u8* src, Q8_0* dst, Counts& counts) {
  Spread id;
  for (size_t r = 0; r < ROUNDS; ++r) {
    const F32 d = running_max(row_of(src, r * W)) / splat(127.0f);
    id.put(r, inverse(d));
    store_scales<&Q8_0::d>(d, dst + r * W, counts);
  }
  code_rows<N>(src, [&](F32 x, size_t i) { return round_away(x * id[i]); },
               [&](const auto& codes, size_t i) {  // one by one: as a whole, GCC puts it together in memory, and waits
                 u8* qs = reinterpret_cast<u8*>(dst[i].qs);
                 const B32 q = narrowed(codes);
                 store(qs, 0, q.first), store(qs, 1, q.second);
               });
}

// The first element of a block that has this magnitude. There is one.
WB_INLINE float first_of(const u8* row, float magnitude) {
  for (size_t k = 0; k < N / size_t(W); ++k)
    if (const u32 found = lane_bits(absolute(load<F32>(row, k)) == splat(magnitude)))
      return load<float>(row, k * size_t(W) + size_t(lowest_bit(found)));
  return 0;
}

// The element of largest magnitude, with its sign, from both ends; of equals the first, and of zeros 0. NaN never is.
WB_INLINE F32 extremes(const u8* src) {
  auto most = largest(splat(0.0f));
  auto least = smallest(splat(0.0f));
  reduce_elements<N>(src, ~u32(0), most, least);
  const F32 high = most.result(), low = least.result();
  F32 extreme = select(high > negative(low), high, low);
  each_lane(high == negative(low), [&](int i) { extreme[i] = high[i] == 0 ? 0 : first_of(row_of(src, size_t(i)), high[i]); });
  return extreme;
}

// Smallest and largest, starting from the ends of f32: NaN and a block of Inf leave them there. Of a smallest zero the sign
// is stored, that of the first zero; of a largest it counts only if all are zero.
WB_INLINE void ranges(const u8* src, F32& low, F32& high) {
  auto least = smallest(splat(3.40282347e+38f));
  auto most = largest(splat(-3.40282347e+38f));
  reduce_elements<N>(src, ~u32(0), most, least);
  low = least.result(), high = most.result();
  each_lane(low == splat(0.0f), [&](int i) {
    low[i] = first_of(row_of(src, size_t(i)), 0);
    if (high[i] == 0) high[i] = low[i];
  });
}

// Codes are C's (int8_t)(v + shift) on x86-64, at most `top`: the low byte of the truncated int32. That is 0 for NaN and what is
// far too large; all else is 0 to top + 1, since the scale is made of the block's own ends. Only Q4_0 and Q5_0 have codes of top + 1.
template <class B>
WB_INLINE void encode_centred(const u8* src, B* dst, Counts& counts, float codes, auto put) {
  Spread id;
  for (size_t r = 0; r < ROUNDS; ++r) {
    const F32 d = extremes(row_of(src, r * W)) / splat(-codes);
    id.put(r, inverse(d));
    store_scales<&B::d>(d, dst + r * W, counts);
  }
  code_rows<N>(src, [&](F32 x, size_t i) { return truncate(x * id[i] + splat(codes + 0.5f)); }, put);
}

template <class B>
WB_INLINE void encode_from_least(const u8* src, B* dst, Counts& counts, float top, auto put) {
  Spread id, low;
  for (size_t r = 0; r < ROUNDS; ++r) {
    F32 least, most;
    ranges(row_of(src, r * W), least, most);
    const F32 d = (most - least) / splat(top);
    id.put(r, inverse(d)), low.put(r, least);
    store_scales<&B::d>(d, dst + r * W, counts);
    store_scales<&B::m>(least, dst + r * W, counts);
  }
  code_rows<N>(src, [&](F32 x, size_t i) { return truncate((x - low[i]) * id[i] + splat(0.5f)); }, put);
}

void encode_q4_0(const u8* src, Q4_0* dst, Counts& counts) {
  encode_centred(src, dst, counts, 8, [=](const auto& q, size_t i) { put_nibbles(q, 15, dst[i].qs); });
}

void encode_q4_1(const u8* src, Q4_1* dst, Counts& counts) {
  encode_from_least(src, dst, counts, 15, [=](const auto& q, size_t i) { put_nibbles(q, 15, dst[i].qs); });
}

void encode_q5_0(const u8* src, Q5_0* dst, Counts& counts) {
  encode_centred(src, dst, counts, 16, [=](const auto& q, size_t i) { put_5bit(q, 31, dst[i].qh.bytes, dst[i].qs); });
}

void encode_q5_1(const u8* src, Q5_1* dst, Counts& counts) {
  encode_from_least(src, dst, counts, 31, [=](const auto& q, size_t i) { put_5bit(q, 31, dst[i].qh.bytes, dst[i].qs); });
}

// floorf(log2f(x)) of a finite x > 0. log2f is rounded, so the last few floats below a power of two have its logarithm:
// the more of them, the larger that is. With e the exponent, these are 88 from |e| = 128 on, 44 from 64, 22, 11, 5, 2, 1.
WB_INLINE I32 floor_log2(F32 x) {
  const I32 denormal = x < splat(1.17549435e-38f);
  const I32 bits = as_i32(select(denormal, x * splat(16777216.0f), x));
  const I32 e = (bits >> 23) - splat(i32(127)) - (denormal & splat(i32(24)));
  const I32 below = splat(i32(0x800000)) - (bits & splat(i32(0x7FFFFF)));  // how many floats to the power of two
  if (!lane_bits(below < splat(i32(89)))) return e;  // all but one f32 in 95,000
  const I32 size = select(e < splat(i32(0)), splat(i32(-1)) - e, e);
  I32 few = splat(i32(0));
  for (int k = 1; k < 8; ++k) few = select(size > splat(i32((1 << k) - 1)), splat(i32(88 >> (7 - k))), few);
  return e + (select(below > few, splat(i32(0)), splat(i32(1))));
}

// (uint8_t)(floorf(log2f(amax)) - 2 + 127), as C on x86-64 has it: tiny blocks wrap round to
// scales far too large, and Inf gives 0.
void encode_mxfp4(const u8* src, MXFP4* dst, Counts& counts) {
  fp4_rows<N>(src,
              [&](F32 amax, size_t first) {
                const I32 known = (amax > splat(0.0f)) & (amax < splat(__builtin_huge_valf()));
                const I32 wide = select(known, floor_log2(amax) + splat(i32(125)), splat(i32(0)));
                const I32 e = wide & splat(i32(255));
                i32 stored[W];
                memcpy(stored, &e, sizeof stored);
                for (size_t i = 0; i < size_t(W); ++i) dst[first + i].e = u8(stored[i]);
                each_lane(wide < splat(i32(0)), [&](int) { ++counts.underflow; });
                const I32 tiny = select(e == splat(i32(1)), splat(i32(0x00400000)), splat(i32(0x00200000)));
                return as_f32(select(e < splat(i32(2)), tiny, (e - splat(i32(1))) << 23));
              },
              [&](B32 q, size_t i) { put_nibbles(q, dst[i].qs); });
}

}  // namespace

constinit static const Format formats[] = {
    {WB_BLOCK(Q8_0), .decode = decode_q8_0, .encode = encode_blocks<Q8_0, encode_q8_0, ROWS>,
     .scales = half_scales<Q8_0, &Q8_0::d>},
    {WB_BLOCK(Q4_0), .decode = decode_q4_0, .encode = encode_blocks<Q4_0, encode_q4_0, ROWS>,
     .encode_weighted = q4_0_encode_weighted, .scales = half_scales<Q4_0, &Q4_0::d>},
    {WB_BLOCK(Q4_1), .decode = decode_q4_1, .encode = encode_blocks<Q4_1, encode_q4_1, ROWS>,
     .encode_weighted = q4_1_encode_weighted, .scales = half_scales<Q4_1, &Q4_1::d, &Q4_1::m>},
    {WB_BLOCK(Q5_0), .decode = decode_q5_0, .encode = encode_blocks<Q5_0, encode_q5_0, ROWS>,
     .encode_weighted = q5_0_encode_weighted, .scales = half_scales<Q5_0, &Q5_0::d>},
    {WB_BLOCK(Q5_1), .decode = decode_q5_1, .encode = encode_blocks<Q5_1, encode_q5_1, ROWS>,
     .encode_weighted = q5_1_encode_weighted, .scales = half_scales<Q5_1, &Q5_1::d, &Q5_1::m>},
    {WB_BLOCK(IQ4_NL), .decode = decode_iq4_nl, .encode = iq4_nl_encode,
     .encode_weighted = iq4_nl_encode_weighted, .scales = half_scales<IQ4_NL, &IQ4_NL::d>},
    {WB_BLOCK(MXFP4), .decode = decode_mxfp4, .encode = encode_blocks<MXFP4, encode_mxfp4, ROWS>,
     .scales = {1, mxfp4_scales}},
};
const Rows<Format> blocks32 = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
