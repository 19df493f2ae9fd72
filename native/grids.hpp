// The codebooks of IQ1, IQ2 and IQ3: data, so one copy serves every level.
#pragma once

#include "kernels.hpp"

namespace weighbridge {

// A point is its coordinates' values (int8), the first in the lowest byte.
struct Grids {
  u64 iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1_s[2048];
  u32 iq3_xxs[256], iq3_s[512];
};

extern const Grids grids;

}  // namespace weighbridge
