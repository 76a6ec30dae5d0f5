#include "nanotron/deck/layer_set.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "nanotron/deck/config.hpp"

namespace nanotron::deck {
namespace {

constexpr std::string_view separators = " ,\t";

// A whole number without a sign, of at most nine digits.
std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos) return {};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(separators);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(separators) - begin + 1);
}

}  // namespace

LayerSet::LayerSet(std::string_view text, std::string* mistake) {
  std::string found;
  text = trimmed(text);
  is_complement_ = !text.empty() && text.front() == '!';
  read(is_complement_ ? trimmed(text.substr(1)) : text, found);
  if (!found.empty()) *this = LayerSet("none");
  if (mistake != nullptr) *mistake = found;
}

void LayerSet::read(std::string_view text, std::string& mistake) {
  if (text == "none") return;
  if (text == "all") {
    inside_ = period_ = 1;
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    read_pattern(text, colon, mistake);
  } else if (text.empty()) {
    mistake = "no layers are named; none is written as 'none'";
  } else {
    read_list(text, mistake);
  }
}

void LayerSet::read_pattern(std::string_view text, std::size_t colon, std::string& mistake) {
  const auto inside = number(text.substr(0, colon)), outside = number(text.substr(colon + 1));
  if (!inside || !outside || *inside + *outside == 0) {
    mistake = quoted(text) + " is not a:b, of each a + b layers the first a";
    return;
  }
  inside_ = *inside;
  period_ = *inside + *outside;
}

void LayerSet::read_list(std::string_view text, std::string& mistake) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const std::size_t dash = word.find('-');
    const auto first = number(word.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(word.substr(dash + 1));
    if (!first || !last || *last < *first) {
      mistake = quoted(word) + " is neither a layer such as 3 nor a range of layers such as 0-3";
      return;
    }
    spans_.push_back({*first, *last});
    begin = std::min(text.find_first_not_of(separators, end), text.size());
  }
}

bool LayerSet::contains(std::int64_t layer) const {
  const auto has = [&](const Span& s) { return s.first <= layer && layer <= s.last; };
  const bool named = period_ > 0 ? layer % period_ < inside_ : std::ranges::any_of(spans_, has);
  return named != is_complement_;
}

std::int64_t LayerSet::count(std::int64_t layers) const {
  std::int64_t n = 0;
  for (std::int64_t l = 0; l < layers; ++l) n += contains(l) ? 1 : 0;
  return n;
}

std::int64_t LayerSet::last_named() const {
  std::int64_t last = -1;
  for (const Span& s : spans_) last = std::max(last, s.last);
  return last;
}

void check_layer_set(const std::string& key, const std::string& value, const Config& c, Findings& f) {
  if (!f.is_valid({key, "model.num_hidden_layers"})) return;
  std::string mistake;
  const LayerSet set(value, &mistake);
  if (!mistake.empty()) {
    f.error({key}, mistake, "'all', 'none', a pattern such as '5:1' or layers such as '0-2 5'");
  } else if (set.last_named() >= c.model.num_hidden_layers) {
    f.error({key, "model.num_hidden_layers"},
            quoted(value) + " names layer " + phrases::text(set.last_named()) + " of " +
                phrases::counted(c.model.num_hidden_layers, "layer") + ", which are counted from 0",
            "at most " + phrases::text(c.model.num_hidden_layers - 1));
  }
}

}  // namespace nanotron::deck
