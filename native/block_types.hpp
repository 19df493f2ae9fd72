// The bytes of one block of each ggml block type, without padding. docs/block-types.md draws them.
// Made by docs/generate.py from base/dtypes.py: run `make docs`.
#pragma once

#include "types.hpp"

namespace weighbridge {

struct Q4_0 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  u8 qs[16];
};
static_assert(sizeof(Q4_0) == 18 && alignof(Q4_0) == 1);

struct Q4_1 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  LeF16 m;
  u8 qs[16];
};
static_assert(sizeof(Q4_1) == 20 && alignof(Q4_1) == 1);

struct Q5_0 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  LeU32 qh;
  u8 qs[16];
};
static_assert(sizeof(Q5_0) == 22 && alignof(Q5_0) == 1);

struct Q5_1 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  LeF16 m;
  LeU32 qh;
  u8 qs[16];
};
static_assert(sizeof(Q5_1) == 24 && alignof(Q5_1) == 1);

struct Q8_0 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  i8 qs[32];
};
static_assert(sizeof(Q8_0) == 34 && alignof(Q8_0) == 1);

struct Q8_1 {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  LeF16 s;
  i8 qs[32];
};
static_assert(sizeof(Q8_1) == 36 && alignof(Q8_1) == 1);

struct Q2_K {
  static constexpr size_t N = 256;  // elements
  u8 scales[16];
  u8 qs[64];
  LeF16 d;
  LeF16 dmin;
};
static_assert(sizeof(Q2_K) == 84 && alignof(Q2_K) == 1);

struct Q3_K {
  static constexpr size_t N = 256;  // elements
  u8 hmask[32];
  u8 qs[64];
  u8 scales[12];
  LeF16 d;
};
static_assert(sizeof(Q3_K) == 110 && alignof(Q3_K) == 1);

struct Q4_K {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  LeF16 dmin;
  u8 scales[12];
  u8 qs[128];
};
static_assert(sizeof(Q4_K) == 144 && alignof(Q4_K) == 1);

struct Q5_K {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  LeF16 dmin;
  u8 scales[12];
  u8 qh[32];
  u8 qs[128];
};
static_assert(sizeof(Q5_K) == 176 && alignof(Q5_K) == 1);

struct Q6_K {
  static constexpr size_t N = 256;  // elements
  u8 ql[128];
  u8 qh[64];
  i8 scales[16];
  LeF16 d;
};
static_assert(sizeof(Q6_K) == 210 && alignof(Q6_K) == 1);

struct Q8_K {
  static constexpr size_t N = 256;  // elements
  LeF32 d;
  i8 qs[256];
  LeI16 bsums[16];
};
static_assert(sizeof(Q8_K) == 292 && alignof(Q8_K) == 1);

struct IQ2_XXS {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  u8 qs[64];
};
static_assert(sizeof(IQ2_XXS) == 66 && alignof(IQ2_XXS) == 1);

struct IQ2_XS {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  LeU16 qs[32];
  u8 scales[8];
};
static_assert(sizeof(IQ2_XS) == 74 && alignof(IQ2_XS) == 1);

struct IQ3_XXS {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  u8 qs[64];
  LeU32 signs[8];
};
static_assert(sizeof(IQ3_XXS) == 98 && alignof(IQ3_XXS) == 1);

struct IQ1_S {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  u8 qs[32];
  LeU16 qh[8];
};
static_assert(sizeof(IQ1_S) == 50 && alignof(IQ1_S) == 1);

struct IQ4_NL {
  static constexpr size_t N = 32;  // elements
  LeF16 d;
  u8 qs[16];
};
static_assert(sizeof(IQ4_NL) == 18 && alignof(IQ4_NL) == 1);

struct IQ3_S {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  u8 qs[64];
  u8 qh[8];
  u8 signs[32];
  u8 scales[4];
};
static_assert(sizeof(IQ3_S) == 110 && alignof(IQ3_S) == 1);

struct IQ2_S {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  u8 qs[32];
  u8 signs[32];
  u8 qh[8];
  u8 scales[8];
};
static_assert(sizeof(IQ2_S) == 82 && alignof(IQ2_S) == 1);

struct IQ4_XS {
  static constexpr size_t N = 256;  // elements
  LeF16 d;
  LeU16 scales_h;
  u8 scales_l[4];
  u8 qs[128];
};
static_assert(sizeof(IQ4_XS) == 136 && alignof(IQ4_XS) == 1);

struct IQ1_M {
  static constexpr size_t N = 256;  // elements
  u8 qs[32];
  u8 qh[16];
  LeU16 scales[4];
};
static_assert(sizeof(IQ1_M) == 56 && alignof(IQ1_M) == 1);

struct TQ1_0 {
  static constexpr size_t N = 256;  // elements
  u8 qs[48];
  u8 qh[4];
  LeF16 d;
};
static_assert(sizeof(TQ1_0) == 54 && alignof(TQ1_0) == 1);

struct TQ2_0 {
  static constexpr size_t N = 256;  // elements
  u8 qs[64];
  LeF16 d;
};
static_assert(sizeof(TQ2_0) == 66 && alignof(TQ2_0) == 1);

struct MXFP4 {
  static constexpr size_t N = 32;  // elements
  u8 e;
  u8 qs[16];
};
static_assert(sizeof(MXFP4) == 17 && alignof(MXFP4) == 1);

struct NVFP4 {
  static constexpr size_t N = 64;  // elements
  u8 d[4];
  u8 qs[32];
};
static_assert(sizeof(NVFP4) == 36 && alignof(NVFP4) == 1);

struct Q1_0 {
  static constexpr size_t N = 128;  // elements
  LeF16 d;
  u8 qs[16];
};
static_assert(sizeof(Q1_0) == 18 && alignof(Q1_0) == 1);

struct Q2_0 {
  static constexpr size_t N = 64;  // elements
  LeF16 d;
  u8 qs[16];
};
static_assert(sizeof(Q2_0) == 18 && alignof(Q2_0) == 1);

}  // namespace weighbridge
