// One, two and 1.6 bits a weight, and NVIDIA's FP4: Q1_0, Q2_0, TQ1_0, TQ2_0, NVFP4. Bytes equal to llama.cpp's
// (ggml-quants.c, b11549, built for x86-64).
#include "blocks.hpp"
#include "codes.hpp"
#include "fp4.hpp"
#include "rows.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Fields are drawn in docs/block-types.md.
//
//   Q1_0    x[j] = bit j ? d : -d                            bits, lowest first
//   Q2_0    x[j] = d * (q[j] - 1)                            two bits each, lowest first
//   NVFP4   x[j] = scale(d[j / 16]) / 2 * FP4_VALUES[q[j]]   d: four E4M3 without sign, one for 16 elements; eight bytes of
//                                                            qs for 16 elements, low nibbles are the first eight
//   TQ2_0   x[j] = d * (q[j] - 1)                            two halves of 128: byte m has elements m, m + 32, m + 64, m + 96
//   TQ1_0   x[j] = d * (trit - 1)                            a byte is a fraction of 256 with five base-3 digits,
//                                                            ceil(q * 256 / 243): times three, the carry is the next digit.
//                                                            Elements of a digit are 32 bytes of qs, then 16, then 4 of qh
constexpr size_t NVFP4_PART = 16;

// ---------------------------------------------------------------- decode

void decode_q1_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const Q1_0& b : Blocks<Q1_0>{src, n}) {
    const u32 d = half_bits(b.d);  // -d flips the sign of a NaN too
    for (size_t i = 0; i < Q1_0::N / 8; ++i)
      for (u32 k = 0; k < 8; ++k) store(dst, 8 * i + k, d ^ ((~u32(b.qs[i]) >> k & 1) << 31));
    dst += Q1_0::N * 4;
  }
}

// The codes of sixteen bytes by their place in a byte, then in turn. A loop over bits that differ from element to element takes 2.5
// times as long.
void decode_q2_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  static_assert(Q2_0::N == 64);
  for (const Q2_0& b : Blocks<Q2_0>{src, n}) {
    const float d = half(b.d);
    const B16 q = load16(b.qs), three = splat16(3), one = splat16(1);
    const B32 even = in_turn((q & three) - one, (q >> 2 & three) - one), odd = in_turn((q >> 4 & three) - one, (q >> 6) - one);
    const B32 quarters[2] = {pairs_in_turn(even.first, odd.first), pairs_in_turn(even.second, odd.second)};
    for (const B32& two : quarters) {
      put_scaled(two.first, d, dst);
      put_scaled(two.second, d, dst + 64);
      dst += 128;
    }
  }
}

// The 128 magnitudes of an E4M3 scale. `nan`: the value of its last code; ggml reads 0 (ggml_ue4m3_to_fp32).
struct Magnitudes {
  float v[128];
};
constexpr Magnitudes magnitudes(float factor, float nan) {
  Magnitudes out{};
  const Values256 all = values<SPEC_F8_E4M3>();
  for (int code = 0; code < 127; ++code) out.v[code] = all.v[code] * factor;
  out.v[127] = nan;
  return out;
}
constexpr Magnitudes HALF_SCALES = magnitudes(0.5f, 0.0f);

// ggml looks only for 0x7F, so 0xFF is the number 480.
WB_INLINE float half_ue4m3(u8 code) { return code == 0xFF ? 240.0f : HALF_SCALES.v[code & 127]; }

void decode_nvfp4(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const NVFP4& b : Blocks<NVFP4>{src, n})
    for (size_t s = 0; s < 4; ++s, dst += NVFP4_PART * 4)
      decode_nibbles<NVFP4_PART>(b.qs + 8 * s, half_ue4m3(b.d[s]), FP4_VALUES, dst);
}

// As E4M3 has it: 127 is NaN. No quantizer writes it, so it is worth telling.
void nvfp4_scales(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  constexpr u32 nan = F32_INF | F32_QUIET;
  for (const NVFP4& b : Blocks<NVFP4>{src, n})
    for (size_t s = 0; s < 4; ++s, dst += 4) {
      const u8 code = b.d[s] & 127;
      store(dst, 0, code == 127 ? nan : bit_cast<u32>(HALF_SCALES.v[code] * 2.0f));
    }
}

void decode_tq2_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const TQ2_0& b : Blocks<TQ2_0>{src, n}) {
    const float d = half(b.d);
    for (size_t at = 0; at < 64; at += 32)
      for (int k = 0; k < 4; ++k, dst += 32 * 4)
        for (size_t m = 0; m < 32; ++m) store(dst, m, float((b.qs[at + m] >> 2 * k & 3) - 1) * d);
  }
}

// Sixteen elements of one digit, which is how many of 86 and 171 a byte reaches; then it is shifted out. In registers: as a loop over
// bytes in memory, AVX2 takes twice as long.
WB_INLINE void next_trits(B16& q, float d, u8* dst) {
  const B16 top = splat16(128), ordered = q ^ top;
  put_scaled(splat16(-1) - above(ordered, splat16(85) ^ top) - above(ordered, splat16(170) ^ top), d, dst);
  q = q + q + q;
}

void decode_tq1_0(const u8* WB_RESTRICT src, u8* WB_RESTRICT dst, size_t n) {
  for (const TQ1_0& b : Blocks<TQ1_0>{src, n}) {
    const float d = half(b.d);
    B16 q[3];
    u8 last[sizeof b.qh];
    for (size_t i = 0; i < 3; ++i) q[i] = load16(b.qs + 16 * i);
    memcpy(last, b.qh, sizeof last);
    for (int k = 0; k < 5; ++k, dst += 32 * 4) next_trits(q[0], d, dst), next_trits(q[1], d, dst + 64);
    for (int k = 0; k < 5; ++k, dst += 16 * 4) next_trits(q[2], d, dst);
    for (int k = 0; k < 4; ++k)
      for (size_t m = 0; m < sizeof last; ++m, dst += 4) {
        store(dst, 0, float((last[m] * 3 >> 8) - 1) * d);
        last[m] = u8(last[m] * 3);
      }
  }
}

// ---------------------------------------------------------------- encode

// d is the mean magnitude, summed in order.
void encode_q1_0(const u8* src, Q1_0* dst, Counts& counts) {
  F32 x[Q1_0::N], sum = splat(0.0f);
  load_columns(src, Q1_0::N * 4, x);
  for (size_t j = 0; j < Q1_0::N; ++j) sum = sum + absolute(x[j]);
  store_scales<&Q1_0::d>(sum / splat(float(Q1_0::N)), dst, counts);
  I32 bytes[Q1_0::N / 8];
  for (size_t i = 0; i < Q1_0::N / 8; ++i) {
    bytes[i] = splat(i32(0));
    for (size_t k = 0; k < 8; ++k) {
      const F32 v = x[8 * i + k];
      bytes[i] = bytes[i] | (((v > splat(0.0f)) | (v == splat(0.0f))) & splat(i32(1 << k)));
    }
  }
  store_bytes<&Q1_0::qs>(bytes, dst);
}

// d is the largest magnitude, so code 3 is never written (ggml limits to it). NaN gives 0.
void encode_q2_0(const u8* src, Q2_0* dst, Counts& counts) {
  F32 x[Q2_0::N];
  load_columns(src, Q2_0::N * 4, x);
  const F32 d = magnitude_of(x), id = inverse(d);
  store_scales<&Q2_0::d>(d, dst, counts);
  I32 bytes[Q2_0::N / 4];
  for (size_t i = 0; i < Q2_0::N / 4; ++i) {
    bytes[i] = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) {
      I32 q = round_away(x[4 * i + k] * id) + splat(i32(1));
      q = select(q < splat(i32(0)), splat(i32(0)), q);
      bytes[i] = bytes[i] | (q << int(2 * k));
    }
  }
  store_bytes<&Q2_0::qs>(bytes, dst);
}

// f32 >= 0 to E4M3 as ggml_fp32_to_ue4m3: the first bit that is dropped rounds up; from 248 on all is 448.
WB_INLINE I32 narrow_ue4m3(F32 x) {
  const I32 bits = as_i32(x), exponent = (bits >> 23) - splat(i32(120));
  I32 denormal = truncate(x * splat(512.0f) + splat(0.5f));
  denormal = select(denormal > splat(i32(7)), splat(i32(7)), denormal);
  I32 normal = (exponent << 3) + ((bits >> 20) & splat(i32(7))) + ((bits >> 19) & splat(i32(1)));
  normal = select(normal > splat(i32(0x77)), splat(i32(0x7E)), normal);
  return select(exponent > splat(i32(0)), normal, denormal);
}

// HALF_SCALES of these codes. A look-up goes through memory, and a load that spans several stores waits for them: NVFP4 takes a third
// longer.
WB_INLINE F32 half_scale(I32 code) {
  return select(code < splat(i32(8)), to_float(code) * splat(1.0f / 1024), as_f32((code << 20) + splat(i32(119 << 23))));
}

// Parts of 16, four of a block.
void encode_nvfp4(const u8* src, NVFP4* dst, Counts& counts) {
  fp4_rows<NVFP4_PART>(
      src,
      [&](F32 amax, size_t first) {
        const F32 ideal = amax / splat(6.0f);
        const I32 scale = narrow_ue4m3(ideal);
        I32 codes[16 / W];
        for (I32& v : codes) v = scale;
        u8 stored[16];
        store(stored, 0, narrowed(codes));
        for (size_t i = 0; i < size_t(W); i += 4) memcpy(dst[(first + i) / 4].d, stored + i, 4);
        each_lane((scale == splat(i32(0))) & (ideal != splat(0.0f)), [&](int) { ++counts.underflow; });
        return half_scale(scale);
      },
      [&](B32 q, size_t row) {  // two parts
        const Halves a = halves(q.first), b = halves(q.second);
        put_nibbles({join(a.first, b.first), join(a.second, b.second)}, dst[row / 2].qs + 16 * (row % 2));
      });
}

// -1, 0, 1 -> 0, 1, 2. Only the low bits count, so that what doesn't fit (ggml's lroundf has 64 bits) is the same.
WB_INLINE I32 trit(F32 v) { return round_away(v) + splat(i32(1)); }

void encode_tq2_0(const u8* src, TQ2_0* dst, Counts& counts) {
  F32 x[TQ2_0::N];
  load_columns(src, TQ2_0::N * 4, x);
  const F32 d = running_max(x), id = inverse(d);
  store_scales<&TQ2_0::d>(d, dst, counts);
  I32 bytes[64];
  for (size_t i = 0; i < 64; ++i) {
    const F32* part = x + i / 32 * 128 + i % 32;
    bytes[i] = splat(i32(0));
    for (size_t k = 0; k < 4; ++k) bytes[i] = bytes[i] | ((trit(part[32 * k] * id) & splat(i32(3))) << int(2 * k));
  }
  store_bytes<&TQ2_0::qs>(bytes, dst);
}

// Five digits at a distance of `stride` as a fraction of 256, rounded up; a missing fifth digit is 0. C counts in a byte.
WB_INLINE I32 pack_trits(const F32* x, size_t stride, size_t digits, F32 id) {
  I32 q = splat(i32(0));
  for (size_t k = 0; k < 5; ++k) {
    q = q * splat(i32(3));
    if (k < digits) q = q + trit(x[k * stride] * id);
    q = q & splat(i32(255));
  }
  return (q * splat(i32(256)) + splat(i32(242))) / splat(i32(243));
}

void encode_tq1_0(const u8* src, TQ1_0* dst, Counts& counts) {
  F32 x[TQ1_0::N];
  load_columns(src, TQ1_0::N * 4, x);
  const F32 d = running_max(x), id = inverse(d);
  store_scales<&TQ1_0::d>(d, dst, counts);
  I32 bytes[48], last[4];
  for (size_t i = 0; i < 32; ++i) bytes[i] = pack_trits(x + i, 32, 5, id);
  for (size_t i = 0; i < 16; ++i) bytes[32 + i] = pack_trits(x + 160 + i, 16, 5, id);
  for (size_t i = 0; i < 4; ++i) last[i] = pack_trits(x + 240 + i, 4, 4, id);
  store_bytes<&TQ1_0::qs>(bytes, dst);
  store_bytes<&TQ1_0::qh>(last, dst);
}

}  // namespace

constinit static const Format formats[] = {
    {WB_BLOCK(Q1_0), .decode = decode_q1_0, .encode = encode_blocks<Q1_0, encode_q1_0>,
     .scales = half_scales<Q1_0, &Q1_0::d>},
    {WB_BLOCK(Q2_0), .decode = decode_q2_0, .encode = encode_blocks<Q2_0, encode_q2_0>,
     .scales = half_scales<Q2_0, &Q2_0::d>},
    {WB_BLOCK(NVFP4), .decode = decode_nvfp4, .encode = encode_blocks<NVFP4, encode_nvfp4, ROWS / 4>,
     .scales = {4, nvfp4_scales}},
    {WB_BLOCK(TQ1_0), .decode = decode_tq1_0, .encode = encode_blocks<TQ1_0, encode_tq1_0>,
     .scales = half_scales<TQ1_0, &TQ1_0::d>},
    {WB_BLOCK(TQ2_0), .decode = decode_tq2_0, .encode = encode_blocks<TQ2_0, encode_tq2_0>,
     .scales = half_scales<TQ2_0, &TQ2_0::d>},
};
const Rows<Format> lowbit = {formats, sizeof formats / sizeof *formats};

}  // namespace weighbridge::WB_LEVEL
