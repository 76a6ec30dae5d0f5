#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "nanotron/base/types.hpp"

namespace nanotron::apps {

// For options that name the type of weights and activations.
inline CLI::Validator scalar_type() {
  static const std::map<std::string, ScalarType> types{
      {"fp64", ScalarType::fp64}, {"fp32", ScalarType::fp32}, {"bf16", ScalarType::bf16}};
  return CLI::CheckedTransformer(types).description("");
}

// For options that name a compute type of training.
inline CLI::Validator training_type() {
  static const std::map<std::string, ScalarType> types{
      {"fp64", ScalarType::fp64}, {"fp32", ScalarType::fp32}, {"bf16", ScalarType::bf16}, {"fp8", ScalarType::fp8}};
  return CLI::CheckedTransformer(types).description("");
}

// Adds --version and parses. False when help or version was asked for; only the rank that speaks has printed
// it. Error(deck_error) for an invalid command line.
bool parse(CLI::App& app, int argc, char** argv, bool speaks);

}  // namespace nanotron::apps
