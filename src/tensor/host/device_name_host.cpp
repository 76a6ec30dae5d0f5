#include "nanotron/tensor/device_name.hpp"

namespace nanotron {

std::string device_name() { return ""; }

}  // namespace nanotron
