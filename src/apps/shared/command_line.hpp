#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::apps {

// For options that name the type of weights and activations.
inline CLI::Validator scalar_type() {
  static const std::map<std::string, ScalarType> types{
      {"fp64", ScalarType::fp64}, {"fp32", ScalarType::fp32}, {"bf16", ScalarType::bf16}};
  return CLI::CheckedTransformer(types).description("{fp64,fp32,bf16}");
}

// For --set: in a word without a value the argument after it would be taken for the deck.
inline CLI::Validator assignment() {
  return CLI::Validator(
      [](const std::string& word) {
        return word.find('=') != std::string::npos ? ""
                                                   : "'" + word + "' lacks '=' and a value: --set " + word + "=...";
      },
      "");
}

// Type names of options by which a shell completes their values. Choices in braces, as CLI::IsMember has, are completed
// too.
inline constexpr const char* file_value = "FILE";
inline constexpr const char* folder_value = "FOLDER";
inline constexpr const char* deck_value = "DECK";
inline constexpr const char* group_value = "[GROUP]";
inline constexpr const char* override_value = "group.name=value";

// What a program is, for --help and its manual page.
struct Program {
  std::string name;
  std::string summary;  // a sentence without its full stop
  std::string example;  // a command
  std::string notes;    // paragraphs of one line; lines of "  word   meaning" are a list
  std::vector<std::pair<ExitCode, std::string>> exit_codes;
};

// The head of --help.
std::string description(const Program& program);

// Adds --version, --man and --completion, and parses. False when one of them or help was asked for; only the writing
// rank has printed it. Error(deck_error) for an invalid command line.
bool parse(CLI::App& app, const Program& program, int argc, char** argv, bool is_writer);

// What a program prints of its options.

// The text with lines of at most 80 characters: what a longer one has beyond its last column begins below that.
std::string fitted(const std::string& text);

// The manual page of section 1, in man(7): from the options of `app`.
std::string man_page(const CLI::App& app, const Program& program);

// A script by which `shell` (bash or zsh) completes the options of `app`, their values, keys of the deck, and decks.
std::string completion(const CLI::App& app, const std::string& shell);

}  // namespace nanotron::apps
