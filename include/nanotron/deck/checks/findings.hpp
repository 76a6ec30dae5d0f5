#pragma once

// What is wrong with a deck, found key by key, and the checks that find it. The table of parameters checks each key by
// itself; a feature's checks of several keys are next to the feature and listed in trainer/start/deck_features.cpp.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanotron/deck/namelist/source_text.hpp"

namespace nanotron::deck {

struct Config;

/// The deck and the overrides, in this order, and where in them each "group.name" was set.
struct Origin {
  struct Spot {
    std::size_t source = 0;
    std::size_t offset = 0;
    std::size_t length = 0;
  };
  std::vector<SourceText> sources;
  std::map<std::string, Spot> spots;
};

/// Collects findings; each is shown at the first of its keys that the deck sets.
class Findings {
 public:
  explicit Findings(const Origin& origin) : origin_(origin), found_(origin.sources.size()) {}

  void add(std::size_t source, Diagnostic diagnostic);
  /// `keys` are "group.name"; `message` says what was found; then what was expected and what else to change.
  void error(const std::vector<std::string>& keys, std::string message, std::string expected = {},
             std::string hint = {});
  /// Printed after the findings when they are thrown.
  void advise(std::string advice) { advice_ = std::move(advice); }
  /// Excludes a key whose own value is wrong or missing from further checks.
  void distrust(const std::string& key) { distrusted_.insert(key); }
  bool is_valid(const std::vector<std::string>& keys) const;

  /// Calls check(). What it finds is shown at `key`, and begins with `context`.
  template <class Check>
  void within(const std::string& key, const std::string& context, const Check& check) {
    within_ = {key, context};
    check();
    within_ = {};
  }

  int errors() const { return errors_; }
  std::string text() const;
  /// Throws Error(deck_error) with text() if there is an error.
  void throw_errors() const;

 private:
  const Origin& origin_;
  std::vector<std::vector<Diagnostic>> found_;
  std::set<std::string> distrusted_;
  std::string advice_;
  std::pair<std::string, std::string> within_;  // key and context; empty: none
  int errors_ = 0;
};

/// What one feature requires of a deck.
struct Feature {
  /// Reports keys that do not work together. Pure. Called for decks as they are written (a 0 that stands for a choice
  /// of the program is still 0, also a degree of the grid), for resolved decks, and for candidate grids.
  void (*check)(const Config&, Findings&) = nullptr;
  /// Fills in keys left to the program, in a deck without mistakes whose degrees are known. May be null.
  void (*fill)(Config&) = nullptr;
};
using Features = std::span<const Feature>;

}  // namespace nanotron::deck

namespace nanotron::deck::phrases {

// Parts of messages about numbers in a deck.

inline std::string text(std::int64_t n) { return std::to_string(n); }

/// "1 stage", "2 stages".
std::string counted(std::int64_t n, const char* what);

/// "48 or 56": the multiples of `unit` on both sides of n.
std::string nearest_multiples(std::int64_t n, std::int64_t unit);

/// "a divisor of 12: 4 or 6": those on both sides of n.
std::string nearest_divisors(std::int64_t n, std::int64_t of);

/// "tp <= 4", or "tp = 1".
std::string at_most(const std::string& name, std::int64_t n);

/// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& words);

/// "compute = 'fp32' or 'bf16'": the values of the string group.name that `fits` holds for, in a deck of defaults.
std::string values_with(const std::string& group, const std::string& name, bool (*fits)(const Config&));

}  // namespace nanotron::deck::phrases

namespace nanotron::deck {

// Keys without effect, because they belong to a choice that the deck has not made.

/// Reports the first of the keys ("group.name") that is not at its default: "<name> belongs to <choice>, which this
/// model does not have".
void refuse_unused(const Config& config, std::initializer_list<const char*> keys, const std::string& choice,
                   const std::string& expected, Findings& findings);

}  // namespace nanotron::deck
