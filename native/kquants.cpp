// ggml's super-blocks of 256: Q2_K to Q6_K, Q8_K. Floats equal to llama.cpp's dequantize_row_* (ggml-quants.c, b11549).
//
// 256 elements are 16 or 8 parts with a scale (and a minimum) each, of few bits, and these have one f16 scale together.
#include "blocks.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;

// Q2_K, 84 bytes                          x = d * scale * q - dmin * min, by parts of 16
//  0          16                80     82     84
//  +----------+-----------------+------+------+   scales: low nibble the scale, high nibble the minimum
//  | scales   | qs: 2 bits      | d    | dmin |   qs: two halves of 128; byte l has elements l, l + 32, l + 64, l + 96
//  +----------+-----------------+------+------+
constexpr size_t Q2_K_SIZE = 84;

// Q3_K, 110 bytes                         x = d * (scale - 32) * (q - 4), by parts of 16
//  0          32          96         108    110
//  +----------+-----------+----------+------+   hmask: bit i of byte l is the third bit of element l + 32 * i
//  | hmask    | qs        | scales   | d    |   qs as in Q2_K
//  +----------+-----------+----------+------+   scales: 16 x 6 bits (unpack_scales_q3)
constexpr size_t Q3_K_SIZE = 110;

// Q4_K, 144 bytes                         x = d * scale * q - dmin * min, by parts of 32
//  0      2      4          16             144
//  +------+------+----------+--------------+   scales: 8 scales and 8 minima of 6 bits (unpack_scales_q4)
//  | d    | dmin | scales   | qs: nibbles  |   qs: 32 bytes are 64 elements, low nibbles first
//  +------+------+----------+--------------+
constexpr size_t Q4_K_SIZE = 144;

// Q5_K, 176 bytes                         as Q4_K
//  0      2      4          16      48             176
//  +------+------+----------+-------+--------------+   qh: bit p of byte l is the fifth bit of element l of part p
//  | d    | dmin | scales   | qh    | qs           |
//  +------+------+----------+-------+--------------+
constexpr size_t Q5_K_SIZE = 176;

// Q6_K, 210 bytes                         x = d * scale * (q - 32), by parts of 16
//  0            128          192       208    210
//  +------------+------------+---------+------+   two halves of 128, each of 64 bytes ql and 32 bytes qh:
//  | ql: 4 bits | qh: 2 bits | scales  | d    |   elements l, l + 32 are the low nibbles of ql[l], ql[l + 32],
//  |            |            | 16 x i8 | f16  |   l + 64, l + 96 the high ones; qh[l] has the upper bits of these four
//  +------------+------------+---------+------+
constexpr size_t Q6_K_SIZE = 210;

// Q8_K, 292 bytes                         x = d * q (ggml's own intermediate)
//  0      4                    260          292
//  +------+--------------------+------------+
//  | d f32| qs: 256 x int8     | 16 sums i16|
//  +------+--------------------+------------+
constexpr size_t Q8_K_SIZE = 292;

template <size_t k>
struct Part {
  static constexpr size_t at = k;
};
template <size_t... part>
struct Parts {};
constexpr Parts<0, 1, 2, 3, 4, 5, 6, 7> EIGHT;
constexpr Parts<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> SIXTEEN;

// Two bits of sixteen bytes: of part `part` of 256 codes in 64 bytes, where byte l of a half of 128 has elements l, l + 32,
// l + 64, l + 96.
template <size_t part>
WB_INLINE B16 crumbs(const u8* qs) {
  return (load16(qs + 32 * (part / 8) + 16 * (part % 2)) >> int(2 * (part / 2 % 4))) & splat16(3);
}

// `each` with every part's number, known to the compiler.
template <size_t... part, class Each>
WB_INLINE void unrolled(Parts<part...>, Each each) {
  (each(Part<part>{}), ...);
}

void decode_q2_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q2_K_SIZE, dst += N * 4) {
    const float d = half(src + 80), least = half(src + 82);
    unrolled(SIXTEEN, [&](auto part) {
      const float scale = d * float(src[part.at] & 15), low = least * float(src[part.at] >> 4);
      put_less(crumbs<part.at>(src + 16), scale, low, dst + 64 * part.at);
    });
  }
}

// Sixteen 6-bit scales of Q3_K: low nibbles of bytes 0..7 are the low parts of scales 0..7, high nibbles those of 8..15;
// byte 8 + j % 4 has two bits more for scale j, at 2 * (j / 4).
WB_INLINE void unpack_scales_q3(const u8* WB_RESTRICT p, i32* WB_RESTRICT scales) {
  for (size_t j = 0; j < 16; ++j) {
    const int low = j < 8 ? p[j] & 15 : p[j - 8] >> 4, high = p[8 + j % 4] >> 2 * (j / 4) & 3;
    scales[j] = (low | high << 4) - 32;
  }
}

void decode_q3_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q3_K_SIZE, dst += N * 4) {
    const float d = half(src + 108);
    i32 scales[16];
    unpack_scales_q3(src + 96, scales);
    unrolled(SIXTEEN, [&](auto part) {
      // Without its third bit a code is four less: two's complement has these bits on top.
      const B16 bit = splat16(1 << part.at / 2), high = load16(src + 16 * (part.at % 2)) & bit;
      const B16 less = equal(high, splat16(0)) & splat16(0xFC);
      put_scaled(crumbs<part.at>(src + 32) | less, d * float(scales[part.at]), dst + 64 * part.at);
    });
  }
}

// Eight scales and minima of Q4_K and Q5_K. Bytes 0..3 and 4..7 hold the first four of each in six bits; bytes 8..11
// low parts of the others as nibbles, and their upper two bits are on top of the first eight bytes.
WB_INLINE void unpack_scales_q4(const u8* WB_RESTRICT p, u8* WB_RESTRICT scales, u8* WB_RESTRICT minima) {
  for (size_t j = 0; j < 4; ++j) {
    scales[j] = p[j] & 63;
    minima[j] = p[j + 4] & 63;
    scales[j + 4] = u8((p[j + 8] & 15) | (p[j] >> 6 << 4));
    minima[j + 4] = u8((p[j + 8] >> 4) | (p[j + 4] >> 6 << 4));
  }
}

// Four bits of sixteen bytes: of half `half` of part `part` of 256 codes in 128 bytes; 32 bytes are 64 elements, low
// nibbles first.
template <size_t part>
WB_INLINE B16 pairs(const u8* qs, size_t half) {
  return (load16(qs + 32 * (part / 2) + 16 * half) >> int(4 * (part % 2))) & splat16(15);
}

template <bool fifth>
WB_INLINE void decode_q45_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst) {
  const float d = half(src), least = half(src + 2);
  u8 scales[8], minima[8];
  unpack_scales_q4(src + 4, scales, minima);
  unrolled(EIGHT, [&](auto part) {
    const float scale = d * float(scales[part.at]), low = least * float(minima[part.at]);
    for (size_t side = 0; side < 2; ++side) {
      B16 codes = pairs<part.at>(src + (fifth ? 48 : 16), side);
      if constexpr (fifth) {
        const B16 bit = splat16(1 << part.at);
        codes = codes | (equal(load16(src + 16 + 16 * side) & bit, bit) & splat16(16));
      }
      put_less(codes, scale, low, dst + 128 * part.at + 64 * side);
    }
  });
}

void decode_q4_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q4_K_SIZE, dst += N * 4) decode_q45_k<false>(src, dst);
}

void decode_q5_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q5_K_SIZE, dst += N * 4) decode_q45_k<true>(src, dst);
}

void decode_q6_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q6_K_SIZE, dst += N * 4) {
    const float d = half(src + 208);
    const i8* scales = reinterpret_cast<const i8*>(src + 192);
    unrolled(SIXTEEN, [&](auto part) {
      constexpr size_t side = part.at / 8, run = part.at / 2 % 4, at = 16 * (part.at % 2);  // run: of the four 32s
      const B16 low = (load16(src + 64 * side + 32 * (run % 2) + at) >> int(4 * (run / 2))) & splat16(15);
      const B16 codes = (low | (crumbs<part.at>(src + 128) << 4)) - splat16(32);
      put_scaled(codes, d * float(scales[part.at]), dst + 64 * part.at);
    });
  }
}

void decode_q8_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += Q8_K_SIZE, dst += N * 4) {
    const float d = load<float>(src);
    const i8* q = reinterpret_cast<const i8*>(src + 4);
    for (size_t j = 0; j < N; ++j) store(dst, j, d * float(q[j]));
  }
}

void q8_k_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b) store(dst, b, load<u32>(src + b * Q8_K_SIZE));
}

}  // namespace

static const Format formats[] = {
    {"Q2_K", N, Q2_K_SIZE, decode_q2_k, q2_k_encode, nullptr, 2, half_scales<Q2_K_SIZE, 80, 82>,
     q2_k_encode_weighted},
    {"Q3_K", N, Q3_K_SIZE, decode_q3_k, q3_k_encode, nullptr, 1, half_scales<Q3_K_SIZE, 108>,
     q3_k_encode_weighted},
    {"Q4_K", N, Q4_K_SIZE, decode_q4_k, q4_k_encode, nullptr, 2, half_scales<Q4_K_SIZE, 0, 2>,
     q4_k_encode_weighted},
    {"Q5_K", N, Q5_K_SIZE, decode_q5_k, q5_k_encode, nullptr, 2, half_scales<Q5_K_SIZE, 0, 2>,
     q5_k_encode_weighted},
    {"Q6_K", N, Q6_K_SIZE, decode_q6_k, q6_k_encode, nullptr, 1, half_scales<Q6_K_SIZE, 208>,
     q6_k_encode_weighted},
    {"Q8_K", N, Q8_K_SIZE, decode_q8_k, nullptr, nullptr, 1, q8_k_scales},
};
const Family kquants = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
