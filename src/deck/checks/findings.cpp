#include "nanotron/deck/checks/findings.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"

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
