#include "nanotron/deck/checks/phrases.hpp"

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck::phrases {

std::string counted(std::int64_t n, const char* what) { return text(n) + " " + what + (n == 1 ? "" : "s"); }

std::string nearest_multiples(std::int64_t n, std::int64_t unit) {
  const std::int64_t below = n / unit * unit;
  const std::string above = text(below + unit);
  return below == 0 ? above : text(below) + " or " + above;
}

std::string nearest_divisors(std::int64_t n, std::int64_t of) {
  if (n > of) return text(of) + ", or another divisor of it";
  std::int64_t below = n, above = n;
  while (of % below != 0) --below;
  while (of % above != 0) ++above;
  return "a divisor of " + text(of) + ": " + text(below) + " or " + text(above);
}

std::string at_most(const std::string& name, std::int64_t n) { return name + (n == 1 ? " = " : " <= ") + text(n); }

}  // namespace nanotron::deck::phrases

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
