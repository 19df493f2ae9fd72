#include "strings.hpp"

namespace weighbridge {

bool StringWalk::next(const u8*& text, u64& length) {
  const u64 left = size - at;
  if (left < width) return false;
  u64 n = 0;
  for (u32 i = 0; i < width; ++i) {
    const u32 shift = 8 * (big_endian ? width - 1 - i : i);
    n |= u64(data[at + i]) << shift;
  }
  if (n > left - width) return false;
  text = data + at + width;
  length = n;
  at += width + n;
  return true;
}

}  // namespace weighbridge
