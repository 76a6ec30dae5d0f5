#include "nanotron/deck/checks/findings.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {

void Findings::add(std::size_t source, Diagnostic diagnostic) {
  errors_ += diagnostic.severity == Severity::error ? 1 : 0;
  found_[source].push_back(std::move(diagnostic));
}

void Findings::error(const std::vector<std::string>& keys, std::string message, std::string expected,
                     std::string hint) {
  if (const auto& [key, context] = within_; !key.empty()) {
    const auto stage = origin_.spots.find(key);
    const Origin::Spot at = stage == origin_.spots.end() ? Origin::Spot{} : stage->second;
    return add(at.source, {Severity::error, at.offset, at.length, context + std::move(message), std::move(expected),
                           std::move(hint)});
  }
  Origin::Spot spot;
  std::string name = keys.empty() ? "" : keys.front() + ": ";
  for (const std::string& key : keys) {
    const auto found = origin_.spots.find(key);
    if (found == origin_.spots.end()) continue;
    spot = found->second;
    name.clear();
    break;
  }
  add(spot.source,
      {Severity::error, spot.offset, spot.length, name + std::move(message), std::move(expected), std::move(hint)});
}

bool Findings::is_valid(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return distrusted_.count(key) > 0; });
}

std::string Findings::text() const {
  std::string out;
  for (std::size_t i = 0; i < found_.size(); ++i) out += format_all(origin_.sources[i], found_[i]);
  return out;
}

void Findings::throw_errors() const {
  if (errors_ == 0) return;
  const std::string count = errors_ == 1 ? "1 error" : std::to_string(errors_) + " errors";
  const std::string advice = advice_.empty() ? "" : "; " + advice_;
  throw Error(ExitCode::deck_error, text() + count + " in the deck" + advice);
}

}  // namespace nanotron::deck

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

std::string one_of(const std::vector<std::string>& words) {
  std::string all;
  for (std::size_t i = 0; i < words.size(); ++i) {
    all += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return all;
}

std::string values_with(const std::string& group, const std::string& name, bool (*fits)(const Config&)) {
  const Parameter& row = parameter(group, name);
  std::vector<std::string> values;
  for (const std::string& value : row.legal_values) {
    Config config;
    row.set(config, Scalar(value));
    if (fits(config)) values.push_back("'" + value + "'");
  }
  return name + " = " + one_of(values);
}

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
    findings.error({key}, row.name + " belongs to " + choice + ", which this deck does not have", expected);
    return;
  }
}

}  // namespace nanotron::deck
