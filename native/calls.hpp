// What Python and the test driver call: every size, range and overlap is checked here, once; kernels trust them. Errors are
// std::invalid_argument. Nothing here knows Python, so the callers run it without the interpreter lock.
#pragma once

#include "kernels.hpp"

#include <optional>
#include <string>
#include <vector>

namespace weighbridge {

// Borrowed memory, of any alignment.
struct Bytes {
  const u8* data;
  size_t size;
};
struct MutableBytes {
  u8* data;
  size_t size;

  operator Bytes() const { return {data, size}; }
};

namespace calls {

// `operation`: "decode", "encode" (without weights) or "weighted".
std::vector<std::string> formats(const std::string& operation);
// `operation`: "split" or "join".
std::vector<std::string> regroups(const std::string& operation);

void decode(const char* dtype, Bytes src, MutableBytes out);
Counts encode(const char* dtype, Bytes src, MutableBytes out);
// Floats of a plain type; nothing where one isn't finite, a scale isn't, or a block is refused: `out` means nothing then.
std::optional<Counts> encode_finite(const char* source, const char* dtype, Bytes src, MutableBytes out);
Counts encode_weighted(const char* dtype, Bytes src, Bytes weights, MutableBytes out);
Counts cast(const char* source, const char* target, Bytes src, MutableBytes out);
Stats stats(const char* dtype, Bytes src);
u64 nonfinite(Bytes src);
// `counts`: 65,536 of u64, which are added to; at most 2^23 elements.
void count_patterns(const char* dtype, Bytes src, MutableBytes counts);

void affine_decode(int bits, size_t group, const char* parameters, Bytes codes, Bytes scales, Bytes offsets, bool zeros,
                   MutableBytes out);
void ordered_decode(size_t columns, size_t groups, Bytes codes, Bytes scales, Bytes zeros, Bytes index, MutableBytes out);
void table_decode(Bytes table, size_t group, bool high_first, Bytes codes, Bytes scales, MutableBytes out);
// Empty `codes`: only scales and biases.
void affine_encode(int bits, size_t group, const char* parameters, Bytes src, MutableBytes codes, MutableBytes scales,
                   MutableBytes biases);
// Empty `zeros`: none.
void round_codes(const std::string& rule, const std::string& steps, bool multiplied, int bits, size_t columns,
                 size_t width, Bytes src, Bytes scales, Bytes zeros, MutableBytes codes);
void extremes(size_t columns, size_t width, Bytes src, MutableBytes low, MutableBytes high);
void scaled_decode(const char* dtype, size_t columns, size_t width, Bytes src, Bytes scales, MutableBytes out);
void unpack_codes(int bits, Bytes src, MutableBytes out);
void pack_codes(int bits, Bytes src, MutableBytes out);
// Empty `codes`, `scales` or `biases`: not wanted.
void split(const char* dtype, Bytes src, MutableBytes codes, MutableBytes scales, MutableBytes biases);
void join(const char* dtype, int bits, size_t group, Bytes codes, Bytes scales, Bytes offsets, MutableBytes out);
void unpack_awq(Bytes src, MutableBytes out);
void awq_by_rows(size_t words, Bytes src, MutableBytes out);
// Rows of `columns` elements to rows of `rows`; both may be parts of wider matrices, as the strides say.
void transpose(size_t size, size_t rows, size_t columns, Bytes src, size_t src_stride, MutableBytes out,
               size_t out_stride);
void byteswap(u32 word, Bytes src, MutableBytes out);
void gather(Bytes src, Bytes index, size_t row_bytes, MutableBytes out);

}  // namespace calls
}  // namespace weighbridge
