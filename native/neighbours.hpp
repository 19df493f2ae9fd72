// The codebooks as encoders need them: the neighbours of each point of a codebook's lattice. One copy for all levels, made
// when it is first asked for.
#pragma once

#include "kernels.hpp"

namespace weighbridge {

// The points of a lattice of `base` values a coordinate are numbered: coordinate i counts base^i.
struct Neighbours {
  // Of lattice point p either its number in the codebook, or OUTSIDE + (count << AT_BITS) + at: it isn't in the codebook,
  // and its neighbours that are stand at points[at], the nearest first and of equals the first in the codebook. `count`
  // is at least one.
  const u32* places;
  // The coordinates of neighbours, two bits each if base is 3 and three if it is 8, the first lowest. Sixteen can be
  // read from any place.
  const u16* points;

  static constexpr u32 OUTSIDE = u32(1) << 31;
  static constexpr int AT_BITS = 20;
};

// iq1 is of IQ1_S and IQ1_M.
enum class Codebook { iq2_xxs, iq2_xs, iq2_s, iq1, iq3_xxs, iq3_s };

const Neighbours& neighbours(Codebook);

}  // namespace weighbridge
