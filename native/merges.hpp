// A first walk over the merges of a tokenizer.json: are they spelled as writers spell them, and all of known tokens?
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace weighbridge {

// A set of texts, all in one piece of memory: half a million merges ask three times each.
class TextSet {
 public:
  explicit TextSet(u64 count);       // how many there will be at most
  bool add(std::string_view text);  // false if it is full
  bool contains(std::string_view text) const;

 private:
  struct Slot {
    u32 tag = 0, at = kFree;  // a part of the hash; where in `texts_` its length and bytes are
  };
  static constexpr u32 kFree = ~u32(0);

  u64 hash(std::string_view text) const;
  size_t find(std::string_view text) const;

  u64 seed_;  // other each time, so that no file can name texts that all meet
  std::vector<Slot> slots_;
  std::string texts_;
};

// `plain`: false of any merges that the walk doesn't let pass; then the rest means nothing. `strings`: "left right" of
// each as GGUF stores strings, a u64 length and the text.
struct PlainMerges {
  bool plain = false;
  u64 count = 0;
  std::string strings;
};

// The JSON of an array of merges, all ["left", "right"] or all "left right": no part empty or with a space in it, no
// escapes but \" \\ \/ and \uXXXX of one character, both parts and what they make in `tokens`. Any other merges may be
// as good: models/tokenizer/formats/merges.py decides then.
PlainMerges plain_merges(std::string_view json, const TextSet& tokens);

}  // namespace weighbridge
