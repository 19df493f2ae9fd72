// The entropy coder of archives (docs/wbpack.md): counts of bytes, prefix codes in four streams, and planes in which one
// byte is common.
#include "level.hpp"

#if defined(_MSC_VER)
#include <intrin.h>
#elif defined(__BMI2__)
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr u32 LOOKUPS = 5;                                 // entries of 11 bits that one load of 57 bits serves
constexpr size_t ROOM = LOOKUPS * PrefixTable::MOST;       // bytes that they write at most
constexpr size_t STEP = (LOOKUPS * PrefixTable::LOOKUP + 7) / 8;  // bytes that they read at most
constexpr u64 INDEX = (u64(1) << PrefixTable::LOOKUP) - 1;

// A stream that is being decoded: the next bit, and the bytes that are still to be written.
struct Reader {
  const u8* data;
  size_t size;  // bytes
  size_t at;    // bit
  u8* out;
  u8* end;

  // How often `advance` stays inside the stream and its output.
  size_t steps() const {
    const size_t byte = at >> 3, in = size >= byte + 8 ? (size - byte - 8) / STEP + 1 : 0, room = size_t(end - out) / ROOM;
    return in < room ? in : room;
  }
};

// What `advance` changes, in registers. `bits` begins with the next bit; above its last one is a single 1, so the zeros above
// that count the bits that were taken from the 64 at `data`.
struct Window {
  const u8* data;
  u64 bits;
  u8* out;
};

WB_INLINE u64 leading_zeros(u64 x) {  // of a number other than 0
#if defined(_MSC_VER) && !defined(__clang__)
  unsigned long last;
  _BitScanReverse64(&last, x);
  return 63 - last;
#else
  return u64(__builtin_clzll(x));
#endif
}

WB_INLINE void refill(Window& w, u64 taken) {
  w.data += taken >> 3;
  w.bits = (load<u64>(w.data) | u64(1) << 63) >> (taken & 7);
}

WB_INLINE void lookup(const PrefixTable& table, Window& w) {
  const u64 entry = table.entries[w.bits & INDEX];
  store(w.out, 0, u32(entry >> 32));
  w.bits >>= entry & 63;
  w.out += entry >> 8 & 0xFF;
}

// Decodes as much of `count` streams as needs no check of their ends. Their chains of lookups don't depend on each other, so
// the processor runs them side by side.
template <int count>
WB_INLINE void advance(const PrefixTable& table, Reader* r) {
  for (;;) {
    size_t steps = r[0].steps();
    for (int k = 1; k < count; ++k) {
      const size_t more = r[k].steps();
      steps = steps < more ? steps : more;
    }
    if (!steps) return;
    Window w[count];
    for (int k = 0; k < count; ++k) {
      w[k] = {r[k].data, 0, r[k].out};
      refill(w[k], r[k].at);
    }
    for (size_t step = 0;;) {
      for (u32 i = 0; i < LOOKUPS; ++i)
        for (int k = 0; k < count; ++k) lookup(table, w[k]);
      if (++step == steps) break;
      for (int k = 0; k < count; ++k) refill(w[k], leading_zeros(w[k].bits));
    }
    for (int k = 0; k < count; ++k) {
      r[k].at = size_t(w[k].data - r[k].data) * 8 + leading_zeros(w[k].bits);
      r[k].out = w[k].out;
    }
  }
}

WB_INLINE u32 ones(u64 x) {
#if defined(__POPCNT__)
  return u32(__builtin_popcountll(x));
#else
  x -= x >> 1 & 0x5555555555555555;
  x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
  return u32(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F) * 0x0101010101010101 >> 56);
#endif
}

// The rest of a stream, a byte at a time. False if it doesn't end in the last byte of the stream, or not in zeros.
bool finish(const PrefixTable& table, Reader& r) {
  advance<1>(table, &r);
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
  advance<4>(table, r);
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

size_t count_ones(const u8* src, size_t n) {
  size_t count = 0, i = 0;
  for (; i + 8 <= n; i += 8) count += ones(load<u64>(src + i));
  for (; i < n; ++i) count += ones(src[i]);
  return count;
}

// The bytes of `others` in the places of set bits. They may be read up to 8 bytes beyond their end.
void sparse_join(u8 common, const u8* mask, const u8* others, u8* dst, size_t n) {
  size_t i = 0;
#if defined(__BMI2__)
  constexpr u64 ONES = 0x0101010101010101;
  const u64 fill = common * ONES;
  for (; i + 64 <= n; i += 64) {
    u64 bits = load<u64>(mask + i / 8);
    if (!bits) {  // true of half of the runs if one byte in a hundred differs
      for (size_t k = 0; k < 8; ++k) store(dst + i, k, fill);
      continue;
    }
    for (size_t k = 0; k < 8; ++k, bits >>= 8) {
      const u64 places = _pdep_u64(bits & 0xFF, ONES) * 0xFF;
      store(dst + i, k, _pdep_u64(load<u64>(others), places) | (fill & ~places));
      others += ones(bits & 0xFF);
    }
  }
#endif
  for (; i < n; ++i) {
    const bool other = mask[i >> 3] >> (i & 7) & 1;
    dst[i] = other ? *others : common;
    others += other;
  }
}

}  // namespace weighbridge::WB_LEVEL
