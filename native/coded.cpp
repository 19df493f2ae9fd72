#include "coded.hpp"

#include <cstring>
#include <stdexcept>

namespace weighbridge::coded {
namespace {

constexpr u32 THREAD = 64;    // bits of a thread's codes
constexpr u32 TABLES = 240;   // lookups from here on name a table
constexpr u8 WRONG = 255;     // what isn't an exponent
constexpr u32 FAST = 12, SLOW = 32 - FAST;  // bits of a lookup that decodes most codes
constexpr size_t PADDING = 48;

void need(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// A sign is moved by 8 bits, the exponent behind it by 1; the mantissa stays.
void move_signs(u32 sign, u32 exponent, MutableBytes out) {
  const u32 mantissa = ~(sign | exponent);
  for (size_t at = 0; at + 4 <= out.size; at += 4) {
    u32 word;
    std::memcpy(&word, out.data + at, 4);
    word = (word << 8 & sign) | (word >> 1 & exponent) | (word & mantissa);
    std::memcpy(out.data + at, &word, 4);
  }
}

i64 number(Bytes values, size_t index) {
  i64 value;
  std::memcpy(&value, values.data + 8 * index, 8);
  return value;
}

void put(MutableBytes values, size_t index, u64 value) { std::memcpy(values.data + 8 * index, &value, 8); }

u64 big_endian(const u8* bytes) {
  u64 value;
  std::memcpy(&value, bytes, 8);
  value = (value & 0x00FF00FF00FF00FF) << 8 | (value >> 8 & 0x00FF00FF00FF00FF);  // compilers make one instruction of it
  value = (value & 0x0000FFFF0000FFFF) << 16 | (value >> 16 & 0x0000FFFF0000FFFF);
  return value << 32 | value >> 32;
}

// The exponent of the code that begins 32 bits, table by table.
u8 walk(Bytes tables, u32 bits) {
  u8 value = tables.data[bits >> 24];
  for (const u32 byte : {bits >> 16 & 255, bits >> 8 & 255, bits & 255}) {
    if (value < TABLES) break;
    const size_t row = 256 - value;
    value = (row + 1) * 256 <= tables.size ? tables.data[row * 256 + byte] : WRONG;
  }
  return value;
}

}  // namespace

void join_planes(u32 count, u32 sign, Bytes planes, MutableBytes out) {
  need(count >= 1 && planes.size == out.size, "planes of another size");
  const u8* plane = planes.data;
  for (u32 p = 0; p < count; ++p) {
    const size_t size = (out.size - p + count - 1) / count;
    u8* const to = out.data + p;
    for (size_t i = 0; i < size; ++i) to[i * count] = plane[i];
    plane += size;
  }
  if (sign == 16) move_signs(0x80008000, 0x7F807F80, out);
  if (sign == 32) move_signs(0x80000000, 0x7F800000, out);
}

size_t decode_threads(Bytes codes, Bytes starts, Bytes exponents, Bytes bits, Bytes tables, Bytes lengths,
                      MutableBytes out, MutableBytes counts, MutableBytes ends) {
  const size_t threads = starts.size / 8;
  need(exponents.size == 1 << FAST && bits.size == 1 << FAST && lengths.size == 256 && tables.size >= 256, "tables of another size");
  need(counts.size == starts.size && ends.size == starts.size && out.size >= threads * THREAD, "too little room");
  need(codes.size >= threads * THREAD / 8 + PADDING, "codes without padding");
  size_t made = 0;
  for (size_t thread = 0; thread < threads; ++thread) {
    const u64 first = THREAD * thread, limit = first + THREAD;
    u64 at = u64(number(starts, thread));
    need(at >= first && at < limit, "a thread begins elsewhere");
    const size_t before = made;
    while (at < limit) {
      const u32 next = u32(big_endian(codes.data + at / 8) << at % 8 >> 32);
      u8 exponent = exponents.data[next >> SLOW], length = bits.data[next >> SLOW];
      if (!length) {
        exponent = walk(tables, next);
        length = lengths.data[exponent];
      }
      out.data[made++] = exponent;
      at += length ? length : WRONG;
    }
    put(counts, thread, made - before);
    put(ends, thread, at);
  }
  return made;
}

}  // namespace weighbridge::coded
