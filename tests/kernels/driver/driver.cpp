// Runs the cases of a file (cases.py writes it) through native/calls.cpp and compares what comes out, on every level of this
// machine. For processors and compilers on which the Python module isn't built: needs nothing but the kernels.
//
//   driver CASES [-v]        exit status 1 where anything differs
#include "calls.hpp"
#include "dispatch.hpp"

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace weighbridge;

// What the file says of one argument. `tag`: i number, s text, b bytes, o bytes that are written (`bytes` is what is
// expected), f the same of f32.
struct Argument {
  char tag;
  i64 number = 0;
  std::vector<u8> bytes;
};

struct Case {
  std::string name;
  std::vector<Argument> arguments;
  std::vector<double> results;
};

class Reader {
 public:
  explicit Reader(const char* path) : file_(std::fopen(path, "rb")) {
    if (!file_) throw std::runtime_error(std::string("can't open ") + path);
  }
  ~Reader() { std::fclose(file_); }

  template <class T>
  T number() {
    T out;
    need(&out, sizeof out);
    return out;
  }
  std::vector<u8> bytes() {
    std::vector<u8> out(number<u64>());
    need(out.data(), out.size());
    return out;
  }
  std::string text() {
    const std::vector<u8> out = bytes();
    return {out.begin(), out.end()};
  }

 private:
  void need(void* out, size_t size) {
    if (size && std::fread(out, 1, size, file_) != size) throw std::runtime_error("the file of cases is cut off");
  }
  std::FILE* file_;
};

Argument argument(Reader& in) {
  Argument out{in.number<char>()};
  if (out.tag == 'i')
    out.number = in.number<i64>();
  else
    out.bytes = in.bytes();
  return out;
}

Case one_case(Reader& in) {
  Case out{in.text(), {}, {}};
  for (u32 n = in.number<u32>(); n; --n) out.arguments.push_back(argument(in));
  for (u32 n = in.number<u32>(); n; --n) out.results.push_back(in.number<double>());
  return out;
}

// The arguments of a call, by position. Outputs begin filled with 0xA5, an odd address after another.
class Call {
 public:
  explicit Call(const Case& it) : it_(it), outputs_(it.arguments.size()) {
    for (size_t k = 0; k < it.arguments.size(); ++k)
      if (writes(k)) outputs_[k].assign(it.arguments[k].bytes.size() + 1, 0xA5);
  }

  i64 number(size_t k) const { return it_.arguments.at(k).number; }
  size_t size(size_t k) const { return size_t(number(k)); }
  std::string text(size_t k) const { return {it_.arguments.at(k).bytes.begin(), it_.arguments.at(k).bytes.end()}; }
  Bytes in(size_t k) const { return {it_.arguments.at(k).bytes.data(), it_.arguments.at(k).bytes.size()}; }
  MutableBytes out(size_t k) { return {outputs_.at(k).data() + 1, it_.arguments.at(k).bytes.size()}; }

  void returned(const Counts& c) {
    results_ = {double(c.overflow), double(c.underflow)};
    if (c.refused != Counts::NONE) results_.push_back(double(c.refused));
  }
  void returned(const Stats& s) { results_ = {double(s.nan), double(s.inf), s.minimum, s.maximum}; }
  void returned(u64 n) { results_ = {double(n)}; }

  // Empty where all is as expected. After a refusal the bytes mean nothing.
  std::string difference() {
    if (results_ != it_.results) return "other counts: " + shown(results_) + ", expected " + shown(it_.results);
    for (size_t k = 0; k < outputs_.size(); ++k) {
      const std::vector<u8>& want = it_.arguments[k].bytes;
      if (!writes(k) || results_.size() == 3) continue;
      const u8* found = out(k).data;
      for (size_t i = 0; i < want.size(); ++i)
        if (found[i] != want[i] && !(it_.arguments[k].tag == 'f' && nan_at(found, i) && nan_at(want.data(), i)))
          return "argument " + std::to_string(k) + ", byte " + std::to_string(i) + ": " + std::to_string(found[i]) +
                 ", expected " + std::to_string(want[i]);
    }
    return "";
  }

 private:
  bool writes(size_t k) const { return it_.arguments[k].tag == 'o' || it_.arguments[k].tag == 'f'; }
  // The sign and payload of a NaN that arithmetic makes are the processor's.
  static bool nan_at(const u8* bytes, size_t i) {
    float x;
    std::memcpy(&x, bytes + i / 4 * 4, 4);
    return x != x;
  }
  static std::string shown(const std::vector<double>& numbers) {
    std::string out;
    for (const double x : numbers) out += std::to_string(x) + " ";
    return out;
  }

  const Case& it_;
  std::vector<std::vector<u8>> outputs_;
  std::vector<double> results_;
};

const std::map<std::string, std::function<void(Call&)>> CALLS = {
    {"decode", [](Call& c) { calls::decode(c.text(0).c_str(), c.in(1), c.out(2)); }},
    {"encode", [](Call& c) { c.returned(calls::encode(c.text(0).c_str(), c.in(1), c.out(2))); }},
    {"encode_weighted",
     [](Call& c) { c.returned(calls::encode_weighted(c.text(0).c_str(), c.in(1), c.in(2), c.out(3))); }},
    {"cast", [](Call& c) { c.returned(calls::cast(c.text(0).c_str(), c.text(1).c_str(), c.in(2), c.out(3))); }},
    {"stats", [](Call& c) { c.returned(calls::stats(c.text(0).c_str(), c.in(1))); }},
    {"count_patterns",
     [](Call& c) {
       std::memset(c.out(2).data, 0, c.out(2).size);
       calls::count_patterns(c.text(0).c_str(), c.in(1), c.out(2));
     }},
    {"nonfinite", [](Call& c) { c.returned(calls::nonfinite(c.in(0))); }},
    {"affine_decode",
     [](Call& c) {
       calls::affine_decode(int(c.number(0)), c.size(1), c.text(2).c_str(), c.in(3), c.in(4), c.in(5), c.number(6),
                            c.out(7));
     }},
    {"ordered_decode",
     [](Call& c) { calls::ordered_decode(c.size(0), c.size(1), c.in(2), c.in(3), c.in(4), c.in(5), c.out(6)); }},
    {"table_decode",
     [](Call& c) { calls::table_decode(c.in(0), c.size(1), c.number(2), c.in(3), c.in(4), c.out(5)); }},
    {"affine_encode",
     [](Call& c) {
       calls::affine_encode(int(c.number(0)), c.size(1), c.text(2).c_str(), c.in(3), c.out(4), c.out(5), c.out(6));
     }},
    {"round_codes",
     [](Call& c) {
       calls::round_codes(c.text(0), c.text(1), c.number(2), int(c.number(3)), c.size(4), c.size(5), c.in(6), c.in(7),
                          c.in(8), c.out(9));
     }},
    {"extremes", [](Call& c) { calls::extremes(c.size(0), c.size(1), c.in(2), c.out(3), c.out(4)); }},
    {"scaled_decode",
     [](Call& c) { calls::scaled_decode(c.text(0).c_str(), c.size(1), c.size(2), c.in(3), c.in(4), c.out(5)); }},
    {"unpack_codes", [](Call& c) { calls::unpack_codes(int(c.number(0)), c.in(1), c.out(2)); }},
    {"pack_codes", [](Call& c) { calls::pack_codes(int(c.number(0)), c.in(1), c.out(2)); }},
    {"split", [](Call& c) { calls::split(c.text(0).c_str(), c.in(1), c.out(2), c.out(3), c.out(4)); }},
    {"join",
     [](Call& c) {
       calls::join(c.text(0).c_str(), int(c.number(1)), c.size(2), c.in(3), c.in(4), c.in(5), c.out(6));
     }},
    {"unpack_awq", [](Call& c) { calls::unpack_awq(c.in(0), c.out(1)); }},
    {"awq_by_rows", [](Call& c) { calls::awq_by_rows(c.size(0), c.in(1), c.out(2)); }},
    {"transpose",
     [](Call& c) {
       calls::transpose(c.size(0), c.size(1), c.size(2), c.in(3), c.size(4), c.out(5), c.size(6));
     }},
    {"byteswap", [](Call& c) { calls::byteswap(u32(c.number(0)), c.in(1), c.out(2)); }},
    {"gather", [](Call& c) { calls::gather(c.in(0), c.in(1), c.size(2), c.out(3)); }},
};

std::string difference_of(const Case& it) {
  Call call(it);
  try {
    CALLS.at(it.name)(call);
  } catch (const std::exception& error) {
    return std::string("stopped: ") + error.what();
  }
  return call.difference();
}

std::string label(const Case& it) {
  std::string out = it.name;
  for (const Argument& a : it.arguments) {
    if (a.tag == 's') out += " " + std::string(a.bytes.begin(), a.bytes.end());
    if (a.tag == 'i') out += " " + std::to_string(a.number);
  }
  return out;
}

int run(const char* path) {
  Reader in(path);
  if (in.text() != "weighbridge cases 1") throw std::runtime_error("not a file of cases");
  std::vector<Case> cases;
  for (u32 n = in.number<u32>(); n; --n) cases.push_back(one_case(in));
  size_t count, wrong = 0;
  const Table* const* all = levels(count);
  for (size_t level = 0; level < count; ++level) {
    set_level(all[level]->level);
    size_t before = wrong;
    for (size_t k = 0; k < cases.size(); ++k) {
      const std::string what = difference_of(cases[k]);
      if (what.empty()) continue;
      ++wrong;
      std::printf("%s, case %zu, %s: %s\n", all[level]->level, k, label(cases[k]).c_str(), what.c_str());
    }
    std::printf("%s (%d lanes): %zu cases, %zu wrong\n", all[level]->level, all[level]->lanes, cases.size(), wrong - before);
  }
  return wrong != 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "driver CASES\n"), 2;
  try {
    return run(words[1]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 2;
  }
}
