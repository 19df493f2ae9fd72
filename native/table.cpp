// Gathers the families of one level.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr const Family* families[] = {&floats, &blocks32, &lowbit, &kquants, &iquants};

}  // namespace

extern const Table table;
const Table table = {
    WB_STRING(WB_LEVEL), WB_LANES, families,      sizeof families / sizeof *families, &regulars,
    cast,                stats,         scale_stats,  nonfinite,
    affine_decode,       ordered_decode, table_decode,   affine_encode,
    &rounding_rules,     extremes,      scaled_decode,
    unpack_codes,        pack_codes,    byteswap,      gather,
};

}  // namespace weighbridge::WB_LEVEL
