// What ggml's block types share: f16 scales, and the way from one block in each lane to any number of blocks.
#pragma once

#include "block_types.hpp"
#include "bytes16.hpp"
#include "floats.hpp"
#include "lanes.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// The name, elements and bytes of a block type's Format.
#define WB_BLOCK(type) .name = #type, .block = type::N, .size = sizeof(type)

// n blocks in a file, to be looped over.
template <class B>
struct Blocks {
  const u8* src;
  size_t n;

  const B* begin() const { return reinterpret_cast<const B*>(src); }
  const B* end() const { return begin() + n; }
};

// An f16 scale: its bits as f32, and as a number.
WB_INLINE u32 half_bits(const LeF16& d) { return widen_f16(load<u16>(d.bytes)); }
WB_INLINE float half(const LeF16& d) { return bit_cast<float>(half_bits(d)); }

// The f16 scales of each block.
template <class B, LeF16 B::*... scale>
void read_half_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const B& block : Blocks<B>{src, n}) {
    size_t k = 0;
    (store(dst, k++, half_bits(block.*scale)), ...);
    dst += 4 * sizeof...(scale);
  }
}

// Format::scales of a block whose scales are these f16 fields.
template <class B, LeF16 B::*... scale>
constexpr Scales half_scales = {sizeof...(scale), read_half_scales<B, scale...>};

// id = 1 / d, or 0 where d is 0 (a NaN counts as non-zero, as in C).
WB_INLINE F32 inverse(F32 d) { return select(d != splat(0.0f), splat(1.0f) / d, splat(0.0f)); }

// f16 scales, and what was lost in them.
WB_INLINE I32 narrow_scales(F32 d, Counts& counts) {
#if WB_LANES > 4  // From the smallest f16 to what rounds to the largest: one instruction where all else takes some forty.
  const I32 magnitude = as_i32(absolute(d)), smallest = splat(i32(0x33800000)), beyond = splat(i32(0x477FF000));
  if (!lane_bits((magnitude < smallest) | (magnitude >= beyond))) {
#if WB_LANES == 16
    return bit_cast<I32>(_mm512_cvtepu16_epi32(_mm512_cvtps_ph(bit_cast<__m512>(d), _MM_FROUND_TO_NEAREST_INT)));
#else
    return bit_cast<I32>(_mm256_cvtepu16_epi32(_mm256_cvtps_ph(bit_cast<__m256>(d), _MM_FROUND_TO_NEAREST_INT)));
#endif
  }
#endif
  u32 scales[W];
  store(reinterpret_cast<u8*>(scales), 0, d);
  for (int i = 0; i < W; ++i) scales[i] = narrow_f16_ggml(scales[i]);
  const I32 halves = load<I32>(reinterpret_cast<const u8*>(scales));
  // By masks: of a loop of comparisons that are added up, GCC 12 for aarch64 makes one that counts backwards.
  const I32 size = as_i32(absolute(d)), stored = halves & splat(i32(0x7FFF));
  const I32 overflow = (size < splat(i32(F32_INF))) & (stored > splat(i32(0x7BFF)));
  const I32 underflow = (size != splat(i32(0))) & (stored == splat(i32(0)));
  if (lane_bits(overflow | underflow))  // rare, and lanes one by one take as long as all the rest here
    for (int i = 0; i < W; ++i) {
      counts.overflow += u32(overflow[i]) & 1;
      counts.underflow += u32(underflow[i]) & 1;
    }
  return halves;
}

// Encoders write a field of W blocks at once: store_bytes<&Q8_0::qs>(codes, blocks).
template <auto field, class B>
WB_INLINE u8* bytes_of(B& block) {
  return reinterpret_cast<u8*>(&(block.*field));
}

// The low halves of words, at byte `at` of the field.
template <auto field, class B>
WB_INLINE void store_halves(I32 words, B* dst, size_t at = 0) {
  i32 each[W];  // in memory: a lane of a wide vector takes two more instructions to reach
  memcpy(each, &words, sizeof each);
  for (int i = 0; i < W; ++i) store(bytes_of<field>(dst[i]) + at, 0, u16(each[i]));
}

template <auto field, class B>
WB_INLINE void store_words(I32 words, B* dst, size_t at = 0) {
  for (int i = 0; i < W; ++i) store(bytes_of<field>(dst[i]) + at, 0, i32(words[i]));
}

// f16 scales, and what was lost in them.
template <auto field, class B>
WB_INLINE void store_scales(F32 d, B* dst, Counts& counts) {
  store_halves<field>(narrow_scales(d, counts), dst);
}

// Low bytes of codes; four at a time.
template <auto field, class B, size_t count>
WB_INLINE void store_bytes(const I32 (&codes)[count], B* dst, size_t at = 0) {
  static_assert(count % 4 == 0);
  u8 words[count / 4 * W * 4];
  for (size_t j = 0; j < count; j += 4) {
    I32 word = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) word = word | ((codes[j + k] & splat(i32(255))) << int(8 * k));
    store(words, j / 4, word);
  }
  for (size_t i = 0; i < size_t(W); ++i)
    for (size_t j = 0; j < count / 4; ++j) store(bytes_of<field>(dst[i]) + at, j, load<u32>(words, j * W + i));
}

// Nibbles of blocks of 32.
template <auto field, class B>
WB_INLINE void store_nibbles(const I32 (&q)[32], B* dst) {
  I32 codes[16];
  for (size_t j = 0; j < 16; ++j) codes[j] = q[j] | (q[j + 16] << 4);
  store_bytes<field>(codes, dst);
}

// The fifth bits to qh, the others as nibbles to qs.
template <class B>
WB_INLINE void store_5bit(I32 (&q)[32], B* dst) {
  I32 word = splat(i32(0));
  for (int j = 0; j < 32; ++j) {
    word = word | (((q[j] >> 4) & splat(i32(1))) << j);
    q[j] = q[j] & splat(i32(15));
  }
  store_words<&B::qh>(word, dst);
  store_nibbles<&B::qs>(q, dst);
}

// MAX(amax, |x|) over a block: a NaN is taken, and dropped at the next element.
template <size_t N>
WB_INLINE F32 running_max(const F32 (&x)[N]) {
  F32 amax = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    amax = larger(amax, a);
  }
  return amax;
}

// The largest magnitude; NaN never wins.
template <size_t N>
WB_INLINE F32 magnitude_of(const F32 (&x)[N]) {
  F32 amax = splat(0.0f);
  for (size_t j = 0; j < N; ++j) {
    const F32 a = absolute(x[j]);
    amax = larger(a, amax);
  }
  return amax;
}

// Any number of blocks with a kernel for `step` of them: the last ones are padded with zeros, and the padding is dropped.
template <class B, void kernel(const u8*, B*, Counts&), size_t step = size_t(W)>
void encode_blocks(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts& counts) {
  constexpr size_t N = B::N;
  B* blocks = reinterpret_cast<B*>(dst);
  size_t b = 0;
  for (; b + step <= n; b += step) kernel(src + b * N * 4, blocks + b, counts);
  if (b == n) return;
  u8 in[step * N * 4] = {};
  B out[step];
  memcpy(in, src + b * N * 4, (n - b) * N * 4);
  kernel(in, out, counts);  // zeros lose nothing, so the counts stay right
  memcpy(blocks + b, out, (n - b) * sizeof(B));
}

// As encode_blocks, of whole rows. The kernel gets the weights of its blocks' columns laid out as the blocks are; where
// they run over the end of a row, or are too few, a copy.
template <class B, void kernel(const u8* src, const u8* weights, B* dst, Counts&), size_t step = size_t(W)>
void encode_weighted_blocks(const WeightedRows& all, u8* WB_RESTRICT dst, Counts& counts) {
  constexpr size_t N = B::N;
  B* blocks = reinterpret_cast<B*>(dst);
  const size_t n = all.rows * all.row_atoms;
  for (size_t b = 0; b < n; b += step) {
    const size_t some = n - b < step ? n - b : step, column = b % all.row_atoms;
    const u8 *src = all.f32 + b * N * 4, *weights = all.weights + column * N * 4;
    u8 copied[step * N * 4], in[step * N * 4];
    B out[step];
    if (column + step > all.row_atoms) {
      memset(copied, 0, sizeof copied);
      for (size_t i = 0; i < some; ++i)
        memcpy(copied + i * N * 4, all.weights + (column + i) % all.row_atoms * N * 4, N * 4);
      weights = copied;
    }
    if (some == step) {
      kernel(src, weights, blocks + b, counts);
      continue;
    }
    memset(in, 0, sizeof in);
    memcpy(in, src, some * N * 4);
    kernel(in, weights, out, counts);
    memcpy(blocks + b, out, some * sizeof(B));
  }
}

// A kernel that takes weights or null, without.
template <class B, void kernel(const u8* src, const u8* weights, B* dst, Counts&)>
void unweighted(const u8* src, B* dst, Counts& counts) {
  kernel(src, nullptr, dst, counts);
}

// Defines what level.hpp declares, for a kernel of W blocks.
#define WB_DEFINE_ENCODER(name, Block, kernel)                              \
  void name##_encode(const u8* src, u8* dst, size_t n, Counts& counts) {    \
    encode_blocks<Block, unweighted<Block, kernel>>(src, dst, n, counts);   \
  }
#define WB_DEFINE_WEIGHTED_ENCODER(name, Block, kernel)                          \
  void name##_encode_weighted(const WeightedRows& rows, u8* dst, Counts& counts) { \
    encode_weighted_blocks<Block, kernel>(rows, dst, counts);                    \
  }

}  // namespace
}  // namespace weighbridge::WB_LEVEL
