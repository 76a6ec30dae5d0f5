#include "known_good.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "nanotron/io/checkpoint.hpp"
#include "nanotron/io/text_file.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "known_good";
constexpr std::size_t most = 100000;  // lines

}  // namespace

std::vector<std::int64_t> read_known_good(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  const fs::path path = directory / file_name;
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::regular) return steps;
  std::ifstream file(path);
  for (std::int64_t step = 0; steps.size() < most && file >> step;) {
    if (step >= 0 && !absence_of(step_folder(directory, step))) steps.push_back(step);
  }
  std::ranges::sort(steps);
  const auto repeated = std::ranges::unique(steps);
  steps.erase(repeated.begin(), repeated.end());
  return steps;
}

int write_known_good(const fs::path& directory, const std::vector<std::int64_t>& steps) {
  std::string text;
  for (const std::int64_t step : steps) text += fmt::format("{}\n", step);
  return replace_text(directory / file_name, text);
}

}  // namespace nanotron::io
