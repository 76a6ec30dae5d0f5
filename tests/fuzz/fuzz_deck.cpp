// A deck, with overrides after zero bytes, or list files ("@name", a new line, its text): read, checked, resolved and
// written. What is written says the same.
#include <algorithm>
#include <vector>

#include "fuzz.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/trainer/start/deck_features.hpp"

namespace {

using namespace nanotron;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos; text.remove_prefix(std::min(end, text.size() - 1) + 1)) {
    end = text.find('\0');
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
  }
  return parts;
}

// Ranks of the grid, 1 for the degree that is open.
std::int64_t ranks_of(deck::ParallelConfig p) {
  for (std::int64_t* const degree : {&p.dp, &p.tp, &p.pp, &p.cp}) *degree = std::max<std::int64_t>(*degree, 1);
  return deck::grid_size(p);
}

// Those parts that are lists, taken out of the others.
deck::ListTexts take_lists(std::vector<std::string>& parts) {
  deck::ListTexts lists;
  for (const std::string& part : parts) {
    const std::size_t end = std::min(part.find('\n'), part.size());
    if (part.starts_with('@')) lists[part.substr(1, end - 1)] = part.substr(std::min(end + 1, part.size()));
  }
  std::erase_if(parts, [](const std::string& part) { return part.starts_with('@'); });
  return lists;
}

deck::Config resolved(const std::string& text, const std::vector<std::string>& overrides,
                      const deck::ListTexts& lists) {
  std::string warnings;
  deck::Config config = trainer::read_deck_text(text, "deck", overrides, &warnings, std::nullopt, lists);
  trainer::resolve(config, ranks_of(config.parallel));
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> overrides = split({reinterpret_cast<const char*>(data), size});
  const std::string text = overrides.front();
  overrides.erase(overrides.begin());
  const deck::ListTexts lists = take_lists(overrides);
  deck::changes_since(text, deck::Config());  // as the deck of a checkpoint

  std::string written;
  const bool is_good = fuzz::ends_well({ExitCode::deck_error},
                                       [&] { written = deck::canonical_deck(resolved(text, overrides, lists)); });
  if (!is_good) return 0;
  try {
    const deck::Config again = resolved(written, {}, {});
    fuzz::require(deck::canonical_deck(again) == written, "deck.nml is read as another deck:\n" + written);
    fuzz::require(deck::changes_since(written, again).empty(), "deck.nml differs from itself:\n" + written);
  } catch (const Error& error) {
    fuzz::broken("deck.nml is refused:\n" + written + error.what());
  }
  return 0;
}
