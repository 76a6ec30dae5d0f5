#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::apps::bench {

struct Options {
  std::string deck;
  std::vector<std::string> overrides;  // group.name=value
  std::set<std::string> only;          // gemm, kernels, collectives, overlap, pipeline, data, step; empty: all
  std::vector<ScalarType> types;       // empty: the deck's
  int rounds = 5;                      // of GEMM peak and steps in turn
  int steps = 2;                       // per round
  double seconds = 0.2;                // per measurement of a kernel or collective
  std::string json;
  std::string gemm_algorithms;  // measure these instead, and write them to this file
  std::string machine;          // measure a machine instead, and write it to this file

  bool wants(const std::string& part) const { return only.empty() || only.contains(part); }
};

// Nothing when help or version has been printed; only the writing rank prints.
// Error(deck_error) for an invalid command line.
std::optional<Options> parse_command_line(int argc, char** argv, bool is_writer);

}  // namespace nanotron::apps::bench
