// Blocks of 32 (and parts of 16) row by row, for types whose scale needs no search: a block's extremes are reduced within its own
// vectors, and only the W scales of W blocks stand side by side. That saves the transposition of all elements
// (load_columns), and codes leave as whole vectors of bytes: on a Zen 4 that more than halves the time of Q4_0 and Q8_0.
//
// The order in which elements are compared changes no result but for signs of zero, ties and NaN; callers say how they keep
// llama.cpp's.
#pragma once

#include "blocks.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Interleaves within 16 bytes: first halves and last halves of a and b.
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

// Four rows' vectors to one: in each 16 bytes, lane k has what `pick` makes of vector k's four numbers there.
template <class V, class Pick>
WB_INLINE V of_four(const V (&v)[4], Pick pick) {
#if WB_ROWS_IN_VECTORS
  const V even = pick(WB_LOW(v[0], v[2]), WB_HIGH(v[0], v[2])), odd = pick(WB_LOW(v[1], v[3]), WB_HIGH(v[1], v[3]));
  return pick(WB_LOW(even, odd), WB_HIGH(even, odd));
#else
  V at[4];
  for (int j = 0; j < 4; ++j)
    for (int k = 0; k < W; ++k) at[j][k] = v[k % 4][k / 4 * 4 + j];
  return pick(pick(at[0], at[1]), pick(at[2], at[3]));
#endif
}
#undef WB_LOW
#undef WB_HIGH

// Such vectors of all W rows to one, row i's number in lane i.
template <class V, class Pick>
WB_INLINE V of_rows(const V (&fours)[W / 4], Pick pick) {
#if WB_ROWS_IN_VECTORS && WB_LANES == 8
  return pick(__builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11),
              __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15));
#elif WB_ROWS_IN_VECTORS && WB_LANES == 16
  V halves[2];
  for (int i = 0; i < 2; ++i)
    halves[i] = pick(__builtin_shufflevector(fours[2 * i], fours[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21,
                                             22, 23),
                     __builtin_shufflevector(fours[2 * i], fours[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                             28, 29, 30, 31));
  return pick(
      __builtin_shufflevector(halves[0], halves[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
      __builtin_shufflevector(halves[0], halves[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
#else
  V out{};
  for (int g = 0; g < W / 4; ++g) {
    V at{};
    for (int k = 0; k < W; ++k) at[k] = fours[k / 4][k % 4 + 4 * g];
    out = g ? pick(out, at) : at;
  }
  return out;
#endif
}

// What `pick` makes of `start` and the elements of each of W blocks; block i's in lane i of the result.
template <class V, class Pick>
struct Reduction {
  V start;
  Pick pick;
  V rows[4] = {}, fours[W / 4] = {};

  V result() const { return of_rows(fours, pick); }
};
constexpr auto LARGER = [](auto a, auto b) { return larger(a, b); };
constexpr auto SMALLER = [](auto a, auto b) { return smaller(a, b); };
template <class V>
WB_INLINE auto largest(V start) { return Reduction<V, decltype(LARGER)>{start, LARGER}; }
template <class V>
WB_INLINE auto smallest(V start) { return Reduction<V, decltype(SMALLER)>{start, SMALLER}; }

// Takes the elements of W blocks of N, their bits in `mask`, to all of the reductions. Four rows at a time, whose vectors fit in the
// registers for two reductions; so each element is loaded once for both.
template <size_t N, class... Reductions>
WB_INLINE void reduce_elements(const u8* src, u32 mask, Reductions&... all) {
#pragma GCC unroll 4
  for (size_t four = 0; four < size_t(W) / 4; ++four) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      ((all.rows[i] = all.start), ...);
#pragma GCC unroll 8
      for (size_t k = 0; k < N / size_t(W); ++k) {
        const I32 x = load<I32>(src + (4 * four + i) * N * 4, k) & splat(i32(mask));
        ((all.rows[i] = all.pick(bit_cast<decltype(all.start)>(x), all.rows[i])), ...);
      }
    }
    ((all.fours[four] = of_four(all.rows, all.pick)), ...);
  }
}

// Blocks are coded 4 * W at a time: their scales first, then their codes. With W at a time, the codes wait for a chain of some 80 cycles
// (comparisons, the exchange between lanes, a division) and fill the processor's queues, so that nothing else starts: Q4_0 then takes
// 0.127 ns a weight instead of 0.091 with AVX2, and 0.082 instead of 0.064 with AVX-512 (Zen 5).
constexpr size_t ROUNDS = 4, ROWS = ROUNDS * size_t(W);

// Numbers of ROWS blocks, W by W, each to be spread over its block's vectors.
struct Spread {
  float v[ROWS];

  void put(size_t round, F32 x) { memcpy(v + round * size_t(W), &x, sizeof x); }
  F32 operator[](size_t i) const { return splat(v[i]); }
};

// Lane by lane, where few lanes need what the others don't.
template <class Each>
WB_INLINE void each_lane(I32 mask, Each each) {
  for (u32 rest = lane_bits(mask); rest; rest &= rest - 1) each(lowest_bit(rest));
}

// Codes of a row of N elements, which may be several parts: code(x, i) of each vector of part i.
template <size_t N, size_t part, class Code>
WB_INLINE void code_row(const u8* src, size_t row, Code code, I32 (&q)[N / size_t(W)]) {
  for (size_t k = 0; k < N / size_t(W); ++k)
    q[k] = code(load<F32>(src + row * N * 4, k), row * (N / part) + k * size_t(W) / part);
}

// Of ROWS parts, then put(codes, row) for each of their rows.
template <size_t N, size_t part = N, class Code, class Put>
WB_INLINE void code_rows(const u8* src, Code code, Put put) {
#pragma GCC unroll 4
  for (size_t row = 0; row < ROWS * part / N; ++row) {
    I32 q[N / size_t(W)];
    code_row<N, part>(src, row, code, q);
    put(q, row);
  }
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
