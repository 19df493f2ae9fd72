// A first walk over a pickle: is it nothing but plain data, so well formed that no two readers differ about it?
#pragma once

#include "kernels.hpp"

namespace weighbridge {

// What a walk needs beside the pickle: room for `size` values on the stack, marks and places in the memo each (no opcode
// makes more than one of a byte).
struct PickleRoom {
  u8* stack;
  u8* memo;
  u32* marks;
};

// Where the pickle ends that begins at data[0], behind its STOP: if all of it is inside, holds numbers, text, bytes,
// lists, tuples, dicts, sets and empty OrderedDicts that are then filled, and nothing else, and every opcode fits what
// it finds. 0 of any other pickle, which may be as good: the abstract machine in unpickle/machine.py decides then.
size_t plain_pickle(const u8* data, size_t size, const PickleRoom& room);

}  // namespace weighbridge
