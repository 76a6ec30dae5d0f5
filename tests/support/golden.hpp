#pragma once

// PyTorch's numbers for a case of tests/golden.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace nanotron::test {

inline nlohmann::json golden_numbers(const std::string& name) {
  std::ifstream file(std::filesystem::path(NANOTRON_TEST_DIR) / "golden" / name / "golden.json");
  return nlohmann::json::parse(file);
}

}  // namespace nanotron::test
