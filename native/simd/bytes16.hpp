// Sixteen bytes in a register, and as sixteen floats. Decoders take codes apart here and never lay them
// down in between: a vector that is read back out of smaller stores waits for all of them.
#pragma once

#include "lanes.hpp"

#if WB_LANES > 4
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)

typedef u8 B16 __attribute__((vector_size(16)));
typedef u64 U64x2 __attribute__((vector_size(16)));

WB_INLINE B16 splat16(int x) { return B16{} + u8(x); }
WB_INLINE B16 equal(B16 a, B16 b) { return bit_cast<B16>(a == b); }
WB_INLINE B16 join(u64 first, u64 second) { return bit_cast<B16>(U64x2{first, second}); }
#else

struct B16 {
  u8 v[16];
};
#define WB_BYTES(signature, expression)                \
  WB_INLINE B16 signature {                            \
    B16 out;                                           \
    for (int i = 0; i < 16; ++i) out.v[i] = u8(expression); \
    return out;                                        \
  }
WB_BYTES(operator&(B16 a, B16 b), a.v[i] & b.v[i])
WB_BYTES(operator|(B16 a, B16 b), a.v[i] | b.v[i])
WB_BYTES(operator^(B16 a, B16 b), a.v[i] ^ b.v[i])
WB_BYTES(operator+(B16 a, B16 b), a.v[i] + b.v[i])
WB_BYTES(operator-(B16 a, B16 b), a.v[i] - b.v[i])
WB_BYTES(operator>>(B16 a, int n), a.v[i] >> n)
WB_BYTES(operator<<(B16 a, int n), a.v[i] << n)
WB_BYTES(splat16(int x), x)
WB_BYTES(equal(B16 a, B16 b), a.v[i] == b.v[i] ? 255 : 0)
WB_BYTES(join(u64 a, u64 b), (i < 8 ? a : b) >> 8 * (i % 8))
#undef WB_BYTES

#endif

// The first eight bytes and the last.
struct Halves {
  u64 first, second;
};
WB_INLINE Halves halves(B16 x) { return bit_cast<Halves>(x); }

WB_INLINE B16 load16(const u8* p) { return load<B16>(p); }
WB_INLINE B16 load16(const i8* p) { return load<B16>(reinterpret_cast<const u8*>(p)); }

// The first byte eight times, then the second.
WB_INLINE B16 eight_each(u32 two) {
#if WB_LANES > 4
  const __m128i places = _mm_set_epi8(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  return bit_cast<B16>(_mm_shuffle_epi8(_mm_cvtsi32_si128(int(two)), places));
#else
  return join((two & 255) * 0x0101010101010101u, (two >> 8 & 255) * 0x0101010101010101u);
#endif
}

// Sixteen bits, the lowest first, as bytes of 0 or 255.
WB_INLINE B16 spread_bits(u32 bits) {
  const B16 each = join(0x8040201008040201u, 0x8040201008040201u);
  return equal(eight_each(bits) & each, each);
}

// Sixteen signed bytes as numbers.
struct Sixteen {
  I32 v[16 / W];
};

#if WB_LANES == 16
WB_INLINE Sixteen widened(B16 codes) { return {{bit_cast<I32>(_mm512_cvtepi8_epi32(bit_cast<__m128i>(codes)))}}; }
#elif WB_LANES == 8
WB_INLINE Sixteen widened(B16 codes) {
  const __m128i low = bit_cast<__m128i>(codes), high = _mm_srli_si128(low, 8);
  return {{bit_cast<I32>(_mm256_cvtepi8_epi32(low)), bit_cast<I32>(_mm256_cvtepi8_epi32(high))}};
}
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
// Each byte four times, by interleaving with itself; then the lowest three go.
WB_INLINE Sixteen widened(B16 c) {
  typedef u16 U16x8 __attribute__((vector_size(16)));
  const U16x8 low = bit_cast<U16x8>(
      __builtin_shufflevector(c, c, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  const U16x8 high = bit_cast<U16x8>(
      __builtin_shufflevector(c, c, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
  return {{bit_cast<I32>(__builtin_shufflevector(low, low, 0, 8, 1, 9, 2, 10, 3, 11)) >> 24,
           bit_cast<I32>(__builtin_shufflevector(low, low, 4, 12, 5, 13, 6, 14, 7, 15)) >> 24,
           bit_cast<I32>(__builtin_shufflevector(high, high, 0, 8, 1, 9, 2, 10, 3, 11)) >> 24,
           bit_cast<I32>(__builtin_shufflevector(high, high, 4, 12, 5, 13, 6, 14, 7, 15)) >> 24}};
}
#else
WB_INLINE Sixteen widened(B16 codes) {
  Sixteen out;
  for (int i = 0; i < 16; ++i) out.v[i / W][i % W] = i8(codes.v[i]);
  return out;
}
#endif

// Thirty-two bytes.
struct B32 {
  B16 first, second;
};

// Numbers to their low bytes, the way back from `widened`: sixteen, and thirty-two.
WB_INLINE B16 narrowed(const I32 (&q)[16 / W]) {
#if WB_LANES == 16
  return bit_cast<B16>(_mm512_cvtepi32_epi8(bit_cast<__m512i>(q[0])));
#elif WB_LANES == 8
  const I32 byte = splat(i32(255));
  const __m256i words = _mm256_packus_epi32(bit_cast<__m256i>(q[0] & byte), bit_cast<__m256i>(q[1] & byte));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return bit_cast<B16>(_mm_shuffle_epi32(bytes, 0xD8));  // fours 0, 2, 1, 3
#elif defined(__SSE2__) && !defined(WB_PLAIN_LANES)
  __m128i v[4];
  for (int k = 0; k < 4; ++k) v[k] = bit_cast<__m128i>(q[k] & splat(i32(255)));
  return bit_cast<B16>(_mm_packus_epi16(_mm_packs_epi32(v[0], v[1]), _mm_packs_epi32(v[2], v[3])));
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
#define WB_LOW_BYTES(a, b)                                                                                 \
  halves(__builtin_shufflevector(bit_cast<B16>(a), bit_cast<B16>(b), 0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, \
                                 12, 16, 20, 24, 28)).first
  return join(WB_LOW_BYTES(q[0], q[1]), WB_LOW_BYTES(q[2], q[3]));
#undef WB_LOW_BYTES
#else
  B16 out{};
  for (int i = 0; i < 16; ++i) out.v[i] = u8(q[i / W][i % W]);
  return out;
#endif
}

#if WB_LANES == 8
// Words of 0 to 255, packed within halves of a register from vectors 0 and 1, and 2 and 3, as bytes in the order of these. One
// permute for all, where halves take two each.
WB_INLINE __m256i in_order(__m256i first, __m256i second) {
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif
#if WB_LANES > 4
WB_INLINE B32 halved(__m256i x) {
  return {bit_cast<B16>(_mm256_castsi256_si128(x)), bit_cast<B16>(_mm256_extracti128_si256(x, 1))};
}
#endif

WB_INLINE B32 narrowed(const I32 (&q)[32 / W]) {
#if WB_LANES == 8
  __m256i v[4];
  for (int k = 0; k < 4; ++k) v[k] = bit_cast<__m256i>(q[k] & splat(i32(255)));
  return halved(in_order(_mm256_packus_epi32(v[0], v[1]), _mm256_packus_epi32(v[2], v[3])));
#else
  I32 first[16 / W], second[16 / W];
  for (int k = 0; k < 16 / W; ++k) first[k] = q[k], second[k] = q[k + 16 / W];
  return {narrowed(first), narrowed(second)};
#endif
}

// The bytes of a and b in turn; runs of two bytes in turn.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
WB_INLINE B32 in_turn(B16 a, B16 b) {
  return {__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
}
WB_INLINE B32 pairs_in_turn(B16 a, B16 b) {
  return {__builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23),
          __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)};
}
#else
template <int run>
WB_INLINE B32 runs_in_turn(B16 a, B16 b) {
  B16 out[2];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 2; ++k) {
      const int at = i / run * 2 * run + k * run + i % run;
      out[at / 16].v[at % 16] = (k ? b : a).v[i];
    }
  return {out[0], out[1]};
}
WB_INLINE B32 in_turn(B16 a, B16 b) { return runs_in_turn<1>(a, b); }
WB_INLINE B32 pairs_in_turn(B16 a, B16 b) { return runs_in_turn<2>(a, b); }
#endif

// Signed bytes, at most `top`.
WB_INLINE B16 at_most(B16 x, int top) {
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
  typedef i8 S16 __attribute__((vector_size(16)));
  const S16 most = S16{} + i8(top), s = bit_cast<S16>(x);
  return bit_cast<B16>(s < most ? s : most);
#else
  for (int i = 0; i < 16; ++i) x.v[i] = i8(x.v[i]) < top ? x.v[i] : u8(top);
  return x;
#endif
}

// Signed bytes: 255 where a is above b.
WB_INLINE B16 above(B16 a, B16 b) {
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
  typedef i8 S16 __attribute__((vector_size(16)));
  return bit_cast<B16>(bit_cast<S16>(a) > bit_cast<S16>(b));
#else
  for (int i = 0; i < 16; ++i) a.v[i] = i8(a.v[i]) > i8(b.v[i]) ? 255 : 0;
  return a;
#endif
}

// Bit 4 of each of sixteen bytes.
WB_INLINE u32 fifth_bits(B16 codes) {
#if WB_LANES > 4 || defined(__SSE2__)
  return u32(_mm_movemask_epi8(bit_cast<__m128i>(codes << 3)));
#else
  u8 bytes[16];
  store(bytes, 0, codes);
  u32 out = 0;
  for (u32 i = 0; i < 16; ++i) out |= u32(bytes[i] >> 4 & 1) << i;
  return out;
#endif
}

// Low nibbles to high ones. Of bytes << 4 GCC 12 makes four additions.
WB_INLINE B16 shifted_by_four(B16 x) {
#if WB_LANES > 4 || defined(__SSE2__)
  return bit_cast<B16>(_mm_slli_epi16(bit_cast<__m128i>(x & splat16(15)), 4));
#else
  return x << 4;
#endif
}

// Nibbles of halves: byte j has code j low and code j + 16 high.
WB_INLINE B32 nibbles(const u8* p) {
  const B16 q = load16(p);
  return {q & splat16(15), (q >> 4) & splat16(15)};
}
WB_INLINE void put_nibbles(B32 q, u8* p) {
  store(p, 0, (q.first & splat16(15)) | shifted_by_four(q.second));
}

// Codes of 32 elements, limited to `top`, as nibbles of halves. They are 0 to 127, or -2^31 for 0, which is what `truncate` makes of NaN
// and Inf. Codes are joined while they are wide: nine instructions with AVX2 instead of sixteen, five with AVX-512 instead of ten.
WB_INLINE void put_nibbles(const I32 (&q)[32 / W], int top, u8* p) {
#if WB_LANES == 16
  const I32 low = smaller(q[0], splat(i32(top))), high = smaller(q[1], splat(i32(top)));
  store(p, 0, bit_cast<B16>(_mm512_cvtepi32_epi8(bit_cast<__m512i>(low | (high << 4)))));
#elif WB_LANES == 8
  const __m256i most = _mm256_set1_epi16(short(top));  // as words; saturation makes 0 of -2^31
  const __m256i low = _mm256_min_epi16(_mm256_packus_epi32(bit_cast<__m256i>(q[0]), bit_cast<__m256i>(q[1])), most);
  const __m256i high = _mm256_min_epi16(_mm256_packus_epi32(bit_cast<__m256i>(q[2]), bit_cast<__m256i>(q[3])), most);
  const __m256i both = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  store(p, 0, _mm_shuffle_epi32(bytes, 0xD8));  // fours 0, 2, 1, 3
#else
  const B32 bytes = narrowed(q);
  put_nibbles(B32{at_most(bytes.first, top), at_most(bytes.second, top)}, p);
#endif
}

// Such codes of five bits: the fifth ones as a word to `fifths`, the others as nibbles.
WB_INLINE void put_5bit(const I32 (&q)[32 / W], int top, u8* fifths, u8* p) {
#if WB_LANES == 16
  const I32 low = smaller(q[0], splat(i32(top))), high = smaller(q[1], splat(i32(top)));
  const __m512i fifth = _mm512_set1_epi32(16);
  store(fifths, 0, u32(_mm512_test_epi32_mask(bit_cast<__m512i>(low), fifth)) |
                       u32(_mm512_test_epi32_mask(bit_cast<__m512i>(high), fifth)) << 16);
  store(p, 0, bit_cast<B16>(_mm512_cvtepi32_epi8(bit_cast<__m512i>((low & splat(i32(15))) | (high << 4)))));
#elif WB_LANES == 8
  const __m256i codes = in_order(_mm256_packus_epi32(bit_cast<__m256i>(q[0]), bit_cast<__m256i>(q[1])),
                                 _mm256_packus_epi32(bit_cast<__m256i>(q[2]), bit_cast<__m256i>(q[3])));
  const __m256i bytes = _mm256_min_epi8(codes, _mm256_set1_epi8(char(top)));
  store(fifths, 0, _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 3)));
  const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
  const __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(low, 1), 4);
  store(p, 0, _mm_or_si128(_mm256_castsi256_si128(low), high));
#else
  B32 bytes = narrowed(q);
  bytes = {at_most(bytes.first, top), at_most(bytes.second, top)};
  store(fifths, 0, fifth_bits(bytes.first) | fifth_bits(bytes.second) << 16);
  put_nibbles(bytes, p);
#endif
}

// scale * code
WB_INLINE void put_scaled(B16 codes, float scale, u8* dst) {
  const Sixteen q = widened(codes);
  for (int k = 0; k < 16 / W; ++k) store(dst, size_t(k), splat(scale) * to_float(q.v[k]));
}

// scale * code - low
WB_INLINE void put_scaled_minus(B16 codes, float scale, float low, u8* dst) {
  const Sixteen q = widened(codes);
  for (int k = 0; k < 16 / W; ++k) store(dst, size_t(k), splat(scale) * to_float(q.v[k]) - splat(low));
}

// code * scale + low
WB_INLINE void put_scaled_plus(B16 codes, float scale, float low, u8* dst) {
  const Sixteen q = widened(codes);
  for (int k = 0; k < 16 / W; ++k) store(dst, size_t(k), to_float(q.v[k]) * splat(scale) + splat(low));
}

// scale * magnitude, negated if a byte's top bit is set, including a NaN.
WB_INLINE void put_signed(B16 magnitudes, B16 signs, float scale, u8* dst) {
  const Sixteen q = widened(magnitudes), minus = widened(signs);
  for (int k = 0; k < 16 / W; ++k) {
    const I32 sign = minus.v[k] & splat(i32(0x80000000));
    store(dst, size_t(k), as_i32(splat(scale) * to_float(q.v[k])) ^ sign);
  }
}

// scale * (code + eighths / 8)
WB_INLINE void put_shifted(B16 codes, B16 eighths, float scale, u8* dst) {
  const Sixteen q = widened(codes), shift = widened(eighths);
  for (int k = 0; k < 16 / W; ++k)
    store(dst, size_t(k), splat(scale) * (to_float(q.v[k]) + to_float(shift.v[k]) * splat(0.125f)));
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
