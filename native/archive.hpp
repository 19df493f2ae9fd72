// Chunks of a packed file (docs/wbpack.md): checked and put together here, coded by the kernels. Errors are
// std::invalid_argument. Nothing here knows Python, so the callers run it without the interpreter lock.
#pragma once

#include "calls.hpp"

namespace weighbridge::archive {

// XXH64 with the seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
u64 xxh64(Bytes data);

// Writes a chunk's packed form to `out`, which has room for src.size + OVERHEAD bytes; returns its size. `base`: as many
// bytes, for a delta, else empty.
size_t pack(WordOptions how, Bytes src, Bytes base, MutableBytes out);

// Fills `out` with the chunk whose packed form is `src`: all of it, and with the checksum that it states.
void unpack(Bytes src, Bytes base, MutableBytes out);

// Whether a packed chunk is a delta to a base.
bool is_delta(Bytes src);

constexpr size_t OVERHEAD = 64;             // of a chunk that can't be coded: 12 bytes, 5 a plane
constexpr size_t MOST = size_t(1) << 20;  // bytes of a chunk

}  // namespace weighbridge::archive
