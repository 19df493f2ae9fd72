#include "pickles.hpp"

#include <cstring>

namespace weighbridge {
namespace {

// What the walk knows of a value.
enum Kind : u8 { PLAIN, MODULE, NAME, LIST, DICT, SET, TUPLE, EMPTY, CLASS };

constexpr char OWNER[] = "collections", ORDERED[] = "OrderedDict";

struct Walk {
  const u8* data;
  size_t size;
  PickleRoom room;
  size_t at = 0, depth = 0, marks = 0, places = 0, frame = 0;

  size_t left() const { return size - at; }
  size_t base() const { return marks ? room.marks[marks - 1] : 0; }
  size_t above() const { return depth - base(); }  // values since the last mark

  bool push(Kind kind) {
    room.stack[depth++] = kind;
    return true;
  }
  bool pop(size_t count) {
    if (above() < count) return false;
    depth -= count;
    return true;
  }
  bool gather(size_t count, Kind kind) { return pop(count) && push(kind); }
  Kind top() const { return above() ? Kind(room.stack[depth - 1]) : PLAIN; }

  // Values since the last mark, which is taken away; false where there is none.
  bool pop_mark(size_t& count) {
    if (!marks) return false;
    count = above();
    depth = room.marks[--marks];
    return true;
  }

  u64 number(size_t width) {
    u64 n = 0;
    for (size_t i = 0; i < width; ++i) n |= u64(data[at + i]) << (8 * i);
    at += width;
    return n;
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

  bool is(const u8* text, u64 n, const char* word, size_t length) const {
    return n == length && !std::memcmp(text, word, length);
  }

  // ASCII alone: the encoding of all other text is the machine's to check.
  bool text(size_t width) {
    if (left() < width) return false;
    const u64 n = number(width);
    const u8* start = data + at;
    if (!skip(n)) return false;
    for (u64 i = 0; i < n; ++i)
      if (start[i] & 0x80) return false;
    if (is(start, n, OWNER, sizeof OWNER - 1)) return push(MODULE);
    return push(is(start, n, ORDERED, sizeof ORDERED - 1) ? NAME : PLAIN);
  }

  // GLOBAL of the one class that is known.
  bool global() {
    static constexpr char lines[] = "collections\nOrderedDict\n";
    constexpr size_t length = sizeof lines - 1;
    if (left() < length || std::memcmp(data + at, lines, length)) return false;
    at += length;
    return push(CLASS);
  }

  bool stack_global() {
    if (above() < 2 || room.stack[depth - 1] != NAME || room.stack[depth - 2] != MODULE) return false;
    return gather(2, CLASS);
  }

  bool reduce() {
    if (above() < 2 || room.stack[depth - 1] != EMPTY || room.stack[depth - 2] != CLASS) return false;
    return gather(2, DICT);
  }

  bool fill(Kind kind, size_t each, bool many) {
    size_t count = each;
    if (!(many ? pop_mark(count) : pop(each))) return false;
    return count % each == 0 && top() == kind && above();
  }

  bool collect(Kind kind, size_t each) {
    size_t count;
    if (!pop_mark(count) || count % each) return false;
    return push(kind == TUPLE && !count ? EMPTY : kind);
  }

  bool put(u64 place) {
    if (!above() || place > places) return false;
    places += place == places;
    room.memo[place] = room.stack[depth - 1];
    return true;
  }

  bool get(u64 place) { return place < places && push(Kind(room.memo[place])); }

  bool enter() {
    if (left() < 8 || frame) return false;
    const u64 length = number(8);
    if (!length || length > left()) return false;
    frame = at + size_t(length);
    return true;
  }

  // One opcode; false where the machine has to look.
  bool step(u8 code) {
    size_t count;
    switch (code) {
      case 'N': case 0x88: case 0x89: return push(PLAIN);
      case 'K': return skip(1) && push(PLAIN);
      case 'M': return skip(2) && push(PLAIN);
      case 'J': return skip(4) && push(PLAIN);
      case 'G': return skip(8) && push(PLAIN);
      case 0x8a: return left() && data[at] < 10 && bytes(1);  // a longer one may be torch's magic number
      case 'X': return text(4);
      case 0x8c: return text(1);
      case 'C': return bytes(1);
      case 'B': return bytes(4);
      case ']': return push(LIST);
      case '}': return push(DICT);
      case ')': return push(EMPTY);
      case 0x8f: return push(SET);
      case '(': room.marks[marks++] = u32(depth); return true;
      case 't': return collect(TUPLE, 1);
      case 'l': return collect(LIST, 1);
      case 'd': return collect(DICT, 2);
      case 0x91: return collect(PLAIN, 1);
      case 0x85: case 0x86: case 0x87: return gather(code - 0x84u, TUPLE);
      case 'a': return fill(LIST, 1, false);
      case 'e': return fill(LIST, 1, true);
      case 's': return fill(DICT, 2, false);
      case 'u': return fill(DICT, 2, true);
      case 0x90: return fill(SET, 1, true);
      case '0': return pop(1);
      case '1': return pop_mark(count);
      case '2': return above() && push(top());
      case 'q': return left() && put(number(1));
      case 'r': return left() >= 4 && put(number(4));
      case 'h': return left() && get(number(1));
      case 'j': return left() >= 4 && get(number(4));
      case 0x94: return put(places);
      case 'c': return global();
      case 0x93: return stack_global();
      case 'R': return reduce();
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
      if (code == '.') return !frame && !marks && depth == 1 ? at : 0;
    }
    return 0;
  }
};

}  // namespace

size_t plain_pickle(const u8* data, size_t size, const PickleRoom& room) { return Walk{data, size, room}.run(); }

}  // namespace weighbridge
