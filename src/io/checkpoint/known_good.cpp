#include "known_good.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "nanotron/base/files.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/io/files/text_file.hpp"
#include "step_folders.hpp"

namespace nanotron::io {

namespace fs = std::filesystem;

std::vector<std::int64_t> listed_known_good(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  std::istringstream text(files::text_of(directory / known_good_name).value_or(""));
  for (std::int64_t step = 0; text >> step;)
    if (step >= 0) steps.push_back(step);
  return steps;
}

std::vector<std::int64_t> read_known_good(const fs::path& directory) {
  std::vector<std::int64_t> steps = listed_known_good(directory);
  std::erase_if(steps, [&](std::int64_t step) { return absence_of(step_folder(directory, step)).has_value(); });
  std::ranges::sort(steps);
  const auto repeated = std::ranges::unique(steps);
  steps.erase(repeated.begin(), repeated.end());
  return steps;
}

int write_known_good(const fs::path& directory, const std::vector<std::int64_t>& steps) {
  std::string text;
  for (const std::int64_t step : steps) text += fmt::format("{}\n", step);
  return replace_text(directory / known_good_name, text);
}

}  // namespace nanotron::io
