// The nearest points of a codebook, for encoders: one small vector of elements a lane, as it comes; those that aren't points
// already are compared with the neighbours of what they were rounded to, these side by side.
#pragma once

#include "neighbours.hpp"
#include "search.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr float LARGEST = 3.402823466e38f;

WB_INLINE F32 least_lane(F32 x) {
  for (int half = W / 2; half; half /= 2) {
    const F32 other = permute(x, lane_numbers() ^ splat(i32(half)));
    x = smaller(x, other);
  }
  return x;
}

// A codebook's shape: points of `size` coordinates with `base` values, packed in `bits` each.
template <int size_>
struct Shape {
  static constexpr int size = size_, base = size == 8 ? 3 : 8, bits = size == 8 ? 2 : 3;
  static constexpr i32 mask = (1 << bits) - 1;
};

// Sums of terms that a point's coordinates choose, for W packed points.
template <class S>
WB_INLINE F32 sums_of(const Eight (&terms)[S::size], const u16* points) {
  const I32 packed = load_u16(reinterpret_cast<const u8*>(points));
  F32 sum = choose(terms[0], packed);
  for (int j = 1; j < S::size; ++j) sum = sum + choose(terms[j], packed >> (S::bits * j));
  return sum;
}

// The index of the packed point nearest to x, of `count`: the least sum of w * (point - x)^2, of equals the first; -1 if no sum
// is a finite number. Coordinate j is at x[j * W] (so a lane of columns can be named); `values` are those of a coordinate.
template <class S>
WB_INLINE i32 nearest_point(const float* x, const float* w, const Eight& values, const u16* points, i32 count) {
  Eight terms[S::size];
  for (int j = 0; j < S::size; ++j)
    for (size_t h = 0; h < sizeof(Eight) / sizeof(F32); ++h) {
      const F32 difference = values.v[h] - splat(x[j * W]);
      terms[j].v[h] = splat(w[j * W]) * difference * difference;
    }
  const I32 lanes = lane_numbers();
  const F32 sums = sums_of<S>(terms, points);
  I32 some = (sums < splat(LARGEST)) & (lanes < splat(count));
  F32 least = select(some, sums, splat(LARGEST));
  if (count <= W) {  // as most have
    const u32 best = lane_bits((least == least_lane(least)) & some);
    return best ? lowest_bit(best) : -1;
  }
  I32 at = lanes;
  for (i32 k = W; k < count; k += W) {
    const F32 more = sums_of<S>(terms, points + k);
    const I32 nearer = (more < least) & (lanes < splat(count - k));
    least = select(nearer, more, least);
    at = select(nearer, lanes + splat(k), at);
    some = some | nearer;
  }
  i32 first = -1;
  for (u32 best = lane_bits((least == least_lane(least)) & some); best; best &= best - 1) {
    const i32 candidate = at[lowest_bit(best)];
    first = first < 0 || candidate < first ? candidate : first;
  }
  return first;
}

// The number in its lattice of a packed point.
template <class S>
WB_INLINE I32 lattice_number(I32 packed) {
  if (S::base == 8) return packed;
  I32 number = (packed >> (S::bits * (S::size - 1))) & splat(S::mask);
  for (int j = S::size - 2; j >= 0; --j) number = number + number + number + ((packed >> (S::bits * j)) & splat(S::mask));
  return number;
}

// What the codebook knows of the packed point in each lane.
template <class S>
WB_INLINE I32 places_of(I32 packed, const Neighbours& near) {
  const I32 number = lattice_number<S>(packed);
  i32 at[W], places[W];  // arrays where lanes go one by one: a vector that is changed in part waits for its memory
  memcpy(at, &number, sizeof at);
  for (int i = 0; i < W; ++i) places[i] = i32(near.places[at[i]]);
  I32 out;
  memcpy(&out, places, sizeof out);
  return out;
}

// Packed points made points of the codebook, in the lanes of `active`. x and w: as for nearest_point, of all lanes; values
// of a lane's coordinates come from values(lane). `outside`: lanes that had to be; `lost`: where no neighbour has a finite
// distance, which stops llama.cpp.
template <class S, class Values>
WB_INLINE I32 into_codebook(const F32* x, const F32* w, Values values, I32 packed, I32 active, const Neighbours& near,
                            I32& outside, I32& lost) {
  const I32 place = places_of<S>(packed, near);
  outside = (place < splat(i32(0))) & active;
  i32 places[W], points[W], stops[W];
  memcpy(places, &place, sizeof places);
  memcpy(points, &packed, sizeof points);
  memcpy(stops, &lost, sizeof stops);
  for (u32 rest = lane_bits(outside); rest; rest &= rest - 1) {
    const int lane = lowest_bit(rest);
    const u32 found = u32(places[lane]) & ~Neighbours::OUTSIDE;
    const u16* listed = near.points + (found & ((1u << Neighbours::AT_BITS) - 1));
    i32 at = nearest_point<S>(reinterpret_cast<const float*>(x) + lane, reinterpret_cast<const float*>(w) + lane,
                                    values(lane), listed, i32(found >> Neighbours::AT_BITS));
    if (at < 0) stops[lane] = -1, at = 0;
    points[lane] = listed[at];
  }
  memcpy(&packed, points, sizeof points);
  memcpy(&lost, stops, sizeof stops);
  return packed;
}

// W blocks are done; llama.cpp would stop at those in `lost`.
WB_INLINE void refuse(I32 lost, Counts& counts) {
  const u32 lanes = lane_bits(lost);
  if (lanes && counts.refused == ~u64(0)) counts.refused = counts.seen + u64(lowest_bit(lanes));
  counts.seen += W;
}

}  // namespace
}  // namespace weighbridge::WB_LEVEL
