#include "nanotron/base/resident.hpp"

#include <fstream>
#include <string>

namespace nanotron {
namespace {

std::size_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != key) continue;
    std::size_t kib = 0;
    status >> kib;
    return kib;
  }
  return 0;
}

}  // namespace

std::size_t resident_bytes() { return status_kib("VmRSS:") * 1024; }
std::size_t peak_resident_bytes() { return status_kib("VmHWM:") * 1024; }

}  // namespace nanotron
