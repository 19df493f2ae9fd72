#include "archive.hpp"

#include "dispatch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace weighbridge::archive {
namespace {

enum Method : u8 { RAW, CONSTANT, PREFIX, SPARSE };

constexpr u32 NESTED = 2;                     // sparse planes inside each other
constexpr size_t HEAD = 12;                   // of a chunk: checksum, width, transform, two zeros
constexpr size_t LENGTHS = 128;               // of a prefix code: 4 bits a byte
constexpr size_t TABLE = LENGTHS + 3 * 4;     // and the sizes of the first three streams
constexpr u32 WORST = PrefixTable::LOOKUP;    // bits of the longest code

[[noreturn]] void fail(const char* message) { throw std::invalid_argument(message); }
void need(bool condition, const char* message) {
  if (!condition) fail(message);
}

template <class T>
T get(const u8* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
void put(u8* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// Memory without a value: zeroing it would take as long as decoding.
using Buffer = std::unique_ptr<u8[]>;
Buffer buffer(size_t size) { return Buffer(new u8[size]); }

// ---------------------------------------------------------------- prefix codes

using Counts256 = std::array<u32, 256>;
using Lengths = std::array<u8, 256>;

Counts256 counts_of(Bytes plane) {
  Counts256 counts{};
  kernels().count_bytes(plane.data, plane.size, counts.data());
  return counts;
}

// The shortest code of at most WORST bits, by package-merge (Larmore and Hirschberg, 1990). A level has the bytes in the order
// of their counts, merged with the pairs of the level before; the first 2 n - 2 of the last level are taken, and of each level
// before the members of the pairs taken. A byte's length is the number of levels that take it. 2 to 256 bytes are counted.
Lengths code_lengths(const Counts256& counts) {
  std::array<u8, 256> order;
  size_t n = 0;
  for (u32 i = 0; i < 256; ++i)
    if (counts[i]) order[n++] = u8(i);
  std::stable_sort(order.begin(), order.begin() + n, [&](u8 a, u8 b) { return counts[a] < counts[b]; });
  std::array<std::array<bool, 512>, WORST> is_byte;
  std::array<u64, 512> weight, before;
  size_t size = 0;
  for (auto& level : is_byte) {
    std::swap(weight, before);
    const size_t pairs = size / 2;
    size_t byte = 0, pair = 0;
    for (size = 0; byte < n || pair < pairs; ++size) {
      const u64 sum = pair < pairs ? before[2 * pair] + before[2 * pair + 1] : 0;
      level[size] = pair == pairs || (byte < n && counts[order[byte]] <= sum);
      weight[size] = level[size] ? counts[order[byte++]] : (++pair, sum);
    }
  }
  Lengths lengths{};
  size_t taken = 2 * n - 2;
  for (size_t level = WORST; level-- > 0;) {
    const size_t bytes = size_t(std::count(is_byte[level].begin(), is_byte[level].begin() + taken, true));
    for (size_t i = 0; i < bytes; ++i) ++lengths[order[i]];
    taken = 2 * (taken - bytes);
  }
  return lengths;
}

// Canonical codes as Deflate numbers them (RFC 1951, 3.2.2), each written from its highest bit on: reversed here.
std::array<PrefixCode, 256> codes_of(const Lengths& lengths) {
  std::array<u32, WORST + 2> next{};
  for (const u8 length : lengths)
    if (length) ++next[length + 1u];
  for (u32 length = 1; length <= WORST; ++length) next[length + 1] = (next[length] + next[length + 1]) << 1;
  std::array<PrefixCode, 256> codes{};
  for (u32 symbol = 0; symbol < 256; ++symbol) {
    const u32 length = lengths[symbol];
    if (!length) continue;
    u32 code = next[length]++, reversed = 0;
    for (u32 i = 0; i < length; ++i) reversed |= (code >> i & 1) << (length - 1 - i);
    codes[symbol] = {u16(reversed), u16(length)};
  }
  return codes;
}

// The decoder's table. False unless the lengths are those of a code that uses all codes.
bool table_of(const Lengths& lengths, PrefixTable& table) {
  size_t used = 0;
  for (const u8 length : lengths) {
    if (length > WORST) return false;
    if (length) used += size_t(1) << (WORST - length);
  }
  constexpr size_t ENTRIES = size_t(1) << WORST;
  if (used != ENTRIES || std::count_if(lengths.begin(), lengths.end(), [](u8 l) { return l; }) < 2) return false;
  std::memcpy(table.lengths, lengths.data(), lengths.size());
  u8 first[ENTRIES];  // the first symbol of an entry
  const auto codes = codes_of(lengths);
  for (u32 symbol = 0; symbol < 256; ++symbol)
    if (codes[symbol].length)
      for (size_t i = codes[symbol].bits; i < ENTRIES; i += size_t(1) << codes[symbol].length) first[i] = u8(symbol);
  for (size_t i = 0; i < ENTRIES; ++i) {
    u32 bits = 0, count = 0, symbols = 0;
    for (size_t rest = i; count < PrefixTable::MOST; ++count) {
      const u8 symbol = first[rest];
      if (bits + lengths[symbol] > WORST) break;
      symbols |= u32(symbol) << 8 * count;
      bits += lengths[symbol];
      rest >>= lengths[symbol];
    }
    table.entries[i] = bits | count << 8 | u64(symbols) << 32;
  }
  return true;
}

// ---------------------------------------------------------------- planes

size_t pack_plane(Bytes plane, u8* out, u32 depth);
void unpack_plane(Bytes src, MutableBytes plane, u32 depth);

size_t pack_raw(Bytes plane, u8* out) {
  out[0] = RAW;
  std::memcpy(out + 1, plane.data, plane.size);
  return plane.size + 1;
}

// `out` has room for 16 bytes more than the plane's size; 0 if the result isn't smaller than the plane.
size_t pack_prefix(Bytes plane, const Lengths& lengths, u8* out) {
  if (plane.size <= 1 + TABLE) return 0;
  const auto codes = codes_of(lengths);
  const size_t quarter = (plane.size + 3) / 4;
  Buffer bits = buffer(quarter * WORST / 8 + 16);
  out[0] = PREFIX;
  for (size_t i = 0; i < LENGTHS; ++i) out[1 + i] = u8(lengths[2 * i] | lengths[2 * i + 1] << 4);
  size_t at = 1 + TABLE;
  for (size_t k = 0; k < 4; ++k) {
    const size_t begin = std::min(k * quarter, plane.size), end = std::min(begin + quarter, plane.size);
    const size_t size = kernels().prefix_encode(codes.data(), plane.data + begin, bits.get(), end - begin);
    if (at + size > plane.size) return 0;
    std::memcpy(out + at, bits.get(), size);
    if (k < 3) put(out + 1 + LENGTHS + 4 * k, u32(size));
    at += size;
  }
  return at;
}

size_t pack_sparse(Bytes plane, u8 common, u8* out, u32 depth) {
  const size_t masks = (plane.size + 7) / 8;
  Buffer mask = buffer(masks), others = buffer(plane.size + 1);
  const size_t count = kernels().sparse_split(common, plane.data, mask.get(), others.get(), plane.size);
  Buffer packed = buffer(plane.size + 32);
  out[0] = SPARSE, out[1] = common;
  const size_t first = pack_plane({mask.get(), masks}, packed.get(), depth + 1);
  if (6 + first > plane.size) return 0;
  put(out + 2, u32(first));
  std::memcpy(out + 6, packed.get(), first);
  const size_t second = pack_plane({others.get(), count}, packed.get(), depth + 1);
  if (6 + first + second > plane.size) return 0;
  std::memcpy(out + 6 + first, packed.get(), second);
  return 6 + first + second;
}

double entropy(double p) { return p <= 0 || p >= 1 ? 0 : -p * std::log2(p); }

// Packs a plane the shortest way; at most a byte more than the plane. `out` has room for 16 bytes more.
size_t pack_plane(Bytes plane, u8* out, u32 depth) {
  if (!plane.size) return pack_raw(plane, out);
  const Counts256 counts = counts_of(plane);
  const u32 most = u32(std::max_element(counts.begin(), counts.end()) - counts.begin());
  if (counts[most] == plane.size) return out[0] = CONSTANT, out[1] = u8(most), 2;
  if (plane.size < 64) return pack_raw(plane, out);
  const Lengths lengths = code_lengths(counts);
  const double n = double(plane.size), share = counts[most] / n;
  double bits = 0, least = 0;  // of the prefix code, and of any coder of single bytes
  for (u32 i = 0; i < 256; ++i) bits += double(counts[i]) * lengths[i], least += n * entropy(counts[i] / n);
  size_t size = 0;
  if (share > 0.5 && depth < NESTED && least < 0.97 * bits) size = pack_sparse(plane, u8(most), out, depth);
  if (!size && bits < 0.99 * 8 * n) size = pack_prefix(plane, lengths, out);
  return size ? size : pack_raw(plane, out);
}

void unpack_prefix(Bytes src, MutableBytes plane) {
  need(src.size >= TABLE, "a prefix code ends too early");
  Lengths lengths;
  for (size_t i = 0; i < LENGTHS; ++i) lengths[2 * i] = src.data[i] & 15, lengths[2 * i + 1] = src.data[i] >> 4;
  PrefixTable table;
  need(table_of(lengths, table), "the lengths of a prefix code are wrong");
  Stream streams[4];
  size_t at = TABLE;
  for (size_t k = 0; k < 4; ++k) {
    const size_t size = k < 3 ? get<u32>(src.data + LENGTHS + 4 * k) : src.size - at;
    need(size <= src.size - at, "a stream of codes ends too early");
    streams[k] = {src.data + at, size};
    at += size;
  }
  need(kernels().prefix_decode(table, streams, plane.data, plane.size), "a stream of codes is damaged");
}

void unpack_sparse(Bytes src, MutableBytes plane, u32 depth) {
  need(depth < NESTED, "sparse planes are nested too deeply");
  need(src.size >= 5, "a sparse plane ends too early");
  const size_t masks = (plane.size + 7) / 8, first = get<u32>(src.data + 1);
  need(first <= src.size - 5, "the mask of a sparse plane ends too early");
  Buffer mask = buffer(masks);
  unpack_plane({src.data + 5, first}, {mask.get(), masks}, depth + 1);
  need(plane.size % 8 == 0 || mask[masks - 1] >> plane.size % 8 == 0, "a mask has bits behind its plane");
  const size_t count = kernels().count_ones(mask.get(), masks);
  Buffer others = buffer(count + 8);
  unpack_plane({src.data + 5 + first, src.size - 5 - first}, {others.get(), count}, depth + 1);
  kernels().sparse_join(src.data[0], mask.get(), others.get(), plane.data, plane.size);
}

void unpack_plane(Bytes src, MutableBytes plane, u32 depth) {
  need(src.size, "a plane has no bytes");
  const Bytes rest{src.data + 1, src.size - 1};
  switch (src.data[0]) {
    case RAW:
      need(rest.size == plane.size, "a stored plane has the wrong size");
      std::memcpy(plane.data, rest.data, plane.size);
      return;
    case CONSTANT:
      need(rest.size == 1, "a constant plane has the wrong size");
      std::memset(plane.data, rest.data[0], plane.size);
      return;
    case PREFIX: return unpack_prefix(rest, plane);
    case SPARSE: return unpack_sparse(rest, plane, depth);
  }
  fail("a plane has an unknown method");
}

bool is_known(WordOptions how) {
  const bool is_word = how.width == 1 || how.width == 2 || how.width == 4 || how.width == 8;
  return is_word && how.transform < WordOptions::TRANSFORMS && (how.transform != WordOptions::PAIRS || how.width == 2);
}
bool has_base(u32 transform) { return transform == WordOptions::DELTA || transform == WordOptions::FLOAT_DELTA; }

}  // namespace

// ---------------------------------------------------------------- chunks

u64 xxh64(Bytes data) {
  constexpr u64 P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9, P4 = 0x85EBCA77C2B2AE63,
                P5 = 0x27D4EB2F165667C5;
  const auto turned = [](u64 x, int n) { return x << n | x >> (64 - n); };
  const auto round = [&](u64 acc, u64 word) { return turned(acc + word * P2, 31) * P1; };
  const u8 *p = data.data, *end = p + data.size;
  u64 h = P5;
  if (data.size >= 32) {
    u64 a = P1 + P2, b = P2, c = 0, d = 0 - P1;
    for (; end - p >= 32; p += 32)
      a = round(a, get<u64>(p)), b = round(b, get<u64>(p + 8)), c = round(c, get<u64>(p + 16)),
      d = round(d, get<u64>(p + 24));
    h = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
    for (const u64 lane : {a, b, c, d}) h = (h ^ round(0, lane)) * P1 + P4;
  }
  h += data.size;
  for (; end - p >= 8; p += 8) h = turned(h ^ round(0, get<u64>(p)), 27) * P1 + P4;
  if (end - p >= 4) h = turned(h ^ get<u32>(p) * P1, 23) * P2 + P3, p += 4;
  for (; p < end; ++p) h = turned(h ^ *p * P5, 11) * P1;
  h = (h ^ h >> 33) * P2;
  h = (h ^ h >> 29) * P3;
  return h ^ h >> 32;
}

size_t pack(WordOptions how, Bytes src, Bytes base, MutableBytes out) {
  need(is_known(how), "no such words");
  need(src.size <= MOST, "a chunk is too long");
  need(base.size == (has_base(how.transform) ? src.size : 0), "the base has the wrong size");
  need(out.size >= src.size + OVERHEAD, "out has no room for the chunk");
  const size_t n = src.size / how.width, rest = src.size % how.width;
  Buffer planes = buffer(src.size + 1), packed = buffer(n + 32);
  kernels().split_planes(how, src.data, base.data, planes.get(), n);
  put(out.data, xxh64(src));
  put(out.data + 8, u8(how.width)), put(out.data + 9, u8(how.transform)), put(out.data + 10, u16(0));
  size_t at = HEAD + 4 * how.width;
  for (u32 p = 0; p < how.width; ++p) {
    const size_t size = pack_plane({planes.get() + p * n, n}, packed.get(), 0);
    std::memcpy(out.data + at, packed.get(), size);
    put(out.data + HEAD + 4 * p, u32(size));
    at += size;
  }
  std::memcpy(out.data + at, src.data + n * how.width, rest);
  return at + rest;
}

bool is_delta(Bytes src) { return src.size >= HEAD && has_base(src.data[9]); }

void unpack(Bytes src, Bytes base, MutableBytes out) {
  need(out.size <= MOST, "a chunk is too long");
  need(src.size >= HEAD, "a chunk ends too early");
  const WordOptions how{src.data[8], src.data[9]};
  need(is_known(how) && !get<u16>(src.data + 10), "a chunk has unknown words");
  need(base.size == (has_base(how.transform) ? out.size : 0), "a chunk needs its base");
  const size_t n = out.size / how.width, rest = out.size % how.width;
  size_t at = HEAD + 4 * how.width;
  need(src.size >= at, "a chunk ends too early");
  const bool in_place = how.width == 1 && how.transform == WordOptions::PLAIN;  // the plane is the chunk
  Buffer scratch = buffer(in_place ? 0 : n * how.width + 1);
  const u8* planes[8] = {};
  for (u32 p = 0; p < how.width; ++p) {
    const size_t size = get<u32>(src.data + HEAD + 4 * p);
    need(size <= src.size - at, "a plane ends too early");
    const u8* plane = src.data + at;
    if (in_place) {
      unpack_plane({plane, size}, {out.data, n}, 0);
    } else if (size == n + 1 && plane[0] == RAW) {
      planes[p] = plane + 1;  // read where it is
    } else {
      unpack_plane({plane, size}, {scratch.get() + p * n, n}, 0);
      planes[p] = scratch.get() + p * n;
    }
    at += size;
  }
  need(src.size - at == rest, "a chunk has the wrong size");
  if (!in_place) kernels().join_planes(how, planes, base.data, out.data, n);
  std::memcpy(out.data + n * how.width, src.data + at, rest);
  need(xxh64(out) == get<u64>(src.data), "a chunk's checksum is wrong");
}

}  // namespace weighbridge::archive
