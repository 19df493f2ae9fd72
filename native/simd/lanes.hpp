// WB_LANES numbers in parallel. Every lane does what the scalar algorithm does, in its order, so a result does not
// depend on how many lanes there are: this is what makes the levels agree bit for bit (see README.md).
#pragma once

#include "level.hpp"

#if WB_LANES > 4 || defined(__SSE2__)
#include <immintrin.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr int W = WB_LANES;

#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)

typedef float F32 __attribute__((vector_size(4 * WB_LANES)));
typedef i32 I32 __attribute__((vector_size(4 * WB_LANES)));
typedef u32 U32 __attribute__((vector_size(4 * WB_LANES)));

// `mask` has all bits of a lane set or none, like the result of a comparison.
template <class V>
WB_INLINE V select(I32 mask, V yes, V no) {
  return mask ? yes : no;
}
WB_INLINE I32 convert(F32 x) { return __builtin_convertvector(x, I32); }
WB_INLINE F32 to_float(I32 x) { return __builtin_convertvector(x, F32); }
WB_INLINE F32 splat(float x) { return x - F32{}; }  // keeps a -0, as + would not
WB_INLINE I32 splat(i32 x) { return I32{} + x; }

#else  // Compilers without vector types: the same names as arrays and loops.

template <class T>
struct Lanes {
  T v[W];
  T& operator[](int i) { return v[i]; }
  const T& operator[](int i) const { return v[i]; }
};
using F32 = Lanes<float>;
using I32 = Lanes<i32>;
using U32 = Lanes<u32>;

#define WB_EACH(Result, expression)                \
  Result out{};                                    \
  for (int i = 0; i < W; ++i) out[i] = expression; \
  return out
#define WB_OPERATOR(op)                                            \
  template <class T>                                               \
  WB_INLINE Lanes<T> operator op(Lanes<T> a, Lanes<T> b) {         \
    WB_EACH(Lanes<T>, T(a[i] op b[i]));                            \
  }
#define WB_COMPARE(op)                                             \
  template <class T>                                               \
  WB_INLINE I32 operator op(Lanes<T> a, Lanes<T> b) {              \
    WB_EACH(I32, a[i] op b[i] ? -1 : 0);                           \
  }
WB_OPERATOR(+) WB_OPERATOR(-) WB_OPERATOR(*) WB_OPERATOR(/) WB_OPERATOR(&) WB_OPERATOR(|) WB_OPERATOR(^)
WB_COMPARE(<) WB_COMPARE(>) WB_COMPARE(>=) WB_COMPARE(<=) WB_COMPARE(!=) WB_COMPARE(==)
WB_INLINE I32 operator<<(I32 a, int n) { WB_EACH(I32, i32(u32(a[i]) << n)); }
WB_INLINE I32 operator>>(I32 a, int n) { WB_EACH(I32, a[i] >> n); }
template <class V>
WB_INLINE V select(I32 mask, V yes, V no) {
  WB_EACH(V, mask[i] ? yes[i] : no[i]);
}
WB_INLINE I32 convert(F32 x) { WB_EACH(I32, i32(x[i])); }
WB_INLINE F32 to_float(I32 x) { WB_EACH(F32, float(x[i])); }
WB_INLINE F32 splat(float x) { WB_EACH(F32, x); }
WB_INLINE I32 splat(i32 x) { WB_EACH(I32, x); }
#undef WB_EACH
#undef WB_OPERATOR
#undef WB_COMPARE

#endif

WB_INLINE F32 as_f32(I32 x) { return bit_cast<F32>(x); }
WB_INLINE I32 as_i32(F32 x) { return bit_cast<I32>(x); }
WB_INLINE F32 absolute(F32 x) { return as_f32(as_i32(x) & splat(i32(0x7FFFFFFF))); }

WB_INLINE F32 negative(F32 x) { return as_f32(as_i32(x) ^ splat(i32(0x80000000))); }

// The larger and the smaller of two: C's `a > b ? a : b`, so a NaN in `a` loses and one in `b` stays. The instructions are
// named because GCC 12 makes a comparison and a blend of that expression, two of the ten operations that a search's
// innermost loop has for an element.
#if WB_LANES == 16
#define WB_PICK(V, M, name, suffix) bit_cast<V>(_mm512_##name##_##suffix(bit_cast<M>(a), bit_cast<M>(b)))
#define WB_PICK_F32(name, op) WB_PICK(F32, __m512, name, ps)
#define WB_PICK_I32(name, op) WB_PICK(I32, __m512i, name, epi32)
#elif WB_LANES == 8
#define WB_PICK(V, M, name, suffix) bit_cast<V>(_mm256_##name##_##suffix(bit_cast<M>(a), bit_cast<M>(b)))
#define WB_PICK_F32(name, op) WB_PICK(F32, __m256, name, ps)
#define WB_PICK_I32(name, op) WB_PICK(I32, __m256i, name, epi32)
#else
#if defined(__SSE2__) && !defined(WB_PLAIN_LANES)
#define WB_PICK_F32(name, op) bit_cast<F32>(_mm_##name##_ps(bit_cast<__m128>(a), bit_cast<__m128>(b)))
#else
#define WB_PICK_F32(name, op) select(a op b, a, b)
#endif
#define WB_PICK_I32(name, op) select(a op b, a, b)
#endif
WB_INLINE F32 larger(F32 a, F32 b) { return WB_PICK_F32(max, >); }
WB_INLINE F32 smaller(F32 a, F32 b) { return WB_PICK_F32(min, <); }
WB_INLINE I32 larger(I32 a, I32 b) { return WB_PICK_I32(max, >); }
WB_INLINE I32 smaller(I32 a, I32 b) { return WB_PICK_I32(min, <); }
#if WB_LANES > 4
#undef WB_PICK
#endif
#undef WB_PICK_F32
#undef WB_PICK_I32

// float -> int as x86's cvttss2si does it, on every machine: towards zero, and INT_MIN for NaN and what doesn't fit.
// (C leaves those cases undefined; ggml's x86-64 build has these results.)
WB_INLINE I32 truncate(F32 x) {
#if WB_LANES == 16
  return bit_cast<I32>(_mm512_cvttps_epi32(bit_cast<__m512>(x)));
#elif WB_LANES == 8
  return bit_cast<I32>(_mm256_cvttps_epi32(bit_cast<__m256>(x)));
#elif defined(__SSE2__)
  return bit_cast<I32>(_mm_cvttps_epi32(bit_cast<__m128>(x)));
#else
  return convert(select(absolute(x) < splat(2147483648.0f), x, splat(-2147483648.0f)));
#endif
}

// roundf: nearest, halves away from zero. The largest float below a half, with x's sign, then truncation: exact.
WB_INLINE I32 round_away(F32 x) {
#if WB_LANES == 16  // both operations at once, x & sign | half
  const I32 sign = splat(i32(0x80000000)), below = splat(i32(0x3EFFFFFF));
  const I32 half = bit_cast<I32>(
      _mm512_ternarylogic_epi32(bit_cast<__m512i>(x), bit_cast<__m512i>(sign), bit_cast<__m512i>(below), 0xEA));
#else
  const I32 half = (as_i32(x) & splat(i32(0x80000000))) | splat(i32(0x3EFFFFFF));
#endif
  return truncate(x + as_f32(half));
}

// Lane i of the result is the lane of x that index[i] names by its lowest bits.
WB_INLINE F32 permute(F32 x, I32 index) {
#if WB_LANES == 16
  return bit_cast<F32>(_mm512_permutexvar_ps(bit_cast<__m512i>(index), bit_cast<__m512>(x)));
#elif WB_LANES == 8
  return bit_cast<F32>(_mm256_permutevar8x32_ps(bit_cast<__m256>(x), bit_cast<__m256i>(index)));
#else
  F32 out = x;
  for (int i = 0; i < W; ++i) out[i] = x[index[i] & (W - 1)];
  return out;
#endif
}

// Chooses among eight numbers by the lowest three bits of an index.
struct Eight {
  F32 v[W > 8 ? 1 : 8 / W];
};

WB_INLINE Eight eight(const float (&numbers)[8]) {
  Eight out{};
  for (int i = 0; i < 8 || i < W; ++i) out.v[i / W][i % W] = numbers[i & 7];
  return out;
}

WB_INLINE F32 choose(const Eight& from, I32 index) {
  if constexpr (W >= 8) return permute(from.v[0], index);
  F32 out = from.v[0];
  for (int i = 0; i < W; ++i) {
    const i32 at = index[i] & 7;
    out[i] = from.v[at / W][at % W];
  }
  return out;
}

// W 16-bit numbers.
WB_INLINE I32 load_u16(const u8* p) {
  I32 out = splat(i32(0));
#if WB_LANES == 16
  out = bit_cast<I32>(_mm512_cvtepu16_epi32(load<__m256i>(p)));
#elif WB_LANES == 8
  out = bit_cast<I32>(_mm256_cvtepu16_epi32(load<__m128i>(p)));
#else
  for (int i = 0; i < W; ++i) out[i] = load<u16>(p, size_t(i));
#endif
  return out;
}

// Bit i: the mask in lane i.
WB_INLINE u32 lane_bits(I32 mask) {
#if WB_LANES == 16
  return u32(_mm512_movepi32_mask(bit_cast<__m512i>(mask)));
#elif WB_LANES == 8
  return u32(_mm256_movemask_ps(bit_cast<__m256>(mask)));
#elif defined(__SSE2__)
  return u32(_mm_movemask_ps(bit_cast<__m128>(mask)));
#else
  u32 bits = 0;
  for (int i = 0; i < W; ++i) bits |= (u32(mask[i]) & 1) << i;
  return bits;
#endif
}

// The position of the lowest set bit.
WB_INLINE int lowest_bit(u32 bits) {
#if defined(_MSC_VER) && !defined(__clang__)
  unsigned long at;
  _BitScanForward(&at, bits);
  return int(at);
#else
  return __builtin_ctz(bits);
#endif
}

WB_INLINE I32 lane_numbers() {
  I32 out = splat(i32(0));
  for (int i = 0; i < W; ++i) out[i] = i;
  return out;
}

// W rows of N floats (`stride` bytes apart) to N vectors with one row a lane: element j of every row in out[j].
// In squares of W x W: log2(W) rounds, each interleaving the first half of the rows with the second.
template <int N>
WB_INLINE void load_columns(const u8* src, size_t stride, F32 (&out)[N]) {
  static_assert(N % W == 0);
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
#if WB_LANES == 4
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#elif WB_LANES == 8
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif WB_LANES == 16
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#endif
  for (int at = 0; at < N; at += W) {
    F32 rows[W];
    for (int i = 0; i < W; ++i) rows[i] = load<F32>(src + size_t(i) * stride + size_t(at) * 4);
    for (int round = 1; round < W; round *= 2) {
      F32 next[W];
      for (int i = 0; i < W / 2; ++i) {
        next[2 * i] = WB_LOW(rows[i], rows[i + W / 2]);
        next[2 * i + 1] = WB_HIGH(rows[i], rows[i + W / 2]);
      }
      for (int i = 0; i < W; ++i) rows[i] = next[i];
    }
    for (int i = 0; i < W; ++i) out[at + i] = rows[i];
  }
#undef WB_LOW
#undef WB_HIGH
#else
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < W; ++i) out[j][i] = load<float>(src + size_t(i) * stride, size_t(j));
#endif
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
