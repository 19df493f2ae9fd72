// Integer codes with a scale and an offset for each group of neighbours along the last axis.
//
//   MLX affine                        x = scale * code + bias       bias: of the scale's type
//   GPTQ, AWQ, compressed-tensors     x = scale * (code - zero)     zero: u8
//
// Codes are one little-endian bit stream (mlx/backend/cpu/quantized.cpp; the u32 words of the file are its bytes):
// element i has bits [i * b, i * b + b). Eight codes are b whole bytes, so 8 is the step, and 32 codes are b u32 words.
//
//   b = 4:  byte 0          byte 1             b = 3:  bytes 0..2, as a 24-bit number
//           [q1 | q0]       [q3 | q2]                  [q7 q6 q5 q4 q3 q2 q1 q0]
//
// Groups follow each other without a gap and rows are whole groups, so a matrix is one run of groups.
// All in f32, with one rounding a step (the libraries compute in the type of the scales); code - zero is exact.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Eight codes of B bits to eight bytes, by halving: the upper half of every part moves to the middle of the part it
// will fill.   8 B bits -> 2 x 4 B in 32 -> 4 x 2 B in 16 -> 8 x B in 8
template <int B>
WB_INLINE u64 spread8(u64 x) {
  constexpr auto ones = [](int n) { return (u64(1) << n) - 1; };
  constexpr u64 half = ones(4 * B), quarter = ones(2 * B) * 0x0000000100000001, each = ones(B) * 0x0001000100010001;
  x = (x & half) | ((x & ~half) << (32 - 4 * B));
  x = (x & quarter) | ((x & ~quarter) << (16 - 2 * B));
  return (x & each) | ((x & ~each) << (8 - B));
}

// B bytes as a number. In parts that fit a register: a copy of odd size goes through memory and stalls.
template <int B>
WB_INLINE u64 load_bytes(const u8* p) {
  if constexpr (B == 1) return *p;
  if constexpr (B == 7) return load_bytes<3>(p) | u64(load<u32>(p + 3)) << 24;
  if constexpr (B == 8) return load<u64>(p);
  if constexpr (B == 2) return load<u16>(p);
  if constexpr (B == 3) return load<u16>(p) | u64(p[2]) << 16;
  if constexpr (B == 4) return load<u32>(p);
  if constexpr (B == 5) return load<u32>(p) | u64(p[4]) << 32;
  if constexpr (B == 6) return load<u32>(p) | u64(load<u16>(p + 4)) << 32;
}

// 32 codes of B bits from 4 * B bytes, one a byte.
template <int B>
WB_INLINE void unpack32(const u8* WB_RESTRICT src, u8* WB_RESTRICT codes) {
  for (size_t i = 0; i < 4; ++i) store(codes, i, spread8<B>(load_bytes<B>(src + i * B)));
}

constexpr size_t GROUPS = 64;  // parameters are widened this many at a time

template <int B, bool Zeros>
void decode(const Affine& how, const u8* WB_RESTRICT codes, const u8* WB_RESTRICT scales, const u8* WB_RESTRICT offsets,
            u8* WB_RESTRICT dst, size_t groups) {
  const Format& type = *how.parameters;
  const size_t group = how.group;
  u8 s[GROUPS * 4], b[GROUPS * 4], step[32];
  for (size_t start = 0; start < groups; start += GROUPS) {
    const size_t m = groups - start < GROUPS ? groups - start : GROUPS;
    type.decode(scales + start * type.size, s, m);
    if constexpr (!Zeros) type.decode(offsets + start * type.size, b, m);
    for (size_t g = 0; g < m; ++g) {
      const float scale = load<float>(s, g);
      const auto value = [&](u8 code) {
        if constexpr (Zeros) return float(int(code) - int(offsets[start + g])) * scale;
        else return float(int(code)) * scale + load<float>(b, g);
      };
      if constexpr (B == 8) {  // a byte each: groups of any size
        for (size_t j = 0; j < group; ++j) store(dst, j, value(codes[j]));
        codes += group, dst += group * 4;
      } else {
        for (size_t at = 0; at < group; at += 32, codes += 4 * B, dst += 32 * 4) {
          unpack32<B>(codes, step);
          for (size_t j = 0; j < 32; ++j) store(dst, j, value(step[j]));
        }
      }
    }
  }
}

template <int B>
void unpack(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, spread8<B>(load_bytes<B>(src + i * B)));
}

}  // namespace

void affine_decode(const Affine& how, const u8* codes, const u8* scales, const u8* offsets, u8* f32, size_t groups) {
  using Decode = void (*)(const Affine&, const u8*, const u8*, const u8*, u8*, size_t);
  static constexpr Decode by_bits[2][9] = {
      {nullptr, decode<1, false>, decode<2, false>, decode<3, false>, decode<4, false>, decode<5, false>,
       decode<6, false>, decode<7, false>, decode<8, false>},
      {nullptr, decode<1, true>, decode<2, true>, decode<3, true>, decode<4, true>, decode<5, true>, decode<6, true>,
       decode<7, true>, decode<8, true>}};
  by_bits[how.zeros][how.bits](how, codes, scales, offsets, f32, groups);
}

void unpack_codes(int bits, const u8* src, u8* dst, size_t n) {
  using Unpack = void (*)(const u8*, u8*, size_t);
  static constexpr Unpack by_bits[9] = {nullptr,   unpack<1>, unpack<2>, unpack<3>, unpack<4>,
                                        unpack<5>, unpack<6>, unpack<7>, unpack<8>};
  by_bits[bits](src, dst, n);
}

}  // namespace weighbridge::WB_LEVEL
