#pragma once
// What a user may have meant by a word that the deck does not know: a misspelling, a key of another group, or the name
// that PyTorch, Megatron-LM, Hugging Face, nanotron, nanoGPT or GPT-2 give to something that this program has, or leave
// out on purpose.

#include <string>
#include <string_view>
#include <vector>

#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {

struct Suggestion {
  std::string group, key;  // the key that is probably meant; empty if there is none, or several
  std::string hint;        // a sentence for the user; empty: nothing comes near
};

/// For the unknown key `word` of `group`, or, with an empty `group`, of the command line. `groups`: all that there are.
Suggestion suggest_key(std::string_view word, std::string_view group, const std::vector<NamelistGroup>& groups);

/// The group that the unknown group name `word` probably means; else empty.
std::string suggest_group(std::string_view word, const std::vector<NamelistGroup>& groups);

/// One row for each name of another program.
struct KnownName {
  std::string_view theirs;  // lower case
  std::string_view ours;    // "group.key"; empty: there is none, and the note says why
  std::string_view note;    // may be empty
};
const std::vector<KnownName>& known_names();

}  // namespace nanotron::deck
