#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "nanotron/base/types.hpp"

namespace nanotron::apps {

// What --types and --compute understand.
inline const std::map<std::string, ScalarType> scalar_types{
    {"fp64", ScalarType::fp64}, {"fp32", ScalarType::fp32}, {"bf16", ScalarType::bf16}};

// Adds --version and parses. False when help or version was asked for; only the rank that speaks has printed
// it. Error(deck_error) for a command line that makes no sense.
bool parse(CLI::App& app, int argc, char** argv, bool speaks);

}  // namespace nanotron::apps
