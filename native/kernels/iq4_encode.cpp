// Encoding IQ4_NL and IQ4_XS: bytes equal to llama.cpp's quantize_iq4_nl and quantize_iq4_xs (ggml-quants.c, b11549, built
// for x86-64), with and without importances. One block in each lane; blocks are drawn in blocks32.cpp and iquants.cpp.
//
// 32 elements (a run) get a scale with a sign by a search over 16 grids: the first maps the largest element to -127
// with the sign changed, the other fifteen are around the grid that maps it to -127. A weighted least-squares fit of each decides.
// Then the codes are made for the scale that was found; in IQ4_XS for that scale rounded to six bits.
#include "blocks.hpp"
#include "codes.hpp"
#include "search.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 256, RUN = 32, RUNS = N / RUN;
constexpr int TRIES = 7;

// Halfway from each value to the next: below it an element has the lower code. (ggml compares the rounded differences to
// both values; for these values, rounding doesn't change which is smaller.)
constexpr float middle(int code) { return (float(IQ4_VALUES[code]) + float(IQ4_VALUES[code + 1])) / 2; }

// The middles in the order of a search by halves, and the values of even and of odd codes.
constexpr float QUARTERS[8] = {middle(3), middle(11)};
constexpr float EIGHTHS[8] = {middle(1), middle(5), middle(9), middle(13)};
constexpr float SIXTEENTHS[8] = {middle(0), middle(2), middle(4), middle(6), middle(8), middle(10), middle(12), middle(14)};
constexpr float EVEN[8] = {IQ4_VALUES[0], IQ4_VALUES[2],  IQ4_VALUES[4],  IQ4_VALUES[6],
                           IQ4_VALUES[8], IQ4_VALUES[10], IQ4_VALUES[12], IQ4_VALUES[14]};
constexpr float ODD[8] = {IQ4_VALUES[1], IQ4_VALUES[3],  IQ4_VALUES[5],  IQ4_VALUES[7],
                          IQ4_VALUES[9], IQ4_VALUES[11], IQ4_VALUES[13], IQ4_VALUES[15]};

// The nearest code: its three upper bits, and whether the last is 0. A NaN has code 15.
struct Nearest {
  I32 upper, even;
};
WB_INLINE Nearest nearest_iq4(F32 x) {
  const I32 one = splat(i32(1));
  I32 code = one + (x < splat(middle(7)));
  code = code + code + one + (x < choose(eight(QUARTERS), code));
  code = code + code + one + (x < choose(eight(EIGHTHS), code));
  return {code, x < choose(eight(SIXTEENTHS), code)};
}
WB_INLINE I32 code_iq4(F32 x) {
  const Nearest found = nearest_iq4(x);
  return found.upper + found.upper + splat(i32(1)) + found.even;
}
WB_INLINE F32 value_iq4(F32 x) {
  const Nearest found = nearest_iq4(x);
  return select(found.even, choose(eight(EVEN), found.upper), choose(eight(ODD), found.upper));
}

// The scale of a run with weights w.
F32 search_iq4(const F32 (&x)[RUN], const F32 (&w)[RUN]) {
  const F32 zero = splat(0.0f);
  F32 amax = zero, extreme = zero, scale = zero, best = zero;
  for (size_t j = 0; j < RUN; ++j) {
    const F32 a = absolute(x[j]);
    const I32 more = a > amax;
    amax = select(more, a, amax);
    extreme = select(more, x[j], extreme);
  }
  for (int k = -TRIES - 1; k <= TRIES; ++k) {  // the opposite grid first
    const bool opposite = k < -TRIES;
    const F32 inverse = opposite ? splat(1.0f) / (negative(extreme) / splat(float(IQ4_VALUES[0])))
                                 : splat(float(k + IQ4_VALUES[0])) / extreme;
    F32 sum_qx = zero, sum_q2 = zero;
    for (size_t j = 0; j < RUN; ++j) {
      const F32 q = value_iq4(inverse * x[j]), wq = w[j] * q;
      sum_qx = sum_qx + wq * x[j];
      sum_q2 = sum_q2 + wq * q;
    }
    const I32 some = sum_q2 > zero;
    const I32 better = opposite ? splat(i32(-1)) : some & (sum_qx * sum_qx > best * sum_q2);
    const F32 found = select(some, sum_qx / sum_q2, zero);
    scale = select(better, found, scale);
    best = select(better, found * sum_qx, best);
  }
  return select(amax < splat(NOTHING), zero, scale);
}

// The codes of one run of W blocks, at byte `at` of their codes.
template <class B>
WB_INLINE void store_codes(const F32 (&x)[RUN], F32 inverse, B* dst, size_t at = 0) {
  I32 bytes[RUN / 2];
  for (size_t j = 0; j < RUN / 2; ++j) bytes[j] = code_iq4(inverse * x[j]) | (code_iq4(inverse * x[j + RUN / 2]) << 4);
  store_bytes<&B::qs>(bytes, dst, at);
}

// The weights of a run: squares, or importance times the root of square and mean square.
WB_INLINE void weigh(const F32 (&x)[RUN], const u8* weights, size_t stride, F32 mean, F32 (&w)[RUN]) {
  if (!weights) {
    for (size_t j = 0; j < RUN; ++j) w[j] = x[j] * x[j];
    return;
  }
  load_columns(weights, stride, w);
  for (size_t j = 0; j < RUN; ++j) w[j] = w[j] * square_root(mean + x[j] * x[j]);
}

void encode_iq4_nl(const u8* src, const u8* weights, IQ4_NL* dst, Counts& counts) {
  F32 x[RUN], w[RUN], squares = splat(0.0f);
  load_columns(src, RUN * 4, x);
  for (size_t j = 0; j < RUN; ++j) squares = squares + x[j] * x[j];
  weigh(x, weights, RUN * 4, squares * splat(2.0f / RUN), w);
  const F32 d = search_iq4(x, w);
  store_scales<&IQ4_NL::d>(d, dst, counts);
  store_codes(x, inverse(d), dst);
}

void encode_iq4_xs(const u8* src, const u8* weights, IQ4_XS* dst, Counts& counts) {
  const F32 zero = splat(0.0f);
  F32 squares = zero, scales[RUNS], most = zero, top = zero;
  F32 x[RUN], w[RUN];
  for (size_t run = 0; run < RUNS; ++run) {
    load_columns(src + run * RUN * 4, N * 4, x);
    for (size_t j = 0; j < RUN; ++j) squares = squares + x[j] * x[j];
  }
  for (size_t run = 0; run < RUNS; ++run) {
    load_columns(src + run * RUN * 4, N * 4, x);
    weigh(x, weights ? weights + run * RUN * 4 : nullptr, N * 4, squares * splat(2.0f / N), w);
    scales[run] = search_iq4(x, w);
    const F32 a = absolute(scales[run]);
    const I32 more = a > most;
    most = select(more, a, most);
    top = select(more, scales[run], top);
  }
  const F32 d = negative(top) / splat(32.0f), inverse_d = inverse(d);
  store_scales<&IQ4_XS::d>(d, dst, counts);
  I32 upper = splat(i32(0)), lower[RUNS / 2];
  for (size_t run = 0; run < RUNS; ++run) {
    const I32 scale = limit(nearest(inverse_d * scales[run]), -32, 31) + splat(i32(32));
    lower[run / 2] = run % 2 ? lower[run / 2] | ((scale & splat(i32(15))) << 4) : scale & splat(i32(15));
    upper = upper | ((scale >> 4) << int(2 * run));
    load_columns(src + run * RUN * 4, N * 4, x);
    store_codes(x, inverse(d * to_float(scale - splat(i32(32)))), dst, 16 * run);
  }
  store_halves<&IQ4_XS::scales_h>(upper, dst);
  store_bytes<&IQ4_XS::scales_l>(lower, dst);
}

}  // namespace

WB_DEFINE_ENCODER(iq4_nl, IQ4_NL, encode_iq4_nl)
WB_DEFINE_WEIGHTED_ENCODER(iq4_nl, IQ4_NL, encode_iq4_nl)
WB_DEFINE_ENCODER(iq4_xs, IQ4_XS, encode_iq4_xs)
WB_DEFINE_WEIGHTED_ENCODER(iq4_xs, IQ4_XS, encode_iq4_xs)

}  // namespace weighbridge::WB_LEVEL
