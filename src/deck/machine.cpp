#include "nanotron/deck/machine.hpp"

#include <algorithm>
#include <array>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/namelist.hpp"

namespace nanotron::deck {
namespace {

using Member = double Machine::*;
struct Rate {
  const char* key;
  double unit;
  Member member;
};
constexpr std::array rates{Rate{"peak_fp8_tflops", 1e12, &Machine::peak_fp8},
                           Rate{"peak_bf16_tflops", 1e12, &Machine::peak_bf16},
                           Rate{"gemm_fp8_tflops", 1e12, &Machine::gemm_fp8},
                           Rate{"gemm_bf16_tflops", 1e12, &Machine::gemm_bf16},
                           Rate{"gemm_fp32_tflops", 1e12, &Machine::gemm_fp32},
                           Rate{"gemm_fp64_tflops", 1e12, &Machine::gemm_fp64},
                           Rate{"attention_forward_tflops", 1e12, &Machine::attention_forward},
                           Rate{"attention_backward_tflops", 1e12, &Machine::attention_backward},
                           Rate{"attention_mma_tflops", 1e12, &Machine::attention_mma},
                           Rate{"memory_gb_per_s", 1e9, &Machine::memory},
                           Rate{"launch_us", 1e-6, &Machine::launch}};

NamelistGroup group() {
  NamelistGroup g{
      .name = "machine",
      .variables = {{.name = "name", .type = ValueType::string}, {.name = "processor", .type = ValueType::string}}};
  for (const Rate& rate : rates) g.variables.push_back({.name = rate.key, .type = ValueType::real});
  return g;
}

}  // namespace

Machine read_machine(const std::string& name, const std::string& text) {
  const SourceText source(name, text);
  Namelists read = read_namelists(source, {group()});
  const auto wrong = [&](const Value* at, std::string message, std::string expected) {
    read.diagnostics.push_back({.offset = at == nullptr ? 0 : at->offset,
                                .length = at == nullptr ? 0 : at->length,
                                .message = std::move(message),
                                .expected = std::move(expected),
                                .hint = {}});
  };
  const auto value_of = [&](const std::string& key) -> const Value* {
    const auto found = read.assigned.find({"machine", key});
    if (found != read.assigned.end() && found->second.elements[0]) return &*found->second.elements[0];
    if (!read.refused.contains({"machine", key})) {
      wrong(nullptr, "group '&machine' needs the key '" + key + "'", key + " = ...");
    }
    return nullptr;
  };
  Machine machine;
  if (const Value* const v = value_of("name")) machine.name = std::get<std::string>(v->scalar);
  if (const Value* const v = value_of("processor")) {
    const auto& word = std::get<std::string>(v->scalar);
    machine.is_gpu = word == "gpu";
    if (word != "gpu" && word != "cpu")
      wrong(v, deck::quoted(word) + " is no legal value of processor", "'gpu' or 'cpu'");
  }
  for (const Rate& rate : rates) {
    const Value* const v = value_of(rate.key);
    if (v == nullptr) continue;
    machine.*rate.member = rate.unit * std::get<double>(v->scalar);
    if (!(machine.*rate.member > 0.0)) wrong(v, std::string(rate.key) + " is out of range", "more than 0");
  }
  if (read.has_errors()) throw Error(ExitCode::deck_error, format_all(source, read.diagnostics));
  return machine;
}

}  // namespace nanotron::deck
