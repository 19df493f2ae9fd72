// Gathers the kernels of one level.
#include "level.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr const Rows<Format>* families[] = {&floats, &blocks32, &lowbit, &kquants, &iquants};

}  // namespace

// constinit: code compiled for AVX-512 must not run when the module is loaded.
extern const Table table;
constinit const Table table = {
    .level = WB_STRING(WB_LEVEL),
    .lanes = WB_LANES,
    .families = {families, sizeof families / sizeof *families},
    .regroups = &regroups,
    .rounding_rules = &rounding_rules,
#define WB_FILL(result, name, parameters) .name = name,
    WB_KERNELS(WB_FILL)
#undef WB_FILL
};

}  // namespace weighbridge::WB_LEVEL
