// Floats to codes of few bits under a scale for each run of a row, and small floats under such scales back.
//
//   code = rule(x / scale)      each step rounded to the type of the weights, as the library computes that stores the codes
//
//   rule         codes are           to nearest; of two as near
//   e2m1-down    4 bits, in pairs    the smaller magnitude; what becomes zero is +0       MLX's CPU kernel (0.32)
//   e2m1         4 bits, in pairs    the even code; a negative value keeps its sign       compressed-tensors
//   e2m3         6 bits, a stream    the even code; the sign is kept                      compressed-tensors
//   e4m3         a byte              the even code; beyond 448 comes 448, NaN is 0x7F     all
//   int          a byte              the even number, of x / scale + zero                 compressed-tensors
//   gptq         a byte              the even number of x / scale, and then + zero        GPTQModel
//
// A scale of zero gives what zero gives.
#include "floats.hpp"
#include "streams.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

// Types that steps are rounded to.
struct InF32 {
  static float rounded(float x) { return x; }
};
struct InF16 {
  static float rounded(float x) { return bit_cast<float>(widen_f16(narrow_f16(bit_cast<u32>(x)))); }
};
struct InBF16 {
  static float rounded(float x) { return bit_cast<float>(narrow_bf16(bit_cast<u32>(x)) << 16); }
};

WB_INLINE float size_of(float x) { return bit_cast<float>(bit_cast<u32>(x) & F32_ABS); }
WB_INLINE float limited(float x, float low, float high) {
  x = x > low ? x : low;  // NaN too
  return x < high ? x : high;
}

// To nearest, halves to even, of |x| < 2^22.
WB_INLINE float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

constexpr size_t RUN = 1024;  // elements that are scaled while the cache still has them

WB_INLINE float negative_of(float x) { return bit_cast<float>(bit_cast<u32>(x) ^ 0x80000000u); }

// The parameters of a run for the rules: its zero point, and the bits of integer codes.
struct Run {
  float zero, half, top;
};

// The codes 0 to 7 of E2M1 are 0, 0.5, 1, 1.5, 2, 3, 4, 6.
struct Down {
  static constexpr int bits = 4;
  template <class Type>
  static u32 code(float x, const Run&) {
    const float a = size_of(x);
    const u32 m = u32(!(a <= 0.25f)) + u32(!(a <= 0.75f)) + u32(!(a <= 1.25f)) + u32(!(a <= 1.75f)) +
                  u32(!(a <= 2.5f)) + u32(!(a <= 3.5f)) + u32(!(a <= 5.0f));
    return m | (u32(x < 0) & u32(m != 0)) << 3;
  }
};

struct E2M1 {
  static constexpr int bits = 4;
  template <class Type>
  static u32 code(float x, const Run&) {
    const float a = size_of(x);
    const u32 m = u32(!(a <= 0.25f)) + u32(!(a < 0.75f)) + u32(!(a <= 1.25f)) + u32(!(a < 1.75f)) +
                  u32(!(a <= 2.5f)) + u32(!(a < 3.5f)) + u32(!(a <= 5.0f));
    return m | u32(x < 0) << 3;
  }
};

// The magnitudes of E2M3 in steps of 1/8 up to 2, of 1/4 up to 4, of 1/2 up to 7.5: three lines that meet.
struct E2M3 {
  static constexpr int bits = 6;
  template <class Type>
  static u32 code(float x, const Run&) {
    const float a = size_of(x) < 7.5f ? size_of(x) : 7.5f;  // NaN too
    const float m = a < 2.0f ? nearest(a * 8.0f) : a < 4.0f ? 8.0f + nearest(a * 4.0f) : 16.0f + nearest(a * 2.0f);
    return u32(int(m)) | bit_cast<u32>(x) >> 31 << 5;
  }
};

struct E4M3 {
  static constexpr int bits = 8;
  template <class Type>
  static u32 code(float x, const Run&) {
    return x != x ? SPEC_F8_E4M3.nan : narrow<SPEC_F8_E4M3>(bit_cast<u32>(limited(x, -448.0f, 448.0f)));
  }
};

struct Whole {
  static constexpr int bits = 8;
  template <class Type>
  static u32 code(float x, const Run& run) {
    x = limited(Type::rounded(x + run.zero), -run.half, run.half - 1.0f);
    return u32(int(nearest(x) + run.half));
  }
};

struct Gptq {
  static constexpr int bits = 8;
  template <class Type>
  static u32 code(float x, const Run& run) {
    return u32(int(limited(nearest(limited(x, -1024.0f, 1024.0f)) + run.zero, 0.0f, run.top)));
  }
};

template <class Rule, class Type, bool Multiplied>
WB_INLINE u32 code_of(float x, float scale, const Run& run) {
  float value = Multiplied ? x * scale : Type::rounded(x / scale);
  value = scale == 0.0f ? 0.0f : value;
  return Rule::template code<Type>(value, run);
}

template <class Rule, class Type, bool Multiplied = false>
void round_codes(const RoundingOptions& how, const u8* WB_RESTRICT src, const u8* WB_RESTRICT scales,
                 const u8* WB_RESTRICT zeros, u8* WB_RESTRICT codes) {
  constexpr int B = Rule::bits;
  const size_t columns = how.tiles.columns, width = how.tiles.width;
  Run run{0.0f, float(1 << (how.bits - 1)), float((1 << how.bits) - 1)};
  for (size_t row = 0, at = 0; row < how.tiles.rows; ++row) {
    for (size_t start = 0; start < columns; start += width, ++at) {
      const size_t n = columns - start < width ? columns - start : width;
      const float scale = load<float>(scales, at);
      if (zeros) run.zero = load<float>(zeros, at);
      if constexpr (B == 8) {
        for (size_t j = 0; j < n; ++j) codes[j] = u8(code_of<Rule, Type, Multiplied>(load<float>(src, j), scale, run));
        codes += n, src += n * 4;
      } else {
        for (size_t j = 0; j < n; j += 16, src += 64, codes += 2 * B) {
          u8 step[16];
          for (size_t k = 0; k < 16; ++k)
            step[k] = u8(code_of<Rule, Type, Multiplied>(load<float>(src, k), scale, run));
          put_stream16<B>(load16(step), codes);
        }
      }
    }
  }
}

template <class Rule>
constexpr RoundingRule in_all(const char* name) {
  return {.name = name, .bits = Rule::bits, .in_f32 = round_codes<Rule, InF32>, .in_f16 = round_codes<Rule, InF16>,
          .in_bf16 = round_codes<Rule, InBF16>};
}

constexpr RoundingRule rules[] = {
    {.name = "e2m1-down", .bits = 4, .in_f32 = round_codes<Down, InF32>},
    in_all<E2M1>("e2m1"),
    in_all<E2M3>("e2m3"),
    {.name = "e4m3", .bits = 8, .in_f32 = round_codes<E4M3, InF32>, .in_f16 = round_codes<E4M3, InF16>,
     .in_bf16 = round_codes<E4M3, InBF16>, .multiplied = round_codes<E4M3, InF32, true>},
    in_all<Whole>("int"),
    {.name = "gptq", .bits = 8, .in_f32 = round_codes<Gptq, InF32>},
};

// The lesser of two, or the one that is none (NaN).
WB_INLINE F32 lesser(F32 x, F32 y) { return select((x < y) | (x != x), x, y); }
WB_INLINE float lesser(float x, float y) { return (x < y) | (x != x) ? x : y; }

// The least of the lanes, by halves: of few elements the lanes themselves are most of the work.
template <int K>
WB_INLINE F32 halved(F32 v) {
  if constexpr (K == 0) {
    return v;
  } else {
    I32 other{};
    for (i32 i = 0; i < W; ++i) other[i] = i ^ K;
    return halved<K / 2>(lesser(v, permute(v, other)));
  }
}

WB_INLINE float least_of(F32 v) { return halved<W / 2>(v)[0]; }

}  // namespace

const Rows<RoundingRule> rounding_rules = {rules, sizeof rules / sizeof *rules};

void extremes(const Tiles& tiles, const u8* WB_RESTRICT src, u8* WB_RESTRICT low, u8* WB_RESTRICT high) {
  size_t at = 0;
  for (size_t row = 0; row < tiles.rows; ++row)
    for (size_t start = 0; start < tiles.columns; start += tiles.width, ++at) {
      const size_t n = tiles.columns - start < tiles.width ? tiles.columns - start : tiles.width;
      float least = load<float>(src), most = negative_of(least);  // of the negatives: the way there is the same
      size_t j = 0;
      if (n >= W) {
        F32 lo = load<F32>(src), hi = negative(lo);
        for (j = W; j + W <= n; j += W) {
          const F32 x = load<F32>(src + j * 4);
          lo = lesser(x, lo), hi = lesser(negative(x), hi);
        }
        least = least_of(lo), most = least_of(hi);
      }
      for (; j < n; ++j) least = lesser(load<float>(src, j), least), most = lesser(negative_of(load<float>(src, j)), most);
      store(low, at, least + 0.0f), store(high, at, negative_of(most) + 0.0f);  // no -0: which zero is found depends on W
      src += n * 4;
    }
}

void scaled_decode(const Format& type, const Tiles& tiles, const u8* WB_RESTRICT src, const u8* WB_RESTRICT scales,
                   u8* WB_RESTRICT dst) {
  size_t at = 0;
  for (size_t row = 0; row < tiles.rows; ++row)
    for (size_t start = 0; start < tiles.columns; start += tiles.width, ++at) {
      const size_t n = tiles.columns - start < tiles.width ? tiles.columns - start : tiles.width;
      const float scale = load<float>(scales, at);
      for (size_t done = 0; done < n; done += RUN) {
        const size_t m = n - done < RUN ? n - done : RUN;
        type.decode(src, dst, m);
        for (size_t j = 0; j < m; ++j) store(dst, j, load<float>(dst, j) * scale);
        src += m * type.size, dst += m * 4;
      }
    }
}

}  // namespace weighbridge::WB_LEVEL
