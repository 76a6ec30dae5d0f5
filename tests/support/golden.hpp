#pragma once

// PyTorch's numbers for a case of tests/golden.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace nanotron::test {

inline nlohmann::json golden_numbers(const std::string& name) {
  std::ifstream file(std::filesystem::path(NANOTRON_TEST_DIR) / "golden" / name / "golden.json");
  return nlohmann::json::parse(file);
}

// Tensors whose gradient is rounding alone, which Adam makes anything of: biases of keys that nothing rotates, which
// add the same to all scores of a query.
inline std::set<std::string> without_gradient(const std::string& name) {
  std::set<std::string> names;
  for (const auto& [tensor, sums] : golden_numbers(name).at("fp64").at("first_gradients").items()) {
    if (sums.at("l2").get<double>() < 1e-14) names.insert(tensor);
  }
  return names;
}

}  // namespace nanotron::test
