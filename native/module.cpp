// The door: weighbridge._native. The only file that knows Python. Every size is checked here, once, before the
// interpreter lock is dropped; a wrong one is a ValueError. Functions only, no classes and no state but the level.
#include "dispatch.hpp"
#include "pickles.hpp"
#include "strings.hpp"

#include <nanobind/nanobind.h>

#include <cstring>
#include <memory>

namespace nb = nanobind;
using namespace nb::literals;
using namespace weighbridge;

namespace {

// Any contiguous bytes-like object, held for as long as the kernel runs.
class Buffer {
 public:
  explicit Buffer(nb::handle object, bool writable = false) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  u8* data() const { return static_cast<u8*>(view_.buf); }
  size_t size() const { return size_t(view_.len); }

 private:
  Py_buffer view_{};
};

[[noreturn]] void fail(const char* format, const char* what, size_t expected, size_t found) {
  PyErr_Format(PyExc_ValueError, format, what, expected, found);
  throw nb::python_error();
}

void need_size(const char* what, const Buffer& buffer, size_t expected) {
  if (buffer.size() != expected) fail("%s: expected %zu bytes, found %zu", what, expected, buffer.size());
}

size_t whole(const char* what, const Buffer& buffer, size_t unit) {
  if (buffer.size() % unit) fail("%s: not whole units of %zu bytes: %zu", what, unit, buffer.size());
  return buffer.size() / unit;
}

void need_apart(const Buffer& a, const Buffer& out) {
  if (a.data() < out.data() + out.size() && out.data() < a.data() + a.size())
    throw nb::value_error("source and destination overlap");
}

const Format& format(const char* name) {
  const Table& table = kernels();
  for (size_t i = 0; i < table.family_count; ++i) {
    const Family& family = *table.families[i];
    for (size_t k = 0; k < family.count; ++k)
      if (!std::strcmp(family.formats[k].name, name)) return family.formats[k];
  }
  PyErr_Format(PyExc_ValueError, "no kernels for the number type %s", name);
  throw nb::python_error();
}

const Regular& regular(const char* name) {
  const Regulars& all = *kernels().regulars;
  for (size_t i = 0; i < all.count; ++i)
    if (!std::strcmp(all.rows[i].name, name)) return all.rows[i];
  PyErr_Format(PyExc_ValueError, "MLX has no codes and parameters of %s", name);
  throw nb::python_error();
}

const Format& float_format(const char* name) {
  const Format& found = format(name);
  if (found.block != 1) throw nb::value_error("a plain float type is needed");
  return found;
}

nb::tuple as_tuple(const Counts& c) {
  return c.refused == ~u64(0) ? nb::make_tuple(c.overflow, c.underflow)
                              : nb::make_tuple(c.overflow, c.underflow, c.refused);
}

nb::object number_or_none(double x) {
  const bool none = x == __builtin_huge_val() || x == -__builtin_huge_val();
  return none ? nb::none() : nb::object(nb::float_(x));
}

nb::tuple as_tuple(const Stats& s) {
  return nb::make_tuple(s.nan, s.inf, number_or_none(s.minimum), number_or_none(s.maximum));
}

// ---------------------------------------------------------------- levels

nb::list level_names() {
  size_t count;
  const Table* const* all = levels(count);
  nb::list out;
  for (size_t i = 0; i < count; ++i) out.append(nb::str(all[i]->level));
  return out;
}

void use_level(const char* name) {
  if (set_level(name)) return;
  PyErr_Format(PyExc_ValueError, "this machine has no instruction-set level %s", name);
  throw nb::python_error();
}

// Ways: "decode", "encode" (without weights), "weighted".
nb::list format_names(const char* way) {
  const bool encode = !std::strcmp(way, "encode"), weighted = !std::strcmp(way, "weighted");
  if (!encode && !weighted && std::strcmp(way, "decode")) throw nb::value_error("no such way");
  nb::list out;
  const Table& table = kernels();
  for (size_t i = 0; i < table.family_count; ++i) {
    const Family& family = *table.families[i];
    for (size_t k = 0; k < family.count; ++k)
      if (const Format& f = family.formats[k]; encode ? !!f.encode : weighted ? !!f.encode_weighted : !!f.decode)
        out.append(nb::str(f.name));
  }
  return out;
}

// Ways: "split", "join".
nb::list regular_names(const char* way) {
  const bool joined = !std::strcmp(way, "join");
  if (!joined && std::strcmp(way, "split")) throw nb::value_error("no such way");
  nb::list out;
  const Regulars& all = *kernels().regulars;
  for (size_t i = 0; i < all.count; ++i)
    if (!joined || all.rows[i].join) out.append(nb::str(all.rows[i].name));
  return out;
}

// ---------------------------------------------------------------- numbers

void decode(const char* name, nb::handle src, nb::handle out) {
  const Format& type = format(name);
  const Buffer from(src), to(out, true);
  const size_t atoms = whole("src", from, type.size);
  need_size("out", to, atoms * type.block * 4);
  need_apart(from, to);
  nb::gil_scoped_release unlocked;
  type.decode(from.data(), to.data(), atoms);
}

nb::tuple encode(const char* name, nb::handle src, nb::handle out) {
  const Format& type = format(name);
  if (!type.encode) throw nb::value_error("this number type can't be written");
  const Buffer from(src), to(out, true);
  const size_t atoms = whole("src", from, size_t(type.block) * 4);
  need_size("out", to, atoms * type.size);
  need_apart(from, to);
  Counts counts;
  {
    nb::gil_scoped_release unlocked;
    type.encode(from.data(), to.data(), atoms, counts);
  }
  return as_tuple(counts);
}

nb::tuple encode_weighted(const char* name, nb::handle src, nb::handle weights, nb::handle out) {
  const Format& type = format(name);
  if (!type.encode_weighted) throw nb::value_error("this number type isn't written with weights");
  const Buffer from(src), columns(weights), to(out, true);
  const size_t row_atoms = whole("weights", columns, size_t(type.block) * 4);
  if (!row_atoms) throw nb::value_error("weights: none");
  const size_t rows = whole("src", from, columns.size());
  need_size("out", to, rows * row_atoms * type.size);
  need_apart(from, to), need_apart(columns, to);
  Counts counts;
  {
    nb::gil_scoped_release unlocked;
    type.encode_weighted({from.data(), columns.data(), rows, row_atoms}, to.data(), counts);
  }
  return as_tuple(counts);
}

nb::tuple cast(const char* source, const char* target, nb::handle src, nb::handle out) {
  const Format &a = float_format(source), &b = float_format(target);
  const Table& table = kernels();
  const Buffer from(src), to(out, true);
  const size_t n = whole("src", from, a.size);
  need_size("out", to, n * b.size);
  need_apart(from, to);
  Counts counts;
  {
    nb::gil_scoped_release unlocked;
    table.cast(a, b, from.data(), to.data(), n, counts);
  }
  return as_tuple(counts);
}

nb::tuple stats(const char* name, nb::handle src) {
  const Format& type = format(name);
  if (type.block != 1 && !type.scale_count) throw nb::value_error("nothing to look at in this number type");
  const Table& table = kernels();
  const Buffer from(src);
  const size_t n = whole("src", from, type.size);
  Stats s;
  {
    nb::gil_scoped_release unlocked;
    (type.block == 1 ? table.stats : table.scale_stats)(type, from.data(), n, s);
  }
  return as_tuple(s);
}

u64 nonfinite(nb::handle src) {
  const Table& table = kernels();
  const Buffer from(src);
  const size_t n = whole("src", from, 4);
  nb::gil_scoped_release unlocked;
  return table.nonfinite(from.data(), n);
}

void affine_decode(int bits, size_t group, const char* parameters, nb::handle codes, nb::handle scales,
                   nb::handle offsets, bool zeros, nb::handle out) {
  if (bits < 1 || bits > 8 || group == 0 || (bits < 8 && group % 32) || group > (size_t(1) << 32))
    throw nb::value_error("no such packing of codes");
  const Affine how{bits, group, &float_format(parameters), zeros};
  const Table& table = kernels();
  const Buffer c(codes), s(scales), b(offsets), to(out, true);
  const size_t groups = whole("scales", s, how.parameters->size);
  if (groups && group > to.size() / 4 / groups) throw nb::value_error("out has no room for the groups");
  need_size("codes", c, bits == 8 ? groups * group : groups * (group / 8) * size_t(bits));
  need_size("offsets", b, zeros ? groups : s.size());
  need_size("out", to, groups * group * 4);
  need_apart(c, to), need_apart(s, to), need_apart(b, to);
  nb::gil_scoped_release unlocked;
  table.affine_decode(how, c.data(), s.data(), b.data(), to.data(), groups);
}

void ordered_decode(size_t columns, size_t groups, nb::handle codes, nb::handle scales, nb::handle zeros,
                    nb::handle index, nb::handle out) {
  const Table& table = kernels();
  const Buffer c(codes), s(scales), z(zeros), order(index), to(out, true);
  if (!columns || !groups || columns > size_t(1) << 40 || groups > size_t(1) << 40) throw nb::value_error("no columns");
  const size_t rows = whole("out", to, columns * 4);
  need_size("index", order, columns * 4);
  need_size("scales", s, rows * groups * 4);
  need_size("zeros", z, rows * groups);
  const size_t stride = rows ? c.size() / rows : columns;
  if (stride < columns || stride * rows != c.size()) throw nb::value_error("codes: not a byte for each element");
  need_apart(c, to), need_apart(s, to), need_apart(z, to), need_apart(order, to);
  u32 largest = 0;
  {
    nb::gil_scoped_release unlocked;
    for (size_t i = 0; i < columns; ++i) {
      u32 group;
      std::memcpy(&group, order.data() + 4 * i, 4);
      largest = group > largest ? group : largest;
    }
    if (largest < groups)
      table.ordered_decode({rows, columns, groups, stride, order.data()}, c.data(), s.data(), z.data(), to.data());
  }
  if (largest >= groups) throw nb::value_error("the index names a group that isn't there");
}

void table_decode(nb::handle table, size_t group, bool high_first, nb::handle codes, nb::handle scales,
                  nb::handle out) {
  if (!group || group % 16 || group > size_t(1) << 32) throw nb::value_error("no such groups of codes");
  const Buffer values(table), c(codes), s(scales), to(out, true);
  const size_t groups = whole("scales", s, 4);
  need_size("table", values, 64);
  if (groups && group > to.size() / 4 / groups) throw nb::value_error("out has no room for the groups");
  need_size("codes", c, groups * (group / 2));
  need_size("out", to, groups * group * 4);
  need_apart(c, to), need_apart(s, to), need_apart(values, to);
  nb::gil_scoped_release unlocked;
  kernels().table_decode({values.data(), group, high_first}, c.data(), s.data(), to.data(), groups);
}

void affine_encode(int bits, size_t group, const char* parameters, nb::handle src, nb::handle codes, nb::handle scales,
                   nb::handle biases) {
  if (bits < 2 || bits == 7 || bits > 8 || group == 0 || group % 32 || group > 4096)
    throw nb::value_error("no such packing of codes");
  const Affine how{bits, group, &float_format(parameters), false};
  const Table& table = kernels();
  const Buffer from(src), c(codes, true), s(scales, true), b(biases, true);
  const size_t groups = whole("src", from, group * 4);
  if (c.size()) need_size("codes", c, groups * (group / 8) * size_t(bits));
  need_size("scales", s, groups * how.parameters->size);
  need_size("biases", b, s.size());
  need_apart(from, c), need_apart(from, s), need_apart(from, b), need_apart(c, s), need_apart(c, b), need_apart(s, b);
  nb::gil_scoped_release unlocked;
  table.affine_encode(how, from.data(), c.size() ? c.data() : nullptr, s.data(), b.data(), groups);
}

Tiles tiles(const Buffer& f32, size_t columns, size_t width) {
  if (!columns || !width || columns > size_t(1) << 40 || width > size_t(1) << 40) throw nb::value_error("no columns");
  return {whole("floats", f32, columns * 4), columns, width};
}

size_t scale_count(const Tiles& t) { return t.rows * ((t.columns - 1) / t.width + 1); }

RoundingRule::Run rounding_rule(const char* name, const char* type, bool multiplied, int& bits) {
  static const char* const types[] = {"F32", "F16", "BF16"};
  const RoundingRules& all = *kernels().rounding_rules;
  for (size_t i = 0; i < all.count; ++i) {
    if (std::strcmp(all.rows[i].name, name)) continue;
    bits = all.rows[i].bits;
    for (size_t k = 0; k < 3; ++k)
      if (const auto run = multiplied ? all.rows[i].multiplied : all.rows[i].in[k];
          run && !std::strcmp(types[k], type) && !(multiplied && k))
        return run;
  }
  PyErr_Format(PyExc_ValueError, "no rule %s in steps of %s", name, type);
  throw nb::python_error();
}

// An empty `zeros`: none.
void round_codes(const char* rule, const char* type, bool multiplied, int bits, size_t columns, size_t width,
                 nb::handle src, nb::handle scales, nb::handle zeros, nb::handle codes) {
  if (bits < 1 || bits > 8) throw nb::value_error("no such codes");
  int stored;
  const RoundingRule::Run run = rounding_rule(rule, type, multiplied, stored);
  const Buffer from(src), s(scales), z(zeros), to(codes, true);
  const Rounding how{tiles(from, columns, width), bits};
  if (stored < 8 && (width % 16 || columns % width)) throw nb::value_error("codes don't fill their bytes");
  need_size("scales", s, scale_count(how.tiles) * 4);
  if (z.size()) need_size("zeros", z, s.size());
  const size_t n = from.size() / 4;
  need_size("codes", to, stored == 8 ? n : n / 8 * size_t(stored));
  need_apart(from, to), need_apart(s, to), need_apart(z, to);
  nb::gil_scoped_release unlocked;
  run(how, from.data(), s.data(), z.size() ? z.data() : nullptr, to.data());
}

void extremes(size_t columns, size_t width, nb::handle src, nb::handle low, nb::handle high) {
  const Buffer from(src), l(low, true), h(high, true);
  const Tiles t = tiles(from, columns, width);
  need_size("low", l, scale_count(t) * 4), need_size("high", h, scale_count(t) * 4);
  need_apart(from, l), need_apart(from, h), need_apart(l, h);
  nb::gil_scoped_release unlocked;
  kernels().extremes(t, from.data(), l.data(), h.data());
}

void scaled_decode(const char* name, size_t columns, size_t width, nb::handle src, nb::handle scales, nb::handle out) {
  const Format& type = float_format(name);
  const Buffer from(src), s(scales), to(out, true);
  const Tiles t = tiles(to, columns, width);
  need_size("src", from, t.rows * columns * type.size);
  need_size("scales", s, scale_count(t) * 4);
  need_apart(from, to), need_apart(s, to);
  nb::gil_scoped_release unlocked;
  kernels().scaled_decode(type, t, from.data(), s.data(), to.data());
}

void unpack_codes(int bits, nb::handle src, nb::handle out) {
  if (bits < 1 || bits > 8) throw nb::value_error("no such packing of codes");
  const Buffer from(src), to(out, true);
  const size_t n = whole("src", from, size_t(bits));
  need_size("out", to, n * 8);
  need_apart(from, to);
  nb::gil_scoped_release unlocked;
  kernels().unpack_codes(bits, from.data(), to.data(), n);
}

void pack_codes(int bits, nb::handle src, nb::handle out) {
  if (bits < 1 || bits > 8) throw nb::value_error("no such packing of codes");
  const Buffer from(src), to(out, true);
  const size_t n = whole("src", from, 8);
  need_size("out", to, n * size_t(bits));
  need_apart(from, to);
  nb::gil_scoped_release unlocked;
  kernels().pack_codes(bits, from.data(), to.data(), n);
}

// An empty `codes`, `scales` or `biases` isn't wanted.
void split(const char* name, nb::handle src, nb::handle codes, nb::handle scales, nb::handle biases) {
  const Regular& type = regular(name);
  const Buffer from(src), c(codes, true), s(scales, true), b(biases, true);
  const size_t n = whole("src", from, type.size), parameters = n * (type.block / type.group) * type.parameter;
  if (c.size()) need_size("codes", c, n * (type.block / 8) * size_t(type.bits));
  if (s.size()) need_size("scales", s, parameters);
  if (b.size()) need_size("biases", b, type.biases ? parameters : 0);
  need_apart(from, c), need_apart(from, s), need_apart(from, b), need_apart(c, s), need_apart(c, b), need_apart(s, b);
  nb::gil_scoped_release unlocked;
  type.split(from.data(), n, c.size() ? c.data() : nullptr, s.size() ? s.data() : nullptr,
             b.size() ? b.data() : nullptr);
}

void join(const char* name, int bits, size_t group, nb::handle codes, nb::handle scales, nb::handle offsets,
          nb::handle out) {
  const Regular& type = regular(name);
  const bool fits = type.offset ? bits >= 1 && bits <= 8 && group && group % type.group == 0 && group <= 1 << 30
                                : bits == type.bits && group == type.group;
  if (!type.join || !fits) throw nb::value_error("these codes don't fit the blocks");
  const Buffer c(codes), s(scales), b(offsets), to(out, true);
  const size_t n = whole("out", to, type.size), elements = n * type.block;
  if (elements % group) throw nb::value_error("the blocks are not whole groups");
  const size_t groups = elements / group;
  need_size("codes", c, elements / 8 * size_t(bits));
  need_size("scales", s, groups * type.parameter);
  need_size("offsets", b, groups * type.offset);
  need_apart(c, to), need_apart(s, to), need_apart(b, to);
  nb::gil_scoped_release unlocked;
  type.join({bits, group, c.data(), s.data(), b.data()}, to.data(), groups);
}

// ---------------------------------------------------------------- moves

void byteswap(u32 word, nb::handle src, nb::handle out) {
  if (word != 2 && word != 4 && word != 8) throw nb::value_error("words are 2, 4 or 8 bytes");
  const Table& table = kernels();
  const Buffer from(src), to(out, true);
  const size_t n = whole("src", from, word);
  need_size("out", to, from.size());
  if (from.data() != to.data()) need_apart(from, to);
  nb::gil_scoped_release unlocked;
  table.byteswap(from.data(), to.data(), n, word);
}

void gather(nb::handle src, nb::handle index, size_t row_bytes, nb::handle out) {
  const Table& table = kernels();
  const Buffer from(src), order(index), to(out, true);
  if (!row_bytes) throw nb::value_error("a row has at least one byte");
  const size_t have = whole("src", from, row_bytes), rows = whole("index", order, 8);
  if (rows > size_t(-1) / row_bytes) throw nb::value_error("too many rows");
  need_size("out", to, rows * row_bytes);
  need_apart(from, to);
  if (reinterpret_cast<std::uintptr_t>(order.data()) % 8) throw nb::value_error("the index must be aligned");
  const i64* rows_at = reinterpret_cast<const i64*>(order.data());
  bool inside = true;
  {
    nb::gil_scoped_release unlocked;
    for (size_t i = 0; i < rows; ++i) inside &= u64(rows_at[i]) < have;
    if (inside) table.gather(from.data(), rows_at, to.data(), rows, row_bytes);
  }
  if (!inside) throw nb::value_error("the index names a row that isn't there");
}

// ---------------------------------------------------------------- GGUF strings

StringWalk walk(const Buffer& data, u64 at, u32 width, bool big_endian) {
  if (width != 4 && width != 8) throw nb::value_error("a length has 4 or 8 bytes");
  if (at > data.size()) throw nb::value_error("the position is outside the buffer");
  return StringWalk{data.data(), data.size(), at, width, big_endian};
}

nb::tuple skip_strings(nb::handle buffer, u64 at, u64 count, u32 width, bool big_endian) {
  const Buffer data(buffer);
  StringWalk w = walk(data, at, width, big_endian);
  u64 done = 0;
  {
    nb::gil_scoped_release unlocked;
    const u8* text;
    u64 length;
    while (done < count && w.next(text, length)) ++done;
  }
  return nb::make_tuple(w.at, done);
}

// Positions of the length fields of up to len(out) / 8 - 1 strings, and the position behind the last.
u64 string_offsets(nb::handle buffer, u64 at, u32 width, bool big_endian, nb::handle out) {
  const Buffer data(buffer), to(out, true);
  StringWalk w = walk(data, at, width, big_endian);
  const size_t slots = whole("out", to, 8);
  if (!slots) throw nb::value_error("out has no room for an end");
  size_t done = 0;
  nb::gil_scoped_release unlocked;
  const u8* text;
  u64 length;
  for (;; ++done) {
    std::memcpy(to.data() + 8 * done, &w.at, 8);
    if (done + 1 == slots || !w.next(text, length)) break;
  }
  return done;
}

// Up to `count` strings as str. Bytes that aren't UTF-8 become lone surrogates, so that they can be written back.
nb::tuple read_strings(nb::handle buffer, u64 at, u64 count, u32 width, bool big_endian) {
  const Buffer data(buffer);
  StringWalk w = walk(data, at, width, big_endian);
  nb::list out;
  const u8* text;
  u64 length;
  for (u64 done = 0; done < count && w.next(text, length); ++done) {
    PyObject* s = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(text), Py_ssize_t(length), "surrogateescape");
    if (!s) throw nb::python_error();
    out.append(nb::steal(s));
  }
  return nb::make_tuple(out, w.at);
}

// Where a pickle of plain data ends that begins at the buffer's first byte; 0 of any other.
size_t plain_pickle_end(nb::handle buffer) {
  const Buffer data(buffer);
  const size_t n = data.size();
  if (n > 0xFFFFFFFF) throw nb::value_error("more than 4 GiB");
  const auto bytes = std::make_unique_for_overwrite<u8[]>(2 * n + 2);
  const auto marks = std::make_unique_for_overwrite<u32[]>(n + 1);
  nb::gil_scoped_release unlocked;
  return plain_pickle(data.data(), n, {bytes.get(), bytes.get() + n + 1, marks.get()});
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Weighbridge's loops over numbers. Use it through weighbridge.base.native and weighbridge.tensors.kernels.";
  m.def("levels", level_names, "Instruction-set levels that this machine can run, narrowest first.");
  m.def("level", [] { return kernels().level; }, "The level in use.");
  m.def("set_level", use_level, "name"_a, "Use another level from now on, in all threads (for tests).");
  m.def("formats", format_names, "way"_a = "decode",
        "Names of the number types with kernels that decode, encode, or encode weighted.");
  m.def("decode", decode, "dtype"_a, "src"_a, "out"_a, "Stored bytes to f32.");
  m.def("encode", encode, "dtype"_a, "src"_a, "out"_a, "f32 to stored bytes; (overflow, underflow), and the first block that was refused, if one was.");
  m.def("encode_weighted", encode_weighted, "dtype"_a, "src"_a, "weights"_a, "out"_a,
        "Rows of f32 to stored bytes, with a weight for each column; as encode.");
  m.def("cast", cast, "source"_a, "target"_a, "src"_a, "out"_a, "Float to float; (overflow, underflow).");
  m.def("stats", stats, "dtype"_a, "src"_a, "(NaN, Inf, minimum, maximum) of floats, or of a block type's f16 scales.");
  m.def("nonfinite", nonfinite, "src"_a, "How many f32 are NaN or Inf.");
  m.def("affine_decode", affine_decode, "bits"_a, "group"_a, "parameters"_a, "codes"_a, "scales"_a, "offsets"_a,
        "zeros"_a, "out"_a, "Codes with a scale and a bias (or zero point) a group to f32.");
  m.def("ordered_decode", ordered_decode, "columns"_a, "groups"_a, "codes"_a, "scales"_a, "zeros"_a, "index"_a, "out"_a,
        "Codes and zero points of a byte each, columns of the groups that an int32 index names, to f32.");
  m.def("table_decode", table_decode, "table"_a, "group"_a, "high_first"_a, "codes"_a, "scales"_a, "out"_a,
        "Places of four bits in a table of sixteen f32, two a byte, times the scale of their group.");
  m.def("affine_encode", affine_encode, "bits"_a, "group"_a, "parameters"_a, "src"_a, "codes"_a, "scales"_a, "biases"_a,
        "f32 to codes with a scale and a bias a group, as MLX's CPU kernel makes them. Empty `codes`: only those.");
  m.def("round_codes", round_codes, "rule"_a, "steps"_a, "multiplied"_a, "bits"_a, "columns"_a, "width"_a, "src"_a,
        "scales"_a, "zeros"_a, "codes"_a, "f32 to codes of few bits under an f32 scale for each `width` of a row.");
  m.def("extremes", extremes, "columns"_a, "width"_a, "src"_a, "low"_a, "high"_a,
        "The least and largest of each `width` f32 of a row; NaN where one is.");
  m.def("scaled_decode", scaled_decode, "dtype"_a, "columns"_a, "width"_a, "src"_a, "scales"_a, "out"_a,
        "Floats to f32, times an f32 scale for each `width` of a row.");
  m.def("pack_codes", pack_codes, "bits"_a, "src"_a, "out"_a, "Codes, a byte each, to a little-endian bit stream.");
  m.def("unpack_codes", unpack_codes, "bits"_a, "src"_a, "out"_a, "Codes of a little-endian bit stream, a byte each.");
  m.def("regulars", regular_names, "way"_a = "split", "Names of the block types that can be split, or joined.");
  m.def("split", split, "dtype"_a, "src"_a, "codes"_a, "scales"_a, "biases"_a,
        "Blocks to the parts that MLX stores, of those that aren't empty.");
  m.def("join", join, "dtype"_a, "bits"_a, "group"_a, "codes"_a, "scales"_a, "offsets"_a, "out"_a,
        "Codes and the parameters of their groups to blocks.");
  m.def("byteswap", byteswap, "word"_a, "src"_a, "out"_a, "Reverse the bytes of every word; in place is fine.");
  m.def("gather", gather, "src"_a, "index"_a, "row_bytes"_a, "out"_a, "Rows of src in the order of an int64 index.");
  m.def("skip_strings", skip_strings, "buffer"_a, "at"_a, "count"_a, "width"_a, "big_endian"_a,
        "Step over GGUF strings: (position, how many were whole).");
  m.def("string_offsets", string_offsets, "buffer"_a, "at"_a, "width"_a, "big_endian"_a, "out"_a,
        "Fill int64 positions of GGUF strings and one end; how many strings.");
  m.def("read_strings", read_strings, "buffer"_a, "at"_a, "count"_a, "width"_a, "big_endian"_a,
        "GGUF strings as a list of str, and the position behind them.");
  m.def("plain_pickle_end", plain_pickle_end, "buffer"_a, "Where a pickle of plain data ends; 0 of any other.");
}
