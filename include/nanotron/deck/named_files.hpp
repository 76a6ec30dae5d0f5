#pragma once
// data%path and data%validation_path: one file, or a list of files with names.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanotron/deck/keys/data.hpp"

namespace nanotron::deck {

/// "code=a wiki=b" -> (code, a), (wiki, b): name=word, separated by blanks. A name is a letter followed by letters,
/// digits and '_', at most 32; it is unique. `mistake` says what is wrong with the first invalid word, such as "'b' is
/// not name=<what>"; empty if there is none. Invalid words are left out of the result.
using NamedWord = std::pair<std::string, std::string>;
std::vector<NamedWord> named_words(std::string_view text, std::string_view what, std::string* mistake);

struct NamedFile {
  std::string name;  // empty: the only file, without a name
  std::string path;
};

/// "a/file.h5" is one file without a name, all of the text its path; "code=a.h5 wiki=b.h5" are
/// named ones. A path that contains '=' can be written as "./x=1.h5". An empty text has no
/// files.
std::vector<NamedFile> named_files(std::string_view text, std::string* mistake = nullptr);

/// Names of the validation sets: the names in validation_path, or of the files of which validation_fraction holds out a
/// part; empty for one set without a name.
std::vector<std::string> validation_set_names(const DataConfig& data);

/// For messages: the key, with the file's name if it has one: "data%path, 'code'".
std::string key_of(std::string_view key, const NamedFile& file);

}  // namespace nanotron::deck
