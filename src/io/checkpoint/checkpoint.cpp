#include "nanotron/io/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

namespace nanotron::io {

std::filesystem::path step_folder(const std::filesystem::path& directory, std::int64_t step) {
  return directory / fmt::format("step_{:08}", step);
}

}  // namespace nanotron::io
