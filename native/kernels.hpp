// What every instruction-set level offers and calls.cpp calls: plain functions over raw bytes, in one table a level. No
// Python, no allocation, no exceptions. calls.cpp has checked all sizes; pointers may have any alignment; source and
// destination don't overlap.
#pragma once

#include "types.hpp"

namespace weighbridge {

// What a narrowing lost. overflow: finite values that became Inf or NaN. underflow: non-zero values that became zero. Of a
// block type both count its f16 scales. `refused`: the first block on which llama.cpp's quantizer stops the process (its
// bytes mean nothing then); kernels that can refuse count blocks in `seen`.
struct Counts {
  u64 overflow = 0;
  u64 underflow = 0;
  u64 seen = 0;
  u64 refused = NONE;

  static constexpr u64 NONE = ~u64(0);
};

// Statistics of a run of floats. minimum and maximum are over the finite ones (+Inf and -Inf without any).
struct Stats {
  u64 nan = 0;
  u64 inf = 0;
  double minimum = 0;
  double maximum = 0;
};

// Whole rows of f32, and one weight for each column (an importance matrix): rows * row_atoms atoms.
struct WeightedRows {
  const u8* f32;
  const u8* weights;  // row_atoms * Format::block of f32
  size_t rows;
  size_t row_atoms;
};

// The scales of a block that may be NaN, Inf or huge: `read` gives `count` of each block as f32. None: 0, null.
struct Scales {
  u32 count = 0;
  void (*read)(const u8* src, u8* f32, size_t n) = nullptr;
};

// One stored number type: `block` elements in `size` bytes (an atom). n counts atoms. Null: not offered.
// `encode_weighted` is null if the quantizer ignores weights, `encode` if it requires them.
struct Format {
  const char* name;  // as in base/dtypes.py
  u32 block;
  u32 size;
  void (*decode)(const u8* src, u8* f32, size_t n) = nullptr;
  void (*encode)(const u8* f32, u8* dst, size_t n, Counts&) = nullptr;
  void (*encode_weighted)(const WeightedRows& rows, u8* dst, Counts&) = nullptr;
  // f64 only: to f32 with round-to-odd, so that a second rounding to a narrower type gives what one rounding would.
  void (*decode_odd)(const u8* src, u8* f32, size_t n) = nullptr;
  Scales scales;
};

// The rows of one kernel file.
template <class T>
struct Rows {
  const T* rows;
  size_t count;

  const T* begin() const { return rows; }
  const T* end() const { return rows + count; }
};

// Integer codes with a scale and an offset per group.
struct AffineOptions {
  int bits;                  // 1 to 8
  size_t group;              // elements that share scale and offset; a multiple of 32 where bits < 8
  const Format* parameters;  // type of the scales, and of the biases
  bool zeros;                // offsets are zero points, u8, subtracted from the code before it is scaled
};

// Codes of four bits that index a table of values, two a byte.
struct LookupOptions {
  const u8* table;  // sixteen f32
  size_t group;     // elements that share a scale, a multiple of 16
  bool high_first;  // the high nibble is the first of the two
};

// Columns of groups in any order (GPTQ's act-order).
struct OrderedOptions {
  size_t rows, columns, groups;
  size_t stride;     // bytes from a row of codes to the next
  const u32* index;  // the group of each column, below `groups`
};

// Codes as one bit stream, and the parameters of each `group` of them.
struct MlxParts {
  int bits;
  size_t group;
  const u8* codes;
  const u8* scales;
  const u8* offsets;  // biases, or zero points of u8; null if the type has neither
};

// A block type whose codes and parameters MLX stores too, in another arrangement (kernels/regroup.cpp).
struct MlxRegroup {
  const char* name;
  u32 block, size;  // elements and bytes of a block
  int bits;         // of a code in MLX's stream
  u32 group;        // elements with parameters of their own
  u32 parameter;    // bytes of a scale, and of a bias
  bool biases;
  void (*split)(const u8* src, size_t n, u8* codes, u8* scales, u8* biases);  // null: not wanted
  void (*join)(const MlxParts& from, u8* dst, size_t groups);  // any bits and groups of whole blocks; null: not offered
  u32 offset;  // bytes of a joined group's offset: 2 a bias in f16, 1 a zero point, 0 none
};

// Rows of `columns`; each run of `width` shares a scale, and the last run of a row may be shorter.
struct Tiles {
  size_t rows, columns, width;
};

struct RoundingOptions {
  Tiles tiles;
  int bits;  // of integer codes, 1 to 8
};

// Elements of `size` bytes, 1, 2, 4 or 8; `stride` bytes from a row to the next.
struct Matrix {
  size_t size, rows, columns, stride;
};

// A way to round floats to codes of `bits` bits (kernels/rounding.cpp). Runs that share a scale are whole sixteens unless
// codes are bytes.
struct RoundingRule {
  using Run = void (*)(const RoundingOptions&, const u8* f32, const u8* scales, const u8* zeros, u8* codes);
  const char* name;
  int bits;
  Run in_f32, in_f16 = nullptr, in_bf16 = nullptr;  // each step rounded to that type; null: not offered
  Run multiplied = nullptr;                         // in F32, by the scale instead of divided by it
};

// How the words of a chunk become planes of bytes (docs/wbpack.md): `width` bytes each, 1, 2, 4 or 8.
struct WordOptions {
  u32 width;
  u32 transform;  // PLAIN ... PAIRS

  enum : u32 { PLAIN, ROTATED, DELTA, FLOAT_DELTA, PAIRS, TRANSFORMS };
};

// A prefix code of bytes, for a decoder that looks at LOOKUP bits at a time.
struct PrefixTable {
  static constexpr u32 LOOKUP = 11;  // bits, and the longest code
  static constexpr u32 MOST = 4;     // symbols of an entry
  // By the next bits: how many of them the entry's symbols take (bits 0-7), how many symbols (8-15), the symbols (32-63).
  u64 entries[size_t(1) << LOOKUP];
  u8 lengths[256];
};

// A byte's code, as it is written from the lowest bit on.
struct PrefixCode {
  u16 bits;
  u16 length;
};

struct Stream {
  const u8* data;
  size_t size;
};

// The kernels that aren't of one number type: (result, name, parameters). Scales and zeros are f32 unless a type is given.
#define WB_KERNELS(X)                                                                                                   \
  X(void, cast, (const Format& from, const Format& to, const u8* src, u8* dst, size_t n, Counts&))                      \
  X(void, stats, (const Format& type, const u8* src, size_t n, Stats&))                                                 \
  X(void, scale_stats, (const Format& type, const u8* src, size_t n, Stats&))                                           \
  /* out: 65,536 of u64, by 16 bits: each element adds 2^40 and, of an f32, the lower half of its bits */               \
  X(void, count_patterns, (const Format& type, const u8* src, size_t n, u8* out))                                       \
  X(u64, nonfinite, (const u8* f32, size_t n))                                                                          \
  X(void, affine_decode,                                                                                                \
    (const AffineOptions&, const u8* codes, const u8* scales, const u8* offsets, u8* f32, size_t groups))               \
  X(void, ordered_decode, (const OrderedOptions&, const u8* codes, const u8* scales, const u8* zeros, u8* f32))         \
  X(void, table_decode, (const LookupOptions&, const u8* codes, const u8* scales, u8* f32, size_t groups))              \
  /* codes: null where only the parameters are wanted */                                                                \
  X(void, affine_encode, (const AffineOptions&, const u8* f32, u8* codes, u8* scales, u8* biases, size_t groups))       \
  X(void, extremes, (const Tiles&, const u8* f32, u8* low, u8* high))                                                   \
  X(void, scaled_decode, (const Format& type, const Tiles&, const u8* src, const u8* scales, u8* f32))                  \
  /* n times 8 codes, a byte each, to and from a bit stream */                                                          \
  X(void, unpack_codes, (int bits, const u8* src, u8* dst, size_t n))                                                   \
  X(void, pack_codes, (int bits, const u8* src, u8* dst, size_t n))                                                     \
  /* n words of eight nibbles, columns 0 2 4 6 1 3 5 7, to a byte each */                                               \
  X(void, unpack_awq, (const u8* src, u8* dst, size_t n))                                                               \
  /* 8 * rows of such words to `rows` of 8 * words, which have the nibbles of eight rows each */                         \
  X(void, awq_by_rows, (const u8* src, u8* dst, size_t rows, size_t words))                                             \
  X(void, transpose, (const Matrix& from, const u8* src, u8* dst, size_t dst_stride))                                   \
  /* src == dst is fine */                                                                                              \
  X(void, byteswap, (const u8* src, u8* dst, size_t n, u32 word))                                                       \
  X(void, gather, (const u8* src, const i64* index, u8* dst, size_t rows, size_t row_bytes))                           \
  /* n words to planes of n bytes, one after the other, and from planes anywhere; base: null without a delta */         \
  X(void, split_planes, (const WordOptions&, const u8* src, const u8* base, u8* planes, size_t n))                      \
  X(void, join_planes, (const WordOptions&, const u8* const* planes, const u8* base, u8* dst, size_t n))                \
  /* adds to 256 counters */                                                                                            \
  X(void, count_bytes, (const u8* src, size_t n, u32* counts))                                                          \
  /* returns the bytes written, at most n * 11 / 8 + 8; dst has room for 8 more */                                      \
  X(size_t, prefix_encode, (const PrefixCode*, const u8* src, u8* dst, size_t n))                                       \
  /* four streams of a quarter of the n bytes each; false if one doesn't end where it should */                         \
  X(bool, prefix_decode, (const PrefixTable&, const Stream* streams, u8* dst, size_t n))                                \
  X(size_t, count_ones, (const u8* src, size_t n))                                                                      \
  /* bit i of mask: byte i isn't `common`; those are written to `others`, which has room for n; returns how many */     \
  X(size_t, sparse_split, (u8 common, const u8* src, u8* mask, u8* others, size_t n))                                   \
  /* may read 8 bytes beyond the end of `others` */                                                                     \
  X(void, sparse_join, (u8 common, const u8* mask, const u8* others, u8* dst, size_t n))

// All kernels of one level.
struct Table {
  const char* level;
  int lanes;
  Rows<const Rows<Format>*> families;
  const Rows<MlxRegroup>* regroups;
  const Rows<RoundingRule>* rounding_rules;
#define WB_MEMBER(result, name, parameters) result(*name) parameters;
  WB_KERNELS(WB_MEMBER)
#undef WB_MEMBER
};

// One table a level; each level is a namespace (see simd/level.hpp).
#define WB_DECLARE_LEVEL(level) \
  namespace level {             \
  extern const Table table;     \
  }
WB_DECLARE_LEVEL(baseline)
WB_DECLARE_LEVEL(avx2)
WB_DECLARE_LEVEL(avx512)
#undef WB_DECLARE_LEVEL

}  // namespace weighbridge
