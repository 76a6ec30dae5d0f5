#pragma once

// Multiple-choice questions: a token file (data/tokens/token_file.hpp) in which each document is one choice of a
// question, its context first. doc/fine_tuning.md describes the file; tools/nanotron_tools/choices.py writes it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

struct Choice {
  Range tokens;            // in /tokens: context, then the choice itself
  index_t scored = 0;      // tokens of the choice itself, 1 <= scored < tokens.size()
  index_t characters = 0;  // of its text, more than 0
  index_t bytes = 0;
};

struct Question {
  Range choices;       // of the file
  index_t answer = 0;  // among them, from 0
  index_t line = 0;    // of the file of questions, from 1
};

/// Each rank opens the file, read-only. All tables are in memory: 72 bytes per choice and question. Errors
/// are Error(data_error), name the file, and the line of the question.
class ChoiceFile {
 public:
  explicit ChoiceFile(const std::filesystem::path& path);

  const TokenFile& tokens() const { return tokens_; }
  /// As TokenFile::require_vocab_size.
  void require_vocab_size(index_t model_vocab_size) { tokens_.require_vocab_size(model_vocab_size); }

  const std::vector<Choice>& choices() const { return choices_; }
  const std::vector<Question>& questions() const { return questions_; }

  /// "choice 2 of the question in line 7", both from 1.
  std::string name_of(index_t choice) const;

  /// XXH3-64 of the tables, to compare what ranks see.
  std::uint64_t hash_of_tables() const;

 private:
  void read_tables();
  void check_tables() const;

  TokenFile tokens_;
  std::vector<Choice> choices_;
  std::vector<Question> questions_;
};

}  // namespace nanotron::data
