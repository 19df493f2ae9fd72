#include "pickles.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace weighbridge {
namespace {

using Text = std::string_view;

// The kind of a value, as far as the walk knows it.
enum Kind : u8 { PLAIN, NONE, FLAG, COUNT, TEXT, LIST, DICT, SET, TUPLE, NAME, ORDERED, STORAGE, TENSOR };

// `value`: of TEXT its place and length; of COUNT the number; of TUPLE its place among the parts, of DICT and ORDERED
// among the objects, of NAME among the names.
struct Cell {
  Kind kind = PLAIN;
  u32 length = 0;  // of TEXT and TUPLE
  u64 value = 0;
};

// Changes of a dict.
enum Flag : u8 { FILLED = 1, SEALED = 2, BUILT = 4 };  // other keys than _metadata; it is a state; it has one

constexpr u64 kHashed = 1 << 20;  // parts of keys: beyond, sharing may make them exponentially many
constexpr size_t kDims = 64;
constexpr Text kMetadata = "_metadata", kStorage = "storage";

struct Row {
  u8 kind, width;
  Text arguments, module, name;
};

// The rows of a table of names.
struct Names {
  Text table;
  size_t at = 0;

  Text text() {
    const size_t n = std::min<size_t>(u8(table[at]), table.size() - at - 1);
    at += 1 + n;
    return table.substr(at - n, n);
  }

  bool next(Row& row) {
    if (table.size() - at < 5) return false;
    row.kind = u8(table[at]), row.width = u8(table[at + 1]);
    at += 2;
    row.arguments = text();
    if (at >= table.size()) return false;
    row.module = text();
    if (at >= table.size()) return false;
    row.name = text();
    return true;
  }
};

struct Walk {
  const u8* data;
  size_t size;
  Text names;
  std::vector<NamedStorage>& storages;
  size_t at = 0, frame = 0;
  u64 hashed = 0;
  std::vector<Cell> stack{}, memo{}, parts{};  // parts: of each tuple its weight, then its items
  std::vector<u32> marks{};
  std::vector<u8> objects{};

  size_t left() const { return size - at; }
  size_t base() const { return marks.empty() ? 0 : marks.back(); }
  size_t above() const { return stack.size() - base(); }  // values since the last mark
  Cell& top(size_t below = 0) { return stack[stack.size() - 1 - below]; }
  Text text(const Cell& c) const { return {reinterpret_cast<const char*>(data) + c.value, c.length}; }

  bool push(Kind kind, u64 value = 0, u32 length = 0) {
    stack.push_back({kind, length, value});
    return true;
  }
  bool pop(size_t count) {
    if (above() < count) return false;
    stack.resize(stack.size() - count);
    return true;
  }
  bool fresh(Kind kind) {
    objects.push_back(0);
    return push(kind, objects.size() - 1);
  }

  u64 number(size_t width) {
    u64 n = 0;
    for (size_t i = 0; i < width; ++i) n |= u64(data[at + i]) << (8 * i);
    at += width;
    return n;
  }
  bool integer(size_t width) { return left() >= width && push(COUNT, number(width)); }
  bool signed32() {
    if (left() < 4) return false;
    const u64 n = number(4);
    return n >> 31 ? push(PLAIN) : push(COUNT, n);
  }
  bool long1() {  // a longer one may be torch's magic number
    if (!left() || data[at] > 9) return false;
    const size_t width = size_t(number(1));
    if (width > left()) return false;
    if (width == 0) return push(COUNT, 0);
    if (width > 8 || data[at + width - 1] >> 7) return skip(width) && push(PLAIN);
    return integer(width);
  }

  bool skip(u64 count) {
    if (count > left()) return false;
    at += count;
    return true;
  }
  bool bytes(size_t width) {
    if (left() < width) return false;
    const u64 n = number(width);
    return skip(n) && push(PLAIN);
  }
  // ASCII only: the machine checks the encoding of other text.
  bool text(size_t width) {
    if (left() < width) return false;
    const u64 n = number(width);
    const u8* start = data + at;
    if (!skip(n)) return false;
    u8 bits = 0;
    for (u64 i = 0; i < n; ++i) bits |= start[i];
    return !(bits & 0x80) && push(TEXT, at - n, u32(n));
  }

  // ---- tuples

  u64 weight(const Cell& c) const { return c.kind == TUPLE ? parts[c.value].value : 1; }
  const Cell* items(const Cell& tuple) const { return parts.data() + tuple.value + 1; }

  bool tuple(size_t count) {
    if (above() < count) return false;
    const size_t place = parts.size(), first = stack.size() - count;
    parts.emplace_back();
    u64 sum = 1;
    for (size_t i = first; i < stack.size(); ++i) {
      sum = std::min(sum + weight(stack[i]), kHashed + 1);
      parts.push_back(stack[i]);
    }
    parts[place].value = sum;
    stack.resize(first);
    return push(TUPLE, place, u32(count));
  }

  bool is_counts(const Cell& c) const {
    if (c.kind != TUPLE || c.length > kDims) return false;
    return std::all_of(items(c), items(c) + c.length, [](const Cell& n) { return n.kind == COUNT; });
  }

  bool hash(const Cell& key) {
    hashed += key.kind == TUPLE ? weight(key) : 0;
    return hashed <= kHashed;
  }

  // ---- marks, lists, dicts, sets

  // Removes the last mark and counts the values above it; false without a mark.
  bool pop_mark(size_t& count) {
    if (marks.empty()) return false;
    count = above();
    marks.pop_back();
    return true;
  }
  bool marked_tuple() {
    size_t count;
    return pop_mark(count) && tuple(count);
  }
  bool marked_list(Kind kind) {
    size_t count;
    if (!pop_mark(count)) return false;
    for (size_t i = 0; kind == SET && i < count; ++i)
      if (!hash(top(i))) return false;
    stack.resize(stack.size() - count);
    return push(kind == SET ? PLAIN : kind);
  }
  bool marked_dict() {
    size_t count;
    if (!pop_mark(count) || count % 2) return false;
    u8 flags = 0;
    for (size_t i = 1; i < count; i += 2)
      if (!key(top(i), flags)) return false;
    stack.resize(stack.size() - count);
    objects.push_back(flags);
    return push(DICT, objects.size() - 1);
  }
  bool key(const Cell& c, u8& flags) {
    if (c.kind != TEXT || text(c) != kMetadata) flags |= FILLED;
    return hash(c);
  }
  bool extend(Kind kind, bool many) {
    size_t count = 1;
    if (many ? !pop_mark(count) : above() < 1) return false;
    if (above() < count + 1 || top(count).kind != kind) return false;
    for (size_t i = 0; kind == SET && i < count; ++i)
      if (!hash(top(i))) return false;
    return pop(count);
  }
  bool set_pairs(bool many) {
    size_t count = 2;
    if (many ? !pop_mark(count) : above() < 2) return false;
    if (count % 2 || above() < count + 1) return false;
    const Cell& target = top(count);
    if ((target.kind != DICT && target.kind != ORDERED) || objects[target.value] & SEALED) return false;
    for (size_t i = 1; i < count; i += 2)
      if (!key(top(i), objects[target.value])) return false;
    return pop(count);
  }

  // ---- the memo

  bool put(u64 place) {
    if (!above() || place > memo.size()) return false;
    if (place == memo.size())
      memo.push_back(top());
    else
      memo[place] = top();
    return true;
  }
  bool get(u64 place) {
    if (place >= memo.size()) return false;
    stack.push_back(memo[place]);
    return true;
  }

  // ---- names and calls

  // Pushes the row with this name.
  bool named(Text module, Text name) {
    Names rows{names};
    Row row;
    for (size_t place = 0; rows.next(row); place = rows.at)
      if (row.module == module && row.name == name) return push(NAME, place);
    return false;
  }
  Row row(const Cell& c) const {
    Names rows{names, size_t(c.value)};
    Row found{};
    rows.next(found);
    return found;
  }
  bool line(Text& out) {
    const u8* end = static_cast<const u8*>(std::memchr(data + at, '\n', std::min<size_t>(left(), 256)));
    if (!end) return false;
    out = {reinterpret_cast<const char*>(data) + at, size_t(end - data) - at};
    return skip(out.size() + 1);
  }
  bool global() {
    Text module, name;
    return line(module) && line(name) && named(module, name);
  }
  bool stack_global() {
    if (above() < 2 || top().kind != TEXT || top(1).kind != TEXT) return false;
    const Text module = text(top(1)), name = text(top());
    return pop(2) && named(module, name);
  }

  bool fits(char word, const Cell& c) const {
    switch (word) {
      case 's': return c.kind == STORAGE;
      case 'c': return c.kind == COUNT;
      case 't': return is_counts(c);
      case 'b': return c.kind == FLAG;
      case 'h': return c.kind == ORDERED || c.kind == NONE;
      case 'T': return c.kind == TENSOR;
      default: return false;
    }
  }
  bool reduce() {
    if (above() < 2 || top().kind != TUPLE || top(1).kind != NAME) return false;
    const Cell args = top();
    const Row function = row(top(1));
    stack.resize(stack.size() - 2);
    if (function.kind == 'O') return !args.length && fresh(ORDERED);
    if (function.kind != 'C' || args.length != function.arguments.size()) return false;
    for (size_t i = 0; i < args.length; ++i)
      if (!fits(function.arguments[i], items(args)[i])) return false;
    return push(TENSOR);
  }

  // ("storage", class, key, location, elements)
  bool persistent() {
    if (!above() || top().kind != TUPLE || top().length != 5) return false;
    const Cell* id = items(top());
    if (id[0].kind != TEXT || text(id[0]) != kStorage || id[1].kind != NAME || id[2].kind != TEXT ||
        id[3].kind != TEXT || id[4].kind != COUNT)
      return false;
    const Row cls = row(id[1]);
    if (cls.kind != 'S' || id[4].value > (u64(1) << 58)) return false;
    storages.push_back({u32(id[2].value), id[2].length, id[4].value * cls.width});
    return pop(1) && push(STORAGE);
  }

  // A state dict's `_metadata`.
  bool build() {
    if (above() < 2 || top().kind != DICT || top(1).kind != ORDERED) return false;
    u8 &state = objects[top().value], &made = objects[top(1).value];
    if (state & FILLED || made & BUILT) return false;
    state |= SEALED, made |= BUILT;
    return pop(1);
  }

  bool enter() {
    if (left() < 8 || frame) return false;
    const u64 length = number(8);
    if (!length || length > left()) return false;
    frame = at + size_t(length);
    return true;
  }

  // Runs one opcode; false if the machine has to decide.
  bool step(u8 code) {
    size_t count;
    switch (code) {
      case 'N': return push(NONE);
      case 0x88: case 0x89: return push(FLAG);
      case 'K': return integer(1);
      case 'M': return integer(2);
      case 'J': return signed32();
      case 'G': return skip(8) && push(PLAIN);
      case 0x8a: return long1();
      case 'X': return text(4);
      case 0x8c: return text(1);
      case 'C': return bytes(1);
      case 'B': return bytes(4);
      case ']': return push(LIST);
      case '}': return fresh(DICT);
      case ')': return tuple(0);
      case 0x8f: return push(SET);
      case '(': marks.push_back(u32(stack.size())); return true;
      case 't': return marked_tuple();
      case 'l': return marked_list(LIST);
      case 'd': return marked_dict();
      case 0x91: return marked_list(SET);
      case 0x85: case 0x86: case 0x87: return tuple(code - 0x84u);
      case 'a': return extend(LIST, false);
      case 'e': return extend(LIST, true);
      case 's': return set_pairs(false);
      case 'u': return set_pairs(true);
      case 0x90: return extend(SET, true);
      case '0': return pop(1);
      case '1':
        if (!pop_mark(count)) return false;
        stack.resize(stack.size() - count);
        return true;
      case '2':
        if (!above()) return false;
        stack.push_back(Cell(top()));
        return true;
      case 'q': return left() && put(number(1));
      case 'r': return left() >= 4 && put(number(4));
      case 'h': return left() && get(number(1));
      case 'j': return left() >= 4 && get(number(4));
      case 0x94: return put(memo.size());
      case 'c': return global();
      case 0x93: return stack_global();
      case 'R': return reduce();
      case 'Q': return persistent();
      case 'b': return build();
      case 0x95: return enter();
      default: return false;
    }
  }

  size_t run() {
    if (size < 2 || data[0] != 0x80 || data[1] > 5) return 0;
    at = 2;
    while (at < size) {
      const u8 code = data[at++];
      if (code != '.' && !step(code)) return 0;
      if (frame && at >= frame) {
        if (at > frame) return 0;
        frame = 0;
      }
      if (code == '.') return !frame && marks.empty() && stack.size() == 1 ? at : 0;
    }
    return 0;
  }
};

}  // namespace

PlainPickle plain_pickle(const u8* data, size_t size, std::string_view names) {
  PlainPickle out;
  Walk walk{data, size, names, out.storages};
  out.end = walk.run();
  return out;
}

}  // namespace weighbridge
