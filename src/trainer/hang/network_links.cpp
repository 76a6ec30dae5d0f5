#include "nanotron/trainer/hang/network_links.hpp"

#include <fmt/format.h>

#include <fstream>
#include <utility>
#include <vector>

namespace nanotron::trainer {
namespace {

namespace fs = std::filesystem;

std::string first_line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// None where it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    found.push_back(entry->path());
  }
  return found;
}

}  // namespace

NetworkLinks::NetworkLinks(fs::path classes) : classes_(std::move(classes)), at_start_(up_now()) {}

// The loopback interface is in the state "unknown". Bridges and what is plugged into them come and go with containers.
std::set<std::string> NetworkLinks::up_now() const {
  std::set<std::string> up;
  for (const fs::path& interface : entries_of(classes_ / "net")) {
    std::error_code ignored;
    if (fs::exists(interface / "bridge", ignored) || fs::exists(interface / "brport", ignored)) continue;
    if (first_line_of(interface / "operstate") == "up") up.insert(interface.filename().string());
  }
  for (const fs::path& device : entries_of(classes_ / "infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      if (first_line_of(port / "state") == "4: ACTIVE")
        up.insert(fmt::format("{} port {}", device.filename().string(), port.filename().string()));
    }
  }
  return up;
}

std::string NetworkLinks::lost() const {
  const std::set<std::string> up = up_now();
  std::string text;
  for (const std::string& link : at_start_) {
    if (!up.contains(link)) text += fmt::format("{}{} is down", text.empty() ? "" : ", ", link);
  }
  return text;
}

}  // namespace nanotron::trainer
