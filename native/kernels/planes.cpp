// Words to planes of bytes and back, for archives (docs/wbpack.md). Plain loops, which compilers vectorize.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

template <class T>
constexpr int TOP = int(sizeof(T)) * 8 - 1;

template <class T>
WB_INLINE T all_or_nothing(T x) {  // all bits as the highest one
  return T(T(0) - T(x >> TOP<T>));
}

// Integers in the order of the floats whose bits they are: negative floats count downwards.
template <class T>
WB_INLINE T ordered(T x) {
  return T(x ^ T(all_or_nothing(x) | T(T(1) << TOP<T>)));
}
template <class T>
WB_INLINE T unordered(T u) {
  return T(u ^ T(T(~all_or_nothing(u)) | T(T(1) << TOP<T>)));
}

// 0, -1, 1, -2 ... as 0, 1, 2, 3 ...: small differences have zeros above.
template <class T>
WB_INLINE T zigzag(T d) {
  return T(T(d << 1) ^ all_or_nothing(d));
}
template <class T>
WB_INLINE T unzigzag(T z) {
  return T(T(z >> 1) ^ T(T(0) - T(z & 1)));
}

// Two floats of a byte: the bits of both exponents in the upper byte, signs and mantissas in the lower one.
WB_INLINE u16 paired(u16 x) {
  const u16 r = u16((x << 1 & 0xFEFE) | (x >> 7 & 0x0101));
  return u16((r & 0xF00F) | (r << 4 & 0x0F00) | (r >> 4 & 0x00F0));
}
WB_INLINE u16 unpaired(u16 x) {
  const u16 r = u16((x & 0xF00F) | (x >> 4 & 0x00F0) | (x << 4 & 0x0F00));
  return u16((r >> 1 & 0x7F7F) | (r << 7 & 0x8080));
}

template <class T, u32 transform>
WB_INLINE T forward(T x, T base) {
  if constexpr (transform == WordOptions::ROTATED) return T(T(x << 1) | T(x >> TOP<T>));
  if constexpr (transform == WordOptions::DELTA) return zigzag(T(x - base));
  if constexpr (transform == WordOptions::FLOAT_DELTA) return zigzag(T(ordered(x) - ordered(base)));
  if constexpr (transform == WordOptions::PAIRS) return paired(x);
  return x;
}

template <class T, u32 transform>
WB_INLINE T backward(T x, T base) {
  if constexpr (transform == WordOptions::ROTATED) return T(T(x >> 1) | T(x << TOP<T>));
  if constexpr (transform == WordOptions::DELTA) return T(unzigzag(x) + base);
  if constexpr (transform == WordOptions::FLOAT_DELTA) return unordered(T(unzigzag(x) + ordered(base)));
  if constexpr (transform == WordOptions::PAIRS) return unpaired(x);
  return x;
}

template <u32 transform>
constexpr bool BASED = transform == WordOptions::DELTA || transform == WordOptions::FLOAT_DELTA;

template <class T, u32 transform>
void split(const u8* WB_RESTRICT src, const u8* WB_RESTRICT base, u8* WB_RESTRICT planes, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T word = forward<T, transform>(load<T>(src, i), BASED<transform> ? load<T>(base, i) : T(0));
    for (size_t p = 0; p < sizeof(T); ++p) planes[p * n + i] = u8(word >> 8 * p);
  }
}

template <class T, u32 transform>
void join(const u8* const* planes, const u8* WB_RESTRICT base, u8* WB_RESTRICT dst, size_t n) {
  const u8* from[sizeof(T)];
  for (size_t p = 0; p < sizeof(T); ++p) from[p] = planes[p];
  for (size_t i = 0; i < n; ++i) {
    T word = 0;
    for (size_t p = 0; p < sizeof(T); ++p) word = T(word | T(T(from[p][i]) << 8 * p));
    store(dst, i, backward<T, transform>(word, BASED<transform> ? load<T>(base, i) : T(0)));
  }
}

template <class T>
void split_as(u32 transform, const u8* src, const u8* base, u8* planes, size_t n) {
  switch (transform) {
    case WordOptions::PLAIN: return split<T, WordOptions::PLAIN>(src, base, planes, n);
    case WordOptions::ROTATED: return split<T, WordOptions::ROTATED>(src, base, planes, n);
    case WordOptions::DELTA: return split<T, WordOptions::DELTA>(src, base, planes, n);
    case WordOptions::FLOAT_DELTA: return split<T, WordOptions::FLOAT_DELTA>(src, base, planes, n);
    case WordOptions::PAIRS:
      if constexpr (sizeof(T) == 2) return split<T, WordOptions::PAIRS>(src, base, planes, n);
  }
}

template <class T>
void join_as(u32 transform, const u8* const* planes, const u8* base, u8* dst, size_t n) {
  switch (transform) {
    case WordOptions::PLAIN: return join<T, WordOptions::PLAIN>(planes, base, dst, n);
    case WordOptions::ROTATED: return join<T, WordOptions::ROTATED>(planes, base, dst, n);
    case WordOptions::DELTA: return join<T, WordOptions::DELTA>(planes, base, dst, n);
    case WordOptions::FLOAT_DELTA: return join<T, WordOptions::FLOAT_DELTA>(planes, base, dst, n);
    case WordOptions::PAIRS:
      if constexpr (sizeof(T) == 2) return join<T, WordOptions::PAIRS>(planes, base, dst, n);
  }
}

}  // namespace

void split_planes(const WordOptions& how, const u8* src, const u8* base, u8* planes, size_t n) {
  switch (how.width) {
    case 1: return split_as<u8>(how.transform, src, base, planes, n);
    case 2: return split_as<u16>(how.transform, src, base, planes, n);
    case 4: return split_as<u32>(how.transform, src, base, planes, n);
    case 8: return split_as<u64>(how.transform, src, base, planes, n);
  }
}

void join_planes(const WordOptions& how, const u8* const* planes, const u8* base, u8* dst, size_t n) {
  switch (how.width) {
    case 1: return join_as<u8>(how.transform, planes, base, dst, n);
    case 2: return join_as<u16>(how.transform, planes, base, dst, n);
    case 4: return join_as<u32>(how.transform, planes, base, dst, n);
    case 8: return join_as<u64>(how.transform, planes, base, dst, n);
  }
}

}  // namespace weighbridge::WB_LEVEL
