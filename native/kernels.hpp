// What the levels offer and the door calls: tables of plain functions over raw bytes. No Python, no allocation, no
// exceptions. Sizes were checked by the caller; pointers may have any alignment; source and destination don't overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weighbridge {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

// What a narrowing lost. overflow: finite, became Inf or NaN. underflow: not zero, became zero. Of a block type the
// same is counted of its f16 scales.
// `refused` is the first block on which llama.cpp's quantizer stops the process (its bytes mean nothing then), counted by
// the kernels that can refuse in `seen`.
struct Counts {
  u64 overflow = 0;
  u64 underflow = 0;
  u64 seen = 0;
  u64 refused = ~u64(0);
};

// What stands in a run of floats. minimum and maximum are over the finite ones (+Inf and -Inf where there are none).
struct Stats {
  u64 nan = 0;
  u64 inf = 0;
  double minimum = 0;
  double maximum = 0;
};

// Whole rows of f32, and one weight for each column (an importance matrix): rows * row_atoms atoms.
struct Weighted {
  const u8* f32;
  const u8* weights;  // row_atoms * Format::block of f32
  size_t rows;
  size_t row_atoms;
};

// One stored number type: `block` elements in `size` bytes (an atom). n counts atoms. Null: that way isn't offered.
// `encode_weighted` is null where weights mean nothing to a type, `encode` where it can't do without.
struct Format {
  const char* name;  // as in base/dtypes.py
  u32 block;
  u32 size;
  void (*decode)(const u8* src, u8* f32, size_t n);
  void (*encode)(const u8* f32, u8* dst, size_t n, Counts&);
  // f64 only: to f32 with round-to-odd, so that a second rounding to a narrower type gives what one rounding would.
  void (*decode_odd)(const u8* src, u8* f32, size_t n);
  u32 scale_count;  // scales in a block that can go wrong (NaN, Inf, huge), and these as f32, block by block
  void (*scales)(const u8* src, u8* f32, size_t n);
  void (*encode_weighted)(const Weighted& rows, u8* dst, Counts&) = nullptr;
};

// Formats of one family of kernels.
struct Family {
  const Format* formats;
  size_t count;
};

struct Affine {
  int bits;                  // 1 to 8
  size_t group;              // elements that share scale and offset; a multiple of 32 where bits < 8
  const Format* parameters;  // type of the scales, and of the offsets unless these are
  bool zeros;                // zero points, u8, taken from the code before it is scaled
};

// Codes of four bits that are places in a table, two a byte.
struct Lookup {
  const u8* table;  // sixteen f32
  size_t group;     // elements that share a scale, a multiple of 16
  bool high_first;  // of two codes, the high nibble is the first
};

struct Ordered {
  size_t rows, columns, groups;
  size_t stride;    // bytes from a row of codes to the next
  const u8* index;  // u32: the group of each column, below `groups`
};

// Codes as one bit stream, and the parameters of each `group` of them.
struct Parts {
  int bits;
  size_t group;
  const u8* codes;
  const u8* scales;
  const u8* offsets;  // biases, or zero points of u8; null where the type has neither
};

// A block type whose codes and parameters MLX holds too, laid otherwise (regroup.cpp).
struct Regular {
  const char* name;
  u32 block, size;  // elements and bytes of a block
  int bits;         // of a code in MLX's stream
  u32 group;        // elements with parameters of their own
  u32 parameter;    // bytes of a scale, and of a bias
  bool biases;
  void (*split)(const u8* src, size_t n, u8* codes, u8* scales, u8* biases);  // what is null isn't wanted
  void (*join)(const Parts& from, u8* dst, size_t groups);  // of any bits and groups of whole blocks; null: isn't offered
  u32 offset;  // bytes of an offset of a group to be joined: 2 a bias in f16, 1 a zero point, 0 none
};

struct Regulars {
  const Regular* rows;
  size_t count;
};

// Rows of `columns`, of which each `width` share a scale; the last of a row may be fewer.
struct Tiles {
  size_t rows, columns, width;
};

struct Rounding {
  Tiles tiles;
  int bits;  // of whole numbers, 1 to 8
};

// A way to round floats to codes (rounding.cpp), of `bits` bits each. Of those that share a scale: whole sixteens unless
// codes are bytes.
struct RoundingRule {
  using Run = void (*)(const Rounding&, const u8* f32, const u8* scales, const u8* zeros, u8* codes);
  const char* name;
  int bits;
  Run in[3];       // each step in F32, F16, BF16; null: isn't offered
  Run multiplied;  // in F32, the scale multiplied
};

struct RoundingRules {
  const RoundingRule* rows;
  size_t count;
};

// All kernels of one level.
struct Table {
  const char* level;
  int lanes;
  const Family* const* families;
  size_t family_count;
  const Regulars* regulars;
  void (*cast)(const Format& from, const Format& to, const u8* src, u8* dst, size_t n, Counts&);
  void (*stats)(const Format& type, const u8* src, size_t n, Stats&);
  void (*scale_stats)(const Format& type, const u8* src, size_t n, Stats&);
  u64 (*nonfinite)(const u8* f32, size_t n);
  void (*affine_decode)(const Affine&, const u8* codes, const u8* scales, const u8* offsets, u8* f32, size_t groups);
  void (*ordered_decode)(const Ordered&, const u8* codes, const u8* scales, const u8* zeros, u8* f32);  // scales: f32
  void (*table_decode)(const Lookup&, const u8* codes, const u8* scales, u8* f32, size_t groups);  // scales: f32
  // codes: null where only the parameters are wanted.
  void (*affine_encode)(const Affine&, const u8* f32, u8* codes, u8* scales, u8* biases, size_t groups);
  const RoundingRules* rounding_rules;  // scales and zeros (null: none): f32
  void (*extremes)(const Tiles&, const u8* f32, u8* low, u8* high);  // f32; NaN where one is
  void (*scaled_decode)(const Format& type, const Tiles&, const u8* src, const u8* scales, u8* f32);  // scales: f32
  void (*unpack_codes)(int bits, const u8* src, u8* dst, size_t n);  // n times 8 codes, to a byte each
  void (*pack_codes)(int bits, const u8* src, u8* dst, size_t n);    // the way back
  void (*byteswap)(const u8* src, u8* dst, size_t n, u32 word);  // src == dst is fine
  void (*gather)(const u8* src, const i64* index, u8* dst, size_t rows, size_t row_bytes);
};

// The families, by level; each family is one file and each level one namespace (see level.hpp).
#define WB_DECLARE_LEVEL(level) \
  namespace level {             \
  extern const Table table;     \
  }
WB_DECLARE_LEVEL(baseline)
WB_DECLARE_LEVEL(avx2)
WB_DECLARE_LEVEL(avx512)

}  // namespace weighbridge
