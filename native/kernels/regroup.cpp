// The same codes and parameters laid otherwise: ggml's blocks, which hold both, and the parts that MLX stores, codes as one
// bit stream (streams.hpp) and separately a scale and a bias for each group. Nothing is quantized again.
//
//   type    codes of  groups of   scale           bias       (the decoders have drawings of the blocks)
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

// Eight bytes of nibbles in halves of eight, as for NVFP4.
WB_INLINE B16 nibbles_of_8(const u8* p) {
  const u64 q = load<u64>(p), low = 0x0F0F0F0F0F0F0F0Fu;
  return join(q & low, q >> 4 & low);
}

// Below, one struct per block type: the bits of a code and the elements that share parameters; the offset of its codes
// from those of the stream, which are never negative. `codes`, `scales` and `biases` split a block, `put` fills the
// codes of one from sixteen and sixteen more.

// Of the blocks of 32, those whose value is d * (code - zero).
template <class B>
WB_INLINE void copy_scale(const B& b, u8* scales) {
  memcpy(scales, b.d.bytes, 2);
}
template <class B>
WB_INLINE void offset_bias(const B& b, int zero, u8* biases) {
  store(biases, 0, u16(narrow_f16(bit_cast<u32>(half(b.d) * float(-zero)))));
}

// Nibbles, with a fifth bit (qh) and a minimum (m) if the block has them.
template <class B>
struct NibbleRegroup {
  using Block = B;
  static constexpr bool wide = requires(B b) { b.qh; }, minimum = requires(B b) { b.m; };
  static constexpr int bits = wide ? 5 : 4, zero = minimum ? 0 : 1 << (bits - 1);
  static constexpr size_t group = 32, parameter = 2;

  static void codes(const B& b, u8* stream) {
    B32 q = nibbles(b.qs);
    if constexpr (wide) {
      const u32 high = load(b.qh);
      q.first = q.first | (spread_bits(high & 0xFFFF) & splat16(16));
      q.second = q.second | (spread_bits(high >> 16) & splat16(16));
    }
    put_stream16<bits>(q.first, stream);
    put_stream16<bits>(q.second, stream + 2 * bits);
  }
  static void scales(const B& b, u8* scales) { copy_scale(b, scales); }
  static void biases(const B& b, u8* biases) {
    if constexpr (minimum) memcpy(biases, b.m.bytes, 2);
    else offset_bias(b, zero, biases);
  }
  static void put(B16 first, B16 second, B& b) {
    put_nibbles({first, second}, b.qs);
    if constexpr (wide) store(b.qh.bytes, 0, fifth_bits(first) | fifth_bits(second) << 16);
  }
};

struct Q8_0_Regroup {
  using Block = Q8_0;
  static constexpr bool minimum = false;
  static constexpr int bits = 8, zero = 128;
  static constexpr size_t group = 32, parameter = 2;

  static void codes(const Q8_0& b, u8* stream) {
    for (size_t i = 0; i < 32; i += 16) store(stream + i, 0, load16(b.qs + i) ^ splat16(128));
  }
  static void scales(const Q8_0& b, u8* scales) { copy_scale(b, scales); }
  static void biases(const Q8_0& b, u8* biases) { offset_bias(b, zero, biases); }
  static void put(B16 first, B16 second, Q8_0& b) {
    u8* qs = reinterpret_cast<u8*>(b.qs);
    store(qs, 0, first ^ splat16(128)), store(qs + 16, 0, second ^ splat16(128));
  }
};

// Q1_0 and Q2_0: their codes are a stream already. A bit means d or -d: 2 * d * bit - d.
template <class B>
struct StreamRegroup {
  using Block = B;
  static constexpr int bits = 128 / B::N;
  static constexpr size_t group = B::N, parameter = 2;

  static void codes(const B& b, u8* stream) { memcpy(stream, b.qs, sizeof b.qs); }
  static void scales(const B& b, u8* scales) {
    if constexpr (bits == 1) store(scales, 0, u16(narrow_f16(bit_cast<u32>(half(b.d) * 2.0f))));
    else copy_scale(b, scales);
  }
  static void biases(const B& b, u8* biases) { store(biases, 0, u16(load<u16>(b.d.bytes) ^ 0x8000)); }
};

// TQ1_0 and TQ2_0: one d for two groups.
template <class B>
struct TernaryRegroup {
  using Block = B;
  static constexpr int bits = 2;
  static constexpr size_t group = 128, parameter = 2;

  static void scales(const B& b, u8* scales) {
    for (size_t i = 0; i < 2; ++i) copy_scale(b, scales + 2 * i);
  }
  static void biases(const B& b, u8* biases) {
    for (size_t i = 0; i < 2; ++i) store(biases, i, u16(load<u16>(b.d.bytes) ^ 0x8000));
  }
};

// Two runs of 32 bytes with four codes each; a byte's codes belong to every 32nd element.
struct TQ2_0_Regroup : TernaryRegroup<TQ2_0> {
  static void codes(const TQ2_0& b, u8* stream) {
    for (size_t run = 0; run < 64; run += 32)
      for (int k = 0; k < 4; ++k)
        for (size_t m = 0; m < 32; m += 16, stream += 4)
          put_stream16<2>((load16(b.qs + run + m) >> 2 * k) & splat16(3), stream);
  }
};

// 32 and 16 bytes of five digits and 4 of four: a byte is a fraction of 256, times three the carry is the next digit. The
// digits of one part stand its bytes apart.
struct TQ1_0_Regroup : TernaryRegroup<TQ1_0> {
  template <size_t count>
  static u8* next(const u8* src, int digits, u8* WB_RESTRICT codes) {
    u8 q[count];
    memcpy(q, src, count);
    for (int k = 0; k < digits; ++k, codes += count)
      for (size_t m = 0; m < count; ++m) {
        const u32 product = q[m] * 3u;
        codes[m] = u8(product >> 8), q[m] = u8(product);
      }
    return codes;
  }

  static void codes(const TQ1_0& b, u8* stream) {
    u8 found[256];
    next<4>(b.qh, 4, next<16>(b.qs + 32, 5, next<32>(b.qs, 5, found)));
    for (size_t at = 0; at < 256; at += 16, stream += 4) put_stream16<2>(load16(found + at), stream);
  }
};

// Q4_K and Q5_K: eight groups; 32 bytes are 64 elements, low nibbles first; bit p of qh[l] is the fifth bit of element l
// of group p.
template <class B>
struct SuperBlockRegroup {
  using Block = B;
  static constexpr bool wide = requires(B b) { b.qh; };
  static constexpr int bits = wide ? 5 : 4;
  static constexpr size_t group = 32, parameter = 4;

  static void codes(const B& b, u8* stream) {
    for (size_t part = 0; part < 8; ++part)
      for (size_t side = 0; side < 32; side += 16, stream += 2 * bits) {
        const B16 q = load16(b.qs + 32 * (part / 2) + side);
        B16 found = (part % 2 ? q >> 4 : q) & splat16(15);
        if constexpr (wide) {
          const B16 bit = splat16(1 << part);
          found = found | (equal(load16(b.qh + side) & bit, bit) & splat16(16));
        }
        put_stream16<bits>(found, stream);
      }
  }
  static void scales(const B& b, u8* scales) {
    const float d = half(b.d);
    for (size_t j = 0; j < 4; ++j) {
      store(scales, j, d * float(b.scales[j] & 63));
      store(scales, j + 4, d * float((b.scales[8 + j] & 15) | (b.scales[j] >> 6 << 4)));
    }
  }
  static void biases(const B& b, u8* biases) {
    const float least = -half(b.dmin);
    for (size_t j = 0; j < 4; ++j) {
      store(biases, j, least * float(b.scales[4 + j] & 63));
      store(biases, j + 4, least * float((b.scales[8 + j] >> 4) | (b.scales[4 + j] >> 6 << 4)));
    }
  }
};

struct MXFP4_Regroup {
  using Block = MXFP4;
  static constexpr int bits = 4;
  static constexpr size_t group = 32, parameter = 1;

  static void codes(const MXFP4& b, u8* stream) {
    const B32 q = nibbles(b.qs);
    put_stream16<4>(q.first, stream);
    put_stream16<4>(q.second, stream + 8);
  }
  static void scales(const MXFP4& b, u8* scales) { *scales = b.e; }
  static void put_block(const u8* stream, const u8* scales, MXFP4& b) {
    b.e = *scales;
    put_nibbles({stream16<4>(stream), stream16<4>(stream + 8)}, b.qs);
  }
};

struct NVFP4_Regroup {
  using Block = NVFP4;
  static constexpr int bits = 4;
  static constexpr size_t group = 16, parameter = 1;

  static void codes(const NVFP4& b, u8* stream) {
    for (size_t s = 0; s < 4; ++s) put_stream16<4>(nibbles_of_8(b.qs + 8 * s), stream + 8 * s);
  }
  static void scales(const NVFP4& b, u8* scales) { memcpy(scales, b.d, 4); }
  static void put_block(const u8* stream, const u8* scales, NVFP4& b) {
    memcpy(b.d, scales, 4);
    for (size_t s = 0; s < 4; ++s) {
      const Halves q = halves(stream16<4>(stream + 8 * s));
      store(b.qs, s, q.first | q.second << 4);
    }
  }
};

// ---------------------------------------------------------------- blocks -> parts

template <class T>
void split(const u8* WB_RESTRICT src, size_t n, u8* WB_RESTRICT codes, u8* WB_RESTRICT scales, u8* WB_RESTRICT biases) {
  using Block = typename T::Block;
  constexpr size_t width = Block::N / T::group * T::parameter;
  for (const Block& b : Blocks<Block>{src, n}) {
    if (codes) T::codes(b, codes), codes += Block::N / 8 * T::bits;
    if (scales) T::scales(b, scales), scales += width;
    if constexpr (requires { T::biases(b, biases); })
      if (biases) T::biases(b, biases), biases += width;
  }
}

// ---------------------------------------------------------------- parts -> blocks

// Codes of B bits. The stored code is the stream's less the group's zero point, plus the type's own.
template <class T, int B>
void join_of(const MlxParts& from, u8* WB_RESTRICT dst, size_t groups) {
  const u8 *codes = from.codes, *scales = from.scales, *offsets = from.offsets;
  auto* b = reinterpret_cast<typename T::Block*>(dst);
  for (size_t g = 0; g < groups; ++g, scales += 2) {
    const B16 shift = splat16(T::zero - (T::minimum ? 0 : int(offsets[g])));
    for (size_t at = 0; at < from.group; at += 32, codes += 4 * B, ++b) {
      memcpy(b->d.bytes, scales, 2);
      if constexpr (T::minimum) memcpy(b->m.bytes, offsets + 2 * g, 2);
      T::put(stream16<B>(codes) + shift, stream16<B>(codes + 2 * B) + shift, *b);
    }
  }
}

template <class T>
void join(const MlxParts& from, u8* dst, size_t groups) {
  using Join = void (*)(const MlxParts&, u8*, size_t);
  static constexpr Join by_bits[9] = {nullptr,       join_of<T, 1>, join_of<T, 2>, join_of<T, 3>, join_of<T, 4>,
                                      join_of<T, 5>, join_of<T, 6>, join_of<T, 7>, join_of<T, 8>};
  by_bits[from.bits](from, dst, groups);
}

// Four-bit floats: the same codes, the same scales.
template <class T>
void join_floats(const MlxParts& from, u8* WB_RESTRICT dst, size_t groups) {
  using Block = typename T::Block;
  constexpr size_t each = Block::N / T::group;
  auto* blocks = reinterpret_cast<Block*>(dst);
  for (size_t b = 0; b < groups / each; ++b)
    T::put_block(from.codes + b * Block::N / 2, from.scales + b * each, blocks[b]);
}

template <class T>
constexpr MlxRegroup row(const char* name, void (*join)(const MlxParts&, u8*, size_t) = nullptr) {
  constexpr bool biases = requires(const typename T::Block& b, u8* p) { T::biases(b, p); };
  u32 offset = 0;
  if constexpr (requires { T::minimum; }) offset = T::minimum ? 2 : 1;
  return {.name = name, .block = T::Block::N, .size = sizeof(typename T::Block), .bits = T::bits, .group = T::group,
          .parameter = T::parameter, .biases = biases, .split = split<T>, .join = join, .offset = offset};
}

constexpr MlxRegroup rows[] = {
    row<StreamRegroup<Q1_0>>("Q1_0"),
    row<StreamRegroup<Q2_0>>("Q2_0"),
    row<NibbleRegroup<Q4_0>>("Q4_0", join<NibbleRegroup<Q4_0>>),
    row<NibbleRegroup<Q4_1>>("Q4_1", join<NibbleRegroup<Q4_1>>),
    row<NibbleRegroup<Q5_0>>("Q5_0", join<NibbleRegroup<Q5_0>>),
    row<NibbleRegroup<Q5_1>>("Q5_1", join<NibbleRegroup<Q5_1>>),
    row<Q8_0_Regroup>("Q8_0", join<Q8_0_Regroup>),
    row<TQ1_0_Regroup>("TQ1_0"),
    row<TQ2_0_Regroup>("TQ2_0"),
    row<SuperBlockRegroup<Q4_K>>("Q4_K"),
    row<SuperBlockRegroup<Q5_K>>("Q5_K"),
    row<MXFP4_Regroup>("MXFP4", join_floats<MXFP4_Regroup>),
    row<NVFP4_Regroup>("NVFP4", join_floats<NVFP4_Regroup>),
};

}  // namespace

const Rows<MlxRegroup> regroups = {rows, sizeof rows / sizeof *rows};

}  // namespace weighbridge::WB_LEVEL
