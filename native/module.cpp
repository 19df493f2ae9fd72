// The Python module weighbridge._native: names, docstrings and conversions. calls.cpp checks and runs. Functions only, no
// classes, and no state but the level.
#include "archive.hpp"
#include "coded.hpp"
#include "calls.hpp"
#include "dispatch.hpp"
#include "headers.hpp"
#include "merges.hpp"
#include "pickles.hpp"
#include "strings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace weighbridge;

namespace nanobind::detail {

// Any contiguous bytes-like object, borrowed while the function runs.
template <class View, bool writable>
struct buffer_caster {
  using Value = View;
  static constexpr auto Name = const_name("Buffer");
  template <class>
  using Cast = View;
  template <class>
  static constexpr bool can_cast() {
    return true;
  }

  ~buffer_caster() {
    if (borrowed_) PyBuffer_Release(&view_);
  }
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    object_ = src;
    return true;
  }
  operator View() {
    if (PyObject_GetBuffer(object_.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) throw python_error();
    borrowed_ = true;
    return {static_cast<u8*>(view_.buf), size_t(view_.len)};
  }

 private:
  handle object_;
  Py_buffer view_{};
  bool borrowed_ = false;
};
template <>
struct type_caster<Bytes> : buffer_caster<Bytes, false> {};
template <>
struct type_caster<MutableBytes> : buffer_caster<MutableBytes, true> {};

// (overflow, underflow), and the first refused block if there is one.
template <>
struct type_caster<Counts> {
  NB_TYPE_CASTER(Counts, const_name("tuple[int, ...]"))
  static handle from_cpp(const Counts& c, rv_policy, cleanup_list*) noexcept {
    return (c.refused == Counts::NONE ? make_tuple(c.overflow, c.underflow)
                                      : make_tuple(c.overflow, c.underflow, c.refused))
        .release();
  }
};

// (NaN, Inf, minimum, maximum); None without a finite number.
template <>
struct type_caster<Stats> {
  NB_TYPE_CASTER(Stats, const_name("tuple[int, int, float | None, float | None]"))
  static object or_none(double x) {
    const bool none = x == __builtin_huge_val() || x == -__builtin_huge_val();
    return none ? object(nb::none()) : object(float_(x));
  }
  static handle from_cpp(const Stats& s, rv_policy, cleanup_list*) noexcept {
    return make_tuple(s.nan, s.inf, or_none(s.minimum), or_none(s.maximum)).release();
  }
};

}  // namespace nanobind::detail

namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// ---------------------------------------------------------------- levels

std::vector<std::string> level_names() {
  size_t count;
  const Table* const* all = levels(count);
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(all[i]->level);
  return out;
}

void use_level(const char* name) {
  if (!set_level(name)) throw std::invalid_argument(std::string("this machine has no instruction-set level ") + name);
}

// ---------------------------------------------------------------- GGUF strings

StringWalk walk(Bytes data, u64 at, u32 width, bool big_endian) {
  if (width != 4 && width != 8) throw std::invalid_argument("a length has 4 or 8 bytes");
  if (at > data.size) throw std::invalid_argument("the position is outside the buffer");
  return StringWalk{data.data, data.size, at, width, big_endian};
}

std::pair<u64, u64> skip_strings(Bytes buffer, u64 at, u64 count, u32 width, bool big_endian) {
  StringWalk w = walk(buffer, at, width, big_endian);
  u64 done = 0, length;
  const u8* text;
  while (done < count && w.next(text, length)) ++done;
  return {w.at, done};
}

// Positions of the length fields of up to len(out) / 8 - 1 strings, and the position after the last.
u64 string_offsets(Bytes buffer, u64 at, u32 width, bool big_endian, MutableBytes out) {
  StringWalk w = walk(buffer, at, width, big_endian);
  const size_t slots = out.size / 8;
  if (!slots || out.size % 8) throw std::invalid_argument("out has no room for an end, or isn't whole numbers");
  size_t done = 0;
  const u8* text;
  u64 length;
  for (;; ++done) {
    std::memcpy(out.data + 8 * done, &w.at, 8);
    if (done + 1 == slots || !w.next(text, length)) break;
  }
  return done;
}

// Up to `count` strings as str. Bytes that aren't UTF-8 become lone surrogates, so that they can be written back.
nb::tuple read_strings(Bytes buffer, u64 at, u64 count, u32 width, bool big_endian) {
  StringWalk w = walk(buffer, at, width, big_endian);
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

bool distinct_strings(Bytes buffer, u64 at, u64 count, u32 width, bool big_endian) {
  return distinct_words(walk(buffer, at, width, big_endian), count);
}

// Where a pickle of plain data and tensors ends that begins at the buffer's first byte (0 of any other), and the
// storages that it names: key and bytes.
nb::tuple plain_pickle_end(Bytes buffer, Bytes names) {
  if (buffer.size > 0xFFFFFFFF) throw std::invalid_argument("more than 4 GiB");
  const char* table = reinterpret_cast<const char*>(names.data);
  const PlainPickle found = plain_pickle(buffer.data, buffer.size, {table, names.size});
  nb::list storages;
  const char* text = reinterpret_cast<const char*>(buffer.data);
  if (found.end)
    for (const NamedStorage& s : found.storages) storages.append(nb::make_tuple(nb::str(text + s.at, s.length), s.nbytes));
  return nb::make_tuple(found.end, storages);
}

// ---------------------------------------------------------------- safetensors headers

std::string_view view(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data), bytes.size}; }
nb::str text(std::string_view s) { return nb::str(s.data(), s.size()); }

size_t pack_chunk(u32 width, u32 transform, Bytes src, Bytes base, MutableBytes out) {
  return archive::pack({width, transform}, src, base, out);
}

// entry(name, dtype, shape, offset in the file, bytes) of each tensor by name, in the order of their bytes, and the
// metadata; None of a header that isn't plain. `dtypes`: the object of each row of `types`.
nb::object plain_safetensors(Bytes json, Bytes types, u64 start, u64 size, nb::tuple dtypes, nb::object entry) {
  const PlainHeader found = plain_header(view(json), view(types), start, size);
  if (!found.plain) return nb::none();
  std::vector<nb::tuple> forms;  // what tensors of one form share
  for (const TensorForm& f : found.forms) {
    nb::list shape;
    for (const u64 n : f.shape) shape.append(n);
    forms.push_back(nb::make_tuple(dtypes[f.type], nb::tuple(shape), f.nbytes));
  }
  nb::dict tensors, metadata;
  for (const PlainTensor& t : found.tensors) {
    const nb::tuple& form = forms[t.form];
    const nb::str name = text(t.name);
    const nb::int_ offset(start + t.begin);
    PyObject* values[] = {name.ptr(), form[0].ptr(), form[1].ptr(), offset.ptr(), form[2].ptr()};
    nb::object made = nb::steal(PyObject_Vectorcall(entry.ptr(), values, 5, nullptr));
    if (!made.is_valid() || PyDict_SetItem(tensors.ptr(), name.ptr(), made.ptr())) throw nb::python_error();
  }
  for (const auto& [key, value] : found.metadata) metadata[text(key)] = text(value);
  if (tensors.size() != found.tensors.size() || metadata.size() != found.metadata.size()) return nb::none();  // repeated
  return nb::make_tuple(tensors, metadata);
}

// ---------------------------------------------------------------- merges

// How many merges, and their GGUF strings; None of merges that aren't plain. `tokens`: a dict with the texts as keys.
nb::object gguf_merges(Bytes json, nb::dict tokens) {
  TextSet known(tokens.size());
  for (auto [key, _] : tokens) {
    Py_ssize_t length;
    const char* data = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
    if (!data) return PyErr_Clear(), nb::none();  // a lone surrogate
    if (!known.add({data, size_t(length)})) return nb::none();
  }
  const PlainMerges found = plain_merges(view(json), known);
  if (!found.plain) return nb::none();
  return nb::make_tuple(found.count, nb::bytes(found.strings.data(), found.strings.size()));
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Weighbridge's loops over numbers. Use it through weighbridge.base.native and weighbridge.tensors.kernels.";
  m.def("levels", level_names, "Instruction-set levels that this machine can run, narrowest first.");
  m.def("level", [] { return kernels().level; }, "The level in use.");
  m.def("set_level", use_level, "name"_a, "Use another level from now on, in all threads (for tests).");
  m.def("formats", calls::formats, "operation"_a = "decode",
        "Names of the number types with kernels that decode, encode, or encode weighted.");
  m.def("decode", calls::decode, "dtype"_a, "src"_a, "out"_a, Unlocked(), "Stored bytes to f32.");
  m.def("encode", calls::encode, "dtype"_a, "src"_a, "out"_a, Unlocked(),
        "f32 to stored bytes; (overflow, underflow), and the first refused block if there is one.");
  m.def("encode_finite", calls::encode_finite, "source"_a, "dtype"_a, "src"_a, "out"_a, Unlocked(),
        "Floats to stored bytes; as encode, or None where a value or a scale isn't finite, or a block is refused.");
  m.def("encode_weighted", calls::encode_weighted, "dtype"_a, "src"_a, "weights"_a, "out"_a, Unlocked(),
        "Rows of f32 to stored bytes, with a weight for each column; as encode.");
  m.def("cast", calls::cast, "source"_a, "target"_a, "src"_a, "out"_a, Unlocked(),
        "Float to float; (overflow, underflow).");
  m.def("stats", calls::stats, "dtype"_a, "src"_a, Unlocked(),
        "(NaN, Inf, minimum, maximum) of floats, or of a block type's f16 scales.");
  m.def("count_patterns", calls::count_patterns, "dtype"_a, "src"_a, "counts"_a, Unlocked(),
        "Add 2^40 for each value, and the lower half of an f32, to the counter of its bit pattern of 16 bits.");
  m.def("nonfinite", calls::nonfinite, "src"_a, Unlocked(), "How many f32 are NaN or Inf.");
  m.def("affine_decode", calls::affine_decode, "bits"_a, "group"_a, "parameters"_a, "codes"_a, "scales"_a, "offsets"_a,
        "zeros"_a, "out"_a, Unlocked(), "Codes with a scale and a bias (or zero point) a group to f32.");
  m.def("ordered_decode", calls::ordered_decode, "columns"_a, "groups"_a, "codes"_a, "scales"_a, "zeros"_a, "index"_a,
        "out"_a, Unlocked(), "Codes and zero points of a byte each to f32; an int32 index names each column's group.");
  m.def("table_decode", calls::table_decode, "table"_a, "group"_a, "high_first"_a, "codes"_a, "scales"_a, "out"_a,
        Unlocked(), "Codes of four bits that index sixteen f32, two a byte, times the scale of their group.");
  m.def("affine_encode", calls::affine_encode, "bits"_a, "group"_a, "parameters"_a, "src"_a, "codes"_a, "scales"_a,
        "biases"_a, Unlocked(),
        "f32 to codes with a scale and a bias a group, as MLX's CPU kernel makes them. Empty `codes`: only those.");
  m.def("round_codes", calls::round_codes, "rule"_a, "steps"_a, "multiplied"_a, "bits"_a, "columns"_a, "width"_a, "src"_a,
        "scales"_a, "zeros"_a, "codes"_a, Unlocked(), "f32 to codes of few bits under an f32 scale per `width` of a row.");
  m.def("extremes", calls::extremes, "columns"_a, "width"_a, "src"_a, "low"_a, "high"_a, Unlocked(),
        "The least and largest of each `width` f32 of a row; NaN where one is.");
  m.def("scaled_decode", calls::scaled_decode, "dtype"_a, "columns"_a, "width"_a, "src"_a, "scales"_a, "out"_a,
        Unlocked(), "Floats to f32, times an f32 scale for each `width` of a row.");
  m.def("pack_codes", calls::pack_codes, "bits"_a, "src"_a, "out"_a, Unlocked(),
        "Codes, a byte each, to a little-endian bit stream.");
  m.def("unpack_codes", calls::unpack_codes, "bits"_a, "src"_a, "out"_a, Unlocked(),
        "Codes of a little-endian bit stream, a byte each.");
  m.def("unpack_awq", calls::unpack_awq, "src"_a, "out"_a, Unlocked(),
        "Words of eight codes of four bits in AWQ's order, a byte each.");
  m.def("awq_by_rows", calls::awq_by_rows, "words"_a, "src"_a, "out"_a, Unlocked(),
        "Rows of `words` such words as words of the codes of eight rows each, in the order of the columns.");
  m.def("transpose", calls::transpose, "size"_a, "rows"_a, "columns"_a, "src"_a, "src_stride"_a, "out"_a, "out_stride"_a,
        Unlocked(), "A matrix of elements of `size` bytes, or a part of one, with rows and columns swapped.");
  m.def("regroups", calls::regroups, "operation"_a = "split", "Names of the block types that can be split, or joined.");
  m.def("split", calls::split, "dtype"_a, "src"_a, "codes"_a, "scales"_a, "biases"_a, Unlocked(),
        "Blocks to the parts that MLX stores, of those that aren't empty.");
  m.def("join", calls::join, "dtype"_a, "bits"_a, "group"_a, "codes"_a, "scales"_a, "offsets"_a, "out"_a, Unlocked(),
        "Codes and the parameters of their groups to blocks.");
  m.def("byteswap", calls::byteswap, "word"_a, "src"_a, "out"_a, Unlocked(),
        "Reverse the bytes of every word; in place is fine.");
  m.def("gather", calls::gather, "src"_a, "index"_a, "row_bytes"_a, "out"_a, Unlocked(),
        "Rows of src in the order of an int64 index.");
  m.def("pack_chunk", pack_chunk, "width"_a, "transform"_a, "src"_a, "base"_a, "out"_a, Unlocked(),
        "A chunk of a packed file; its size in `out`, which has room for 64 bytes more than the chunk.");
  m.def("unpack_chunk", archive::unpack, "src"_a, "base"_a, "out"_a, Unlocked(),
        "Fill `out` with a chunk of a packed file. `base`: as many bytes, for a delta; else empty.");
  m.def("join_planes", coded::join_planes, "count"_a, "sign"_a, "planes"_a, "out"_a, Unlocked(),
        "Fill `out` with the bytes of ZipNN's planes. `sign`: bits of floats whose sign comes after the exponent, or 0.");
  m.def("decode_threads", coded::decode_threads, "codes"_a, "starts"_a, "exponents"_a, "bits"_a, "tables"_a, "lengths"_a,
        "out"_a, "counts"_a, "ends"_a, Unlocked(), "The exponents of DFloat11's threads; how many there are.");
  m.def("skip_strings", skip_strings, "buffer"_a, "at"_a, "count"_a, "width"_a, "big_endian"_a, Unlocked(),
        "Step over GGUF strings: (position, how many were whole).");
  m.def("string_offsets", string_offsets, "buffer"_a, "at"_a, "width"_a, "big_endian"_a, "out"_a, Unlocked(),
        "Fill int64 positions of GGUF strings and one end; how many strings.");
  m.def("read_strings", read_strings, "buffer"_a, "at"_a, "count"_a, "width"_a, "big_endian"_a,
        "GGUF strings as a list of str, and the position behind them.");
  m.def("distinct_strings", distinct_strings, "buffer"_a, "at"_a, "count"_a, "width"_a, "big_endian"_a,
        "Whether GGUF strings are whole, all different, and none empty or with a NUL.");
  m.def("gguf_merges", gguf_merges, "json"_a, "tokens"_a,
        "How many merges a tokenizer.json has, and their GGUF strings; None of merges that aren't plain.");
  m.def("plain_pickle_end", plain_pickle_end, "buffer"_a, "names"_a,
        "Where a pickle of plain data and tensors ends (0 of any other), and its storages.");
  m.def("plain_safetensors", plain_safetensors, "json"_a, "types"_a, "start"_a, "size"_a, "dtypes"_a, "entry"_a,
        "Entries by name, and metadata, of a plain safetensors header; None of any other.");
}
