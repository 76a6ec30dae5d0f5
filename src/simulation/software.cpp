#include "nanotron/simulation/operation_time.hpp"

#include <array>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::simulation {
namespace {

constexpr std::array flags{std::pair{"dropout", &Software::dropout},
                           std::pair{"recomputes_whole_layers", &Software::recomputes_whole_layers},
                           std::pair{"overlaps_tensor_parallel", &Software::overlaps_tensor_parallel},
                           std::pair{"adds_gradients_apart", &Software::adds_gradients_apart},
                           std::pair{"scatters_messages", &Software::scatters_messages},
                           std::pair{"reduces_in_bf16", &Software::reduces_in_bf16},
                           std::pair{"unfused_loss", &Software::unfused_loss},
                           std::pair{"casts_beside", &Software::casts_beside},
                           std::pair{"rings_beside_gemms", &Software::rings_beside_gemms},
                           std::pair{"exchanges_by_node", &Software::exchanges_by_node},
                           std::pair{"sorts_in_exchange", &Software::sorts_in_exchange},
                           std::pair{"waits_for_exchanges", &Software::waits_for_exchanges},
                           std::pair{"waits_for_counts", &Software::waits_for_counts}};
// In units of the second.
struct Number {
  const char* key;
  double Software::*member;
  double unit;
};
constexpr std::array numbers{Number{"launch_us", &Software::launch, 1e-6},
                             Number{"kernel_share", &Software::kernel_share, 1.0},
                             Number{"exchange_gb_per_s", &Software::exchange_rate, 1e9}};
constexpr std::array forms{std::pair{"fused", AttentionForm::fused}, std::pair{"unfused", AttentionForm::unfused},
                           std::pair{"recomputed", AttentionForm::recomputed}};

deck::NamelistGroup group() {
  deck::NamelistGroup g{.name = "software",
                        .variables = {{.name = "name", .type = deck::ValueType::string},
                                      {.name = "attention", .type = deck::ValueType::string}}};
  for (const Number& n : numbers) g.variables.push_back({.name = n.key, .type = deck::ValueType::real});
  for (const auto& [key, member] : flags) g.variables.push_back({.name = key, .type = deck::ValueType::logical});
  return g;
}

}  // namespace

Software read_software(const std::string& name, const std::string& text) {
  const deck::SourceText source(name, text);
  deck::Namelists read = deck::read_namelists(source, {group()});
  const auto value_of = [&](const std::string& key) -> const deck::Value* {
    const auto found = read.assigned.find({"software", key});
    return found != read.assigned.end() && found->second.elements[0] ? &*found->second.elements[0] : nullptr;
  };
  Software software;
  if (const deck::Value* const v = value_of("name")) software.name = std::get<std::string>(v->scalar);
  if (const deck::Value* const v = value_of("attention")) {
    const auto& word = std::get<std::string>(v->scalar);
    bool known = false;
    for (const auto& [form_name, form] : forms) {
      if (word != form_name) continue;
      software.attention = form;
      known = true;
    }
    if (!known) {
      read.diagnostics.push_back({.offset = v->offset,
                                  .length = v->length,
                                  .message = deck::quoted(word) + " is not a legal value of attention",
                                  .expected = "'fused', 'unfused' or 'recomputed'",
                                  .hint = {}});
    }
  }
  for (const Number& n : numbers) {
    if (const deck::Value* const v = value_of(n.key)) software.*n.member = n.unit * std::get<double>(v->scalar);
  }
  for (const auto& [key, member] : flags) {
    if (const deck::Value* const v = value_of(key)) software.*member = std::get<bool>(v->scalar);
  }
  if (read.has_errors()) throw Error(ExitCode::deck_error, format_all(source, read.diagnostics));
  return software;
}

}  // namespace nanotron::simulation
