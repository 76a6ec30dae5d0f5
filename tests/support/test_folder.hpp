#pragma once

#include <cstdlib>
#include <filesystem>

namespace nanotron::test {

/// The folder tests/ with the golden files: that of the source tree, or NANOTRON_TEST_DIR where it was moved
/// (tests/gpu.sh).
inline std::filesystem::path test_folder() {
  const char* const moved = std::getenv("NANOTRON_TEST_DIR");
  return moved != nullptr ? moved : NANOTRON_TEST_DIR;
}

}  // namespace nanotron::test
