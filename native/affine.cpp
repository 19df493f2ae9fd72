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

// 32 codes of B bits from 4 * B bytes.
template <int B>
WB_INLINE void unpack32(const u8* WB_RESTRICT src, u8* WB_RESTRICT codes) {
  if constexpr (B == 8) {
    memcpy(codes, src, 32);
  } else if constexpr (B == 4) {  // the common one, in whole vectors
    for (size_t j = 0; j < 16; ++j) {
      codes[2 * j] = src[j] & 15;
      codes[2 * j + 1] = src[j] >> 4;
    }
  } else {
    constexpr u64 mask = (u64(1) << B) - 1;
    for (size_t at = 0; at < 32; at += 8, src += B) {
      u64 bits = 0;
      memcpy(&bits, src, B);
      for (int k = 0; k < 8; ++k) codes[at + size_t(k)] = u8((bits >> (k * B)) & mask);
    }
  }
}

constexpr size_t GROUPS = 64;  // parameters are widened this many at a time

template <int B>
void decode(const Affine& how, const u8* WB_RESTRICT weight, const u8* WB_RESTRICT scales, const u8* WB_RESTRICT biases,
            u8* WB_RESTRICT dst, size_t groups) {
  const Format& type = *how.parameters;
  u8 s[GROUPS * 4], b[GROUPS * 4], codes[32];
  for (size_t start = 0; start < groups; start += GROUPS) {
    const size_t m = groups - start < GROUPS ? groups - start : GROUPS;
    type.decode(scales + start * type.size, s, m);
    type.decode(biases + start * type.size, b, m);
    for (size_t g = 0; g < m; ++g) {
      const float scale = load<float>(s, g), bias = load<float>(b, g);
      for (size_t at = 0; at < how.group; at += 32, weight += 4 * B, dst += 32 * 4) {
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
