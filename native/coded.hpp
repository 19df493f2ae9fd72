// Weights in the codes of ZipNN (containers/zipnn/stream.py) and DFloat11 (packings/read/dfloat11.py). Errors are
// std::invalid_argument. Nothing here knows Python.
#pragma once

#include "calls.hpp"

namespace weighbridge::coded {

// Fills `out` with bytes of `count` planes, which follow each other in `planes`: byte p, p + count ... from plane p. `sign`:
// 16 or 32, the bits of floats whose sign comes after the exponent in whole 4 bytes; 0 of others.
void join_planes(u32 count, u32 sign, Bytes planes, MutableBytes out);

// The exponents of threads, each from its bit in `starts` (int64) to the end of its 8 bytes of `codes`, one after the other
// in `out`; for each thread their number and the bit after the last (int64). By the next 12 bits, `exponents` and `bits`
// have an exponent and the length of its code, 0 of a longer one, which `tables` of 256 bytes decode. Returns how many there
// are.
size_t decode_threads(Bytes codes, Bytes starts, Bytes exponents, Bytes bits, Bytes tables, Bytes lengths,
                      MutableBytes out, MutableBytes counts, MutableBytes ends);

}  // namespace weighbridge::coded
