// Walking an array of GGUF strings: each is a length (u32 in version 1, u64 since) and that many bytes.
#pragma once

#include "kernels.hpp"

namespace weighbridge {

struct StringWalk {
  const u8* data;
  u64 size;
  u64 at;       // where the next string begins
  u32 width;    // bytes of a length: 4 or 8
  bool big_endian;

  // The next string's bytes, and step over it. False, without a step, where it isn't wholly inside: the caller may
  // have more bytes. A length is compared with what is left, never added to a position, so no length can wrap.
  bool next(const u8*& text, u64& length);
};

// Whether the next `count` strings are all whole, each other than the rest, and none empty or with a NUL in it.
bool distinct_words(StringWalk walk, u64 count);

}  // namespace weighbridge
