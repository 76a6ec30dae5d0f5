#pragma once

// A set of decoder layers, as a deck writes it:
//
//   all, none      every layer, no layer
//   5:1            of each 6 layers the first 5 (Gemma 3: windows in five of six layers)
//   0-2 5 9        these layers, counted from 0; commas may separate them too
//   !0-2           all layers but these; '!' may precede any of the above

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::deck {

class LayerSet {
 public:
  /// mistake: what is wrong with the text, such as "'5:' is not a:b"; empty if nothing is. A wrong text gives no
  /// layers.
  explicit LayerSet(std::string_view text, std::string* mistake = nullptr);

  bool contains(std::int64_t layer) const;
  /// How many of the layers 0 .. layers - 1.
  std::int64_t count(std::int64_t layers) const;
  /// The last layer that the text names; -1 if it names none.
  std::int64_t last_named() const;

 private:
  struct Span {
    std::int64_t first = 0, last = 0;
  };
  void read(std::string_view text, std::string& mistake);
  void read_pattern(std::string_view text, std::size_t colon, std::string& mistake);
  void read_list(std::string_view text, std::string& mistake);

  bool is_complement_ = false;
  std::int64_t inside_ = 0, period_ = 0;  // of the pattern a:b: a and a + b; period_ = 0: a list
  std::vector<Span> spans_;               // of a list
};

/// Reports a wrong text of the key ("group.name"), or one that names a layer which the model does not have.
void check_layer_set(const std::string& key, const std::string& value, const Config& config, Findings& findings);

}  // namespace nanotron::deck
