// Integer codes with a scale and an offset for each group of neighbours along the last axis.
//
//   MLX affine                        x = scale * code + bias       bias: of the scale's type
//   GPTQ, AWQ, compressed-tensors     x = scale * (code - zero)     zero: u8
//
// Codes are one bit stream (streams.hpp; mlx/backend/cpu/quantized.cpp: the u32 words of the file are its bytes).
// Groups follow each other without a gap and rows are whole groups, so a matrix is one run of groups.
// All in f32, with one rounding a step (the libraries compute in the type of the scales); code - zero is exact.
#include "streams.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// 32 codes, one a byte, to 4 * B bytes. Eight codes are written as 8 bytes whose last 8 - B the next ones overwrite; the
// last ones go by way of a copy.
template <int B>
WB_INLINE void pack32(const u8* WB_RESTRICT codes, u8* WB_RESTRICT dst) {
  u8 bytes[4 * B + 8];
  for (size_t i = 0; i < 4; ++i) {
    const u64 eight = gather8<B>(load<u64>(codes, i));
    memcpy(bytes + i * B, &eight, 8);
  }
  memcpy(dst, bytes, 4 * B);
}

constexpr size_t GROUPS = 64;  // parameters are widened this many at a time

// Sixteen codes below 128, widened: code * scale + bias, or (code - zero) * scale.
template <bool Zeros>
WB_INLINE void put_values(B16 codes, float scale, float offset, u8* dst) {
  if constexpr (!Zeros) return put_scaled_plus(codes, scale, offset, dst);
  const Sixteen q = widened(codes);
  for (int k = 0; k < 16 / W; ++k) store(dst, size_t(k), (to_float(q.v[k]) - splat(offset)) * splat(scale));
}

template <int B, bool Zeros>
void decode(const AffineOptions& how, const u8* WB_RESTRICT codes, const u8* WB_RESTRICT scales, const u8* WB_RESTRICT offsets,
            u8* WB_RESTRICT dst, size_t groups) {
  const Format& type = *how.parameters;
  const size_t group = how.group;
  u8 s[GROUPS * 4], b[GROUPS * 4];
  for (size_t start = 0; start < groups; start += GROUPS) {
    const size_t m = groups - start < GROUPS ? groups - start : GROUPS;
    type.decode(scales + start * type.size, s, m);
    if constexpr (!Zeros) type.decode(offsets + start * type.size, b, m);
    for (size_t g = 0; g < m; ++g) {
      const float scale = load<float>(s, g), offset = Zeros ? float(offsets[start + g]) : load<float>(b, g);
      if constexpr (B == 8) {  // a byte each: groups of any size
        for (size_t j = 0; j < group; ++j) {
          const float code = float(codes[j]);
          store(dst, j, Zeros ? (code - offset) * scale : code * scale + offset);
        }
        codes += group, dst += group * 4;
      } else {
        for (size_t at = 0; at < group; at += 16, codes += 2 * B, dst += 16 * 4)
          put_values<Zeros>(stream16<B>(codes), scale, offset, dst);
      }
    }
  }
}

template <int B>
void unpack(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) store(dst, i, spread8<B>(load_bytes<B>(src + i * B)));
}

// The least and largest of a group; NaN never is (std::min and std::max of MLX's loop keep what they have).
WB_INLINE void extremes(const u8* src, size_t group, float& low, float& high) {
  F32 lo = load<F32>(src), hi = lo;
  const I32 number = lo == lo;
  lo = select(number, lo, splat(__builtin_inff())), hi = select(number, hi, splat(-__builtin_inff()));
  for (size_t at = W; at < group; at += W) {
    const F32 x = load<F32>(src + at * 4);
    lo = select(x < lo, x, lo), hi = select(hi < x, x, hi);
  }
  low = lo[0], high = hi[0];
  for (int i = 1; i < W; ++i) low = lo[i] < low ? lo[i] : low, high = high < hi[i] ? hi[i] : high;
}

// To nearest, halves to even, of 0 <= x < 2^23: adding 2^23 leaves no fraction bits.
WB_INLINE float nearest(float x) { return (x + 8388608.0f) - 8388608.0f; }

WB_INLINE float nearest_any(float x) {
  const float size = x < 0 ? -x : x;
  return (x < 0 ? -1.0f : 1.0f) * (size < 8388608.0f ? nearest(size) : size);
}

// The parameters of a group as MLX's CPU kernel has them: the end of larger magnitude becomes exact, the scale carries its
// sign.
WB_INLINE void fit(const u8* src, size_t group, float top, float& scale, float& bias) {
  float low, high;
  extremes(src, group, low, high);
  const bool negative = (low < 0 ? -low : low) > (high < 0 ? -high : high);
  const float width = (high - low) / top;
  scale = width < 1e-7f ? 1e-7f : width;
  scale = negative ? scale : -scale;
  const float edge = negative ? low : high;
  const float steps = nearest_any(edge / scale);
  scale = steps != 0 ? edge / steps : scale;
  bias = steps != 0 ? edge : 0.0f;
}

template <int B>
WB_INLINE void encode_codes(const u8* WB_RESTRICT src, size_t group, float scale, float bias, u8* WB_RESTRICT codes) {
  constexpr float top = float((1 << B) - 1);
  u8 step[32];
  for (size_t at = 0; at < group; at += 32, codes += 4 * B) {
    for (size_t j = 0; j < 32; ++j) {
      float x = (load<float>(src, at + j) - bias) / scale;
      x = x > 0 ? x : 0.0f;  // NaN too
      x = x < top ? x : top;
      step[j] = u8(int(nearest(x)));
    }
    pack32<B>(step, codes);
  }
}

template <int B>
void encode(const AffineOptions& how, const u8* WB_RESTRICT src, u8* WB_RESTRICT codes, u8* WB_RESTRICT scales,
            u8* WB_RESTRICT biases, size_t groups) {
  const Format& type = *how.parameters;
  u8 s[GROUPS * 4], b[GROUPS * 4];
  Counts lost;
  for (size_t start = 0; start < groups; start += GROUPS) {
    const size_t m = groups - start < GROUPS ? groups - start : GROUPS;
    for (size_t g = 0; g < m; ++g, src += how.group * 4) {
      float scale, bias;
      fit(src, how.group, float((1 << B) - 1), scale, bias);
      store(s, g, scale), store(b, g, bias);
      if (!codes) continue;
      encode_codes<B>(src, how.group, scale, bias, codes);
      codes += how.group / 8 * B;
    }
    type.encode(s, scales + start * type.size, m, lost);
    type.encode(b, biases + start * type.size, m, lost);
  }
}

template <int B>
void pack(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const u64 eight = gather8<B>(load<u64>(src, i));
    memcpy(dst + i * B, &eight, B);
  }
}

// A table of sixteen floats, indexed by codes.
struct Choice {
  F32 v[16 / W];
};

WB_INLINE F32 chosen(const Choice& from, I32 code) {
#if WB_LANES == 16
  return permute(from.v[0], code);
#elif WB_LANES == 8
  return select(code > splat(i32(7)), permute(from.v[1], code), permute(from.v[0], code));
#else
  F32 out = from.v[0];
  for (int i = 0; i < W; ++i) out[i] = from.v[code[i] / W][code[i] % W];
  return out;
#endif
}

// The nibbles of four bytes change places.
WB_INLINE u32 swapped_nibbles(u32 x) { return (x & 0x0F0F0F0F) << 4 | (x >> 4 & 0x0F0F0F0F); }

template <bool HighFirst>
void look_up(const LookupOptions& how, const u8* WB_RESTRICT codes, const u8* WB_RESTRICT scales, u8* WB_RESTRICT dst,
             size_t groups) {
  const Choice table = load<Choice>(how.table);
  for (size_t g = 0; g < groups; ++g) {
    const F32 scale = splat(load<float>(scales, g));
    for (size_t at = 0; at < how.group; at += 16, codes += 8, dst += 64) {
      u32 first = load<u32>(codes), second = load<u32>(codes, 1);
      if constexpr (HighFirst) first = swapped_nibbles(first), second = swapped_nibbles(second);
      const Sixteen q = widened(join(spread8<4>(first), spread8<4>(second)));
      for (int k = 0; k < 16 / W; ++k) store(dst, size_t(k), chosen(table, q.v[k]) * scale);
    }
  }
}

}  // namespace

void table_decode(const LookupOptions& how, const u8* codes, const u8* scales, u8* f32, size_t groups) {
  (how.high_first ? look_up<true> : look_up<false>)(how, codes, scales, f32, groups);
}

// Columns of no groups in a row: column i is of group index[i]. A code, and a zero point, is a byte.
void ordered_decode(const OrderedOptions& how, const u8* WB_RESTRICT codes, const u8* WB_RESTRICT scales,
                    const u8* WB_RESTRICT zeros, u8* WB_RESTRICT dst) {
  for (size_t row = 0; row < how.rows; ++row, codes += how.stride, dst += how.columns * 4)
    for (size_t i = 0; i < how.columns; ++i) {
      const size_t at = row * how.groups + how.index[i];
      store(dst, i, (float(codes[i]) - float(zeros[at])) * load<float>(scales, at));
    }
}

void pack_codes(int bits, const u8* src, u8* dst, size_t n) {
  using Pack = void (*)(const u8*, u8*, size_t);
  static constexpr Pack by_bits[9] = {nullptr, pack<1>, pack<2>, pack<3>, pack<4>, pack<5>, pack<6>, pack<7>, pack<8>};
  by_bits[bits](src, dst, n);
}

void affine_encode(const AffineOptions& how, const u8* f32, u8* codes, u8* scales, u8* biases, size_t groups) {
  using Encode = void (*)(const AffineOptions&, const u8*, u8*, u8*, u8*, size_t);
  static constexpr Encode by_bits[9] = {nullptr,   nullptr,   encode<2>, encode<3>, encode<4>,
                                        encode<5>, encode<6>, nullptr,   encode<8>};
  by_bits[how.bits](how, f32, codes, scales, biases, groups);
}

void affine_decode(const AffineOptions& how, const u8* codes, const u8* scales, const u8* offsets, u8* f32, size_t groups) {
  using Decode = void (*)(const AffineOptions&, const u8*, const u8*, const u8*, u8*, size_t);
  static constexpr Decode by_bits[2][9] = {
      {nullptr, decode<1, false>, decode<2, false>, decode<3, false>, decode<4, false>, decode<5, false>,
       decode<6, false>, decode<7, false>, decode<8, false>},
      {nullptr, decode<1, true>, decode<2, true>, decode<3, true>, decode<4, true>, decode<5, true>, decode<6, true>,
       decode<7, true>, decode<8, true>}};
  by_bits[how.zeros][how.bits](how, codes, scales, offsets, f32, groups);
}

void unpack_codes(int bits, const u8* src, u8* dst, size_t n) {
  using Unpack = void (*)(const u8*, u8*, size_t);
  static constexpr Unpack by_bits[9] = {nullptr,   unpack<1>, unpack<2>, unpack<3>, unpack<4>,
                                        unpack<5>, unpack<6>, unpack<7>, unpack<8>};
  by_bits[bits](src, dst, n);
}

}  // namespace weighbridge::WB_LEVEL
