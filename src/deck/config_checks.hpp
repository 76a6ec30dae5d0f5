#pragma once
// Private to the deck layer: findings about keys, and the checks that need more than one key.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/source_text.hpp"

namespace nanotron::deck {

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

namespace detail {

/// Collects findings; each is shown at the first of its keys that the deck sets.
class Findings {
 public:
  explicit Findings(const Origin& origin) : origin_(origin), found_(origin.sources.size()) {}

  void add(std::size_t source, Diagnostic diagnostic);
  void error(const std::vector<std::string>& keys, std::string message, std::string expected = {},
             std::string hint = {});
  /// Said behind the findings when they are thrown.
  void advise(std::string advice) { advice_ = std::move(advice); }
  /// A key whose own value is wrong or missing takes part in no further check.
  void distrust(const std::string& key) { distrusted_.insert(key); }
  bool trusted(const std::vector<std::string>& keys) const;

  int errors() const { return errors_; }
  std::string text() const;
  /// Throws Error(deck_error) with text() if there is an error.
  void throw_errors() const;

 private:
  const Origin& origin_;
  std::vector<std::vector<Diagnostic>> found_;
  std::set<std::string> distrusted_;
  std::string advice_;
  int errors_ = 0;
};

/// For messages.
inline std::string text(std::int64_t n) { return std::to_string(n); }

/// Everything that can be said without the number of ranks.
void check_config(const Config& config, Findings& findings);

/// Norm, positions and feed-forward network.
void check_architecture(const Config& config, Findings& findings);

/// What reproducible = 'layout' needs.
void check_layout(const Config& config, Findings& findings);

/// Experts and expert parallelism.
void check_moe(const Config& config, Findings& findings);

/// Whether sizes can be computed with.
void check_size(const Config& config, Findings& findings);

/// global_batch_size against micro_batch_size * dp; nothing while dp is 0.
void check_batch(const Config& config, Findings& findings);

}  // namespace detail
}  // namespace nanotron::deck
