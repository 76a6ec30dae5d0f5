#include "nanotron/io/recorded_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "known_good.hpp"
#include "step_folders.hpp"

namespace nanotron::io {

std::string recorded_checkpoint(const std::filesystem::path& directory) {
  if (const std::filesystem::path published = newest_published(directory); !published.empty())
    return fmt::format("{}, which {} names", published.filename().string(), (directory / latest_name).string());
  const std::vector<std::int64_t> known = listed_known_good(directory);
  if (known.empty()) return "";
  return fmt::format("the checkpoint of step {} that {} names", std::ranges::max(known),
                     (directory / known_good_name).string());
}

bool has_step_folders(const std::filesystem::path& directory) { return !list_step_folders(directory).steps.empty(); }

}  // namespace nanotron::io
