// Codes of B bits in one little-endian bit stream: element i has bits [i * B, i * B + B). Eight codes are B whole bytes, so
// 8 is the step; 32 codes are B u32 words.
//
//   B = 4:  byte 0          byte 1             B = 3:  bytes 0..2, as a 24-bit number
//           [q1 | q0]       [q3 | q2]                  [q7 q6 q5 q4 q3 q2 q1 q0]
#pragma once

#include "bytes16.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Eight codes of B bits to eight bytes, by halving: the upper half of every part moves to the middle of the part it
// will fill.   8 B bits -> 2 x 4 B in 32 -> 4 x 2 B in 16 -> 8 x B in 8
template <int B>
WB_INLINE u64 spread8(u64 x) {
  if constexpr (B == 8) return x;
  constexpr auto ones = [](int n) { return (u64(1) << n) - 1; };
  constexpr u64 half = ones(4 * B), quarter = ones(2 * B) * 0x0000000100000001, each = ones(B) * 0x0001000100010001;
  x = (x & half) | ((x & ~half) << (32 - 4 * B));
  x = (x & quarter) | ((x & ~quarter) << (16 - 2 * B));
  return (x & each) | ((x & ~each) << (8 - B));
}

// The way back.
template <int B>
WB_INLINE u64 gather8(u64 x) {
  if constexpr (B == 8) return x;
  constexpr auto ones = [](int n) { return (u64(1) << n) - 1; };
  constexpr u64 each = ones(B) * 0x0001000100010001, quarter = ones(2 * B) * 0x0000000100000001, half = ones(4 * B);
  x = (x & each) | ((x >> (8 - B)) & (each << B));
  x = (x & quarter) | ((x >> (16 - 2 * B)) & (quarter << (2 * B)));
  return (x & half) | ((x >> (32 - 4 * B)) & (half << (4 * B)));
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

// And to memory.
template <int B>
WB_INLINE void store_bytes_of(u8* p, u64 x) {
  memcpy(p, &x, B);
}

// Sixteen codes of B bits, a byte each.
template <int B>
WB_INLINE B16 stream16(const u8* p) {
  if constexpr (B == 8) return load16(p);
  return join(spread8<B>(load_bytes<B>(p)), spread8<B>(load_bytes<B>(p + B)));
}

// And as a stream.
template <int B>
WB_INLINE void put_stream16(B16 codes, u8* p) {
  const Halves h = halves(codes);
  store_bytes_of<B>(p, gather8<B>(h.first));
  store_bytes_of<B>(p + B, gather8<B>(h.second));
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
