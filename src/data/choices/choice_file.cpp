#include "nanotron/data/choices/choice_file.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::data {
namespace {

constexpr const char* remedy = "write the file with tools/nanotron_choices.py";

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& path) {
  fail(ExitCode::data_error,
       {.what = what, .expected = expected, .found = found, .where = whole_path(path), .change = remedy});
}

// A column of `rows` values; any number for 0.
std::vector<std::uint64_t> read_column(const TokenFile& tokens, const std::string& name, std::size_t rows) {
  const std::string& path = tokens.path();
  const StoredArray column = tokens.open_column(name);
  if (!column.exists()) {
    refuse("this is not a file of multiple-choice questions", fmt::format("the dataset /{}", name), "none", path);
  }
  const std::vector<std::uint64_t> values = column.read_all();
  if (values.empty() || (rows > 0 && values.size() != rows)) {
    refuse(fmt::format("/{} has the wrong size", name), rows > 0 ? fmt::format("{} values", rows) : "1 value or more",
           fmt::format("{}", values.size()), path);
  }
  // Values beyond any file would wrap around below.
  if (std::ranges::max(values) >> 48 != 0) {
    refuse(fmt::format("/{} is damaged", name), "values below 2^48", fmt::format("{}", std::ranges::max(values)), path);
  }
  return values;
}

}  // namespace

ChoiceFile::ChoiceFile(const std::filesystem::path& path) : tokens_(path) {
  read_tables();
  check_tables();
}

void ChoiceFile::read_tables() {
  const auto scored = read_column(tokens_, "choices/tokens", 0),
             begins = read_column(tokens_, "documents", scored.size()),
             characters = read_column(tokens_, "choices/characters", scored.size()),
             bytes = read_column(tokens_, "choices/bytes", scored.size());
  for (std::size_t i = 0; i < scored.size(); ++i) {
    const auto end = i + 1 < begins.size() ? static_cast<index_t>(begins[i + 1]) : tokens_.size();
    choices_.push_back({.tokens = {static_cast<index_t>(begins[i]), end},
                        .scored = static_cast<index_t>(scored[i]),
                        .characters = static_cast<index_t>(characters[i]),
                        .bytes = static_cast<index_t>(bytes[i])});
  }
  const auto counts = read_column(tokens_, "questions/choices", 0),
             answers = read_column(tokens_, "questions/answer", counts.size()),
             lines = read_column(tokens_, "questions/line", counts.size());
  index_t next = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const index_t end = next + static_cast<index_t>(counts[i]);
    questions_.push_back(
        {.choices = {next, end}, .answer = static_cast<index_t>(answers[i]), .line = static_cast<index_t>(lines[i])});
    next = end;
  }
}

void ChoiceFile::check_tables() const {
  const std::string& path = tokens_.path();
  if (questions_.back().choices.end != static_cast<index_t>(choices_.size())) {
    refuse("/questions/choices does not match /choices/tokens", fmt::format("{} choices in all", choices_.size()),
           fmt::format("{}", questions_.back().choices.end), path);
  }
  for (const Question& question : questions_) {
    if (question.answer >= question.choices.size()) {
      refuse(fmt::format("the answer in line {} is not one of its choices", question.line),
             fmt::format("a number from 0 to {} in /questions/answer", question.choices.size() - 1),
             fmt::format("{}", question.answer), path);
    }
  }
  index_t end = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    const std::string name = name_of(static_cast<index_t>(i));
    if (c.tokens.begin != end || c.tokens.end > tokens_.size() || c.scored < 1 || c.scored >= c.tokens.size()) {
      refuse(fmt::format("/documents and /choices/tokens do not fit at {}", name),
             fmt::format("tokens from {} on, with at least one of the context and one of the choice", end),
             fmt::format("{} to {}, {} of the choice", c.tokens.begin, c.tokens.end, c.scored), path);
    }
    if (c.characters < 1 || c.bytes < c.characters) {
      refuse(fmt::format("{} has no length", name), "1 or more characters, and no fewer bytes",
             fmt::format("{} characters, {} bytes", c.characters, c.bytes), path);
    }
    end = c.tokens.end;
  }
}

std::string ChoiceFile::name_of(index_t choice) const {
  const auto after =
      std::ranges::upper_bound(questions_, choice, {}, [](const Question& q) { return q.choices.begin; });
  const Question& question = *std::prev(after);
  return fmt::format("choice {} of the question in line {}", choice - question.choices.begin + 1, question.line);
}

std::uint64_t ChoiceFile::hash_of_tables() const {
  static_assert(sizeof(Choice) == 5 * sizeof(index_t) && sizeof(Question) == 4 * sizeof(index_t), "no padding");
  return XXH3_64bits(choices_.data(), choices_.size() * sizeof(Choice)) ^
         XXH3_64bits_withSeed(questions_.data(), questions_.size() * sizeof(Question), 1);
}

}  // namespace nanotron::data
