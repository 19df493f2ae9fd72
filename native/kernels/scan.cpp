// Statistics of a run of numbers: NaN, Inf, the smallest and the largest finite value, and counts of bit patterns.
#include "floats.hpp"
#include "lanes.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t TILE = 1024;
constexpr double NONE = __builtin_huge_val();
constexpr int COUNT_SHIFT = 40;

WB_INLINE void widen(Stats& s, double low, double high) {
  // + 0.0: -0 becomes 0, so that the answer doesn't depend on which zero came first
  s.minimum = low < s.minimum ? low + 0.0 : s.minimum;
  s.maximum = high > s.maximum ? high + 0.0 : s.maximum;
}

WB_INLINE void scalar_stats(double x, Stats& s) {
  const u64 a = bit_cast<u64>(x) & 0x7FFFFFFFFFFFFFFF;
  s.nan += a > 0x7FF0000000000000;
  s.inf += a == 0x7FF0000000000000;
  if (a < 0x7FF0000000000000) widen(s, x, x);
}

void f32_stats(const u8* tile, size_t n, Stats& s) {
  const I32 inf = splat(i32(F32_INF)), magnitude = splat(i32(F32_ABS));
  const F32 none = splat(__builtin_huge_valf());
  F32 low = none, high = splat(0.0f) - none;
  I32 nans = splat(i32(0)), infs = splat(i32(0));
  size_t i = 0;
  for (; i + W <= n; i += W) {
    const F32 x = load<F32>(tile + i * 4);
    const I32 a = as_i32(x) & magnitude;
    nans = nans - (a > inf);
    infs = infs - (a == inf);
    low = select((a < inf) & (x < low), x, low);
    high = select((a < inf) & (x > high), x, high);
  }
  for (int lane = 0; lane < W; ++lane) {
    s.nan += u64(u32(nans[lane]));
    s.inf += u64(u32(infs[lane]));
    widen(s, double(float(low[lane])), double(float(high[lane])));
  }
  for (; i < n; ++i) scalar_stats(double(load<float>(tile, i)), s);
}

WB_INLINE void add(u8* out, u32 pattern, u64 low) {
  store(out, pattern, load<u64>(out, pattern) + (u64(1) << COUNT_SHIFT) + low);
}

// By the upper half of an f32. Every NaN counts as one pattern. Values whose upper half is zero, other than zero, count
// at a pattern that only NaNs have, so that zeros have their own counter.
void f32_patterns(const u8* f32, size_t n, u8* out) {
  for (size_t i = 0; i < n; ++i) {
    const u32 bits = load<u32>(f32, i), a = bits & F32_ABS;
    const u32 known = a > F32_INF ? u32(0x7FC00000) : a - 1 < 0xFFFF ? bits | 0x7F810000 : bits;
    add(out, known >> 16, known & 0xFFFF);
  }
}

WB_INLINE Stats empty() { return Stats{0, 0, NONE, -NONE}; }

}  // namespace

// How many of n f32 aren't finite. In runs: a count of 32 bits in each lane, and only one comparison an element.
u64 nonfinite(const u8* src, size_t n) {
  constexpr size_t RUN = size_t(1) << 20;
  u64 out = 0;
  size_t i = 0;
  while (n - i >= size_t(W)) {
    const size_t end = i + (n - i < RUN ? n - i : RUN) / size_t(W) * size_t(W);
    I32 found = splat(i32(0));
    for (; i < end; i += size_t(W)) found = found - (absolute(load<F32>(src + i * 4)) < splat(__builtin_huge_valf()));
    for (int lane = 0; lane < W; ++lane) out += u64(u32(found[lane]));
  }
  for (; i < n; ++i) out += (load<u32>(src, i) & F32_ABS) < F32_INF;
  return n - out;
}

void stats(const Format& type, const u8* src, size_t n, Stats& out) {
  Stats s = empty();
  u8 tile[TILE * 4];
  if (type.decode_odd) {  // f64
    for (size_t i = 0; i < n; ++i) scalar_stats(load<double>(src, i), s);
  } else {
    for (size_t i = 0; i < n; i += TILE) {
      const size_t m = n - i < TILE ? n - i : TILE;
      type.decode(src + i * type.size, tile, m);
      f32_stats(tile, m, s);
    }
  }
  out = s;
}

void scale_stats(const Format& type, const u8* src, size_t n, Stats& out) {
  Stats s = empty();
  u8 tile[TILE * 4];
  const size_t step = TILE / type.scales.count;
  for (size_t i = 0; i < n; i += step) {
    const size_t m = n - i < step ? n - i : step;
    type.scales.read(src + i * type.size, tile, m);
    f32_stats(tile, m * type.scales.count, s);
  }
  out = s;
}

void count_patterns(const Format& type, const u8* src, size_t n, u8* out) {
  if (type.size == 2 && type.block == 1) {
    for (size_t i = 0; i < n; ++i) add(out, load<u16>(src, i), 0);
    return;
  }
  if (type.size == 4 && type.block == 1) return f32_patterns(src, n, out);
  u8 tile[TILE * 4];
  const size_t step = TILE / type.block;
  for (size_t i = 0; i < n; i += step) {
    const size_t m = n - i < step ? n - i : step;
    type.decode(src + i * type.size, tile, m);
    f32_patterns(tile, m * type.block, out);
  }
}

}  // namespace weighbridge::WB_LEVEL
