// Encoding Q4_0, Q4_1, Q5_0, Q5_1 with weights of the columns (an importance matrix): bytes equal to llama.cpp's
// quantize_row_*_impl (ggml-quants.c, b11549, built for x86-64). Blocks are drawn in blocks32.cpp.
//
// An element counts by its column's weight and the root of its square and the mean square of its whole row.
#include "blocks.hpp"
#include "search.hpp"

namespace weighbridge::WB_LEVEL {
namespace {

constexpr size_t N = 32;
// Runs of W blocks that are searched side by side: one waits for its sums, four outgrow a cache of 32 KB.
constexpr int SIDE = 2;
constexpr size_t STEP = size_t(SIDE) * W;  // blocks

constexpr Signed Q4_0_SEARCH = {32, 8};
constexpr Signed Q5_0_SEARCH = {32, 16};
constexpr Ranges Q4_1_SEARCH = {32, 15, -0.9f, 0.05f, 36, false, true};
constexpr Ranges Q5_1_SEARCH = {32, 31, -0.9f, 0.05f, 36, false, true};

// STEP blocks: elements and their weights. NaN lose sign and payload, as in kencode.cpp.
struct WeighedBlocks {
  F32 x[SIDE][N], w[SIDE][N];

  void load(const u8* src, const u8* weights, const F32 (&mean)[SIDE]) {
    for (int p = 0; p < SIDE; ++p) {
      load_columns(src + size_t(p) * W * N * 4, N * 4, x[p]);
      load_columns(weights + size_t(p) * W * N * 4, N * 4, w[p]);
      for (size_t i = 0; i < N; ++i) {
        x[p][i] = select(x[p][i] == x[p][i], x[p][i], as_f32(splat(i32(F32_INF | F32_QUIET))));
        w[p][i] = w[p][i] * square_root(mean[p] + x[p][i] * x[p][i]);
      }
    }
  }
};

template <const Signed& S, class Block>
void encode_signed(const WeighedBlocks& blocks, Block* dst, Counts& counts) {
  F32 d[SIDE];
  I32 q[SIDE][N];
  search_signed<S, SIDE>(blocks.x, blocks.w, d, q);
  for (int p = 0; p < SIDE; ++p, dst += W) {
    store_scales<&Block::d>(d[p], dst, counts);
    if constexpr (S.zero == 8)
      store_nibbles<&Block::qs>(q[p], dst);
    else
      store_5bit(q[p], dst);
  }
}

template <const Ranges& S, class Block>
void encode_ranges(const WeighedBlocks& blocks, Block* dst, Counts& counts) {
  F32 d[SIDE], least[SIDE];
  I32 q[SIDE][N];
  search_ranges<S, SIDE>(blocks.x, blocks.w, d, least, q);
  for (int p = 0; p < SIDE; ++p, dst += W) {
    store_scales<&Block::d>(d[p], dst, counts);
    store_scales<&Block::m>(negative(least[p]), dst, counts);
    if constexpr (S.top == 15)
      store_nibbles<&Block::qs>(q[p], dst);
    else
      store_5bit(q[p], dst);
  }
}

// Mean squares of `some` rows (at most W), one a lane.
F32 mean_squares(const u8* rows, size_t some, size_t columns) {
  F32 sum = splat(0.0f);
  for (size_t at = 0; at < columns; at += N) {
    F32 x[N];
    if (some == size_t(W)) {
      load_columns(rows + at * 4, columns * 4, x);
    } else {
      u8 copied[size_t(W) * N * 4] = {};
      for (size_t i = 0; i < some; ++i) memcpy(copied + i * N * 4, rows + (i * columns + at) * 4, N * 4);
      load_columns(copied, N * 4, x);
    }
    for (size_t i = 0; i < N; ++i) sum = sum + x[i] * x[i];
  }
  return sum / splat(float(columns));
}

// W rows at a time; their remaining blocks are padded with zeros and cut.
template <class Block, void kernel(const WeighedBlocks&, Block*, Counts&)>
void encode_rows(const WeightedRows& all, u8* WB_RESTRICT dst, Counts& counts) {
  const size_t columns = all.row_atoms * N;
  for (size_t row = 0; row < all.rows; row += size_t(W)) {
    const size_t some = all.rows - row < size_t(W) ? all.rows - row : size_t(W), n = some * all.row_atoms;
    const u8* src = all.f32 + row * columns * 4;
    const F32 means = mean_squares(src, some, columns);
    for (size_t b = 0; b < n; b += STEP) {
      const size_t here = n - b < STEP ? n - b : STEP;
      u8 in[STEP * N * 4] = {}, weights[STEP * N * 4] = {};
      Block out[STEP];
      F32 mean[SIDE] = {};
      for (size_t i = 0; i < here; ++i) {
        mean[i / size_t(W)][int(i % size_t(W))] = means[int((b + i) / all.row_atoms)];
        memcpy(weights + i * N * 4, all.weights + (b + i) % all.row_atoms * N * 4, N * 4);
      }
      memcpy(in, src + b * N * 4, here * N * 4);
      WeighedBlocks blocks;
      blocks.load(in, weights, mean);
      kernel(blocks, out, counts);  // zeros lose nothing, so the counts stay right
      memcpy(dst + (row * all.row_atoms + b) * sizeof(Block), out, here * sizeof(Block));
    }
  }
}

}  // namespace

#define WB_DEFINE(name, Block, kernel)                                                   \
  void name##_encode_weighted(const WeightedRows& all, u8* dst, Counts& counts) {        \
    encode_rows<Block, kernel<Block##_SEARCH, Block>>(all, dst, counts);                 \
  }
WB_DEFINE(q4_0, Q4_0, encode_signed)
WB_DEFINE(q4_1, Q4_1, encode_ranges)
WB_DEFINE(q5_0, Q5_0, encode_signed)
WB_DEFINE(q5_1, Q5_1, encode_ranges)
#undef WB_DEFINE

}  // namespace weighbridge::WB_LEVEL
