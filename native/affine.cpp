// MLX affine: x = scale * code + bias, both shared by a group of 32, 64 or 128 neighbours along the last axis.
//
// Codes are one little-endian bit stream (mlx/backend/cpu/quantized.cpp; the u32 words of the file are its bytes):
// element i has bits [i * b, i * b + b). Eight codes are b whole bytes, so 8 is the step, and 32 codes are b u32 words.
//
//   b = 4:  byte 0          byte 1             b = 3:  bytes 0..2, as a 24-bit number
//           [q1 | q0]       [q3 | q2]                  [q7 q6 q5 q4 q3 q2 q1 q0]
//
// Groups follow each other without a gap and rows are whole groups, so a matrix is one run of groups.
// The sum is in f32 with one rounding a step (MLX itself computes in the type of the scales).
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

template <int B>
void decode(const Affine& how, const u8* WB_RESTRICT weight, const u8* WB_RESTRICT scales, const u8* WB_RESTRICT biases,
            u8* WB_RESTRICT dst, size_t groups) {
  const Format& type = *how.parameters;
  const size_t group = how.group;
  u8 s[GROUPS * 4], b[GROUPS * 4], codes[32];
  for (size_t start = 0; start < groups; start += GROUPS) {
    const size_t m = groups - start < GROUPS ? groups - start : GROUPS;
    type.decode(scales + start * type.size, s, m);
    type.decode(biases + start * type.size, b, m);
    for (size_t g = 0; g < m; ++g) {
      const float scale = load<float>(s, g), bias = load<float>(b, g);
      for (size_t at = 0; at < group; at += 32, weight += 4 * B, dst += 32 * 4) {
        unpack32<B>(weight, codes);
        for (size_t j = 0; j < 32; ++j) store(dst, j, float(int(codes[j])) * scale + bias);
      }
    }
  }
}

}  // namespace

void affine_decode(const Affine& how, const u8* weight, const u8* scales, const u8* biases, u8* f32, size_t groups) {
  using Decode = void (*)(const Affine&, const u8*, const u8*, const u8*, u8*, size_t);
  static constexpr Decode by_bits[9] = {nullptr,   nullptr,   decode<2>, decode<3>, decode<4>,
                                        decode<5>, decode<6>, nullptr,   decode<8>};
  by_bits[how.bits](how, weight, scales, biases, f32, groups);
}

}  // namespace weighbridge::WB_LEVEL
