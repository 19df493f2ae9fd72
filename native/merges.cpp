#include "merges.hpp"

#include <cstring>
#include <random>

namespace weighbridge {

TextSet::TextSet(u64 count)
    : seed_(u64(std::random_device()()) << 32 | std::random_device()()), slots_(count + count / 2 + 1) {}

u64 TextSet::hash(std::string_view text) const {
  constexpr u64 kMultiplier = 0x9E3779B97F4A7C15;
  u64 h = seed_ ^ text.size();
  for (size_t at = 0; at < text.size(); at += 8) {
    u64 word = 0;
    std::memcpy(&word, text.data() + at, text.size() - at < 8 ? text.size() - at : 8);
    h = (h ^ word) * kMultiplier;
    h ^= h >> 29;
    h *= seed_ | 1;
    h ^= h >> 32;
  }
  return h;
}

// The slot of a text, or the free slot for it: one is always free.
size_t TextSet::find(std::string_view text) const {
  const u64 h = hash(text);
  const u32 tag = u32(h);
  for (size_t at = size_t((h >> 32) * slots_.size() >> 32);; at = at + 1 < slots_.size() ? at + 1 : 0) {
    const Slot& s = slots_[at];
    if (s.at == kFree) return at;
    if (s.tag != tag) continue;
    u32 size;
    std::memcpy(&size, texts_.data() + s.at, 4);
    if (size == text.size() && !std::memcmp(texts_.data() + s.at + 4, text.data(), size)) return at;
  }
}

bool TextSet::add(std::string_view text) {
  const u64 end = texts_.size() + 4 + text.size();
  if (end >= kFree || slots_.size() >> 32) return false;
  Slot& s = slots_[find(text)];
  if (s.at != kFree) return true;
  const u32 size = u32(text.size());
  s = {u32(hash(text)), u32(texts_.size())};
  texts_.append(reinterpret_cast<const char*>(&size), 4).append(text);
  return true;
}

bool TextSet::contains(std::string_view text) const { return slots_[find(text)].at != kFree; }

namespace {

void append_utf8(std::string& out, u32 c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6);
    out += char(0x80 | (c & 0x3F));
  } else {
    out += char(0xE0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  }
}

void append_u64(std::string& out, u64 n) {
  for (u32 i = 0; i < 8; ++i) out += char(n >> 8 * i & 0xFF);
}

struct Walk {
  std::string_view json;
  const TextSet& tokens;
  size_t at = 0;
  std::string left{}, right{}, both{};

  bool inside() const { return at < json.size(); }
  void space() {
    while (inside() && (json[at] == ' ' || json[at] == '\n' || json[at] == '\t' || json[at] == '\r')) ++at;
  }
  // Steps over a character, and white space on both sides of it.
  bool take(char c) {
    space();
    if (!inside() || json[at] != c) return false;
    ++at;
    space();
    return true;
  }

  bool escaped(std::string& out) {
    if (!inside()) return false;
    const char c = json[at++];
    if (c == '"' || c == '\\' || c == '/') return out += c, true;
    if (c != 'u' || json.size() - at < 4) return false;
    u32 code = 0;
    for (u32 i = 0; i < 4; ++i) {
      const char digit = json[at++];
      const char lower = char(digit | 0x20);
      if (digit >= '0' && digit <= '9') code = code << 4 | u32(digit - '0');
      else if (lower >= 'a' && lower <= 'f') code = code << 4 | u32(lower - 'a' + 10);
      else return false;
    }
    if (code < 0x20 || (code >= 0xD800 && code < 0xE000)) return false;
    return append_utf8(out, code), true;
  }

  // A string; its bytes from 0x80 on are UTF-8 if it is a token.
  bool text(std::string& out) {
    if (!inside() || json[at] != '"') return false;
    ++at;
    out.clear();
    while (inside() && json[at] != '"') {
      const char c = json[at++];
      if (u8(c) < 0x20) return false;
      if (c != '\\') out += c;
      else if (!escaped(out)) return false;
    }
    return inside() && json[at++] == '"';
  }

  bool pair() { return take('[') && text(left) && take(',') && text(right) && take(']'); }
  bool line() {
    if (!text(both)) return false;
    const size_t cut = both.find(' ');
    if (cut == std::string::npos) return false;
    left.assign(both, 0, cut);
    right.assign(both, cut + 1, std::string::npos);
    return true;
  }
  bool known(const std::string& word) const { return tokens.contains(word); }
  bool sound() {
    if (left.empty() || right.empty() || left.find(' ') != left.npos || right.find(' ') != right.npos) return false;
    if (!known(left) || !known(right)) return false;
    return known(both.assign(left).append(right));
  }

  bool all(PlainMerges& out) {
    if (!take('[')) return false;
    if (take(']')) return !inside();
    const bool pairs = inside() && json[at] == '[';
    do {
      if (!(pairs ? pair() : line()) || !sound()) return false;
      append_u64(out.strings, left.size() + 1 + right.size());
      out.strings.append(left).append(1, ' ').append(right);
      ++out.count;
    } while (take(','));
    return take(']') && !inside();
  }
};

}  // namespace

PlainMerges plain_merges(std::string_view json, const TextSet& tokens) {
  PlainMerges out;
  out.plain = Walk{json, tokens}.all(out);
  return out;
}

}  // namespace weighbridge
