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

#define WB_DECLARE(result, name, parameters) result name parameters;
WB_KERNELS(WB_DECLARE)
#undef WB_DECLARE

// Encoders in another file than their type's decoder: those with and without weights, and those that need weights or whose
// other way is next to the decoder.
#define WB_WEIGHTED_ENCODER(name) void name##_encode_weighted(const WeightedRows& rows, u8* dst, Counts&);
#define WB_ENCODERS(name)                                         \
  void name##_encode(const u8* src, u8* dst, size_t n, Counts&); \
  WB_WEIGHTED_ENCODER(name)
WB_ENCODERS(q2_k)
WB_ENCODERS(q3_k)
WB_ENCODERS(q4_k)
WB_ENCODERS(q5_k)
WB_ENCODERS(q6_k)
WB_ENCODERS(iq1_m)
WB_ENCODERS(iq2_s)
WB_ENCODERS(iq3_s)
WB_ENCODERS(iq3_xxs)
WB_ENCODERS(iq4_nl)
WB_ENCODERS(iq4_xs)
WB_WEIGHTED_ENCODER(iq1_s)
WB_WEIGHTED_ENCODER(iq2_xs)
WB_WEIGHTED_ENCODER(iq2_xxs)
WB_WEIGHTED_ENCODER(q4_0)
WB_WEIGHTED_ENCODER(q4_1)
WB_WEIGHTED_ENCODER(q5_0)
WB_WEIGHTED_ENCODER(q5_1)
#undef WB_ENCODERS
#undef WB_WEIGHTED_ENCODER

extern const Rows<Format> floats, blocks32, lowbit, kquants, iquants;
extern const Rows<MlxRegroup> regroups;
extern const Rows<RoundingRule> rounding_rules;

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

// The scalars of a block.
WB_INLINE u32 load(const LeU16& x) { return load<u16>(x.bytes); }
WB_INLINE u32 load(const LeU32& x) { return load<u32>(x.bytes); }
WB_INLINE float load(const LeF32& x) { return load<float>(x.bytes); }

template <class To, class From>
WB_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
