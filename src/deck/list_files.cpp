#include "deck/list_files.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "deck/table/lines.hpp"
#include "nanotron/deck/named_files.hpp"

namespace nanotron::deck::detail {
namespace {

using Sources = std::map<std::string, std::size_t>;

// A line of data.path, and where it comes from.
struct Line {
  std::string text;  // "0.3 web=w.h5"
  Origin::Spot spot;
};

// A file of a list; its path as seen from where the program was started.
struct Listed {
  std::string weight, name, path;
  Origin::Spot spot;

  std::string named_path() const { return name.empty() ? path : name + "=" + path; }
  std::string line() const { return weight.empty() ? named_path() : weight + " " + named_path(); }
};

std::string normal(const std::string& path) { return std::filesystem::path(path).lexically_normal().string(); }

// Whether a line of data%path would have it as name=path.
bool is_named(const std::string& word) {
  const std::vector<NamedFile> files = named_files(word.substr(0, word.find(' ')));
  return files.size() == 1 && files.front().is_named;
}

// Whether a line of data%path can have it after a weight.
bool is_plain(const std::string& path) {
  const std::vector<std::string_view> words = words_of(path);
  return !path.empty() && path.front() != ' ' && path.back() != ' ' &&
         (words.size() == 1 || std::ranges::none_of(words, [](std::string_view word) {
            return finite_number(word).has_value() || is_named(std::string(word));
          }));
}

// The words of a list and the files that they name.
class ListReader {
 public:
  ListReader(const SourceText& source, std::size_t number, Findings& findings)
      : source_(source), number_(number), findings_(findings) {}

  std::vector<Listed> read() {
    const std::string_view text = source_.text();
    for (std::size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < text.size();) {
      const char c = text[at];
      if (c == '#') {
        at = std::min(text.find('\n', at), text.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++at;
      } else {
        at = take_word(at);
      }
    }
    if (!weight_.text.empty())
      error(weight_.spot, "the weight " + deck::quoted(weight_.text) + " has no path", "a path after it");
    if (files_.empty() && errors_ == 0)
      error({number_, 0, 0}, "this list names no file", "a weight and a path on a line");
    if (files_.size() > max_lines)
      error({number_, 0, 0}, std::to_string(files_.size()) + " files", "at most " + std::to_string(max_lines));
    check_weights();
    return std::move(files_);
  }

  bool has_errors() const { return errors_ > 0; }

 private:
  void error(const Origin::Spot& spot, std::string message, std::string expected, std::string hint = {}) {
    ++errors_;
    findings_.add(
        number_, {Severity::error, spot.offset, spot.length, std::move(message), std::move(expected), std::move(hint)});
  }

  // Returns where it ends.
  std::size_t take_word(std::size_t begin) {
    const std::string_view text = source_.text();
    const char quote = text[begin] == '"' || text[begin] == '\'' ? text[begin] : '\0';
    const std::size_t line_end = std::min(text.find('\n', begin), text.size());
    const std::size_t found = quote != '\0' ? text.find(quote, begin + 1) : text.find_first_of(" \t\r\n", begin);
    const std::size_t end = quote != '\0' && found < line_end ? found + 1 : std::min(found, line_end);
    const Origin::Spot spot{number_, begin, end - begin};
    if (quote != '\0' && found >= line_end) {
      weight_ = {};
      error(spot, "this path is not closed", std::string("a second ") + quote);
    } else if (quote != '\0') {
      add_file(std::string(text.substr(begin + 1, end - begin - 2)), spot);
    } else {
      add_word(std::string(text.substr(begin, end - begin)), spot);
    }
    return end;
  }

  void add_word(const std::string& word, const Origin::Spot& spot) {
    const std::optional<double> number = finite_number(word);
    if (!number) return add_file(word, spot);
    if (!weight_.text.empty())
      error(weight_.spot, "the weight " + deck::quoted(weight_.text) + " has no path", "a path after it");
    if (*number <= 0.0)
      error(spot, "the weight " + deck::quoted(word) + " is not positive",
            "a positive number, or no line for this file");
    weight_ = {word, spot};
  }

  void add_file(std::string word, const Origin::Spot& spot) {
    Listed file{.weight = std::exchange(weight_.text, ""), .name = "", .path = "", .spot = spot};
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
    if (word.empty() || std::ranges::any_of(word, is_control))
      return error(spot, word.empty() ? "an empty path" : "a control character in a path", "a token file");
    if (word.starts_with('@')) return error(spot, "a list in a list", "a token file");
    if (word.starts_with('~') || word.find("=~") != word.npos)
      return error(spot, "a path that begins with '~': only a shell replaces that", "the whole path");
    if (is_named(word)) {
      file.name = word.substr(0, word.find('='));
      word.erase(0, file.name.size() + 1);
    }
    const std::filesystem::path folder = std::filesystem::path(source_.name()).parent_path();
    file.path = word.starts_with('/') || folder.empty() ? word : (folder / word).string();
    if (file.name.empty() && is_named(file.path)) file.path = "./" + file.path;
    if (!is_plain(file.path))
      return error(spot, "the path " + deck::quoted(file.path) + " would be read as a weight or without its blanks",
                   "a path without blanks at its ends, and without numbers between blanks");
    const auto [before, is_new] = places_.emplace(normal(file.path), spot.offset);
    if (!is_new)
      return error(spot, deck::quoted(word) + " is given twice", "each file once",
                   "the first one is at " + source_.where(before->second));
    files_.push_back(std::move(file));
  }

  void check_weights() {
    const auto without = std::ranges::find_if(files_, [](const Listed& f) { return f.weight.empty(); });
    const bool any = std::ranges::any_of(files_, [](const Listed& f) { return !f.weight.empty(); });
    if (any && without != files_.end())
      error(without->spot, deck::quoted(without->path) + " has no weight, others have one",
            "a weight before each path, or none", "a path with blanks is put in quotes");
  }

  const SourceText& source_;
  std::size_t number_;
  Findings& findings_;
  std::vector<Listed> files_;
  Line weight_;  // before the next path
  std::map<std::string, std::size_t> places_;
  int errors_ = 0;
};

class Expansion {
 public:
  Expansion(const Sources& sources, DataConfig& data, Origin& origin, Findings& findings)
      : sources_(sources), data_(data), origin_(origin), findings_(findings) {}

  void run() {
    std::vector<Line> validation = expanded("data.validation_path", data_.validation_path);
    path_ = expanded("data.path", data_.path);
    const std::vector<std::string> stages = expanded_stages();
    put("data.validation_path", validation, data_.validation_path);
    put("data.path", path_, data_.path);
    if (!stages.empty()) {
      data_.stages.clear();
      for (const std::string& line : stages) add_line(data_.stages, line);
    }
  }

 private:
  std::vector<Listed> files_of(const std::string& list, const std::string& key) {
    const auto given = sources_.find(list);
    if (given == sources_.end()) {
      findings_.distrust(key);
      findings_.error({key}, "the list " + deck::quoted(list) + " was not read", "a text file");
      return {};
    }
    const std::size_t number = given->second;
    ListReader reader(origin_.sources[number], number, findings_);
    std::vector<Listed> files = reader.read();
    if (reader.has_errors()) findings_.distrust(key);
    return files;
  }

  // The lines of a key, with those of its lists.
  std::vector<Line> expanded(const std::string& key, const std::string& text) {
    std::vector<Line> lines;
    std::size_t number = 0;
    for (const std::string_view line : lines_of(text)) {
      const auto own = origin_.spots.find(key + "(" + std::to_string(++number) + ")");
      const auto whole = origin_.spots.find(key);
      const Origin::Spot spot = own != origin_.spots.end()     ? own->second
                                : whole != origin_.spots.end() ? whole->second
                                                               : Origin::Spot{};
      if (!line.starts_with('@')) {
        lines.push_back({std::string(line), spot});
        continue;
      }
      for (const Listed& file : files_of(std::string(line.substr(1)), key)) lines.push_back({file.line(), file.spot});
    }
    return lines;
  }

  void put(const std::string& key, const std::vector<Line>& lines, std::string& text) {
    text.clear();
    for (std::size_t i = 0; i < lines.size(); ++i) {
      add_line(text, lines[i].text);
      origin_.spots[key + "(" + std::to_string(i + 1) + ")"] = lines[i].spot;
    }
  }

  // Stages with the weights of their lists; empty if there is no list.
  struct Stage {
    std::string begin, rest;  // "2e9:" and the words besides the list
    std::map<std::size_t, std::string> weights;
    bool has_list = false;
  };

  std::vector<std::string> expanded_stages() {
    if (data_.stages.find('@') == std::string::npos) return {};
    std::vector<Stage> stages;
    for (std::string_view rest = data_.stages; !rest.empty();) {
      const std::size_t end = std::min(rest.find(';'), rest.size());
      stages.push_back(stage_of(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    std::string all;
    for (const Line& line : path_) add_line(all, line.text);
    const std::size_t files = named_files(all).size();
    std::vector<std::string> lines;
    for (const Stage& stage : stages) {
      lines.push_back(stage.begin + stage.rest);
      for (std::size_t i = 0; stage.has_list && i < files; ++i) {
        const auto weight = stage.weights.find(i);
        const std::string word = weight == stage.weights.end() ? "0" : weight->second;
        if (lines.back().size() + word.size() > 100) lines.emplace_back();
        lines.back() += " " + word;
      }
      lines.back() += ";";
    }
    lines.back().pop_back();
    return lines;
  }

  // "2e9: @cooldown.txt sequence_length=8192"
  Stage stage_of(std::string_view text) {
    Stage stage;
    for (const std::string_view word : words_of(text)) {
      if (!word.starts_with('@')) {
        (stage.begin.empty() ? stage.begin : stage.rest) += (stage.begin.empty() ? "" : " ") + std::string(word);
        continue;
      }
      stage.has_list = true;
      for (const Listed& file : files_of(std::string(word.substr(1)), "data.stages")) {
        if (file.weight.empty()) {
          findings_.distrust("data.stages");
          findings_.add(file.spot.source, {Severity::error,
                                           file.spot.offset,
                                           file.spot.length,
                                           deck::quoted(file.path) + " has no weight in this stage of data%stages",
                                           "a weight before each path",
                                           {}});
        }
        stage.weights[index_of(file)] = file.weight;
      }
    }
    return stage;
  }

  // The number of the file in data.path, to which it is added if it is new.
  std::size_t index_of(const Listed& file) {
    if (numbers_.empty()) begin_numbers();
    const auto [found, is_new] = numbers_.emplace(normal(file.path), numbers_.size());
    if (is_new) add(file);
    return found->second;
  }

  void begin_numbers() {
    std::string all;
    for (const Line& line : path_) add_line(all, line.text);
    for (const NamedFile& file : named_files(all)) numbers_.emplace(normal(file.path), numbers_.size());
    const bool has_weights = !words_of(data_.weights).empty();
    if (numbers_.size() == 1 && !has_weights && !finite_number(words_of(path_.front().text).front()))
      path_.front().text = "1 " + path_.front().text;
  }

  void add(const Listed& file) {
    if (words_of(data_.weights).empty()) {
      path_.push_back({"0 " + file.named_path(), file.spot});
    } else {
      path_.push_back({file.named_path(), file.spot});
      add_line(data_.weights, file.name.empty() ? "0" : file.name + "=0");
    }
  }

  const Sources& sources_;
  DataConfig& data_;
  Origin& origin_;
  Findings& findings_;
  std::vector<Line> path_;
  std::map<std::string, std::size_t> numbers_;  // of the files of path_, by their normal paths
};

}  // namespace

std::vector<std::string> lists_in(const DataConfig& data) {
  std::vector<std::string> lists;
  for (const std::string* const key : {&data.path, &data.validation_path}) {
    for (const std::string_view line : lines_of(*key)) {
      if (line.size() > 1 && line.starts_with('@')) lists.emplace_back(line.substr(1));
    }
  }
  std::string stages = data.stages;
  std::ranges::replace(stages, ';', ' ');
  for (const std::string_view word : words_of(stages)) {
    if (word.size() > 1 && word.starts_with('@')) lists.emplace_back(word.substr(1));
  }
  return lists;
}

void expand_lists(const std::map<std::string, std::size_t>& sources, DataConfig& data, Origin& origin,
                  Findings& findings) {
  Expansion(sources, data, origin, findings).run();
}

}  // namespace nanotron::deck::detail
