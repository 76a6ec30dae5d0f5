#include "nanotron/deck/unused_keys.hpp"

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {

void refuse_unused(const Config& config, std::initializer_list<const char*> keys, const std::string& choice,
                   const std::string& expected, Findings& findings) {
  const Config defaults;
  for (const std::string key : keys) {
    const auto dot = key.find('.');
    const std::string group = key.substr(0, dot), name = key.substr(dot + 1);
    const Parameter& row = parameter(group, name);
    if (row.get(config) == row.get(defaults) || !findings.is_valid({key})) continue;
    findings.error({key}, row.name + " belongs to " + choice + ", which this model does not have", expected);
    return;
  }
}

}  // namespace nanotron::deck
