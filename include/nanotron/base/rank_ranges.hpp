#pragma once

#include <string>
#include <vector>

namespace nanotron {

/// Ascending or not, ranks as arithmetic progressions in their order: "0-15", "1-13/4, 20". Empty for none.
std::string ranks_text(const std::vector<int>& ranks);

/// Its inverse. Error(data_error) for other text.
std::vector<int> ranks_from(const std::string& text);

}  // namespace nanotron
