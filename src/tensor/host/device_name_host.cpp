#include "nanotron/tensor/device_name.hpp"

namespace nanotron {

std::string device_name() { return ""; }

std::string device_bus_id() { return ""; }

}  // namespace nanotron
