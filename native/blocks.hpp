// What ggml's block types share: f16 scales, and the way from one block in each lane to any number of blocks.
#pragma once

#include "bytes16.hpp"
#include "floats.hpp"
#include "lanes.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

WB_INLINE float half(const u8* p) { return bit_cast<float>(widen_f16(load<u16>(p))); }

// The f16 scales that stand at fixed places of a block, block by block (Format::scales).
template <size_t size, size_t... at>
void half_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += size, dst += 4 * sizeof...(at)) {
    size_t k = 0;
    (store(dst, k++, widen_f16(load<u16>(src + at))), ...);
  }
}

// id = 1 / d, or 0 where d is 0 (a NaN counts as non-zero, as in C).
WB_INLINE F32 inverse(F32 d) { return select(d != splat(0.0f), splat(1.0f) / d, splat(0.0f)); }

// f16 scales, and what was lost in them.
WB_INLINE I32 narrow_scales(F32 d, Counts& counts) {
  u32 scales[W], overflow = 0, underflow = 0;
  store(reinterpret_cast<u8*>(scales), 0, d);
  for (int i = 0; i < W; ++i) {
    const u32 a = scales[i] & F32_ABS, h = narrow_f16_ggml(scales[i]);
    scales[i] = h;
    overflow += u32(a < F32_INF) & u32((h & 0x7FFF) > 0x7BFF);
    underflow += u32(a != 0) & u32((h & 0x7FFF) == 0);
  }
  counts.overflow += overflow;
  counts.underflow += underflow;
  return load<I32>(reinterpret_cast<const u8*>(scales));
}

// The low halves of words to W blocks `size` bytes apart.
WB_INLINE void store_halves(I32 words, u8* dst, size_t size) {
  for (int i = 0; i < W; ++i) store(dst + size_t(i) * size, 0, u16(words[i]));
}

// The f16 scales of W blocks, `size` bytes apart, and what was lost in them.
WB_INLINE void store_scales(F32 d, u8* dst, size_t size, Counts& counts) {
  store_halves(narrow_scales(d, counts), dst, size);
}

// Low bytes of `count` codes of W blocks at dst, `size` bytes apart; four at a time.
template <size_t count>
WB_INLINE void store_bytes(const I32 (&codes)[count], u8* dst, size_t size) {
  static_assert(count % 4 == 0);
  u8 words[count / 4 * W * 4];
  for (size_t j = 0; j < count; j += 4) {
    I32 word = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) word = word | ((codes[j + k] & splat(i32(255))) << int(8 * k));
    store(words, j / 4, word);
  }
  for (size_t i = 0; i < size_t(W); ++i)
    for (size_t j = 0; j < count / 4; ++j) store(dst + i * size, j, load<u32>(words, j * W + i));
}

// Nibbles of W blocks of 32 at dst, `size` bytes apart.
WB_INLINE void store_nibbles(const I32 (&q)[32], u8* dst, size_t size) {
  I32 codes[16];
  for (size_t j = 0; j < 16; ++j) codes[j] = q[j] | (q[j + 16] << 4);
  store_bytes(codes, dst, size);
}

// The fifth bits at high, the others as nibbles at low.
WB_INLINE void store_5bit(I32 (&q)[32], u8* high, u8* low, size_t size) {
  I32 word = splat(i32(0));
  for (int j = 0; j < 32; ++j) {
    word = word | (((q[j] >> 4) & splat(i32(1))) << j);
    q[j] = q[j] & splat(i32(15));
  }
  for (int i = 0; i < W; ++i) store(high + size_t(i) * size, 0, i32(word[i]));
  store_nibbles(q, low, size);
}

// MAX(amax, |x|) over a block: a NaN is taken, and dropped at the next element.
template <size_t N>
WB_INLINE F32 running_max(const F32 (&x)[N]) {
  F32 amax = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    amax = select(amax > a, amax, a);
  }
  return amax;
}

// The largest magnitude; NaN never wins.
template <size_t N>
WB_INLINE F32 magnitude_of(const F32 (&x)[N]) {
  F32 amax = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    amax = select(amax < a, a, amax);
  }
  return amax;
}

// Any number of blocks of N elements with a kernel for `step` of them: what is left over is padded with zeros and cut.
template <void kernel(const u8*, u8*, Counts&), size_t N, size_t size, size_t step = size_t(W)>
void encode_blocks(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts& counts) {
  size_t b = 0;
  for (; b + step <= n; b += step) kernel(src + b * N * 4, dst + b * size, counts);
  if (b == n) return;
  u8 in[step * N * 4] = {}, out[step * size];
  memcpy(in, src + b * N * 4, (n - b) * N * 4);
  kernel(in, out, counts);  // zeros lose nothing, so the counts stay right
  memcpy(dst + b * size, out, (n - b) * size);
}

// As encode_blocks, of whole rows. The kernel gets the weights of its blocks' columns laid out as the blocks are; where
// they run over the end of a row, or are too few, a copy.
template <void kernel(const u8* src, const u8* weights, u8* dst, Counts&), size_t N, size_t size, size_t step = size_t(W)>
void encode_weighted_blocks(const Weighted& all, u8* WB_RESTRICT dst, Counts& counts) {
  const size_t n = all.rows * all.row_atoms;
  for (size_t b = 0; b < n; b += step) {
    const size_t some = n - b < step ? n - b : step, column = b % all.row_atoms;
    const u8 *src = all.f32 + b * N * 4, *weights = all.weights + column * N * 4;
    u8 copied[step * N * 4], in[step * N * 4], out[step * size];
    if (column + step > all.row_atoms) {
      memset(copied, 0, sizeof copied);
      for (size_t i = 0; i < some; ++i)
        memcpy(copied + i * N * 4, all.weights + (column + i) % all.row_atoms * N * 4, N * 4);
      weights = copied;
    }
    if (some == step) {
      kernel(src, weights, dst + b * size, counts);
      continue;
    }
    memset(in, 0, sizeof in);
    memcpy(in, src, some * N * 4);
    kernel(in, weights, out, counts);
    memcpy(dst + b * size, out, some * size);
  }
}

// A kernel that takes weights or null, without.
template <void kernel(const u8* src, const u8* weights, u8* dst, Counts&)>
void unweighted(const u8* src, u8* dst, Counts& counts) {
  kernel(src, nullptr, dst, counts);
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
