#include "nanotron/deck/blend_stages.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "deck/table/lines.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

constexpr double largest_token = 1e18;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\n";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string listed(const std::vector<NamedFile>& files) {
  constexpr std::size_t shown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(files.size(), shown); ++i) text += (i == 0 ? "" : ", ") + files[i].name;
  return files.size() > shown ? text + ", ... (" + std::to_string(files.size()) + " files)" : text;
}

bool have_names(const std::vector<NamedFile>& files) { return !files.empty() && files.front().is_named; }

// Whether they are weights without names, in the order of the files.
bool are_numbers(std::string_view text) {
  const std::vector<std::string_view> words = words_of(text);
  return !words.empty() &&
         std::ranges::all_of(words, [](std::string_view word) { return finite_number(word).has_value(); });
}

// "0.3 0.7"
std::vector<double> weights_in_order(std::string_view text, const std::vector<NamedFile>& files, BlendMistake& wrong) {
  std::vector<double> weights;
  double sum = 0.0;
  for (const std::string_view word : words_of(text)) {
    weights.push_back(*finite_number(word));
    sum += weights.back();
    if (weights.back() < 0.0 && wrong.found.empty()) {
      wrong.found = "the weight '" + std::string(word) + "' is not a number of 0 or more";
      wrong.expected = "for example 0.5";
    }
  }
  if (wrong.found.empty() && weights.size() != files.size()) {
    wrong.found = std::to_string(weights.size()) + " weights for " + std::to_string(files.size()) + " files";
    wrong.expected = "one for each of " + listed(files);
  }
  if (wrong.found.empty() && (sum <= 0.0 || !std::isfinite(sum))) {
    wrong.found = "the sum of the weights is not positive";
    wrong.expected = "a positive weight";
  }
  weights.resize(files.size());
  return weights;
}

// The weights of `files` in their order or in a list of name=weight; -1 of a file that it does not name.
std::vector<double> weights_in(std::string_view text, const std::vector<NamedFile>& files, BlendMistake& wrong) {
  if (are_numbers(text)) return weights_in_order(text, files, wrong);
  std::vector<double> weights(files.size(), -1.0);
  double sum = 0.0;
  const auto is_wrong = [&](std::string found, std::string expected) {
    if (wrong.found.empty()) wrong.found = std::move(found), wrong.expected = std::move(expected);
  };
  std::string mistake;
  for (const auto& [name, value] : named_words(text, "weight", &mistake)) {
    const auto file = std::ranges::find(files, name, &NamedFile::name);
    const std::optional<double> weight = finite_number(value);
    if (file == files.end()) {
      is_wrong("there is no file '" + name + "' in data%path", "one of " + listed(files));
    } else if (!weight || *weight < 0.0) {
      is_wrong("the weight '" + value + "' of '" + name + "' is not a number of 0 or more",
               "for example " + name + "=0.5");
    } else {
      weights[static_cast<std::size_t>(file - files.begin())] = *weight;
      sum += *weight;
    }
  }
  if (!mistake.empty()) is_wrong(mistake, "name=weight for each file, separated by blanks");
  if (sum <= 0.0 || !std::isfinite(sum)) is_wrong("the sum of the weights is not positive", "a positive weight");
  return weights;
}

void read_weights(const DataConfig& data, const std::vector<NamedFile>& files, std::vector<BlendStage>& stages,
                  BlendMistake& wrong) {
  wrong.key = "data.weights";
  const bool is_list = have_names(files), given = !trimmed(data.weights).empty();
  const bool in_path = std::ranges::any_of(files, [](const NamedFile& file) { return file.weight > 0.0; });
  if (!given && (files.size() <= 1 || in_path || !is_list)) {
    stages.push_back({0, {}, {}});
    for (const NamedFile& file : files)  // without any they are known when the files are open: weights_by_tokens()
      stages.back().weights.push_back(file.weight >= 0.0 && files.size() > 1 ? file.weight : 1.0);
    return;
  }
  if (given && in_path) {
    wrong.found = "data%path has weights already";
    wrong.expected = "weights in one of them";
    return;
  }
  if (!given || (!is_list && !are_numbers(data.weights))) {
    wrong.found = is_list            ? "data%path has several files, and there are no weights"
                  : files.size() > 1 ? "the files of data%path have no names"
                                     : "the file of data%path has no name";
    wrong.expected = is_list            ? "name=weight for each of " + listed(files)
                     : files.size() > 1 ? "a number for each of " + listed(files) + ", in this order; or no weights"
                                        : "data%path = 'name=path ...', or no weights";
    return;
  }
  stages.push_back({0, weights_in(data.weights, files, wrong), {}});
  for (std::size_t i = 0; i < files.size() && wrong.found.empty(); ++i) {
    if (stages.front().weights[i] >= 0.0) continue;
    wrong.found = "there is no weight for '" + files[i].name + "'";
    wrong.expected = "a weight for each of " + listed(files) + "; 0 for one that a later stage begins with";
  }
}

// The value as the key's type; nothing if it is not legal.
std::optional<Scalar> legal_value(const Parameter& key, const std::string& text) {
  if (key.type == ValueType::string)
    return std::ranges::find(key.legal_values, text) != key.legal_values.end() ? std::optional(Scalar(text))
                                                                               : std::nullopt;
  const std::optional<double> value = finite_number(text);
  const ValueRange& range = key.range;
  if (!value || *value < range.min || *value > range.max || (range.min_open && *value == range.min) ||
      (range.max_open && *value == range.max))
    return std::nullopt;
  if (key.type == ValueType::real) return Scalar(*value);
  return *value == std::floor(*value) ? std::optional(Scalar(static_cast<std::int64_t>(*value))) : std::nullopt;
}

const Parameter* stage_key(std::string_view name) {
  const auto& keys = stage_keys();
  const auto key = std::ranges::find(keys, name, &Parameter::name);
  return key == keys.end() ? nullptr : *key;
}

std::string listed_keys() {
  std::string text;
  for (const Parameter* key : stage_keys()) text += (text.empty() ? "" : ", ") + key->name;
  return text;
}

// Takes the keys of the deck out of a stage's words; the rest are weights.
std::vector<StageSetting> settings_in(std::string_view text, std::string& weights, BlendMistake& wrong) {
  std::vector<StageSetting> settings;
  for (const auto& [name, value] : named_words(text, "value", nullptr)) {
    const Parameter* const key = stage_key(name);
    if (key == nullptr) continue;
    const std::optional<Scalar> legal = legal_value(*key, value);
    const bool twice = std::ranges::find(settings, key, &StageSetting::key) != settings.end();
    if (wrong.found.empty() && (!legal || twice)) {
      wrong.found = twice ? "'" + name + "' is given twice" : "'" + value + "' is not a legal value of " + name;
      wrong.expected = legal_values(*key) + (key->unit.empty() ? "" : " (" + key->unit + ")");
    }
    if (legal && !twice) settings.push_back({key, *legal});
  }
  for (const std::string_view word : words_of(text)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || stage_key(word.substr(0, equals)) == nullptr) weights += std::string(word) + " ";
  }
  return settings;
}

// The weights of a stage: those of the one before if it names no file and has settings.
std::vector<double> stage_weights(const std::string& text, const BlendStage& before, bool has_settings,
                                  const std::vector<NamedFile>& files, BlendMistake& wrong) {
  if (has_settings && text.empty()) return before.weights;
  if (!have_names(files) && (files.size() <= 1 || !are_numbers(text))) {
    wrong.found = files.size() > 1 ? "the files of data%path have no names" : "the file of data%path has no name";
    wrong.expected =
        files.size() > 1
            ? "a number for each of " + listed(files) + ", in this order, or @list"
            : "data%path = 'name=path ...', or no weights in stages; keys that a stage may set are " + listed_keys();
    return before.weights;
  }
  std::vector<double> weights = weights_in(text, files, wrong);
  for (double& weight : weights) weight = std::max(weight, 0.0);
  if (wrong.found.starts_with("there is no file")) wrong.expected += ", or of the keys " + listed_keys();
  return weights;
}

// "2e9: web=0.5 code=0.5 sequence_length=8192"
void read_stage(std::string_view text, const std::vector<NamedFile>& files, std::vector<BlendStage>& stages,
                BlendMistake& wrong) {
  const std::size_t colon = text.find(':');
  const std::optional<double> from = finite_number(trimmed(text.substr(0, std::min(colon, text.size()))));
  if (colon == text.npos || !from || *from < 1.0 || *from > largest_token || *from != std::floor(*from)) {
    wrong.found = "'" + std::string(trimmed(text)) + "' does not begin with a number of tokens and ':'";
    wrong.expected = "for example '2e9: " + (have_names(files) ? files.front().name + "=1'" : "sequence_length=8192'");
    return;
  }
  const auto token = static_cast<std::int64_t>(*from);
  if (token <= stages.back().from_token) {
    wrong.found = "the stage from token " + std::to_string(token) + " on does not come after the one before it";
    wrong.expected = "more than " + std::to_string(stages.back().from_token) + " tokens";
    return;
  }
  std::string weights;
  BlendStage stage{token, {}, settings_in(text.substr(colon + 1), weights, wrong)};
  if (!wrong.found.empty()) return;
  stage.weights = stage_weights(weights, stages.back(), !stage.settings.empty(), files, wrong);
  stages.push_back(std::move(stage));
}

void read_stages(const DataConfig& data, const std::vector<NamedFile>& files, std::vector<BlendStage>& stages,
                 BlendMistake& wrong) {
  wrong.key = "data.stages";
  std::string_view rest = trimmed(data.stages);
  const auto taken =
      std::ranges::find_if(files, [](const NamedFile& f) { return f.is_named && stage_key(f.name) != nullptr; });
  if (!rest.empty() && taken != files.end()) {
    wrong.found = "the file '" + taken->name + "' of data%path has the name of a key that stages may set";
    wrong.expected = "another name than " + listed_keys();
  }
  while (!rest.empty() && wrong.found.empty()) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    read_stage(rest.substr(0, end), files, stages, wrong);
    rest = trimmed(rest.substr(std::min(end + 1, rest.size())));
  }
}

}  // namespace

const std::vector<const Parameter*>& stage_keys() {
  static const std::vector<const Parameter*> keys{
      &parameter("data", "sequence_length"), &parameter("data", "global_batch_size"),
      &parameter("data", "micro_batch_size"), &parameter("parallel", "recompute"), &parameter("model", "rope_theta")};
  return keys;
}

std::vector<BlendStage> blend_stages(const DataConfig& data, BlendMistake* mistake) {
  const std::vector<NamedFile> files = named_files(data.path);
  std::vector<BlendStage> stages;
  BlendMistake wrong;
  read_weights(data, files, stages, wrong);
  if (wrong.found.empty()) read_stages(data, files, stages, wrong);
  for (std::size_t i = 0; i < files.size() && wrong.found.empty(); ++i) {
    if (std::ranges::any_of(stages, [&](const BlendStage& s) { return s.weights[i] > 0.0; })) continue;
    wrong = {"data.weights", "'" + files[i].name + "' has weight 0 in every stage",
             "a positive weight in one of them, or data%path without it"};
  }
  if (mistake != nullptr) *mistake = wrong.found.empty() ? BlendMistake{} : wrong;
  return stages;
}

}  // namespace nanotron::deck
