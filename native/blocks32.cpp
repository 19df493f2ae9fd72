// ggml's blocks of 32: Q8_0, Q4_0, Q4_1. Bytes equal to llama.cpp's quantize_row_*_ref and dequantize_row_*
// (ggml-quants.c, b11549, built for x86-64), hostile input included.
//
// Encoding puts one block in each lane (lanes.hpp); decoding is a plain loop, since each output depends on one code.
#include "floats.hpp"
#include "lanes.hpp"

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

// ---------------------------------------------------------------- decode

WB_INLINE float half(const u8* p) { return bit_cast<float>(widen_f16(load<u16>(p))); }

void decode_q8_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q8_0), dst += N * 4) {
    const float d = half(src);
    const i8* qs = reinterpret_cast<const i8*>(src + 2);
    for (size_t j = 0; j < N; ++j) store(dst, j, float(qs[j]) * d);
  }
}

void decode_q4_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q4_0), dst += N * 4) {
    const float d = half(src);
    const u8* qs = src + 2;
    for (size_t j = 0; j < N / 2; ++j) store(dst, j, float(int(qs[j] & 15) - 8) * d);
    for (size_t j = 0; j < N / 2; ++j) store(dst, j + N / 2, float(int(qs[j] >> 4) - 8) * d);
  }
}

void decode_q4_1(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t b = 0; b < n; ++b, src += sizeof(Q4_1), dst += N * 4) {
    const float d = half(src), m = half(src + 2);
    const u8* qs = src + 4;
    for (size_t j = 0; j < N / 2; ++j) store(dst, j, float(int(qs[j] & 15)) * d + m);
    for (size_t j = 0; j < N / 2; ++j) store(dst, j + N / 2, float(int(qs[j] >> 4)) * d + m);
  }
}

// ---------------------------------------------------------------- encode

// id = 1 / d, or 0 where d is 0 (a NaN counts as non-zero, as in C).
WB_INLINE F32 inverse(F32 d) { return select(d != splat(0.0f), splat(1.0f) / d, splat(0.0f)); }

// The f16 scales of `lanes` blocks, `size` bytes apart, and what was lost in them.
WB_INLINE void store_scales(F32 d, u8* dst, size_t size, Counts& counts) {
  for (int i = 0; i < W; ++i) {
    const float scale = d[i];
    const u32 bits = bit_cast<u32>(scale), a = bits & F32_ABS, h = narrow_f16_ggml(bits);
    store(dst + size_t(i) * size, 0, u16(h));
    counts.overflow += u32(a < F32_INF) & u32((h & 0x7FFF) > 0x7BFF);
    counts.underflow += u32(a != 0) & u32((h & 0x7FFF) == 0);
  }
}

// W blocks to W * 34 bytes.
void encode_q8_0(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  F32 amax = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    amax = select(amax > a, amax, a);  // MAX(amax, |x|): a NaN is taken, and dropped at the next element
  }
  const F32 d = amax / splat(127.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q8_0), counts);
  for (size_t j = 0; j < N; j += 4) {  // four codes to a 32-bit word
    I32 word = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) word = word | ((round_away(x[j + k] * id) & splat(i32(255))) << int(8 * k));
    for (int i = 0; i < W; ++i) store(dst + size_t(i) * sizeof(Q8_0) + 2 + j, 0, i32(word[i]));
  }
}

// (int8_t)(v + 8.5f), at most 15, as C on x86-64 has it: the low byte of the truncated int32, sign extended.
WB_INLINE I32 nibble_code(F32 v) {
  const I32 q = (truncate(v + splat(8.5f)) << 24) >> 24;
  return select(q < splat(i32(15)), q, splat(i32(15)));
}

// W blocks to W * 18 bytes.
void encode_q4_0(const u8* src, u8* dst, Counts& counts) {
  F32 x[N];
  load_columns(src, N * 4, x);
  F32 amax = splat(0.0f), extreme = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    const I32 larger = amax < a;
    amax = select(larger, a, amax);
    extreme = select(larger, x[j], extreme);
  }
  const F32 d = extreme / splat(-8.0f);
  const F32 id = inverse(d);
  store_scales(d, dst, sizeof(Q4_0), counts);
  for (size_t j = 0; j < N / 2; j += 4) {
    I32 word = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) {
      const I32 low = nibble_code(x[j + k] * id), high = nibble_code(x[j + k + N / 2] * id);
      word = word | (((low | (high << 4)) & splat(i32(255))) << int(8 * k));
    }
    for (int i = 0; i < W; ++i) store(dst + size_t(i) * sizeof(Q4_0) + 2 + j, 0, i32(word[i]));
  }
}

// Any number of blocks with a kernel for W of them: what is left over is padded with zeros and cut.
template <void kernel(const u8*, u8*, Counts&), size_t size>
void encode_blocks(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts& counts) {
  size_t b = 0;
  for (; b + W <= n; b += W) kernel(src + b * N * 4, dst + b * size, counts);
  if (b == n) return;
  u8 in[W * N * 4] = {}, out[W * size];
  memcpy(in, src + b * N * 4, (n - b) * N * 4);
  kernel(in, out, counts);  // zeros lose nothing, so the counts stay right
  memcpy(dst + b * size, out, (n - b) * size);
}

}  // namespace

const Format block_formats[block_format_count] = {
    {"Q8_0", N, sizeof(Q8_0), decode_q8_0, encode_blocks<encode_q8_0, sizeof(Q8_0)>, nullptr, 1, {0}},
    {"Q4_0", N, sizeof(Q4_0), decode_q4_0, encode_blocks<encode_q4_0, sizeof(Q4_0)>, nullptr, 1, {0}},
    {"Q4_1", N, sizeof(Q4_1), decode_q4_1, nullptr, nullptr, 2, {0, 2}},
};

}  // namespace weighbridge::WB_LEVEL
