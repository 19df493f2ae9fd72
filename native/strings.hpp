// Walking an array of GGUF strings: each is a length (u32 in version 1, u64 since) and that many bytes.
#pragma once

#include "kernels.hpp"

namespace weighbridge {

struct StringWalk {
  const u8* data;
  u64 size;
  u64 at;       // the offset of the next string
  u32 width;    // bytes of a length: 4 or 8
  bool big_endian;

  // Returns the next string's bytes and skips it. False, without a step, if it isn't wholly inside: the caller may
  // have more bytes. A length is compared with the bytes left, never added to a position, so no length can wrap.
  bool next(const u8*& text, u64& length);
};

// Whether the next `count` strings are all whole, each other than the rest, and none empty or with a NUL in it.
bool distinct_words(StringWalk walk, u64 count);

}  // namespace weighbridge
