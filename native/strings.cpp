#include "strings.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

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

bool distinct_words(StringWalk walk, u64 count) {
  std::unordered_set<std::string_view> seen;
  seen.reserve(std::min(count, walk.size / 8));
  const u8* text;
  u64 length;
  for (u64 done = 0; done < count; ++done) {
    if (!walk.next(text, length) || !length || std::memchr(text, 0, length)) return false;
    if (!seen.emplace(reinterpret_cast<const char*>(text), length).second) return false;
  }
  return true;
}

}  // namespace weighbridge
