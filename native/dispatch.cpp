// Levels are those of the x86-64 psABI: avx2 is x86-64-v3, avx512 is x86-64-v4. A CPU must have all of a level, and
// the operating system must save its registers (XCR0), or the first instruction is the last.
#include "dispatch.hpp"

#include <atomic>
#include <cstring>

#if WB_X86_LEVELS
#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace weighbridge {
namespace {

#if WB_X86_LEVELS

struct Registers {
  u32 a, b, c, d;
};

Registers cpuid(u32 leaf, u32 sub) {
  Registers r{};
#if defined(_MSC_VER) && !defined(__clang__)
  int out[4];
  __cpuidex(out, int(leaf), int(sub));
  r = {u32(out[0]), u32(out[1]), u32(out[2]), u32(out[3])};
#else
  __cpuid_count(leaf, sub, r.a, r.b, r.c, r.d);
#endif
  return r;
}

u64 saved_state() {  // XCR0: the register files that the operating system saves
#if defined(_MSC_VER) && !defined(__clang__)
  return _xgetbv(0);
#else
  u32 low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (u64(high) << 32) | low;
#endif
}

constexpr u32 bit(int n) { return u32(1) << n; }

// How many of {baseline, avx2, avx512} run here.
size_t supported() {
  const u32 leaves = cpuid(0, 0).a, extended = cpuid(0x80000000, 0).a;
  if (leaves < 7 || extended < 0x80000001) return 1;
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0), ext = cpuid(0x80000001, 0);
  const u32 v3_one = bit(12) | bit(22) | bit(27) | bit(28) | bit(29);  // FMA MOVBE OSXSAVE AVX F16C
  const u32 v3_seven = bit(3) | bit(5) | bit(8);                       // BMI1 AVX2 BMI2
  const u32 v3_ext = bit(5);                                           // LZCNT
  const u32 v4_seven = bit(16) | bit(17) | bit(28) | bit(30) | bit(31);  // AVX-512 F DQ CD BW VL
  if ((one.c & v3_one) != v3_one || (seven.b & v3_seven) != v3_seven || (ext.c & v3_ext) != v3_ext) return 1;
  const u64 state = saved_state();
  if ((state & 0x06) != 0x06) return 1;
  return (seven.b & v4_seven) == v4_seven && (state & 0xE6) == 0xE6 ? 3 : 2;
}

const Table* const tables[] = {&baseline::table, &avx2::table, &avx512::table};

#else

size_t supported() { return 1; }
const Table* const tables[] = {&baseline::table};

#endif

const size_t level_count = supported();
std::atomic<const Table*> current{tables[level_count - 1]};

}  // namespace

const Table* const* levels(size_t& count) {
  count = level_count;
  return tables;
}

const Table& kernels() { return *current.load(std::memory_order_acquire); }

bool set_level(const char* name) {
  for (size_t i = 0; i < level_count; ++i) {
    if (std::strcmp(tables[i]->level, name) == 0) {
      current.store(tables[i], std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace weighbridge
