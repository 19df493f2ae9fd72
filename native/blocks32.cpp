// ggml's blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4. Bytes equal to llama.cpp's quantize_row_*_ref and dequantize_row_*
// (ggml-quants.c, b11549, built for x86-64), hostile input included.
//
// Encoding puts one block in each lane (lanes.hpp); decoding is a plain loop, since each output depends on one code.
#include "blocks.hpp"
#include "codes.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 32;  // elements in a block

// Q8_0, 34 bytes                         x[j] = d * qs[j]
//  0      2                          34
//  +------+--------------------------+
//  | d    | qs: 32 x int8            |
//  | f16  | in order                 |
//  +------+--------------------------+
struct Q8_0 {
  u8 d[2];
  i8 qs[32];
};
static_assert(sizeof(Q8_0) == 34);

// Q4_0, 18 bytes                         x[j] = d * (q[j] - 8)
//  0      2                          18
//  +------+--------------------------+   byte j: low nibble q[j], high nibble q[j + 16]
//  | d    | qs: 16 x 2 nibbles       |   (halves, not neighbours: one AND and one shift then give two vectors
//  | f16  |                          |   of consecutive elements)
//  +------+--------------------------+
struct Q4_0 {
  u8 d[2];
  u8 qs[16];
};
static_assert(sizeof(Q4_0) == 18);

// Q4_1, 20 bytes                         x[j] = d * q[j] + m
//  0      2      4                   20
//  +------+------+-------------------+
//  | d    | m    | qs as in Q4_0     |
//  | f16  | f16  |                   |
//  +------+------+-------------------+
struct Q4_1 {
  u8 d[2];
  u8 m[2];
  u8 qs[16];
};
static_assert(sizeof(Q4_1) == 20);

// Q5_0, 22 bytes                         x[j] = d * (q[j] - 16)
//  0      2             6            22
//  +------+-------------+------------+
//  | d    | qh: u32,    | qs: low 4  |   bit j of qh is the fifth bit of q[j]
//  | f16  | the 5th bits| as in Q4_0 |
//  +------+-------------+------------+
struct Q5_0 {
  u8 d[2];
  u8 qh[4];
  u8 qs[16];
};
static_assert(sizeof(Q5_0) == 22);

// Q5_1, 24 bytes                         x[j] = d * q[j] + m
//  0      2      4             8     24
//  +------+------+-------------+-----+
//  | d    | m    | qh          | qs  |   qh, qs as in Q5_0
//  +------+------+-------------+-----+
struct Q5_1 {
  u8 d[2];
  u8 m[2];
  u8 qh[4];
  u8 qs[16];
};
static_assert(sizeof(Q5_1) == 24);

// IQ4_NL, 18 bytes: as Q4_0, but a nibble is a place in a table    x[j] = d * IQ4_VALUES[q[j]]
// MXFP4, 17 bytes: the same with one byte of scale (OCP MX)        x[j] = 2^(e - 128) * FP4_VALUES[q[j]]
//  0      1                          17
//  +------+--------------------------+   (FP4_VALUES are doubled to be integers, so 2^(e - 127) is halved)
//  | e    | qs as in Q4_0            |
//  +------+--------------------------+
constexpr size_t IQ4_NL_SIZE = 18, MXFP4_SIZE = 17;

// ---------------------------------------------------------------- decode

void decode_q8_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q8_0), dst += N * 4) {
    const float d = half(src);
    put_scaled(load16(src + 2), d, dst);
    put_scaled(load16(src + 18), d, dst + 64);
  }
}

void decode_q4_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q4_0), dst += N * 4) {
    const float d = half(src);
    const B16 q = load16(src + 2);
    put_scaled((q & splat16(15)) - splat16(8), d, dst);
    put_scaled((q >> 4) - splat16(8), d, dst + 64);
  }
}

void decode_q4_1(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q4_1), dst += N * 4) {
    const float d = half(src), m = half(src + 2);
    const B16 q = load16(src + 4);
    put_more(q & splat16(15), d, m, dst);
    put_more(q >> 4, d, m, dst + 64);
  }
}

// The fifth bits of sixteen elements, where they belong.
WB_INLINE B16 fifth(u32 bits) { return spread_bits(bits) & splat16(16); }

void decode_q5_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q5_0), dst += N * 4) {
    const float d = half(src);
    const B16 q = load16(src + 6);
    put_scaled(((q & splat16(15)) | fifth(load<u16>(src + 2))) - splat16(16), d, dst);
    put_scaled(((q >> 4) | fifth(load<u16>(src + 4))) - splat16(16), d, dst + 64);
  }
}

void decode_q5_1(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q5_1), dst += N * 4) {
    const float d = half(src), m = half(src + 2);
    const B16 q = load16(src + 8);
    put_more((q & splat16(15)) | fifth(load<u16>(src + 4)), d, m, dst);
    put_more((q >> 4) | fifth(load<u16>(src + 6)), d, m, dst + 64);
  }
}

void decode_iq4_nl(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += IQ4_NL_SIZE, dst += N * 4)
    decode_nibbles<N>(src + 2, half(src), IQ4_VALUES, dst);
}

// Code 255, a NaN in OCP MX, is 2^127 here as in ggml (ggml_e8m0_to_fp32_half).
WB_INLINE float half_e8m0(u32 e) { return bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

void decode_mxfp4(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += MXFP4_SIZE, dst += N * 4)
    decode_nibbles<N>(src + 1, half_e8m0(src[0]), FP4_VALUES, dst);
}

// As OCP MX reads the scale: 255 is NaN. No quantizer writes it, so it is worth telling.
void mxfp4_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b) store(dst, b, widen_e8m0(src[b * MXFP4_SIZE]));
}

// ---------------------------------------------------------------- encode

// W blocks to W * 34 bytes.
void encode_q8_0(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  const F32 d = running_max(x) / splat(127.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q8_0), counts);
  I32 q[N];
  for (size_t j = 0; j < N; ++j) q[j] = round_away(x[j] * id);
  store_bytes(q, dst + 2, sizeof(Q8_0));
}

// (int8_t)(v + shift), at most `top`, as C on x86-64 has it: the low byte of the truncated int32, sign extended.
WB_INLINE I32 small_code(F32 v, float shift, i32 top) {
  const I32 q = (truncate(v + splat(shift)) << 24) >> 24;
  return select(q < splat(top), q, splat(top));
}

// The element of largest magnitude, with its sign; of equals the first.
WB_INLINE F32 extreme_of(const F32 (&x)[N]) {
  F32 amax = splat(0.0f), extreme = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    const I32 larger = amax < a;
    amax = select(larger, a, amax);
    extreme = select(larger, x[j], extreme);
  }
  return extreme;
}

// Smallest and largest, starting from the ends of f32: NaN and a block of Inf leave them there.
WB_INLINE void range_of(const F32 (&x)[N], F32& low, F32& high) {
  low = splat(3.40282347e+38f), high = splat(-3.40282347e+38f);
  for (size_t j = 0; j < N; ++j) {
    low = select(x[j] < low, x[j], low);
    high = select(x[j] > high, x[j], high);
  }
}

// W blocks to W * 18 bytes.
void encode_q4_0(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  const F32 d = extreme_of(x) / splat(-8.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q4_0), counts);
  I32 q[N];
  for (size_t j = 0; j < N; ++j) q[j] = small_code(x[j] * id, 8.5f, 15);
  store_nibbles(q, dst + 2, sizeof(Q4_0));
}

// W blocks to W * 20 bytes.
void encode_q4_1(const u8* src, u8* dst, Counts& counts) {
  F32 x[N], low, high;
  load_columns(src, N * 4, x);
  range_of(x, low, high);
  const F32 d = (high - low) / splat(15.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q4_1), counts);
  store_scales(low, dst + 2, sizeof(Q4_1), counts);
  I32 q[N];
  for (size_t j = 0; j < N; ++j) q[j] = small_code((x[j] - low) * id, 0.5f, 15);
  store_nibbles(q, dst + 4, sizeof(Q4_1));
}

// W blocks to W * 22 bytes.
void encode_q5_0(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  const F32 d = extreme_of(x) / splat(-16.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q5_0), counts);
  I32 q[N];
  for (size_t j = 0; j < N; ++j) q[j] = small_code(x[j] * id, 16.5f, 31);
  store_5bit(q, dst + 2, dst + 6, sizeof(Q5_0));
}

// W blocks to W * 24 bytes.
void encode_q5_1(const u8* src, u8* dst, Counts& counts) {
  F32 x[N], low, high;
  load_columns(src, N * 4, x);
  range_of(x, low, high);
  const F32 d = (high - low) / splat(31.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q5_1), counts);
  store_scales(low, dst + 2, sizeof(Q5_1), counts);
  I32 q[N];  // (uint8_t)(v + 0.5f), of which five bits are stored: no limit at the top
  for (size_t j = 0; j < N; ++j) q[j] = truncate((x[j] - low) * id + splat(0.5f));
  store_5bit(q, dst + 4, dst + 8, sizeof(Q5_1));
}

// floorf(log2f(x)) of a finite x > 0. log2f is rounded, so the last few floats below a power of two have its logarithm:
// the more of them, the larger that is. With e the exponent, these are 88 from |e| = 128 on, 44 from 64, 22, 11, 5, 2, 1.
WB_INLINE I32 floor_log2(F32 x) {
  const I32 denormal = x < splat(1.17549435e-38f);
  const I32 bits = as_i32(select(denormal, x * splat(16777216.0f), x));
  const I32 e = (bits >> 23) - splat(i32(127)) - (denormal & splat(i32(24)));
  const I32 size = select(e < splat(i32(0)), splat(i32(-1)) - e, e);
  I32 few = splat(i32(0));
  for (int k = 1; k < 8; ++k) few = select(size > splat(i32((1 << k) - 1)), splat(i32(88 >> (7 - k))), few);
  const I32 below = splat(i32(0x800000)) - (bits & splat(i32(0x7FFFFF)));  // how many floats to the power of two
  return e + (select(below > few, splat(i32(0)), splat(i32(1))));
}

// W blocks to W * 17 bytes. (uint8_t)(floorf(log2f(amax)) - 2 + 127), as C on x86-64 has it: tiny blocks wrap round to
// scales far too large, and Inf gives 0.
void encode_mxfp4(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  const F32 amax = magnitude_of(x);
  const I32 known = (amax > splat(0.0f)) & (amax < splat(__builtin_huge_valf()));
  const I32 wide = select(known, floor_log2(amax) + splat(i32(125)), splat(i32(0)));
  const I32 e = wide & splat(i32(255));
  const I32 tiny = select(e == splat(i32(1)), splat(i32(0x00400000)), splat(i32(0x00200000)));
  const F32 d = as_f32(select(e < splat(i32(2)), tiny, (e - splat(i32(1))) << 23));
  for (int i = 0; i < W; ++i) dst[size_t(i) * MXFP4_SIZE] = u8(e[i]), counts.underflow += wide[i] < 0;
  I32 q[N];
  for (size_t j = 0; j < N; ++j) q[j] = nearest_fp4(x[j], d);
  store_nibbles(q, dst + 1, MXFP4_SIZE);
}

}  // namespace

static const Format formats[] = {
    {"Q8_0", N, sizeof(Q8_0), decode_q8_0, encode_blocks<encode_q8_0, N, sizeof(Q8_0)>, nullptr, 1, half_scales<34, 0>},
    {"Q4_0", N, sizeof(Q4_0), decode_q4_0, encode_blocks<encode_q4_0, N, sizeof(Q4_0)>, nullptr, 1, half_scales<18, 0>,
     q4_0_encode_weighted},
    {"Q4_1", N, sizeof(Q4_1), decode_q4_1, encode_blocks<encode_q4_1, N, sizeof(Q4_1)>, nullptr, 2,
     half_scales<20, 0, 2>,
     q4_1_encode_weighted},
    {"Q5_0", N, sizeof(Q5_0), decode_q5_0, encode_blocks<encode_q5_0, N, sizeof(Q5_0)>, nullptr, 1, half_scales<22, 0>,
     q5_0_encode_weighted},
    {"Q5_1", N, sizeof(Q5_1), decode_q5_1, encode_blocks<encode_q5_1, N, sizeof(Q5_1)>, nullptr, 2,
     half_scales<24, 0, 2>,
     q5_1_encode_weighted},
    {"IQ4_NL", N, IQ4_NL_SIZE, decode_iq4_nl, iq4_nl_encode, nullptr, 1, half_scales<18, 0>, iq4_nl_encode_weighted},
    {"MXFP4", N, MXFP4_SIZE, decode_mxfp4, encode_blocks<encode_mxfp4, N, MXFP4_SIZE>, nullptr, 1, mxfp4_scales},
};
const Family blocks32 = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
