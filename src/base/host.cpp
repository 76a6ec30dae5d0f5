#include "nanotron/base/host.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>

namespace nanotron {

std::string host_name() {
  if (const char* given = std::getenv("NANOTRON_HOST_NAME"); given != nullptr && *given != 0) return given;
  std::array<char, 256> name{};  // one more than POSIX allows, which stays 0
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace nanotron
