// Gathers the families of one level.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t count = float_format_count + block_format_count;

}  // namespace

extern const Format* const all_formats[count];
const Format* const all_formats[count] = {
    &float_formats[0], &float_formats[1], &float_formats[2], &float_formats[3], &float_formats[4], &float_formats[5],
    &float_formats[6], &float_formats[7], &float_formats[8], &block_formats[0], &block_formats[1], &block_formats[2],
};

extern const Table table;
const Table table = {
    WB_STRING(WB_LEVEL), WB_LANES, all_formats, count, cast, stats, scale_stats, affine_decode, byteswap, gather,
};

}  // namespace weighbridge::WB_LEVEL
