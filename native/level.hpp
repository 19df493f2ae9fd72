// Included first by every kernel file. The file is compiled once a level, into the namespace of that level; helpers
// live in the unnamed namespace inside it. That matters: an inline function of a shared header compiled with AVX-512
// flags could be the copy that the linker keeps for the baseline too. So kernels call no std:: function.
#pragma once

#include "kernels.hpp"

#include <cstring>

#if !defined(WB_LEVEL) || !defined(WB_LANES)
#error "WB_LEVEL and WB_LANES come from CMakeLists.txt"
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define WB_INLINE static __forceinline
#define WB_RESTRICT __restrict
#else
#define WB_INLINE static inline __attribute__((always_inline))
#define WB_RESTRICT __restrict__
#endif

#define WB_STRING_(x) #x
#define WB_STRING(x) WB_STRING_(x)

// All numbers in files are little-endian and so are all hosts that we build for.
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Weighbridge's kernels need a little-endian host; the Python package works without them"
#endif

namespace weighbridge::WB_LEVEL {

// Rows of the families, gathered by table.cpp.
void cast(const Format& from, const Format& to, const u8* src, u8* dst, size_t n, Counts&);
void stats(const Format& type, const u8* src, size_t n, Stats&);
u64 nonfinite(const u8* f32, size_t n);
void scale_stats(const Format& type, const u8* src, size_t n, Stats&);
void affine_decode(const Affine&, const u8* codes, const u8* scales, const u8* offsets, u8* f32, size_t groups);
void ordered_decode(const Ordered&, const u8* codes, const u8* scales, const u8* zeros, u8* f32);
void table_decode(const Lookup&, const u8* codes, const u8* scales, u8* f32, size_t groups);
void affine_encode(const Affine&, const u8* f32, u8* codes, u8* scales, u8* biases, size_t groups);
void extremes(const Tiles&, const u8* f32, u8* low, u8* high);
void scaled_decode(const Format& type, const Tiles&, const u8* src, const u8* scales, u8* f32);
void pack_codes(int bits, const u8* src, u8* dst, size_t n);
void unpack_codes(int bits, const u8* src, u8* dst, size_t n);
void byteswap(const u8* src, u8* dst, size_t n, u32 word);
void gather(const u8* src, const i64* index, u8* dst, size_t rows, size_t row_bytes);

// The K types' encoders, which kquants.cpp lists beside the decoders.
void q2_k_encode(const u8* src, u8* dst, size_t n, Counts&);
void q2_k_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q3_k_encode(const u8* src, u8* dst, size_t n, Counts&);
void q3_k_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q4_k_encode(const u8* src, u8* dst, size_t n, Counts&);
void q4_k_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q5_k_encode(const u8* src, u8* dst, size_t n, Counts&);
void q5_k_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q6_k_encode(const u8* src, u8* dst, size_t n, Counts&);
void q6_k_encode_weighted(const Weighted& rows, u8* dst, Counts&);

// And those of the blocks of 32 that have weights, for blocks32.cpp.
void q4_0_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q4_1_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q5_0_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void q5_1_encode_weighted(const Weighted& rows, u8* dst, Counts&);

// The encoders over codebooks, which iquants.cpp and blocks32.cpp list beside the decoders.
#define WB_ENCODER(name)                                               \
  void name##_encode(const u8* src, u8* dst, size_t n, Counts&);       \
  void name##_encode_weighted(const Weighted& rows, u8* dst, Counts&)
WB_ENCODER(iq4_nl);
WB_ENCODER(iq4_xs);
WB_ENCODER(iq3_s);
WB_ENCODER(iq3_xxs);
WB_ENCODER(iq2_s);
WB_ENCODER(iq1_m);
#undef WB_ENCODER
// Without weights they can't.
void iq2_xs_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void iq2_xxs_encode_weighted(const Weighted& rows, u8* dst, Counts&);
void iq1_s_encode_weighted(const Weighted& rows, u8* dst, Counts&);

extern const Family floats, blocks32, lowbit, kquants, iquants;
extern const Regulars regulars;
extern const RoundingRules rounding_rules;

namespace {

// memcpy is how unaligned, aliasing-safe access is spelled; compilers make one instruction of it, in vectors too.
template <class T>
WB_INLINE T load(const u8* p, size_t i = 0) {
  T value;
  memcpy(&value, p + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
WB_INLINE void store(u8* p, size_t i, T value) {
  memcpy(p + i * sizeof(T), &value, sizeof(T));
}

template <class To, class From>
WB_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
