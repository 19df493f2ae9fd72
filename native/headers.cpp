#include "headers.hpp"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

namespace weighbridge {
namespace {

using Text = std::string_view;

constexpr Text kMetadata = "__metadata__", kType = "dtype", kShape = "shape", kOffsets = "data_offsets";
constexpr u64 kMost = u64(1) << 60;  // no offset and no size of a real file, and 8 of them fit 64 bits
constexpr size_t kDims = 64;

struct TypeRow {
  u32 bits, word;
  Text name;
};

std::vector<TypeRow> type_rows(Text table) {
  std::vector<TypeRow> out;
  for (size_t at = 0; at + 3 <= table.size();) {
    const size_t n = std::min<size_t>(u8(table[at + 2]), table.size() - at - 3);
    out.push_back({u8(table[at]), u8(table[at + 1]), table.substr(at + 3, n)});
    at += 3 + n;
  }
  return out;
}

// A type and a shape as the header spells them.
struct Spelling {
  Text type, shape;
  bool operator==(const Spelling&) const = default;
};
struct SpellingHash {
  size_t operator()(const Spelling& s) const {
    const std::hash<Text> hash;
    return hash(s.type) * 31 + hash(s.shape);
  }
};

struct Walk {
  Text json;
  std::vector<TypeRow> types;
  PlainHeader& out;
  size_t at = 0;
  std::unordered_map<Spelling, u32, SpellingHash> spelled{};

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

  bool text(Text& out_text) {
    space();
    if (!inside() || json[at] != '"') return false;
    const size_t first = ++at;
    while (inside() && json[at] != '"') {
      const u8 c = u8(json[at]);
      if (c < 0x20 || c > 0x7E || c == '\\') return false;
      ++at;
    }
    if (!inside()) return false;
    out_text = json.substr(first, at++ - first);
    return true;
  }

  bool number(u64& n) {
    const size_t first = at;
    for (n = 0; inside() && json[at] >= '0' && json[at] <= '9'; ++at)
      if ((n = n * 10 + u64(json[at] - '0')) >= kMost) return false;
    return at > first && (json[first] != '0' || at == first + 1);
  }
  template <class Each>
  bool numbers(Each each) {
    if (!take('[')) return false;
    if (take(']')) return true;
    u64 n;
    do {
      if (!number(n) || !each(n)) return false;
    } while (take(','));
    return take(']');
  }

  // The members of an object; `member` reads the value behind a key.
  template <class Member>
  bool object(Member member) {
    if (!take('{')) return false;
    Text key;
    if (!closed()) {
      do {
        if (!text(key) || !take(':') || !member(key)) return false;
      } while (take(','));
      if (!closed()) return false;
    }
    ++at;  // and not over the space behind: behind the last brace only some is plain
    return true;
  }
  bool closed() const { return inside() && json[at] == '}'; }

  bool texts() {
    return out.metadata.empty() && object([&](Text key) {
      Text value;
      if (!text(value)) return false;
      out.metadata.emplace_back(key, value);
      return true;
    });
  }

  bool form(const Spelling& spelling, const std::vector<u64>& shape, u32& found) {
    const auto known = spelled.find(spelling);
    if (known != spelled.end()) return found = known->second, true;
    u32 row = 0;
    while (row < types.size() && types[row].name != spelling.type) ++row;
    if (row == types.size()) return false;
    u64 elements = 1;
    for (const u64 n : shape) {
      if (n && elements >= kMost / n) return false;
      elements *= n;
    }
    if (elements >= kMost / 64 || elements * types[row].bits % 8) return false;
    found = spelled[spelling] = u32(out.forms.size());
    out.forms.push_back({row, shape, elements * types[row].bits / 8});
    return true;
  }

  bool tensor(Text name, std::vector<u64>& shape) {
    PlainTensor t{name, 0, 0, 0};
    Spelling spelling;
    u32 keys = 0, ends = 0;
    shape.clear();
    const auto member = [&](Text key) {
      ++keys;
      const size_t first = at;
      if (key == kType && spelling.type.empty()) return text(spelling.type);
      if (key == kShape && spelling.shape.empty()) {
        const bool read = numbers([&](u64 n) { return shape.push_back(n), shape.size() <= kDims; });
        spelling.shape = json.substr(first, at - first);
        return read;
      }
      return key == kOffsets && numbers([&](u64 n) { return (ends == 0 ? t.begin : t.end) = n, ++ends <= 2; });
    };
    if (!object(member) || keys != 3 || spelling.shape.empty() || ends != 2) return false;  // so each key is there once
    if (!form(spelling, shape, t.form)) return false;
    out.tensors.push_back(t);
    return true;
  }

  bool whole() {
    if (json.empty() || json[0] != '{') return false;
    std::vector<u64> shape;
    bool described = false;
    const bool read = object([&](Text key) {
      if (key.empty()) return false;
      if (key != kMetadata) return tensor(key, shape);
      return !std::exchange(described, true) && texts();
    });
    return read && json.find_first_not_of(' ', at) == Text::npos;
  }

  // Puts the tensors in the order of their bytes; false unless they cover the data without hole or overlap.
  bool placed(u64 start, u64 size) {
    const auto before = [](const PlainTensor& a, const PlainTensor& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    };
    if (!std::is_sorted(out.tensors.begin(), out.tensors.end(), before))
      std::stable_sort(out.tensors.begin(), out.tensors.end(), before);
    u64 end = 0;
    for (const PlainTensor& t : out.tensors) {
      const TensorForm& f = out.forms[t.form];
      if (t.begin != end || t.end - t.begin != f.nbytes) return false;
      if (f.nbytes && (start + t.begin) % types[f.type].word) return false;
      end = t.end;
    }
    return end == size && (start % 8 == 0 || out.tensors.empty());
  }
};

}  // namespace

PlainHeader plain_header(std::string_view json, std::string_view types, u64 start, u64 size) {
  PlainHeader out;
  Walk walk{json, type_rows(types), out};
  out.plain = walk.whole() && walk.placed(start, size);
  return out;
}

}  // namespace weighbridge
