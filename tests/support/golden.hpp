#pragma once

// PyTorch's numbers for a case of tests/golden.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/test_folder.hpp"

namespace nanotron::test {

inline nlohmann::json golden_numbers(const std::string& name) {
  std::ifstream file(test_folder() / "golden" / name / "golden.json");
  return nlohmann::json::parse(file);
}

// Cases whose numbers are those of transformers' own classes (make_family_golden.py): a new family is one folder more.
inline std::vector<std::string> golden_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_folder() / "golden")) {
    const std::string name = entry.path().filename();
    if (std::filesystem::exists(entry.path() / "golden.json") && golden_numbers(name).contains("transformers")) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

// Tensors whose gradient is rounding alone, which Adam makes anything of: biases of keys that nothing rotates, which
// add the same to all scores of a query.
inline std::set<std::string> without_gradient(const std::string& name) {
  std::set<std::string> names;
  const nlohmann::json golden = golden_numbers(name);
  for (const auto& [tensor, sums] : golden.at("fp64").at("first_gradients").items()) {
    if (sums.at("l2").get<double>() < 1e-14) names.insert(tensor);
  }
  return names;
}

}  // namespace nanotron::test
