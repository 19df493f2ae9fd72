// Casts between floats. A type is a row: to f32 and from f32; a pair with f32 on one side is one pass, any other pair
// goes through a tile of f32 in the first-level cache. Nearest even everywhere (E8M0: see floats.hpp), never saturating.
#include "floats.hpp"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t TILE = 1024;   // f32 in a tile: 4 KiB
constexpr size_t CHUNK = 4096;  // between two additions to the 64-bit counts

// ---------------------------------------------------------------- to f32

void f32_to_f32(const u8* src, u8* dst, size_t n) { memcpy(dst, src, n * 4); }

void f64_to_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, float(load<double>(src, i)));
}

void f64_to_f32_odd(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, narrow_f64_odd(load<double>(src, i)));
}

void bf16_to_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, u32(load<u16>(src, i)) << 16);
}

void f16_to_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 2 * i));
    _mm512_storeu_ps(dst + 4 * i, _mm512_cvtph_ps(h));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(dst + 4 * i), _mm256_cvtph_ps(h));
  }
#endif
  for (; i < n; ++i) store(dst, i, widen_f16(load<u16>(src, i)));
}

template <const Small& S>
void f8_to_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  static constexpr Values256 table = values<S>();
  for (size_t i = 0; i < n; ++i) store(dst, i, table.v[src[i]]);
}

void e8m0_to_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, widen_e8m0(src[i]));
}

// ---------------------------------------------------------------- from f32

void f32_from_f32(const u8* src, u8* dst, size_t n, Counts&) { memcpy(dst, src, n * 4); }

void f64_from_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts&) {
  for (size_t i = 0; i < n; ++i) store(dst, i, double(load<float>(src, i)));
}

// How one narrow type is made, and when a result of it has lost the number.
struct ToF16 {
  static u32 bits(u32 x) { return narrow_f16(x); }
  static u32 finite(u32 out) { return (out & 0x7FFF) < 0x7C00; }
  static u32 zero(u32 out) { return (out & 0x7FFF) == 0; }
};
struct ToBF16 {
  static u32 bits(u32 x) { return narrow_bf16(x); }
  static u32 finite(u32 out) { return (out & 0x7FFF) < 0x7F80; }
  static u32 zero(u32 out) { return (out & 0x7FFF) == 0; }
};
template <const Small& S>
struct ToF8 {
  static u32 bits(u32 x) { return narrow<S>(x); }
  static u32 finite(u32 out) { return S.unsigned_zero ? out != S.nan : (out & 0x7F) <= S.top; }
  static u32 zero(u32 out) { return S.unsigned_zero ? out == 0 : (out & 0x7F) == 0; }
};
struct ToE8M0 {  // a power of two is never zero
  static u32 bits(u32 x) { return narrow_e8m0(x); }
  static u32 finite(u32 out) { return out != 255; }
  static u32 zero(u32) { return 0; }
};

template <class T, class To>
void narrow_loop(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts& counts) {
  for (size_t start = 0; start < n; start += CHUNK) {  // 32-bit counts inside: as wide as the numbers
    const size_t m = n - start < CHUNK ? n - start : CHUNK;
    u32 over = 0, under = 0;
    for (size_t i = 0; i < m; ++i) {
      const u32 x = load<u32>(src, start + i), a = x & F32_ABS;
      const u32 out = To::bits(x);
      over += u32(a < F32_INF) & (To::finite(out) ^ 1u);
      under += u32(a != 0) & To::zero(out);
      store(dst, start + i, T(out));
    }
    counts.overflow += over;
    counts.underflow += under;
  }
}

void f16_from_f32(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n, Counts& counts) {
#if defined(__AVX512F__) || defined(__F16C__)
  // The hardware converts; what was lost follows from two thresholds: 65520 is the first value that rounds to Inf,
  // 2^-25 the last that rounds to zero.
  while (n >= 16) {
    const size_t m = n < CHUNK ? n & ~size_t(15) : CHUNK;
    u32 over = 0, under = 0;
    for (size_t i = 0; i < m; ++i) {
      const u32 a = load<u32>(src, i) & F32_ABS;
      over += u32(a - 0x477FF000u < F32_INF - 0x477FF000u);
      under += u32(a - 1u < 0x33000000u);
    }
    for (size_t i = 0; i < m; i += 16) {
#if defined(__AVX512F__)
      const __m512 x = _mm512_loadu_ps(src + 4 * i);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 2 * i), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
      for (size_t k = i; k < i + 16; k += 8) {
        const __m256 x = _mm256_loadu_ps(reinterpret_cast<const float*>(src + 4 * k));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * k), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
      }
#endif
    }
    counts.overflow += over;
    counts.underflow += under;
    src += 4 * m, dst += 2 * m, n -= m;
  }
#endif
  narrow_loop<u16, ToF16>(src, dst, n, counts);
}

}  // namespace

#define WB_FLOAT(type, bytes) .name = #type, .block = 1, .size = bytes
constinit static const Format float_formats[] = {
    {WB_FLOAT(F32, 4), .decode = f32_to_f32, .encode = f32_from_f32},
    {WB_FLOAT(F16, 2), .decode = f16_to_f32, .encode = f16_from_f32},
    {WB_FLOAT(BF16, 2), .decode = bf16_to_f32, .encode = narrow_loop<u16, ToBF16>},
    {WB_FLOAT(F64, 8), .decode = f64_to_f32, .encode = f64_from_f32, .decode_odd = f64_to_f32_odd},
    {WB_FLOAT(F8_E4M3, 1), .decode = f8_to_f32<SPEC_F8_E4M3>, .encode = narrow_loop<u8, ToF8<SPEC_F8_E4M3>>},
    {WB_FLOAT(F8_E5M2, 1), .decode = f8_to_f32<SPEC_F8_E5M2>, .encode = narrow_loop<u8, ToF8<SPEC_F8_E5M2>>},
    {WB_FLOAT(F8_E8M0, 1), .decode = e8m0_to_f32, .encode = narrow_loop<u8, ToE8M0>},
    {WB_FLOAT(F8_E4M3FNUZ, 1), .decode = f8_to_f32<SPEC_F8_E4M3FNUZ>, .encode = narrow_loop<u8, ToF8<SPEC_F8_E4M3FNUZ>>},
    {WB_FLOAT(F8_E5M2FNUZ, 1), .decode = f8_to_f32<SPEC_F8_E5M2FNUZ>, .encode = narrow_loop<u8, ToF8<SPEC_F8_E5M2FNUZ>>},
};
#undef WB_FLOAT
const Rows<Format> floats = {float_formats, sizeof float_formats / sizeof *float_formats};

void cast(const Format& from, const Format& to, const u8* src, u8* dst, size_t n, Counts& counts) {
  if (&from == &to) {  // bit-exact, NaN payloads too
    memcpy(dst, src, n * from.size);
  } else if (&from == float_formats) {
    to.encode(src, dst, n, counts);
  } else if (&to == float_formats && !from.decode_odd) {
    from.decode(src, dst, n);
  } else if (&to == float_formats) {  // f64 -> f32: rounded once, to nearest; counted against what came out
    for (size_t start = 0; start < n; start += CHUNK) {
      const size_t m = n - start < CHUNK ? n - start : CHUNK;
      from.decode(src + start * 8, dst + start * 4, m);
      u32 over = 0, under = 0;
      for (size_t i = start; i < start + m; ++i) {
        const u64 a = load<u64>(src, i) & 0x7FFFFFFFFFFFFFFF;
        const u32 out = load<u32>(dst, i) & F32_ABS;
        over += u32(a < 0x7FF0000000000000) & u32(out == F32_INF);
        under += u32(a != 0) & u32(out == 0);
      }
      counts.overflow += over;
      counts.underflow += under;
    }
  } else {
    const auto decode = from.decode_odd ? from.decode_odd : from.decode;
    u8 tile[TILE * 4];
    for (size_t i = 0; i < n; i += TILE) {
      const size_t m = n - i < TILE ? n - i : TILE;
      decode(src + i * from.size, tile, m);
      to.encode(tile, dst + i * to.size, m, counts);
    }
  }
}

}  // namespace weighbridge::WB_LEVEL
