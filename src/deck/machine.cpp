#include "nanotron/deck/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {
namespace {

constexpr std::int64_t max_rows = 64;  // of &attention and &kernels

// A number of the file: more than 0, or 0 too where open is false. fallback: of a file without it.
struct Key {
  const char* group;
  const char* name;
  double unit;
  bool open;
  double (*get)(const Machine&);
  void (*set)(Machine&, double);
  double (*fallback)(const Machine&) = nullptr;
  bool has_rows = false;  // those of &attention take its place
};
#define NANOTRON_KEY(group, name, unit, open, member)                                              \
  Key {                                                                                            \
    group, name, unit, open, [](const Machine& m) { return static_cast<double>(m.member); },       \
        [](Machine& m, double value) { m.member = static_cast<decltype(Machine::member)>(value); } \
  }
#define NANOTRON_NESTED(group, name, unit, open, outer, type, member)                                 \
  Key {                                                                                               \
    group, name, unit, open, [](const Machine& m) { return static_cast<double>(m.outer.member); },    \
        [](Machine& m, double value) { m.outer.member = static_cast<decltype(type::member)>(value); } \
  }

Key reserved_key() {
  Key key = NANOTRON_NESTED("node", "reserved_gb", 1e9, false, node, Node, reserved_bytes);
  key.fallback = [](const Machine& m) { return reserved_by_default(m.is_gpu); };
  return key;
}

Key host_link_key() {
  Key key = NANOTRON_NESTED("node", "host_link_gb_per_s", 1e9, false, node, Node, host_link);
  key.fallback = [](const Machine&) { return 0.0; };
  return key;
}

Key multicast_key() {
  Key key = NANOTRON_NESTED("node", "multicast", 1.0, false, node, Node, multicast);
  key.fallback = [](const Machine& m) { return m.peak_fp8 > m.peak_bf16 ? 1.0 : 0.0; };  // NVIDIA's from Hopper on
  return key;
}

Key attention_key(Key key) {
  key.has_rows = true;
  return key;
}

Key deterministic_key() {
  Key key = NANOTRON_KEY("machine", "attention_deterministic_tflops", 1e12, true, attention_deterministic);
  key.fallback = [](const Machine& m) { return deterministic_share * m.attention_backward; };
  return attention_key(key);
}

const std::vector<Key>& keys() {
  static const std::vector<Key> all{
      NANOTRON_KEY("machine", "peak_fp8_tflops", 1e12, true, peak_fp8),
      NANOTRON_KEY("machine", "peak_bf16_tflops", 1e12, true, peak_bf16),
      NANOTRON_KEY("machine", "gemm_fp8_tflops", 1e12, true, gemm_fp8),
      NANOTRON_KEY("machine", "gemm_bf16_tflops", 1e12, true, gemm_bf16),
      NANOTRON_KEY("machine", "gemm_fp32_tflops", 1e12, true, gemm_fp32),
      NANOTRON_KEY("machine", "gemm_fp64_tflops", 1e12, true, gemm_fp64),
      attention_key(NANOTRON_KEY("machine", "attention_forward_tflops", 1e12, true, attention_forward)),
      attention_key(NANOTRON_KEY("machine", "attention_backward_tflops", 1e12, true, attention_backward)),
      deterministic_key(),
      NANOTRON_KEY("machine", "attention_mma_tflops", 1e12, true, attention_mma),
      NANOTRON_KEY("machine", "memory_gb_per_s", 1e9, true, memory),
      NANOTRON_KEY("machine", "launch_us", 1e-6, true, launch),
      NANOTRON_NESTED("gemm", "multiprocessors", 1.0, false, gemm_model, GemmModel, multiprocessors),
      NANOTRON_NESTED("gemm", "ramp_k", 1.0, false, gemm_model, GemmModel, ramp_k),
      NANOTRON_NESTED("gemm", "spread", 1.0, false, gemm_model, GemmModel, spread),
      NANOTRON_NESTED("gemm", "operands_gb_per_s", 1e9, false, gemm_model, GemmModel, operands),
      NANOTRON_NESTED("node", "ranks", 1.0, true, node, Node, ranks),
      NANOTRON_NESTED("node", "cores", 1.0, false, node, Node, cores),
      NANOTRON_NESTED("node", "memory_gb", 1e9, true, node, Node, memory_bytes),
      reserved_key(),
      NANOTRON_NESTED("node", "link_gb_per_s", 1e9, true, node, Node, link),
      NANOTRON_NESTED("node", "latency_us", 1e-6, false, node, Node, latency),
      host_link_key(),
      multicast_key(),
      NANOTRON_KEY("node", "collective_share", 1.0, false, collective_share),
      NANOTRON_NESTED("node", "watts", 1.0, false, node, Node, watts),
      NANOTRON_NESTED("network", "rails", 1.0, true, network, Network, rails),
      NANOTRON_NESTED("network", "rail_gb_per_s", 1e9, true, network, Network, rail),
      NANOTRON_NESTED("network", "latency_us", 1e-6, false, network, Network, latency)};
  return all;
}
#undef NANOTRON_KEY
#undef NANOTRON_NESTED

// The columns of &attention.
using RateMember = double AttentionRate::*;  // by name: nvcc writes it with parentheses that g++ warns about
struct Column {
  const char* name;
  RateMember member;
  double unit;
};
constexpr std::array columns{
    Column{"head_dim", &AttentionRate::head_dim, 1.0}, Column{"length", &AttentionRate::length, 1.0},
    Column{"forward_tflops", &AttentionRate::forward, 1e12}, Column{"backward_tflops", &AttentionRate::backward, 1e12},
    Column{"deterministic_tflops", &AttentionRate::deterministic, 1e12}};

std::vector<NamelistGroup> groups() {
  std::vector<NamelistGroup> all{
      {.name = "machine",
       .variables = {{.name = "name", .type = ValueType::string}, {.name = "processor", .type = ValueType::string}}}};
  for (const Key& key : keys()) {
    if (all.back().name != key.group) all.push_back({.name = key.group, .variables = {}});
    all.back().variables.push_back({.name = key.name, .type = ValueType::real});
  }
  all.push_back({.name = "attention", .variables = {}});
  for (const Column& column : columns) {
    all.back().variables.push_back({.name = column.name, .type = ValueType::real, .extent = max_rows});
  }
  all.push_back({.name = "kernels",
                 .variables = {{.name = "name", .type = ValueType::string, .extent = max_rows},
                               {.name = "gb_per_s", .type = ValueType::real, .extent = max_rows},
                               {.name = "share", .type = ValueType::real, .extent = max_rows}}});
  return all;
}

// What is read, and what is wrong with it.
class Reader {
 public:
  explicit Reader(const SourceText& source) : read_(read_namelists(source, groups())) {}

  bool has(const std::string& group) const { return read_.groups.contains(group); }
  const Value* optional_value_of(const std::string& group, const std::string& key) const {
    const auto found = read_.assigned.find({group, key});
    return found != read_.assigned.end() && found->second.elements[0] ? &*found->second.elements[0] : nullptr;
  }
  const Value* value_of(const std::string& group, const std::string& key) {
    if (const Value* const v = optional_value_of(group, key)) return v;
    if (!read_.refused.contains({group, key})) {
      wrong(nullptr, "group '&" + group + "' needs the key '" + key + "'", key + " = ...");
    }
    return nullptr;
  }
  void wrong(const Value* at, std::string message, std::string expected) {
    read_.diagnostics.push_back({.offset = at == nullptr ? 0 : at->offset,
                                 .length = at == nullptr ? 0 : at->length,
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .hint = {}});
  }
  std::vector<AttentionRate> attention() {
    std::vector<AttentionRate> rows;
    for (std::size_t i = 0; i < rows_of("attention", "head_dim"); ++i) {
      const Value* const at = element("attention", "head_dim", i);
      if (at == nullptr) continue;
      AttentionRate row;
      for (const Column& column : columns) row.*column.member = column.unit * number_of("attention", column.name, i);
      const auto same = [&](const AttentionRate& r) { return r.head_dim == row.head_dim && r.length == row.length; };
      if (!(row.head_dim > 0.0 && row.length > 0.0 && row.forward > 0.0 && row.backward > 0.0)) {
        wrong(at, "a row without length, forward_tflops or backward_tflops", "more than 0, in the order of head_dim");
      } else if (std::ranges::any_of(rows, same)) {
        wrong(at, "a second row of this head_dim and length", "one");
      }
      if (!(row.deterministic > 0.0)) row.deterministic = deterministic_share * row.backward;
      rows.push_back(row);
    }
    std::ranges::sort(rows, {}, [](const AttentionRate& r) { return std::pair(r.head_dim, r.length); });
    return rows;
  }
  std::vector<KernelRate> kernels(double memory) {
    std::vector<KernelRate> rows;
    for (std::size_t i = 0; i < rows_of("kernels", "name"); ++i) {
      const Value* const name = element("kernels", "name", i);
      if (name == nullptr) continue;
      const double rate = 1e9 * number_of("kernels", "gb_per_s", i), share = number_of("kernels", "share", i);
      if ((rate > 0.0) == (share > 0.0)) {
        wrong(name, "a kernel without a rate in gb_per_s or share, or with both",
              "one of them, more than 0, in the order of the names");
      }
      rows.push_back({std::get<std::string>(name->scalar), std::max(rate, share * memory)});
    }
    return rows;
  }
  void finish(const SourceText& source) const {
    if (read_.has_errors()) throw Error(ExitCode::deck_error, format_all(source, read_.diagnostics));
  }

 private:
  std::size_t rows_of(const std::string& group, const std::string& key) const {
    const auto found = read_.assigned.find({group, key});
    return found == read_.assigned.end() ? 0 : found->second.elements.size();
  }
  const Value* element(const std::string& group, const std::string& key, std::size_t i) const {
    if (i >= rows_of(group, key)) return nullptr;
    const auto& value = read_.assigned.at({group, key}).elements[i];
    return value ? &*value : nullptr;
  }
  double number_of(const std::string& group, const std::string& key, std::size_t i) const {
    const Value* const value = element(group, key, i);
    return value == nullptr ? 0.0 : std::get<double>(value->scalar);
  }

  Namelists read_;
};

std::string number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace

Machine read_machine(const std::string& name, const std::string& text) {
  const SourceText source(name, text);
  Reader reader(source);
  Machine machine;
  if (const Value* const v = reader.value_of("machine", "name")) machine.name = std::get<std::string>(v->scalar);
  if (const Value* const v = reader.value_of("machine", "processor")) {
    const auto& word = std::get<std::string>(v->scalar);
    machine.is_gpu = word == "gpu";
    if (word != "gpu" && word != "cpu")
      reader.wrong(v, deck::quoted(word) + " is not a legal value of processor", "'gpu' or 'cpu'");
  }
  machine.attention = reader.attention();
  for (const Key& key : keys()) {
    if (key.group != std::string("machine") && !reader.has(key.group)) continue;
    if (key.has_rows && !machine.attention.empty()) continue;
    const Value* const v =
        key.fallback ? reader.optional_value_of(key.group, key.name) : reader.value_of(key.group, key.name);
    if (v == nullptr) {
      if (key.fallback) key.set(machine, key.fallback(machine));
      continue;
    }
    const double value = std::get<double>(v->scalar);
    if (!(value > 0.0 || (!key.open && value == 0.0))) {
      reader.wrong(v, std::string(key.name) + " is out of range", key.open ? "more than 0" : "0 or more");
      continue;
    }
    key.set(machine, key.unit * value);
  }
  machine.kernels = reader.kernels(machine.memory);
  reader.finish(source);
  return machine;
}

std::string machine_text(const Machine& machine, const std::string& comment) {
  std::string text = comment, group = "machine";
  text += fmt::format("&machine\n  name = '{}'\n  processor = '{}'\n", machine.name, machine.is_gpu ? "gpu" : "cpu");
  for (const Key& key : keys()) {
    if (key.group == std::string("node") && machine.node.ranks == 0) continue;
    if (key.group == std::string("network") && machine.network.rails == 0) continue;
    if (key.has_rows && !machine.attention.empty()) continue;
    if (group != key.group) text += fmt::format("/\n&{}\n", group = key.group);
    text += fmt::format("  {} = {}\n", key.name, number(key.get(machine) / key.unit));
  }
  if (!machine.attention.empty()) text += "/\n&attention\n";
  for (std::size_t i = 0; i < machine.attention.size(); ++i) {
    std::string row;
    for (const Column& column : columns) {
      row += fmt::format("{}{}({}) = {}", row.empty() ? "  " : ", ", column.name, i + 1,
                         number(machine.attention[i].*column.member / column.unit));
    }
    text += row + "\n";
  }
  if (!machine.kernels.empty()) text += "/\n&kernels\n";
  for (std::size_t i = 0; i < machine.kernels.size(); ++i) {
    text += fmt::format("  name({0}) = '{1}', gb_per_s({0}) = {2}\n", i + 1, machine.kernels[i].kernel,
                        number(machine.kernels[i].rate / 1e9));
  }
  return text + "/\n";
}

}  // namespace nanotron::deck
