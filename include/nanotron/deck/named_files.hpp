#pragma once
// data%path and data%validation_path: one file, or a list of files with names or weights.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanotron/deck/keys/data.hpp"

namespace nanotron::deck {

struct Config;

/// "code=a wiki=b" -> (code, a), (wiki, b): name=word, separated by blanks. A name is a letter followed by letters,
/// digits and '_', at most 32; it is unique. `mistake` says what is wrong with the first invalid word, such as "'b' is
/// not name=<what>"; empty if there is none. Invalid words are left out of the result.
using NamedWord = std::pair<std::string, std::string>;
std::vector<NamedWord> named_words(std::string_view text, std::string_view what, std::string* mistake);

/// The whole text as a finite number; nothing else.
std::optional<double> finite_number(std::string_view text);

struct NamedFile {
  /// Of several files without names in the deck: the end of the path that tells it from the others, "wiki/part-0.h5" of
  /// /data/wiki/part-0.h5. Empty: the only file, without a name.
  std::string name;
  std::string path;
  bool is_named = false;  // in the deck
  double weight = -1.0;   // in the list; negative: none
  std::size_t line = 0;   // of the text
};

/// The files of a text of lines. A line is one file without a name, all of it the path ("a/file.h5"); named ones
/// ("code=a.h5 wiki=b.h5"); or begins with a number: weights, each followed by a path or a name=path ("0.3 a.h5 0.7
/// b.h5"). A path that contains '=' can be written as "./x=1.h5". All files have names or none, all have weights or
/// none (0 for files of later stages counts as none), and no two without names have one path.
std::vector<NamedFile> named_files(std::string_view text, std::string* mistake = nullptr);

/// Whether there are several files without names and without weights: their weights are their numbers of tokens.
bool are_weighted_by_tokens(const DataConfig& data);

/// data%weights of such files, in their order; 0 for those with a 0 in the list.
std::string weights_by_tokens(const DataConfig& data, const std::vector<std::int64_t>& tokens);

/// For messages: the text of one line; of several the first path and their number.
std::string files_text(const std::string& text);

/// Names of the validation sets: the names in validation_path, or of the files of which validation_fraction holds out a
/// part; empty for one set without a name.
std::vector<std::string> validation_set_names(const DataConfig& data);

/// For messages: the key, with the file's name if it has one: "data%path, 'code'".
std::string key_of(std::string_view key, const NamedFile& file);

/// Where a line of data%path or data%validation_path comes from: "blend.txt:17:5"; empty if it is not known, or the key
/// has one line.
std::string place_of(const Config& config, std::string_view key, std::size_t line);

}  // namespace nanotron::deck
