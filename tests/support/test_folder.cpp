#include "support/test_folder.hpp"

#include <cstdlib>

namespace nanotron::test {

std::filesystem::path test_folder() {
  const char* const moved = std::getenv("NANOTRON_TEST_DIR");
  return moved != nullptr ? moved : NANOTRON_TEST_DIR;
}

}  // namespace nanotron::test
