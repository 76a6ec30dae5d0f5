#pragma once

// Where the kernel keeps the limits of a control group.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nanotron::comm {

/// Folders of the control group of this process (listed in `membership`) and of its ancestors, from the innermost to
/// the one where the hierarchy is mounted, below the folder `mounted`; of version 2, and of the version 1 that has this
/// controller.
std::vector<std::filesystem::path> control_groups(const std::filesystem::path& membership,
                                                  const std::filesystem::path& mounted, const std::string& controller);

/// Equal for processes that share the group; 0 where there is none.
std::uint64_t id_of_group(const std::filesystem::path& group);

}  // namespace nanotron::comm
