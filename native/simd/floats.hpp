// One float at a time, without branches, so that plain loops over these become vector code at every level.
// Everything goes through f32: it holds every value of the narrower types, and round-to-odd carries f64 across.
#pragma once

#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr u32 F32_INF = 0x7F800000;
constexpr u32 F32_QUIET = 0x00400000;
constexpr u32 F32_ABS = 0x7FFFFFFF;

// A small float: sign, `exponent` bits biased by `bias`, `mantissa` bits. `top` is the largest finite magnitude,
// `over` the result of a finite value beyond it (and of an infinity), `nan` the NaN that is written. With `unsigned_zero`
// there is no -0: its pattern is the only NaN.
struct Small {
  int exponent, mantissa, bias;
  u32 top, over, nan;
  bool unsigned_zero;
};

//                                      E  M  bias  top     over    nan
constexpr Small SPEC_F16          = {   5, 10,  15, 0x7BFF, 0x7C00, 0x7E00, false };  // IEEE 754 binary16
// The 8-bit ones as ml_dtypes 0.5 writes them. E4M3 (OCP "fn") has no Inf: beyond 448 comes NaN. (torch saturates to
// 448 in some versions and not in others.)
constexpr Small SPEC_F8_E4M3      = {   4,  3,   7,   0x7E,   0x7F,   0x7F, false };
constexpr Small SPEC_F8_E5M2      = {   5,  2,  15,   0x7B,   0x7C,   0x7E, false };
constexpr Small SPEC_F8_E4M3FNUZ  = {   4,  3,   8,   0x7F,   0x80,   0x80, true };
constexpr Small SPEC_F8_E5M2FNUZ  = {   5,  2,  16,   0x7F,   0x80,   0x80, true };

constexpr u32 width(const Small& s) { return u32(1 + s.exponent + s.mantissa); }

// f32 bits -> small float, round to nearest even.
//  normal:   add half of the last kept place (less one if that is even), drop the rest, shift the bias;
//  denormal: add the power of two whose last place is the smallest denormal; the hardware rounds to even.
template <const Small& S>
WB_INLINE u32 narrow(u32 bits) {
  constexpr int drop = 23 - S.mantissa;
  constexpr u32 magic = u32(127 + (1 - S.bias) - S.mantissa + 23) << 23;
  constexpr u32 smallest_normal = u32(128 - S.bias) << 23;
  const u32 a = bits & F32_ABS;
  const u32 sign = (bits >> 31) << (width(S) - 1);
  const u32 normal = ((a + ((1u << (drop - 1)) - 1) + ((a >> drop) & 1)) >> drop) - (u32(127 - S.bias) << S.mantissa);
  const u32 denormal = bit_cast<u32>(bit_cast<float>(a) + bit_cast<float>(magic)) - magic;
  u32 m = a < smallest_normal ? denormal : normal;
  m = m > S.top ? S.over : m;
  m = a > F32_INF ? S.nan : m;
  const bool bare = S.unsigned_zero & ((m == 0) | (m == S.nan));
  return m | (bare ? 0 : sign);
}

// The 256 values of an 8-bit float; NaN keeps its sign as ml_dtypes has it.
struct Values256 {
  float v[256];
};

template <const Small& S>
constexpr Values256 values() {
  Values256 out{};
  for (u32 code = 0; code < 256; ++code) {
    const u32 m = code & 0x7F, exponent = m >> S.mantissa, fraction = m & ((1u << S.mantissa) - 1);
    const bool none = S.unsigned_zero && code == 0x80;
    const bool inf = !S.unsigned_zero && S.over != S.nan && m == S.over;
    const bool nan = none || (!S.unsigned_zero && !inf && m > S.top);
    u32 bits = 0;
    if (nan) {
      bits = F32_INF | F32_QUIET;
    } else if (inf) {
      bits = F32_INF;
    } else if (exponent) {
      bits = ((exponent + u32(127 - S.bias)) << 23) | (fraction << (23 - S.mantissa));
    } else if (fraction) {  // denormal: fraction * 2^(1 - bias - mantissa), normal in f32
      u32 shift = 0;
      while (!((fraction << shift) >> S.mantissa)) ++shift;
      bits = (u32(127 + 1 - S.bias - int(shift)) << 23) | (((fraction << shift) << (23 - S.mantissa)) & 0x7FFFFF);
    }
    bits |= code & 0x80 ? 0x80000000u : 0u;
    out.v[code] = __builtin_bit_cast(float, bits);
  }
  return out;
}

// f16 -> f32 (exact; a signalling NaN becomes quiet, as the hardware's conversion does).
WB_INLINE u32 widen_f16(u32 h) {
  const u32 m = h & 0x7FFF;
  // Normal: rebias. Denormal: put the fraction under 0.5's exponent and subtract 0.5: exact.
  const u32 normal = (m << 13) + (u32(127 - 15) << 23);
  const u32 denormal = bit_cast<u32>(bit_cast<float>(m | 0x3F000000u) - 0.5f);
  u32 out = m < 0x0400 ? denormal : normal;
  out = m >= 0x7C00 ? F32_INF | (m << 13) : out;
  out = m > 0x7C00 ? out | F32_QUIET : out;
  return out | ((h & 0x8000) << 16);
}

// f32 -> f16. NaN keeps its sign and the top of its payload and becomes quiet (IEEE 754 6.2.3; what vcvtps2ph and
// fcvtn do).
WB_INLINE u32 narrow_f16(u32 bits) {
  const u32 h = narrow<SPEC_F16>(bits);
  return (bits & F32_ABS) > F32_INF ? h | ((bits >> 13) & 0x3FF) : h;
}

// f32 -> f16 as ggml stores scales: every NaN is 0x7E00 and the sign (ggml-impl.h, ggml_compute_fp32_to_fp16).
WB_INLINE u32 narrow_f16_ggml(u32 bits) { return narrow<SPEC_F16>(bits); }

// f32 -> bf16. NaN keeps sign and payload and becomes quiet (ggml-impl.h, ggml_compute_fp32_to_bf16; ml_dtypes
// writes 0x7FC0 and the sign, torch 0x7FC0 or 0xFFFF).
WB_INLINE u32 narrow_bf16(u32 bits) {
  const u32 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (bits & F32_ABS) > F32_INF ? (bits >> 16) | 0x40 : rounded;
}

// f32 -> E8M0 (a power of two; OCP MX). As ml_dtypes: nearest, halves up; zero, negatives, Inf and NaN become 255. Below 2^-126
// both ml_dtypes and torch round at 2^-127 instead of at 1.5 * 2^-127, and so do we.
WB_INLINE u32 narrow_e8m0(u32 bits) {
  const u32 exponent = bits >> 23, fraction = bits & 0x7FFFFF;
  const u32 up = fraction + u32(exponent != 0) > 0x400000;
  const bool none = (bits == 0) | (bits >= F32_INF);
  return none ? 255 : exponent + up;
}

WB_INLINE u32 widen_e8m0(u32 code) {
  return code == 255 ? F32_INF | F32_QUIET : code == 0 ? 0x00400000u : code << 23;
}

// f64 -> f32, rounded to odd: inexact results get an odd last bit, so that rounding again to any type at least two
// bits narrower gives the one correct rounding (Boldo and Melquiond, "When double rounding is odd").
WB_INLINE float narrow_f64_odd(double x) {
  const float f = float(x);
  const double back = double(f);
  const u32 bits = bit_cast<u32>(f);
  const double ax = x < 0 ? -x : x, ab = back < 0 ? -back : back;
  const u32 fixed = ab > ax ? bits - 1 : bits + 1;
  const bool inexact = back != x && x == x;
  return bit_cast<float>(inexact && !(bits & 1) ? fixed : bits);
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
