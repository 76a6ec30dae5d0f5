#pragma once

// From the text of a deck to a checked, then a resolved configuration. `features` are the checks that need more than
// one key: programs and tests of whole decks hand over trainer::deck_features(), by the functions of
// trainer/start/deck_features.hpp.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {

/// The texts of the list files that a deck or its overrides name with '@' (doc/data.md), by their paths.
using ListTexts = std::map<std::string, std::string>;
/// Reads them. Error(deck_error) when one is missing, unreadable or over 1 MiB.
ListTexts read_lists(const std::string& text, const std::vector<std::string>& overrides = {});

/// Reads, checks and cross-checks a deck. `overrides` are "group.name=value", applied in order after
/// the file. Throws Error(deck_error) whose message holds every mistake, as a compiler prints them.
/// `warnings` receives what is legal but doubtful, in the same form. Not collective: rank 0 may read
/// the file and broadcast its text and lists, then every rank calls read_deck_text, which reads lists that are not
/// given. If the number of `ranks` is given, the grid
/// must fit it: a misfit is reported with the other mistakes, and the open degree is filled in.
Config read_deck(const std::string& path, Features features, const std::vector<std::string>& overrides = {},
                 std::string* warnings = nullptr);
Config read_deck_text(const std::string& text, const std::string& file_name, Features features,
                      const std::vector<std::string>& overrides = {}, std::string* warnings = nullptr,
                      std::optional<std::int64_t> ranks = std::nullopt,
                      const std::optional<ListTexts>& lists = std::nullopt);

/// Fills what follows from other keys and from the number of ranks: the degree given as 0, and what features fill in.
/// Throws Error(deck_error) when the grid is not world_size ranks (naming both and the nearest grids that fit) or a
/// feature's check fails. Call once on every rank, before canonical_deck.
void resolve(Config& config, std::int64_t world_size, Features features);

// Differences between a deck and the deck under which a checkpoint was written.

struct Change {
  std::string key, before, now;  // "data%sequence_length", and values as a deck spells them
  Influence influence;
};

/// The configuration in the text of canonical_deck(); a missing key is at its default. Empty if the text is not a deck.
std::optional<Config> config_of(const std::string& text);

/// The keys with an influence on the training whose values differ; `before` is the text of canonical_deck(), a key that
/// it lacks was at its default. Empty where the text is not a deck.
std::vector<Change> changes_since(const std::string& before, const Config& config);

}  // namespace nanotron::deck
