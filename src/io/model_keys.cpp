#include "model_keys.hpp"

#include <fmt/format.h>

#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/data/hdf5.hpp"
#include "nanotron/deck/parameters.hpp"

namespace nanotron::io {
namespace {

using deck::Parameter;
using deck::Scalar;

constexpr const char* keys[] = {"normalization",
                                "layer_norm_epsilon",
                                "position_embedding_type",
                                "max_position_embeddings",
                                "rope_type",
                                "rope_factor",
                                "original_max_position_embeddings",
                                "rope_low_freq_factor",
                                "rope_high_freq_factor",
                                "rope_beta_fast",
                                "rope_beta_slow",
                                "rope_attention_factor",
                                "sliding_window",
                                "o_proj_bias",
                                "hidden_act",
                                "mlp_bias"};

deck::Config with_model(const deck::ModelConfig& model) {
  deck::Config c;
  c.model = model;
  return c;
}

std::optional<Scalar> read_value(hid_t parameters, const Parameter& p, const std::string& file) {
  const char* name = p.name.c_str();
  if (p.type == deck::ValueType::string) return hdf5::read_string(parameters, name, file);
  if (p.type == deck::ValueType::real) return hdf5::read_real(parameters, name, file);
  const auto value = hdf5::read_integer(parameters, name, file);
  if (!value || p.type == deck::ValueType::integer) return value;
  return Scalar(*value != 0);
}

}  // namespace

void write_model_keys(hid_t parameters, const deck::ModelConfig& model) {
  const deck::Config config = with_model(model), defaults;
  for (const char* name : keys) {
    const Parameter& p = deck::parameter("model", name);
    const Scalar value = p.get(config);
    if (value == p.get(defaults)) continue;
    if (const auto* i = std::get_if<std::int64_t>(&value)) hdf5::write_integer(parameters, name, *i);
    if (const auto* x = std::get_if<double>(&value)) hdf5::write_real(parameters, name, *x);
    if (const auto* b = std::get_if<bool>(&value)) hdf5::write_integer(parameters, name, *b);
    if (const auto* s = std::get_if<std::string>(&value)) hdf5::write_string(parameters, name, *s);
  }
}

void read_model_keys(hid_t parameters, const std::string& file, deck::ModelConfig& model) {
  deck::Config config = with_model(model);
  for (const char* name : keys) {
    const Parameter& p = deck::parameter("model", name);
    const std::optional<Scalar> value = read_value(parameters, p, file);
    if (!value) continue;
    if (!deck::is_legal(p, *value)) {
      fail(ExitCode::data_error, {.what = fmt::format("the attribute '{}' is out of range", name),
                                  .expected = deck::legal_values(p),
                                  .found = deck::spelled(*value),
                                  .where = file});
    }
    p.set(config, *value);
  }
  model = config.model;
}

std::vector<KeyDifference> different_model_keys(const deck::ModelConfig& a, const deck::ModelConfig& b) {
  const deck::Config of_a = with_model(a), of_b = with_model(b);
  std::vector<KeyDifference> different;
  for (const char* name : keys) {
    const Parameter& p = deck::parameter("model", name);
    if (p.get(of_a) != p.get(of_b)) different.push_back({name, deck::spelled(p.get(of_a)), deck::spelled(p.get(of_b))});
  }
  return different;
}

}  // namespace nanotron::io
