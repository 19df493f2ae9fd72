// Names of fixed-size integers that every native file uses.
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
using std::size_t;

// Little-endian scalars inside a block, which may stand at any address. `load` (simd/level.hpp) reads them.
struct LeF16 {
  u8 bytes[2];
};
struct LeF32 {
  u8 bytes[4];
};
struct LeU16 {
  u8 bytes[2];
};
struct LeI16 {
  u8 bytes[2];
};
struct LeU32 {
  u8 bytes[4];
};

}  // namespace weighbridge
