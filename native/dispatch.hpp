// The level that runs: chosen once, by the CPU and the operating system; tests may force another.
#pragma once

#include "kernels.hpp"

namespace weighbridge {

// The levels that this machine can run, narrowest first; `count` of them.
const Table* const* levels(size_t& count);

// The level in use.
const Table& kernels();

// Use another one from now on, in all threads. False where this machine can't run it or there is none of that name.
bool set_level(const char* name);

}  // namespace weighbridge
