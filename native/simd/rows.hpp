// Blocks of 32 (and parts of 16) row by row, for types whose scale needs no search: a block's extremes are reduced within its own
// vectors, and only the W scales of W blocks stand side by side. That saves the transposition of all elements
// (load_columns), and codes leave as whole vectors of bytes: Q4_0 takes 0.19 ns a weight instead of 0.49 with AVX-512, 0.21
// instead of 0.63 with AVX2; Q8_0 0.15 instead of 0.51.
//
// The order in which elements are compared changes no result but for signs of zero, ties and NaN; callers say how they keep
// llama.cpp's.
#pragma once

#include "blocks.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Interleaves within 16 bytes, and joins halves of vectors: first halves and last halves of a and b.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
#define WB_ROWS_IN_VECTORS 1
#if WB_LANES == 4
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#elif WB_LANES == 8
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#elif WB_LANES == 16
#define WB_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define WB_HIGH(a, b) __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#endif
#endif

// One number for each of W blocks, block i's in lane i: `vector_of(i)` is a vector of block i, whose lanes `pick` reduces.
// log2(W) rounds, each halving the vectors: 15 steps for 16 blocks.
template <class V, class VectorOf, class Pick>
WB_INLINE V reduce_rows(VectorOf vector_of, Pick pick) {
#if WB_ROWS_IN_VECTORS
  V v[W];  // block i at i / 4 + W / 4 * (i % 4): there the rounds bring it to lane i
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) v[i / 4 + W / 4 * (i % 4)] = vector_of(i);
#pragma GCC unroll 8
  for (int i = 0; i < W / 2; ++i) v[i] = pick(WB_LOW(v[i], v[i + W / 2]), WB_HIGH(v[i], v[i + W / 2]));
#pragma GCC unroll 4
  for (int i = 0; i < W / 4; ++i) v[i] = pick(WB_LOW(v[i], v[i + W / 4]), WB_HIGH(v[i], v[i + W / 4]));
#if WB_LANES == 8
  v[0] = pick(__builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11),
              __builtin_shufflevector(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15));
#elif WB_LANES == 16
  for (int i = 0; i < 2; ++i)
    v[i] = pick(
        __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        __builtin_shufflevector(v[2 * i], v[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  v[0] = pick(__builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
              __builtin_shufflevector(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
#endif
  return v[0];
#else
  V out = vector_of(0);
  for (int i = 0; i < W; ++i) {
    const V v = vector_of(i);
    for (int k = 0; k < W; ++k) {
      V a = v, b = v;
      a[0] = k ? out[i] : v[0], b[0] = v[k];
      out[i] = pick(a, b)[0];
    }
  }
  return out;
#endif
}
#undef WB_LOW
#undef WB_HIGH

constexpr auto LARGER = [](auto a, auto b) { return larger(a, b); };
constexpr auto SMALLER = [](auto a, auto b) { return smaller(a, b); };

// Of each of W blocks of N elements `pick` of `start` and its elements' bits in `mask`.
template <size_t N, class V, class Pick>
WB_INLINE V reduce_elements(const u8* src, V start, Pick pick, u32 mask = ~u32(0)) {
  const auto vector_of = [=](int i) {
    V out = start;
    for (size_t k = 0; k < N / size_t(W); ++k)
      out = pick(bit_cast<V>(load<I32>(src + size_t(i) * N * 4, k) & splat(i32(mask))), out);
    return out;
  };
  return reduce_rows<V>(vector_of, pick);
}

// Numbers of W blocks, each to be spread over its block's vectors.
struct Spread {
  float v[W];

  explicit Spread(F32 x) { memcpy(v, &x, sizeof v); }
  F32 operator[](int i) const { return splat(v[i]); }
};

// Lane by lane, where few lanes need what the others don't.
template <class Each>
WB_INLINE void each_lane(I32 mask, Each each) {
  for (u32 rest = lane_bits(mask); rest; rest &= rest - 1) each(lowest_bit(rest));
}

// Codes of W rows of N elements: code(x, i) of each vector of row i, then put(bytes, i).
template <size_t N, class Code, class Put>
WB_INLINE void code_rows(const u8* src, Code code, Put put) {
#pragma GCC unroll 4
  for (int i = 0; i < W; ++i) {
    I32 q[N / size_t(W)];
    for (size_t k = 0; k < N / size_t(W); ++k) q[k] = code(load<F32>(src + size_t(i) * N * 4, k), i);
    put(narrowed(q), i);
  }
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
