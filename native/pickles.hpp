// A first walk over a pickle: is it nothing but plain data and tensors, so well formed that no two readers differ?
#pragma once

#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace weighbridge {

// A storage that a pickle names: its key, as bytes [at, at + length) of the pickle, and its size.
struct NamedStorage {
  u32 at, length;
  u64 nbytes;
};

struct PlainPickle {
  size_t end = 0;  // after STOP; 0 for a pickle that the walk rejects
  std::vector<NamedStorage> storages;
};

// The pickle that begins at data[0], if all of it is inside, holds numbers, text, bytes, lists, tuples, dicts, sets, empty
// OrderedDicts that are then filled, and tensors of torch, and nothing else, and every opcode fits its operands. Others
// may be harmless too: the abstract machine in unpickle/machine.py decides. Opcodes: unpickle/opcodes.py.
//
// `names`: the names that may be imported, one row after the other:
//
//     u8 kind      'O' OrderedDict, 'S' a storage class, 'C' a function that returns a tensor, 'V' a value
//     u8 width     for 'S': bytes of an element
//     u8 n, text   for 'C': its arguments, a letter each: s storage, c count, t counts, b bool, h hooks, T tensor
//     u8 n, text   module
//     u8 n, text   name
PlainPickle plain_pickle(const u8* data, size_t size, std::string_view names);

}  // namespace weighbridge
