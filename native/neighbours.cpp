// The rule is llama.cpp's (iq2xs_init_impl and iq3xs_init_impl in ggml-quants.c): the neighbours of a point are those of
// the codebook at the smallest distance, at the second smallest, and so on, for the type's number of distances.
#include "neighbours.hpp"

#include "grids.hpp"

#include <stdexcept>
#include <vector>

namespace weighbridge {
namespace {

constexpr int MOST = 2048;  // points of the largest codebook

struct NeighbourTable {
  std::vector<u32> places;
  std::vector<u16> points;
  Neighbours view;
};

// A codebook's points by their coordinates' ranks among the values: [dimension][point].
template <int dimensions>
struct Ranks {
  u8 of[dimensions][MOST];
  int count;

  template <class Point, size_t n>
  explicit Ranks(const Point (&grid)[n]) : count(int(n)) {
    static_assert(sizeof(Point) == dimensions && n <= MOST);
    bool used[256] = {};
    for (const Point& point : grid)
      for (int i = 0; i < dimensions; ++i) used[value(point, i)] = true;
    u8 rank[256], next = 0;
    for (int v = 0; v < 256; ++v) {
      rank[v] = next;
      next = u8(next + used[v]);
    }
    for (size_t j = 0; j < n; ++j)
      for (int i = 0; i < dimensions; ++i) of[i][j] = rank[value(grid[j], i)];
  }

  template <class Point>
  static u8 value(Point point, int i) {
    return u8(u8(point >> 8 * i) + 128);  // int8, in its order
  }
};

// `distances`: how many distances count.
template <int base, int dimensions, class Point, size_t n>
NeighbourTable around(const Point (&grid)[n], int distances) {
  constexpr int bits = base == 3 ? 2 : 3;
  const Ranks<dimensions> ranks(grid);
  int size = 1;
  for (int i = 0; i < dimensions; ++i) size *= base;
  NeighbourTable table;
  table.places.resize(size_t(size));
  u8 squares[MOST];  // squared distances; at most 4 * 7 * 7
  for (int p = 0; p < size; ++p) {
    for (int j = 0; j < ranks.count; ++j) squares[j] = 0;
    for (int i = 0, rest = p; i < dimensions; ++i, rest /= base)
      for (int j = 0; j < ranks.count; ++j) {
        const int away = ranks.of[i][j] - rest % base;
        squares[j] = u8(squares[j] + away * away);
      }
    bool seen[256] = {};
    for (int j = 0; j < ranks.count; ++j) seen[squares[j]] = true;
    const size_t at = table.points.size();
    for (int square = 0, left = distances; square < 256 && left; ++square) {
      if (!seen[square]) continue;
      --left;
      for (int j = 0; j < ranks.count; ++j) {
        if (squares[j] != square) continue;
        if (square == 0) table.places[size_t(p)] = u32(j), left = 0;
        u32 packed = 0;
        for (int i = 0; i < dimensions; ++i) packed |= u32(ranks.of[i][j]) << (bits * i);
        if (square) table.points.push_back(u16(packed));
      }
    }
    const size_t count = table.points.size() - at;
    if (at >> Neighbours::AT_BITS || count >> (31 - Neighbours::AT_BITS))
      throw std::length_error("the neighbours of a codebook don't fit their packed places");
    if (count)
      table.places[size_t(p)] = Neighbours::OUTSIDE | u32(count << Neighbours::AT_BITS) | u32(at);
  }
  table.points.resize(table.points.size() + 16);
  table.view = {table.places.data(), table.points.data()};
  return table;
}

}  // namespace

// Each in a local variable: made once, by the first thread that comes, when its type is first encoded.
const Neighbours& neighbours(Codebook codebook) {
  switch (codebook) {
    case Codebook::iq2_xxs: {
      static const NeighbourTable table = around<3, 8>(grids.iq2_xxs, 2);
      return table.view;
    }
    case Codebook::iq2_xs: {
      static const NeighbourTable table = around<3, 8>(grids.iq2_xs, 2);
      return table.view;
    }
    case Codebook::iq2_s: {
      static const NeighbourTable table = around<3, 8>(grids.iq2_s, 1);
      return table.view;
    }
    case Codebook::iq1: {
      static const NeighbourTable table = around<3, 8>(grids.iq1_s, 3);
      return table.view;
    }
    case Codebook::iq3_xxs: {
      static const NeighbourTable table = around<8, 4>(grids.iq3_xxs, 2);
      return table.view;
    }
    default: {
      static const NeighbourTable table = around<8, 4>(grids.iq3_s, 3);
      return table.view;
    }
  }
}

}  // namespace weighbridge
