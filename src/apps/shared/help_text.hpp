#pragma once

#include <string>

namespace nanotron::apps {

// The text with lines of at most 80 characters: what a longer one has beyond its last column begins below that.
std::string fitted(const std::string& text);

}  // namespace nanotron::apps
