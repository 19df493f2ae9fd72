// Codes that are places in a table of values.
#pragma once

#include "blocks.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl; by Iwan Kawrakow, MIT).
constexpr i8 IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the values of FP4 E2M1 (OCP MX). ggml's table is of integers: code 8 is 0 and not -0.
constexpr i8 FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Looks up sixteen indices in a table. (The baseline has no instruction for it: see decode_nibbles.)
#if WB_LANES > 4
WB_INLINE B16 look_up(B16 places, const i8 (&values)[16]) {
  const B16 table = load<B16>(reinterpret_cast<const u8*>(values));
  return bit_cast<B16>(_mm_shuffle_epi8(bit_cast<__m128i>(table), bit_cast<__m128i>(places)));
}
#endif

// N elements, 16 or 32, from N / 2 bytes, low nibbles first.
template <size_t N>
WB_INLINE void decode_nibbles(const u8* WB_RESTRICT qs, float d, const i8 (&values)[16], u8* WB_RESTRICT dst) {
#if WB_LANES > 4
  if constexpr (N == 16) {
    const u64 q = load<u64>(qs), nibbles = 0x0F0F0F0F0F0F0F0Fu;
    put_scaled(look_up(join(q & nibbles, q >> 4 & nibbles), values), d, dst);
  } else {
    const B16 q = load16(qs);
    put_scaled(look_up(q & splat16(15), values), d, dst);
    put_scaled(look_up(q >> 4, values), d, dst + 64);
  }
#else  // Sixteen products, then only look-ups.
  float products[16];
  for (size_t q = 0; q < 16; ++q) products[q] = float(values[q]) * d;
  for (size_t j = 0; j < N / 2; ++j) store(dst, j, products[qs[j] & 15]);
  for (size_t j = 0; j < N / 2; ++j) store(dst, j + N / 2, products[qs[j] >> 4]);
#endif
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
