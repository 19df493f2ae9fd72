// Moves that don't look at numbers: byte order, and rows picked by an index.
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

}  // namespace

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
