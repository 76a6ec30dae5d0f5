#pragma once
// data%validation_path as a list of files.

#include <string>
#include <string_view>
#include <vector>

namespace nanotron::deck {

struct ValidationSet {
  std::string name;  // empty: the only set, without a name
  std::string path;
};

/// "a/file.h5" is one set without a name, all of the text its path; "code=a.h5 wiki=b.h5" are named ones, separated by
/// blanks. A name begins with a letter and goes on with letters, digits and '_', so that a path with a '=' can be
/// written as "./x=1.h5". None of an empty text. `mistake`, empty when there is none, says what is wrong with a list.
std::vector<ValidationSet> validation_sets(std::string_view text, std::string* mistake = nullptr);

/// Those that have one.
std::vector<std::string> validation_set_names(std::string_view text);

/// For messages: "data%validation_path", with the set's name if it has one.
std::string key_of(const ValidationSet& set);

}  // namespace nanotron::deck
