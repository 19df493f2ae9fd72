// ggml's super-blocks of 256: Q2_K to Q6_K, Q8_K. Floats equal to llama.cpp's dequantize_row_* (ggml-quants.c, b11549).
//
// 256 elements are 16 or 8 parts with a scale (and a minimum) each, of few bits, and these have one f16 scale together.
#include "blocks.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256;

// Fields are drawn in docs/block-types.md.
//
//   Q2_K    x = d * scale * q - dmin * min     sub-blocks of 16. scales: low nibble the scale, high nibble the minimum;
//                                              qs: two halves of 128: byte l has elements l, l + 32, l + 64, l + 96
//   Q3_K    x = d * (scale - 32) * (q - 4)     of 16. qs as in Q2_K; bit i of hmask[l] is the third bit of element l + 32 i;
//                                              scales: 16 x 6 bits (unpack_scales_q3)
//   Q4_K    x = d * scale * q - dmin * min     of 32. scales: 8 scales and 8 minima of 6 bits (unpack_scales_q4);
//                                              qs: 32 bytes are 64 elements, low nibbles first
//   Q5_K    as Q4_K                            bit p of qh[l] is the fifth bit of element l of sub-block p
//   Q6_K    x = d * scale * (q - 32)           of 16. Two halves of 128, each of 64 bytes ql and 32 bytes qh: elements l,
//                                              l + 32 are the low nibbles of ql[l], ql[l + 32], l + 64, l + 96 the high
//                                              ones; qh[l] has the upper bits of these four
//   Q8_K    x = d * q                          ggml's own intermediate

// Numbers that the compiler knows, to unroll loops over sub-blocks.
template <size_t k>
struct Index {
  static constexpr size_t at = k;
};
template <size_t... k>
struct Indices {};
constexpr Indices<0, 1, 2, 3, 4, 5, 6, 7> EIGHT;
constexpr Indices<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> SIXTEEN;

// Two bits of sixteen bytes: of part `part` of 256 codes in 64 bytes, where byte l of a half of 128 has elements l, l + 32,
// l + 64, l + 96.
template <size_t part>
WB_INLINE B16 two_bit_codes(const u8* qs) {
  return (load16(qs + 32 * (part / 8) + 16 * (part % 2)) >> int(2 * (part / 2 % 4))) & splat16(3);
}

// Calls `each` with every index.
template <size_t... k, class Each>
WB_INLINE void unrolled(Indices<k...>, Each each) {
  (each(Index<k>{}), ...);
}

void decode_q2_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q2_K& b : Blocks<Q2_K>{src, n}) {
    const float d = half(b.d), least = half(b.dmin);
    unrolled(SIXTEEN, [&](auto part) {
      const float scale = d * float(b.scales[part.at] & 15), low = least * float(b.scales[part.at] >> 4);
      put_scaled_minus(two_bit_codes<part.at>(b.qs), scale, low, dst + 64 * part.at);
    });
    dst += N * 4;
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
  for (const Q3_K& b : Blocks<Q3_K>{src, n}) {
    const float d = half(b.d);
    i32 scales[16];
    unpack_scales_q3(b.scales, scales);
    unrolled(SIXTEEN, [&](auto part) {
      // Without its third bit a code is four less: two's complement has these bits on top.
      const B16 bit = splat16(1 << part.at / 2), high = load16(b.hmask + 16 * (part.at % 2)) & bit;
      const B16 less = equal(high, splat16(0)) & splat16(0xFC);
      put_scaled(two_bit_codes<part.at>(b.qs) | less, d * float(scales[part.at]), dst + 64 * part.at);
    });
    dst += N * 4;
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

// The fifth bits of sixteen elements of a sub-block: none of Q4_K.
template <size_t part>
WB_INLINE B16 fifth(const Q4_K&, size_t) {
  return splat16(0);
}
template <size_t part>
WB_INLINE B16 fifth(const Q5_K& b, size_t side) {
  const B16 bit = splat16(1 << part);
  return equal(load16(b.qh + 16 * side) & bit, bit) & splat16(16);
}

template <class Block>
WB_INLINE void decode_q45_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Block& b : Blocks<Block>{src, n}) {
    const float d = half(b.d), least = half(b.dmin);
    u8 scales[8], minima[8];
    unpack_scales_q4(b.scales, scales, minima);
    unrolled(EIGHT, [&](auto part) {
      const float scale = d * float(scales[part.at]), low = least * float(minima[part.at]);
      for (size_t side = 0; side < 2; ++side)
        put_scaled_minus(pairs<part.at>(b.qs, side) | fifth<part.at>(b, side), scale, low,
                         dst + 128 * part.at + 64 * side);
    });
    dst += N * 4;
  }
}

void decode_q4_k(const u8* src, u8* dst, size_t n) { decode_q45_k<Q4_K>(src, dst, n); }
void decode_q5_k(const u8* src, u8* dst, size_t n) { decode_q45_k<Q5_K>(src, dst, n); }

void decode_q6_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q6_K& b : Blocks<Q6_K>{src, n}) {
    const float d = half(b.d);
    unrolled(SIXTEEN, [&](auto part) {
      constexpr size_t side = part.at / 8, run = part.at / 2 % 4, at = 16 * (part.at % 2);  // run: of the four 32s
      const B16 low = (load16(b.ql + 64 * side + 32 * (run % 2) + at) >> int(4 * (run / 2))) & splat16(15);
      const B16 codes = (low | (two_bit_codes<part.at>(b.qh) << 4)) - splat16(32);
      put_scaled(codes, d * float(b.scales[part.at]), dst + 64 * part.at);
    });
    dst += N * 4;
  }
}

void decode_q8_k(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q8_K& b : Blocks<Q8_K>{src, n}) {
    const float d = load(b.d);
    for (size_t j = 0; j < N; j += 16) put_scaled(load16(b.qs + j), d, dst + 4 * j);
    dst += N * 4;
  }
}

void q8_k_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q8_K& b : Blocks<Q8_K>{src, n}) {
    store(dst, 0, b.d);
    dst += 4;
  }
}

}  // namespace

#define WB_K_TYPE(Type, name) \
  WB_BLOCK(Type), .decode = decode_##name, .encode = name##_encode, .encode_weighted = name##_encode_weighted
constinit static const Format formats[] = {
    {WB_K_TYPE(Q2_K, q2_k), .scales = half_scales<Q2_K, &Q2_K::d, &Q2_K::dmin>},
    {WB_K_TYPE(Q3_K, q3_k), .scales = half_scales<Q3_K, &Q3_K::d>},
    {WB_K_TYPE(Q4_K, q4_k), .scales = half_scales<Q4_K, &Q4_K::d, &Q4_K::dmin>},
    {WB_K_TYPE(Q5_K, q5_k), .scales = half_scales<Q5_K, &Q5_K::d, &Q5_K::dmin>},
    {WB_K_TYPE(Q6_K, q6_k), .scales = half_scales<Q6_K, &Q6_K::d>},
    {WB_BLOCK(Q8_K), .decode = decode_q8_k, .scales = {1, q8_k_scales}},
};
#undef WB_K_TYPE
const Rows<Format> kquants = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
