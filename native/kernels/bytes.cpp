// Moves that don't look at numbers: byte order, rows picked by an index, transposed matrices.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Shifts and masks are recognised as the machine's byte swap, in vectors too.
WB_INLINE u16 swapped(u16 x) { return u16((x << 8) | (x >> 8)); }
WB_INLINE u32 swapped(u32 x) { return (x << 24) | ((x << 8) & 0xFF0000) | ((x >> 8) & 0xFF00) | (x >> 24); }
WB_INLINE u64 swapped(u64 x) { return (u64(swapped(u32(x))) << 32) | swapped(u32(x >> 32)); }

template <class T>
void swap_words(const u8* src, u8* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, swapped(load<T>(src, i)));
}

template <size_t size>
void gather_fixed(const u8* WB_RESTRICT src, const i64* WB_RESTRICT index, u8* WB_RESTRICT dst, size_t rows) {
  for (size_t i = 0; i < rows; ++i) memcpy(dst + i * size, src + size_t(index[i]) * size, size);
}

// Squares of `side` elements a row, in registers: log2(side) rounds, each interleaving the first half of the rows with the
// second (as load_columns does). Element by element takes five times as long, since each store touches another line.
template <class T, size_t side>
struct Square {
#if (defined(__GNUC__) || defined(__clang__)) && !defined(WB_PLAIN_LANES)
  typedef T V __attribute__((vector_size(side * sizeof(T))));

  WB_INLINE V first(V a, V b) {
    if constexpr (side == 16)
      return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    else if constexpr (side == 8)
      return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    else if constexpr (side == 4)
      return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    else
      return __builtin_shufflevector(a, b, 0, 2);
  }
  WB_INLINE V last(V a, V b) {
    if constexpr (side == 16)
      return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    else if constexpr (side == 8)
      return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    else if constexpr (side == 4)
      return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    else
      return __builtin_shufflevector(a, b, 1, 3);
  }

  static void move(const u8* src, size_t src_stride, u8* dst, size_t dst_stride) {
    V rows[side], next[side];
    for (size_t i = 0; i < side; ++i) rows[i] = load<V>(src + i * src_stride);
    for (size_t round = 1; round < side; round *= 2) {
      for (size_t i = 0; i < side / 2; ++i) {
        next[2 * i] = first(rows[i], rows[i + side / 2]);
        next[2 * i + 1] = last(rows[i], rows[i + side / 2]);
      }
      for (size_t i = 0; i < side; ++i) rows[i] = next[i];
    }
    for (size_t i = 0; i < side; ++i) store(dst + i * dst_stride, 0, rows[i]);
  }
#else
  static void move(const u8* src, size_t src_stride, u8* dst, size_t dst_stride) {
    for (size_t i = 0; i < side; ++i)
      for (size_t j = 0; j < side; ++j) store(dst + j * dst_stride, i, load<T>(src + i * src_stride, j));
  }
#endif
};

// The side of a square whose rows fill a register; at most sixteen, which is as many registers.
template <class T>
constexpr size_t side_of = 4 * WB_LANES / sizeof(T) < 16 ? 4 * WB_LANES / sizeof(T) : 16;

// In blocks of 64 bytes a side, so that lines are read and written whole.
template <class T>
void transpose_of(const Matrix& from, const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t dst_stride) {
  constexpr size_t side = side_of<T>, block = 64 / sizeof(T);
  for (size_t row = 0; row < from.rows; row += block)
    for (size_t column = 0; column < from.columns; column += block)
      for (size_t r = row; r < from.rows && r < row + block; r += side)
        for (size_t c = column; c < from.columns && c < column + block; c += side) {
          const u8* at = src + r * from.stride + c * sizeof(T);
          u8* to = dst + c * dst_stride + r * sizeof(T);
          if (r + side <= from.rows && c + side <= from.columns) {
            Square<T, side>::move(at, from.stride, to, dst_stride);
            continue;
          }
          for (size_t i = 0; i < side && r + i < from.rows; ++i)
            for (size_t j = 0; j < side && c + j < from.columns; ++j)
              store(to + j * dst_stride, i, load<T>(at + i * from.stride, j));
        }
}

// Swaps the upper half of each `2 * width` bits of `a` with the lower half of those of `b`.
template <u32 width, u32 mask>
WB_INLINE void swap_halves(u32* WB_RESTRICT a, u32* WB_RESTRICT b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const u32 differ = (a[i] >> width ^ b[i]) & mask;
    b[i] ^= differ, a[i] ^= differ << width;
  }
}

constexpr size_t AWQ_WORDS = 16;

// Eight rows of up to sixteen words are squares of eight by eight nibbles, which are transposed in three rounds: word p then
// has the nibbles p of the eight rows. In the order of their columns these words are rows of another matrix to transpose.
WB_INLINE void awq_squares(const u8* src, size_t stride, size_t n, u8* dst) {
  constexpr size_t side = WB_LANES < 8 ? 4 : 8, order[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of each column
  u32 from[8][AWQ_WORDS] = {}, by_column[8][AWQ_WORDS];
  for (size_t r = 0; r < 8; ++r) memcpy(from[r], src + r * stride, n * 4);
  for (size_t r = 0; r < 8; r += 2) swap_halves<4, 0x0F0F0F0F>(from[r], from[r + 1], AWQ_WORDS);
  for (size_t r = 0; r < 8; r += r % 2 ? 3 : 1) swap_halves<8, 0x00FF00FF>(from[r], from[r + 2], AWQ_WORDS);
  for (size_t r = 0; r < 4; ++r) swap_halves<16, 0x0000FFFF>(from[r], from[r + 4], AWQ_WORDS);
  for (size_t c = 0; c < 8; ++c) memcpy(by_column[c], from[order[c]], sizeof by_column[c]);
  for (size_t c = 0; c < 8; c += side)
    for (size_t i = 0; i < AWQ_WORDS; i += side)
      Square<u32, side>::move(reinterpret_cast<u8*>(&by_column[c][i]), sizeof by_column[c], dst + i * 32 + c * 4, 32);
}

// Four nibbles of 16 bits to the low halves of every other byte.
WB_INLINE u64 spread_nibbles(u64 x) {
  x = (x | x << 24) & 0x000000FF000000FFu;
  return (x | x << 12) & 0x000F000F000F000Fu;
}

}  // namespace

void transpose(const Matrix& from, const u8* src, u8* dst, size_t dst_stride) {
  switch (from.size) {
    case 1: return transpose_of<u8>(from, src, dst, dst_stride);
    case 2: return transpose_of<u16>(from, src, dst, dst_stride);
    case 4: return transpose_of<u32>(from, src, dst, dst_stride);
    case 8: return transpose_of<u64>(from, src, dst, dst_stride);
  }
}

void unpack_awq(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const u32 word = load<u32>(src, i);
    store(dst, i, spread_nibbles(word & 0xFFFF) | spread_nibbles(word >> 16) << 8);
  }
}

void awq_by_rows(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t rows, size_t words) {
  for (size_t row = 0; row < rows; ++row, src += words * 32) {
    size_t w = 0;
    for (; w + AWQ_WORDS <= words; w += AWQ_WORDS, dst += AWQ_WORDS * 32) awq_squares(src + w * 4, words * 4, AWQ_WORDS, dst);
    if (w == words) continue;
    u8 rest[AWQ_WORDS * 32];
    awq_squares(src + w * 4, words * 4, words - w, rest);
    memcpy(dst, rest, (words - w) * 32);
    dst += (words - w) * 32;
  }
}

void byteswap(const u8* src, u8* dst, size_t n, u32 word) {
  switch (word) {
    case 2: return swap_words<u16>(src, dst, n);
    case 4: return swap_words<u32>(src, dst, n);
    case 8: return swap_words<u64>(src, dst, n);
  }
}

void gather(const u8* src, const i64* index, u8* dst, size_t rows, size_t row_bytes) {
  switch (row_bytes) {  // short rows (elements, blocks): a call of memcpy would cost more than the copy
    case 1: return gather_fixed<1>(src, index, dst, rows);
    case 2: return gather_fixed<2>(src, index, dst, rows);
    case 4: return gather_fixed<4>(src, index, dst, rows);
    case 8: return gather_fixed<8>(src, index, dst, rows);
    case 18: return gather_fixed<18>(src, index, dst, rows);
    case 20: return gather_fixed<20>(src, index, dst, rows);
    case 34: return gather_fixed<34>(src, index, dst, rows);
  }
  for (size_t i = 0; i < rows; ++i) memcpy(dst + i * row_bytes, src + size_t(index[i]) * row_bytes, row_bytes);
}

}  // namespace weighbridge::WB_LEVEL
