#include "calls.hpp"

#include "dispatch.hpp"

#include <cstring>
#include <stdexcept>

namespace weighbridge::calls {
namespace {

constexpr size_t MOST = size_t(1) << 40;  // of columns, groups: beyond every tensor, far below where products wrap

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void need(bool condition, const char* message) {
  if (!condition) fail(message);
}

void need_size(const char* what, Bytes bytes, size_t expected) {
  if (bytes.size != expected)
    fail(std::string(what) + ": expected " + std::to_string(expected) + " bytes, found " + std::to_string(bytes.size));
}

// How many units of `unit` bytes there are.
size_t whole(const char* what, Bytes bytes, size_t unit) {
  if (bytes.size % unit)
    fail(std::string(what) + ": " + std::to_string(bytes.size) + " bytes are not whole units of " + std::to_string(unit));
  return bytes.size / unit;
}

template <class... Others>
void need_apart(MutableBytes out, Others... others) {
  const auto overlaps = [&](Bytes a) { return a.data < out.data + out.size && out.data < a.data + a.size; };
  if ((overlaps(others) || ...)) fail("source and destination overlap");
}

const Format& format(const Table& table, const char* name) {
  for (const Rows<Format>* family : table.families)
    for (const Format& row : *family)
      if (!std::strcmp(row.name, name)) return row;
  fail(std::string("no kernels for the number type ") + name);
}

const Format& float_format(const Table& table, const char* name) {
  const Format& found = format(table, name);
  need(found.block == 1, "a plain float type is needed");
  return found;
}

const MlxRegroup& regroup(const Table& table, const char* name) {
  for (const MlxRegroup& row : *table.regroups)
    if (!std::strcmp(row.name, name)) return row;
  fail(std::string("MLX has no codes and parameters of ") + name);
}

Tiles tiles(Bytes f32, size_t columns, size_t width) {
  need(columns && width && columns <= MOST && width <= MOST, "no columns");
  return {whole("floats", f32, columns * 4), columns, width};
}

size_t scale_count(const Tiles& t) { return t.rows * ((t.columns - 1) / t.width + 1); }

u8* or_null(MutableBytes bytes) { return bytes.size ? bytes.data : nullptr; }

}  // namespace

// ---------------------------------------------------------------- names

std::vector<std::string> formats(const std::string& operation) {
  const bool encode = operation == "encode", weighted = operation == "weighted";
  need(encode || weighted || operation == "decode", "operations are decode, encode and weighted");
  std::vector<std::string> out;
  for (const Rows<Format>* family : kernels().families)
    for (const Format& row : *family)
      if (encode ? !!row.encode : weighted ? !!row.encode_weighted : !!row.decode) out.push_back(row.name);
  return out;
}

std::vector<std::string> regroups(const std::string& operation) {
  need(operation == "split" || operation == "join", "operations are split and join");
  std::vector<std::string> out;
  for (const MlxRegroup& row : *kernels().regroups)
    if (operation == "split" || row.join) out.push_back(row.name);
  return out;
}

// ---------------------------------------------------------------- number types

void decode(const char* dtype, Bytes src, MutableBytes out) {
  const Format& type = format(kernels(), dtype);
  const size_t atoms = whole("src", src, type.size);
  need_size("out", out, atoms * type.block * 4);
  need_apart(out, src);
  type.decode(src.data, out.data, atoms);
}

Counts encode(const char* dtype, Bytes src, MutableBytes out) {
  const Format& type = format(kernels(), dtype);
  need(type.encode, "this number type can't be written");
  const size_t atoms = whole("src", src, size_t(type.block) * 4);
  need_size("out", out, atoms * type.size);
  need_apart(out, src);
  Counts counts;
  type.encode(src.data, out.data, atoms, counts);
  return counts;
}

// In tiles that the first-level cache holds. Else the f32 of a slab leave the cache between its steps: widening, the
// search for what isn't finite, the encoder. Q4_0 of bf16 takes 0.14 ns a weight instead of 0.20 with AVX-512, 0.21 instead of 0.24
// with AVX2 (Zen 5), and a slab needs four bytes a weight less, so that slabs are larger and fewer.
std::optional<Counts> encode_finite(const char* source, const char* dtype, Bytes src, MutableBytes out) {
  constexpr size_t TILE = 4096;  // elements, 16 KiB of f32
  const Table& table = kernels();
  const Format &from = float_format(table, source), &to = format(table, dtype);
  need(to.encode && from.size <= 4, "this number type can't be written from that one");
  const size_t unit = size_t(to.block) * from.size, atoms = whole("src", src, unit), step = TILE / to.block;
  need_size("out", out, atoms * to.size);
  need_apart(out, src);
  Counts counts;
  alignas(64) u8 tile[TILE * 4];
  for (size_t at = 0; at < atoms; at += step) {
    const size_t n = atoms - at < step ? atoms - at : step;
    u8* const blocks = out.data + at * to.size;
    from.decode(src.data + at * unit, tile, n * to.block);
    if (table.nonfinite(tile, n * to.block)) return {};
    to.encode(tile, blocks, n, counts);
    if (counts.refused != Counts::NONE) return {};
    if (!to.scales.count) continue;
    Stats scales;
    table.scale_stats(to, blocks, n, scales);
    if (scales.nan || scales.inf) return {};
  }
  return counts;
}

Counts encode_weighted(const char* dtype, Bytes src, Bytes weights, MutableBytes out) {
  const Format& type = format(kernels(), dtype);
  need(type.encode_weighted, "this number type isn't written with weights");
  const size_t row_atoms = whole("weights", weights, size_t(type.block) * 4);
  need(row_atoms, "weights: none");
  const size_t rows = whole("src", src, weights.size);
  need_size("out", out, rows * row_atoms * type.size);
  need_apart(out, src, weights);
  Counts counts;
  type.encode_weighted({src.data, weights.data, rows, row_atoms}, out.data, counts);
  return counts;
}

Counts cast(const char* source, const char* target, Bytes src, MutableBytes out) {
  const Table& table = kernels();
  const Format &from = float_format(table, source), &to = float_format(table, target);
  const size_t n = whole("src", src, from.size);
  need_size("out", out, n * to.size);
  need_apart(out, src);
  Counts counts;
  table.cast(from, to, src.data, out.data, n, counts);
  return counts;
}

Stats stats(const char* dtype, Bytes src) {
  const Table& table = kernels();
  const Format& type = format(table, dtype);
  need(type.block == 1 || type.scales.count, "this number type has no scales to look at");
  const size_t n = whole("src", src, type.size);
  Stats s;
  (type.block == 1 ? table.stats : table.scale_stats)(type, src.data, n, s);
  return s;
}

void count_patterns(const char* dtype, Bytes src, MutableBytes counts) {
  const Table& table = kernels();
  const Format& type = format(table, dtype);
  const size_t n = whole("src", src, type.size);
  need(n <= (size_t(1) << 23) / type.block, "more elements than a counter holds");
  need_size("counts", counts, size_t(65536) * 8);
  need_apart(counts, src);
  table.count_patterns(type, src.data, n, counts.data);
}

u64 nonfinite(Bytes src) { return kernels().nonfinite(src.data, whole("src", src, 4)); }

// ---------------------------------------------------------------- codes with separate parameters

void affine_decode(int bits, size_t group, const char* parameters, Bytes codes, Bytes scales, Bytes offsets, bool zeros,
                   MutableBytes out) {
  const Table& table = kernels();
  need(bits >= 1 && bits <= 8 && group && (bits == 8 || group % 32 == 0) && group <= size_t(1) << 32,
       "no such packing of codes");
  const AffineOptions how{bits, group, &float_format(table, parameters), zeros};
  const size_t groups = whole("scales", scales, how.parameters->size);
  need(!groups || group <= out.size / 4 / groups, "out has no room for the groups");
  need_size("codes", codes, bits == 8 ? groups * group : groups * (group / 8) * size_t(bits));
  need_size("offsets", offsets, zeros ? groups : scales.size);
  need_size("out", out, groups * group * 4);
  need_apart(out, codes, scales, offsets);
  table.affine_decode(how, codes.data, scales.data, offsets.data, out.data, groups);
}

void ordered_decode(size_t columns, size_t groups, Bytes codes, Bytes scales, Bytes zeros, Bytes index, MutableBytes out) {
  const Table& table = kernels();
  need(columns && groups && columns <= MOST && groups <= MOST, "no columns");
  const size_t rows = whole("out", out, columns * 4);
  need_size("index", index, columns * 4);
  need_size("scales", scales, rows * groups * 4);
  need_size("zeros", zeros, rows * groups);
  const size_t stride = rows ? codes.size / rows : columns;
  need(stride >= columns && stride * rows == codes.size, "codes: not a byte for each element");
  need_apart(out, codes, scales, zeros, index);
  std::vector<u32> order(columns);  // a copy: the caller's may change after it was checked
  std::memcpy(order.data(), index.data, index.size);
  for (const u32 group : order) need(group < groups, "the index names a group that isn't there");
  table.ordered_decode({rows, columns, groups, stride, order.data()}, codes.data, scales.data, zeros.data, out.data);
}

void table_decode(Bytes values, size_t group, bool high_first, Bytes codes, Bytes scales, MutableBytes out) {
  need(group && group % 16 == 0 && group <= size_t(1) << 32, "no such groups of codes");
  const size_t groups = whole("scales", scales, 4);
  need_size("table", values, 64);
  need(!groups || group <= out.size / 4 / groups, "out has no room for the groups");
  need_size("codes", codes, groups * (group / 2));
  need_size("out", out, groups * group * 4);
  need_apart(out, codes, scales, values);
  kernels().table_decode({values.data, group, high_first}, codes.data, scales.data, out.data, groups);
}

void affine_encode(int bits, size_t group, const char* parameters, Bytes src, MutableBytes codes, MutableBytes scales,
                   MutableBytes biases) {
  const Table& table = kernels();
  need(bits >= 2 && bits <= 8 && bits != 7 && group && group % 32 == 0 && group <= 4096, "no such packing of codes");
  const AffineOptions how{bits, group, &float_format(table, parameters), false};
  const size_t groups = whole("src", src, group * 4);
  if (codes.size) need_size("codes", codes, groups * (group / 8) * size_t(bits));
  need_size("scales", scales, groups * how.parameters->size);
  need_size("biases", biases, scales.size);
  need_apart(codes, src, scales, biases), need_apart(scales, src, biases), need_apart(biases, src);
  table.affine_encode(how, src.data, or_null(codes), scales.data, biases.data, groups);
}

namespace {

RoundingRule::Run rounding_run(const RoundingRule& rule, const std::string& steps, bool multiplied) {
  if (multiplied) return steps == "F32" ? rule.multiplied : nullptr;
  return steps == "F32" ? rule.in_f32 : steps == "F16" ? rule.in_f16 : steps == "BF16" ? rule.in_bf16 : nullptr;
}

}  // namespace

void round_codes(const std::string& name, const std::string& steps, bool multiplied, int bits, size_t columns,
                 size_t width, Bytes src, Bytes scales, Bytes zeros, MutableBytes codes) {
  need(bits >= 1 && bits <= 8, "no such codes");
  for (const RoundingRule& rule : *kernels().rounding_rules) {
    const RoundingRule::Run run = rule.name == name ? rounding_run(rule, steps, multiplied) : nullptr;
    if (!run) continue;
    const RoundingOptions how{tiles(src, columns, width), bits};
    need(rule.bits == 8 || (width % 16 == 0 && columns % width == 0), "codes don't fill their bytes");
    need_size("scales", scales, scale_count(how.tiles) * 4);
    if (zeros.size) need_size("zeros", zeros, scales.size);
    const size_t n = src.size / 4;
    need_size("codes", codes, rule.bits == 8 ? n : n / 8 * size_t(rule.bits));
    need_apart(codes, src, scales, zeros);
    return run(how, src.data, scales.data, zeros.size ? zeros.data : nullptr, codes.data);
  }
  fail("no rule " + name + " in steps of " + steps);
}

void extremes(size_t columns, size_t width, Bytes src, MutableBytes low, MutableBytes high) {
  const Tiles t = tiles(src, columns, width);
  need_size("low", low, scale_count(t) * 4), need_size("high", high, scale_count(t) * 4);
  need_apart(low, src, high), need_apart(high, src);
  kernels().extremes(t, src.data, low.data, high.data);
}

void scaled_decode(const char* dtype, size_t columns, size_t width, Bytes src, Bytes scales, MutableBytes out) {
  const Table& table = kernels();
  const Format& type = float_format(table, dtype);
  const Tiles t = tiles(out, columns, width);
  need_size("src", src, t.rows * columns * type.size);
  need_size("scales", scales, scale_count(t) * 4);
  need_apart(out, src, scales);
  table.scaled_decode(type, t, src.data, scales.data, out.data);
}

void unpack_codes(int bits, Bytes src, MutableBytes out) {
  need(bits >= 1 && bits <= 8, "no such packing of codes");
  const size_t n = whole("src", src, size_t(bits));
  need_size("out", out, n * 8);
  need_apart(out, src);
  kernels().unpack_codes(bits, src.data, out.data, n);
}

void pack_codes(int bits, Bytes src, MutableBytes out) {
  need(bits >= 1 && bits <= 8, "no such packing of codes");
  const size_t n = whole("src", src, 8);
  need_size("out", out, n * size_t(bits));
  need_apart(out, src);
  kernels().pack_codes(bits, src.data, out.data, n);
}

void unpack_awq(Bytes src, MutableBytes out) {
  const size_t n = whole("src", src, 4);
  need_size("out", out, n * 8);
  need_apart(out, src);
  kernels().unpack_awq(src.data, out.data, n);
}

void awq_by_rows(size_t words, Bytes src, MutableBytes out) {
  need(words > 0 && words <= src.size / 32, "no rows of words");
  const size_t rows = whole("src", src, words * 32);
  need_size("out", out, src.size);
  need_apart(out, src);
  kernels().awq_by_rows(src.data, out.data, rows, words);
}

void transpose(size_t size, size_t rows, size_t columns, Bytes src, size_t src_stride, MutableBytes out,
               size_t out_stride) {
  need(size == 1 || size == 2 || size == 4 || size == 8, "elements of 1, 2, 4 or 8 bytes");
  if (!rows || !columns) return;
  // By division, since products of any numbers could wrap round.
  need(columns <= src.size / size && rows <= out.size / size, "a row is longer than its matrix");
  const size_t in_row = columns * size, out_row = rows * size;
  need(src_stride >= in_row && out_stride >= out_row, "rows overlap");
  need((src.size - in_row) / src_stride >= rows - 1 && (out.size - out_row) / out_stride >= columns - 1,
       "rows run over the end");
  need_apart(out, src);
  kernels().transpose({size, rows, columns, src_stride}, src.data, out.data, out_stride);
}

// ---------------------------------------------------------------- blocks and MLX's parts

void split(const char* dtype, Bytes src, MutableBytes codes, MutableBytes scales, MutableBytes biases) {
  const MlxRegroup& type = regroup(kernels(), dtype);
  const size_t n = whole("src", src, type.size), parameters = n * (type.block / type.group) * type.parameter;
  if (codes.size) need_size("codes", codes, n * (type.block / 8) * size_t(type.bits));
  if (scales.size) need_size("scales", scales, parameters);
  if (biases.size) need_size("biases", biases, type.biases ? parameters : 0);
  need_apart(codes, src, scales, biases), need_apart(scales, src, biases), need_apart(biases, src);
  type.split(src.data, n, or_null(codes), or_null(scales), or_null(biases));
}

void join(const char* dtype, int bits, size_t group, Bytes codes, Bytes scales, Bytes offsets, MutableBytes out) {
  const MlxRegroup& type = regroup(kernels(), dtype);
  const bool fits = type.offset ? bits >= 1 && bits <= 8 && group && group % type.group == 0 && group <= size_t(1) << 30
                                : bits == type.bits && group == type.group;
  need(type.join && fits, "these codes don't fit the blocks");
  const size_t n = whole("out", out, type.size), elements = n * type.block;
  need(elements % group == 0, "the blocks are not whole groups");
  const size_t groups = elements / group;
  need_size("codes", codes, elements / 8 * size_t(bits));
  need_size("scales", scales, groups * type.parameter);
  need_size("offsets", offsets, groups * type.offset);
  need_apart(out, codes, scales, offsets);
  type.join({bits, group, codes.data, scales.data, offsets.data}, out.data, groups);
}

// ---------------------------------------------------------------- moves

void byteswap(u32 word, Bytes src, MutableBytes out) {
  need(word == 2 || word == 4 || word == 8, "words are 2, 4 or 8 bytes");
  const size_t n = whole("src", src, word);
  need_size("out", out, src.size);
  if (src.data != out.data) need_apart(out, src);
  kernels().byteswap(src.data, out.data, n, word);
}

void gather(Bytes src, Bytes index, size_t row_bytes, MutableBytes out) {
  const Table& table = kernels();
  need(row_bytes, "a row has at least one byte");
  const size_t have = whole("src", src, row_bytes), rows = whole("index", index, 8);
  need(rows <= size_t(-1) / row_bytes, "too many rows");
  need_size("out", out, rows * row_bytes);
  need_apart(out, src, index);
  constexpr size_t STEP = 1024;
  i64 order[STEP];  // a copy: the caller's may change after it was checked
  for (size_t at = 0; at < rows; at += STEP) {
    const size_t n = rows - at < STEP ? rows - at : STEP;
    std::memcpy(order, index.data + at * 8, n * 8);
    for (size_t i = 0; i < n; ++i) need(u64(order[i]) < have, "the index names a row that isn't there");
    table.gather(src.data, order, out.data + at * row_bytes, n, row_bytes);
  }
}

}  // namespace weighbridge::calls
