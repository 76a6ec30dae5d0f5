#pragma once

#include <filesystem>

namespace nanotron::test {

/// The folder tests/ with the golden files: that of the source tree, or NANOTRON_TEST_DIR where it was moved
/// (tests/gpu.sh).
std::filesystem::path test_folder();

}  // namespace nanotron::test
