// The entropy coder of archives (docs/wbpack.md): counts of bytes, prefix codes in four streams, and planes in which one
// byte is common.
#include "level.hpp"

#if defined(__BMI2__)
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr u32 LOOKUPS = 5;                                 // entries of 11 bits that one load of 57 bits serves
constexpr size_t ROOM = LOOKUPS * PrefixTable::MOST;       // bytes that they write at most
constexpr u64 INDEX = (u64(1) << PrefixTable::LOOKUP) - 1;

// A stream that is being decoded: the next bit, and the bytes that are still to be written.
struct Reader {
  const u8* data;
  size_t size;  // bytes
  size_t at;    // bit
  u8* out;
  u8* end;

  // Whether `advance` stays inside the stream and its output.
  bool has_room() const { return (at >> 3) + 8 <= size && size_t(end - out) >= ROOM; }
};

WB_INLINE void advance(const PrefixTable& table, Reader& r) {
  u64 bits = load<u64>(r.data + (r.at >> 3)) >> (r.at & 7), total = 0;
  u8* out = r.out;
  for (u32 i = 0; i < LOOKUPS; ++i) {
    const u64 entry = table.entries[bits & INDEX];
    store(out, 0, u32(entry >> 32));
    bits >>= entry & 63;
    total += entry & 0xFF;
    out += entry >> 8 & 0xFF;
  }
  r.at += total;
  r.out = out;
}

// The rest of a stream, a byte at a time. False if it doesn't end in the last byte of the stream, or not in zeros.
bool finish(const PrefixTable& table, Reader& r) {
  while (r.has_room()) advance(table, r);
  while (r.out < r.end) {
    u64 bits = 0;
    const size_t byte = r.at >> 3;
    for (size_t i = byte; i < r.size && i < byte + 3; ++i) bits |= u64(r.data[i]) << 8 * (i - byte);
    const u8 symbol = u8(table.entries[bits >> (r.at & 7) & INDEX] >> 32);
    *r.out++ = symbol;
    r.at += table.lengths[symbol];
    if (r.at > r.size * 8) return false;
  }
  return r.size == (r.at + 7) / 8 && (!(r.at & 7) || r.data[r.at >> 3] >> (r.at & 7) == 0);
}

}  // namespace

void count_bytes(const u8* src, size_t n, u32* counts) {
  u32 lanes[4][256] = {};  // equal neighbours would wait for each other's increment
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const u64 word = load<u64>(src + i);
    for (u32 k = 0; k < 8; ++k) ++lanes[k & 3][word >> 8 * k & 0xFF];
  }
  for (; i < n; ++i) ++lanes[0][src[i]];
  for (u32 k = 0; k < 256; ++k) counts[k] += lanes[0][k] + lanes[1][k] + lanes[2][k] + lanes[3][k];
}

size_t prefix_encode(const PrefixCode* codes, const u8* src, u8* dst, size_t n) {
  u64 bits = 0;
  u32 held = 0;  // bits that aren't written yet
  u8* out = dst;
  const auto put = [&](u8 symbol) {
    bits |= u64(codes[symbol].bits) << held;
    held += codes[symbol].length;
  };
  const auto write = [&] {
    store(out, 0, bits);
    out += held >> 3;
    bits >>= held & ~u32(7);
    held &= 7;
  };
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (size_t k = 0; k < 4; ++k) put(src[i + k]);
    write();
  }
  for (; i < n; ++i) put(src[i]);
  write();
  return size_t(out - dst) + (held != 0);
}

bool prefix_decode(const PrefixTable& table, const Stream* streams, u8* dst, size_t n) {
  const size_t quarter = (n + 3) / 4;
  Reader r[4];
  for (size_t k = 0; k < 4; ++k) {
    const size_t begin = k * quarter < n ? k * quarter : n, end = begin + quarter < n ? begin + quarter : n;
    r[k] = {streams[k].data, streams[k].size, 0, dst + begin, dst + end};
  }
  // The four chains of lookups don't depend on each other, so the processor runs them side by side.
  while (r[0].has_room() && r[1].has_room() && r[2].has_room() && r[3].has_room())
    for (Reader& reader : r) advance(table, reader);
  bool whole = true;
  for (Reader& reader : r) whole &= finish(table, reader);
  return whole;
}

size_t sparse_split(u8 common, const u8* src, u8* mask, u8* others, size_t n) {
  u8* out = others;
  for (size_t i = 0; i < n; i += 8) {
    u32 bits = 0;
    const size_t end = i + 8 < n ? i + 8 : n;
    for (size_t k = i; k < end; ++k) {
      const bool other = src[k] != common;
      *out = src[k];
      out += other;
      bits |= u32(other) << (k - i);
    }
    mask[i >> 3] = u8(bits);
  }
  return size_t(out - others);
}

#if defined(__BMI2__)
// The bytes of `others` in the places of set bits. They may be read up to 8 bytes beyond their end.
void sparse_join(u8 common, const u8* mask, const u8* others, u8* dst, size_t n) {
  constexpr u64 ONES = 0x0101010101010101;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const u32 bits = mask[i >> 3];
    const u64 places = _pdep_u64(bits, ONES) * 0xFF;
    store(dst + i, 0, _pdep_u64(load<u64>(others), places) | (common * ONES & ~places));
    others += __builtin_popcount(bits);
  }
  for (; i < n; ++i) dst[i] = mask[i >> 3] >> (i & 7) & 1 ? *others++ : common;
}
#else
void sparse_join(u8 common, const u8* mask, const u8* others, u8* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const bool other = mask[i >> 3] >> (i & 7) & 1;
    dst[i] = other ? *others : common;
    others += other;
  }
}
#endif

}  // namespace weighbridge::WB_LEVEL
