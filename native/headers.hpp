// A first walk over a safetensors header: is it spelled as writers spell it, so plainly that no two readers differ?
#pragma once

#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace weighbridge {

// A type and a shape, which most tensors of a model share with others. `type`: its row in the table of types.
struct TensorForm {
  u32 type;
  std::vector<u64> shape;
  u64 nbytes;
};

struct PlainTensor {
  std::string_view name;
  u32 form;
  u64 begin, end;  // of the data
};

// `plain`: false of any header that the walk doesn't let pass; then the rest means nothing.
struct PlainHeader {
  bool plain = false;
  std::vector<PlainTensor> tensors;  // in the order of their bytes
  std::vector<TensorForm> forms;
  std::vector<std::pair<std::string_view, std::string_view>> metadata;
};

// The JSON of a header whose data begins at byte `start` of its file and has `size` bytes: an object of entries with a
// type, a shape and offsets each, and of at most one `__metadata__`; all text printable ASCII without escapes; the
// tensors side by side from the first byte of the data to the last, each as long as its shape says and aligned for its
// elements. Any other header may be as good: containers/safetensors/container.py decides then. Repeated names are left
// to the caller, who has a dictionary of them in any case. What is returned points into the header.
//
// `types`, one row behind the other: u8 bits of an element, u8 bytes of the word that it is aligned for, u8 n, name.
PlainHeader plain_header(std::string_view json, std::string_view types, u64 start, u64 size);

}  // namespace weighbridge
