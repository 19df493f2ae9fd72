// The same codes and parameters laid otherwise: ggml's blocks, which hold both, and the parts that MLX stores, codes as one
// bit stream (streams.hpp) and beside it a scale, and a bias, for each group. Nothing is quantized again.
//
//   type    codes of  groups of   scale           bias       (drawings of the blocks stand beside their decoders)
//   Q1_0    1 bit     128         2 d             -d
//   Q2_0    2 bits    64          d               -d
//   Q4_0    4         32          d               -8 d
//   Q4_1    4         32          d               m
//   Q5_0    5         32          d               -16 d
//   Q5_1    5         32          d               m
//   Q8_0    8         32          d               -128 d     codes with 128 added
//   TQ1_0   2         128         d               -d          codes are digits of three; one d for 256
//   TQ2_0   2         128         d               -d
//   Q4_K    4         32          d * scale       -dmin * min, both F32: a product of 11 and 6 bits is exact there
//   Q5_K    5         32          d * scale       -dmin * min
//   MXFP4   4         32          e               none
//   NVFP4   4         16          d[j]            none
#include "blocks.hpp"
#include "streams.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Bit 4 of each of sixteen bytes.
WB_INLINE u32 fifth_bits(B16 codes) {
#if WB_LANES > 4 || defined(__SSE2__)
  return u32(_mm_movemask_epi8(bit_cast<__m128i>(codes << 3)));
#else
  u8 bytes[16];
  store(bytes, 0, codes);
  u32 out = 0;
  for (u32 i = 0; i < 16; ++i) out |= u32(bytes[i] >> 4 & 1) << i;
  return out;
#endif
}

// Nibbles of halves: byte j has code j low and code j + 16 high.
struct Nibbles {
  B16 first, second;
};
WB_INLINE Nibbles nibbles(const u8* p) {
  const B16 q = load16(p);
  return {q & splat16(15), (q >> 4) & splat16(15)};
}
WB_INLINE void put_nibbles(B16 first, B16 second, u8* p) { store(p, 0, (first & splat16(15)) | (second << 4)); }

// Eight bytes of nibbles in halves of eight, as for NVFP4.
WB_INLINE B16 nibbles_of_8(const u8* p) {
  const u64 q = load<u64>(p), low = 0x0F0F0F0F0F0F0F0Fu;
  return join(q & low, q >> 4 & low);
}

// What the types below say: the bits of a code and the elements with parameters of their own; the elements and bytes of a
// block; how far its codes lie from those of the stream, which are never negative. `codes` and `scales` take a block
// apart, `put` makes one of sixteen codes and sixteen more.

// The blocks of 32. `Wide`: a fifth bit. `Minimum`: of its own; without, the value is d * (code + Low).
template <bool Wide, bool Minimum>
struct Simple {
  static constexpr int bits = Wide ? 5 : 4;
  static constexpr size_t group = 32, block = 32, at = Minimum ? 4 : 2, low = at + (Wide ? 4 : 0), size = low + 16;
  static constexpr int zero = Minimum ? 0 : 1 << (bits - 1);
  static constexpr size_t parameter = 2, parameters = Minimum ? 2 : 1;

  static void codes(const u8* b, u8* stream) {
    Nibbles q = nibbles(b + low);
    if constexpr (Wide) {
      const u32 high = load<u32>(b + at);
      q.first = q.first | (spread_bits(high & 0xFFFF) & splat16(16));
      q.second = q.second | (spread_bits(high >> 16) & splat16(16));
    }
    put_stream16<bits>(q.first, stream);
    put_stream16<bits>(q.second, stream + 2 * bits);
  }
  static void scales(const u8* b, u8* scales) { memcpy(scales, b, 2); }
  static void biases(const u8* b, u8* biases) {
    if constexpr (Minimum) memcpy(biases, b + 2, 2);
    else store(biases, 0, u16(narrow_f16(bit_cast<u32>(half(b) * float(-zero)))));
  }
  static void put(B16 first, B16 second, u8* b) {
    put_nibbles(first, second, b + low);
    if constexpr (Wide) store(b + at, 0, fifth_bits(first) | fifth_bits(second) << 16);
  }
};

struct Eight8 {  // Q8_0
  static constexpr int bits = 8, zero = 128;
  static constexpr size_t group = 32, block = 32, size = 34, parameter = 2, parameters = 1;

  static void codes(const u8* b, u8* stream) {
    for (size_t i = 0; i < 32; i += 16) store(stream + i, 0, load16(b + 2 + i) ^ splat16(128));
  }
  static void scales(const u8* b, u8* scales) { memcpy(scales, b, 2); }
  static void biases(const u8* b, u8* biases) { store(biases, 0, u16(narrow_f16(bit_cast<u32>(half(b) * -128.0f)))); }
  static void put(B16 first, B16 second, u8* b) {
    store(b + 2, 0, first ^ splat16(128)), store(b + 18, 0, second ^ splat16(128));
  }
};

// Q1_0 and Q2_0: their codes are a stream already.
template <int Bits>
struct Stream {
  static constexpr int bits = Bits;
  static constexpr size_t group = 128 / Bits, block = group, size = 18, parameter = 2;

  static void codes(const u8* b, u8* stream) { memcpy(stream, b + 2, 16); }
  static void scales(const u8* b, u8* scales) {
    if constexpr (Bits == 1) store(scales, 0, u16(narrow_f16(bit_cast<u32>(half(b) * 2.0f))));
    else memcpy(scales, b, 2);
  }
  static void biases(const u8* b, u8* biases) { store(biases, 0, u16(load<u16>(b) ^ 0x8000)); }
};

// TQ1_0 and TQ2_0: d at the end.
template <size_t Size>
struct Ternary {
  static constexpr int bits = 2;
  static constexpr size_t group = 128, block = 256, size = Size, parameter = 2;

  static void scales(const u8* b, u8* scales) {
    for (size_t i = 0; i < 2; ++i) memcpy(scales + 2 * i, b + size - 2, 2);
  }
  static void biases(const u8* b, u8* biases) {
    for (size_t i = 0; i < 2; ++i) store(biases, i, u16(load<u16>(b + size - 2) ^ 0x8000));
  }
};

// Two runs of 32 bytes of four codes, 32 apart.
struct Crumbs : Ternary<66> {
  static void codes(const u8* b, u8* stream) {
    for (size_t run = 0; run < 64; run += 32)
      for (int k = 0; k < 4; ++k)
        for (size_t m = 0; m < 32; m += 16, stream += 4)
          put_stream16<2>((load16(b + run + m) >> 2 * k) & splat16(3), stream);
  }
};

// 32 and 16 bytes of five digits and 4 of four: a byte is a fraction of 256, times three the carry is the next digit. The
// digits of one part stand its bytes apart.
struct Trits : Ternary<54> {
  template <size_t count>
  static u8* next(u8* WB_RESTRICT q, int digits, u8* WB_RESTRICT codes) {
    for (int k = 0; k < digits; ++k, codes += count)
      for (size_t m = 0; m < count; ++m) {
        const u32 product = q[m] * 3u;
        codes[m] = u8(product >> 8), q[m] = u8(product);
      }
    return codes;
  }

  static void codes(const u8* b, u8* stream) {
    u8 q[52], found[256];
    memcpy(q, b, 52);
    next<4>(q + 48, 4, next<16>(q + 32, 5, next<32>(q, 5, found)));
    for (size_t at = 0; at < 256; at += 16, stream += 4) put_stream16<2>(load16(found + at), stream);
  }
};

// Q4_K and Q5_K: eight groups; 32 bytes are 64 elements, low nibbles first; bit p of byte l is the fifth bit of element l
// of group p.
template <bool Wide>
struct Super {
  static constexpr int bits = Wide ? 5 : 4;
  static constexpr size_t group = 32, block = 256, size = Wide ? 176 : 144, parameter = 4, low = Wide ? 48 : 16;

  static void codes(const u8* b, u8* stream) {
    for (size_t part = 0; part < 8; ++part)
      for (size_t side = 0; side < 32; side += 16, stream += 2 * bits) {
        const B16 q = load16(b + low + 32 * (part / 2) + side);
        B16 found = (part % 2 ? q >> 4 : q) & splat16(15);
        if constexpr (Wide) {
          const B16 bit = splat16(1 << part);
          found = found | (equal(load16(b + 16 + side) & bit, bit) & splat16(16));
        }
        put_stream16<bits>(found, stream);
      }
  }
  static void scales(const u8* b, u8* scales) {
    const float d = half(b);
    for (size_t j = 0; j < 4; ++j) {
      store(scales, j, d * float(b[4 + j] & 63));
      store(scales, j + 4, d * float((b[12 + j] & 15) | (b[4 + j] >> 6 << 4)));
    }
  }
  static void biases(const u8* b, u8* biases) {
    const float least = -half(b + 2);
    for (size_t j = 0; j < 4; ++j) {
      store(biases, j, least * float(b[8 + j] & 63));
      store(biases, j + 4, least * float((b[12 + j] >> 4) | (b[8 + j] >> 6 << 4)));
    }
  }
};

struct Mx {  // MXFP4
  static constexpr int bits = 4;
  static constexpr size_t group = 32, block = 32, size = 17, parameter = 1;

  static void codes(const u8* b, u8* stream) {
    const Nibbles q = nibbles(b + 1);
    put_stream16<4>(q.first, stream);
    put_stream16<4>(q.second, stream + 8);
  }
  static void scales(const u8* b, u8* scales) { *scales = *b; }
  static void block_of(const u8* stream, const u8* scales, u8* b) {
    *b = *scales;
    put_nibbles(stream16<4>(stream), stream16<4>(stream + 8), b + 1);
  }
};

struct Nv {  // NVFP4
  static constexpr int bits = 4;
  static constexpr size_t group = 16, block = 64, size = 36, parameter = 1;

  static void codes(const u8* b, u8* stream) {
    for (size_t s = 0; s < 4; ++s) put_stream16<4>(nibbles_of_8(b + 4 + 8 * s), stream + 8 * s);
  }
  static void scales(const u8* b, u8* scales) { memcpy(scales, b, 4); }
  static void block_of(const u8* stream, const u8* scales, u8* b) {
    memcpy(b, scales, 4);
    for (size_t s = 0; s < 4; ++s) {
      const Halves q = halves(stream16<4>(stream + 8 * s));
      store(b + 4, s, q.first | q.second << 4);
    }
  }
};

// ---------------------------------------------------------------- blocks -> parts

template <class T>
void split(const u8* WB_RESTRICT src, size_t n, u8* WB_RESTRICT codes, u8* WB_RESTRICT scales, u8* WB_RESTRICT biases) {
  constexpr size_t width = T::block / T::group * T::parameter;
  for (size_t b = 0; b < n; ++b, src += T::size) {
    if (codes) T::codes(src, codes), codes += T::block / 8 * T::bits;
    if (scales) T::scales(src, scales), scales += width;
    if constexpr (requires { T::biases(src, biases); })
      if (biases) T::biases(src, biases), biases += width;
  }
}

// ---------------------------------------------------------------- parts -> blocks

// Codes of B bits. The stored code is the stream's less the group's zero point, plus the type's own.
template <class T, int B>
void join_simple(const Parts& from, u8* WB_RESTRICT dst, size_t groups) {
  const u8 *codes = from.codes, *scales = from.scales, *offsets = from.offsets;
  for (size_t g = 0; g < groups; ++g, scales += 2) {
    const B16 shift = splat16(T::zero - (T::parameters == 1 ? int(offsets[g]) : 0));
    for (size_t at = 0; at < from.group; at += 32, codes += 4 * B, dst += T::size) {
      memcpy(dst, scales, 2);
      if constexpr (T::parameters == 2) memcpy(dst + 2, offsets + 2 * g, 2);
      T::put(stream16<B>(codes) + shift, stream16<B>(codes + 2 * B) + shift, dst);
    }
  }
}

template <class T>
void join_simple_of(const Parts& from, u8* dst, size_t groups) {
  using Join = void (*)(const Parts&, u8*, size_t);
  static constexpr Join by_bits[9] = {nullptr,           join_simple<T, 1>, join_simple<T, 2>, join_simple<T, 3>,
                                      join_simple<T, 4>, join_simple<T, 5>, join_simple<T, 6>, join_simple<T, 7>,
                                      join_simple<T, 8>};
  by_bits[from.bits](from, dst, groups);
}

// Four-bit floats: the same codes, the same scales.
template <class T>
void join_floats(const Parts& from, u8* WB_RESTRICT dst, size_t groups) {
  constexpr size_t each = T::block / T::group;
  for (size_t b = 0; b < groups / each; ++b) T::block_of(from.codes + b * T::block / 2, from.scales + b * each, dst + b * T::size);
}

template <class T, bool Biases = true>
constexpr Regular row(const char* name, void (*join)(const Parts&, u8*, size_t) = nullptr, u32 offset = 0) {
  return {name, T::block, T::size, T::bits, T::group, T::parameter, Biases, split<T>, join, offset};
}

using Q4_0 = Simple<false, false>;
using Q4_1 = Simple<false, true>;
using Q5_0 = Simple<true, false>;
using Q5_1 = Simple<true, true>;

constexpr Regular rows[] = {
    row<Stream<1>>("Q1_0"),
    row<Stream<2>>("Q2_0"),
    row<Q4_0>("Q4_0", join_simple_of<Q4_0>, 1),
    row<Q4_1>("Q4_1", join_simple_of<Q4_1>, 2),
    row<Q5_0>("Q5_0", join_simple_of<Q5_0>, 1),
    row<Q5_1>("Q5_1", join_simple_of<Q5_1>, 2),
    row<Eight8>("Q8_0", join_simple_of<Eight8>, 1),
    row<Trits>("TQ1_0"),
    row<Crumbs>("TQ2_0"),
    row<Super<false>>("Q4_K"),
    row<Super<true>>("Q5_K"),
    row<Mx, false>("MXFP4", join_floats<Mx>),
    row<Nv, false>("NVFP4", join_floats<Nv>),
};

}  // namespace

const Regulars regulars = {rows, sizeof rows / sizeof *rows};

}  // namespace weighbridge::WB_LEVEL
