#include "nanotron/deck/blend_stages.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "nanotron/deck/named_files.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

constexpr double largest_token = 1e18;

// The whole text as a number; nothing else.
std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string listed(const std::vector<NamedFile>& files) {
  std::string text;
  for (const NamedFile& file : files) text += (text.empty() ? "" : ", ") + file.name;
  return text;
}

// The weights of `files` in a list of name=weight; -1 of a file that it does not name.
std::vector<double> weights_in(std::string_view text, const std::vector<NamedFile>& files, BlendMistake& wrong) {
  std::vector<double> weights(files.size(), -1.0);
  double sum = 0.0;
  const auto is_wrong = [&](std::string found, std::string expected) {
    if (wrong.found.empty()) wrong.found = std::move(found), wrong.expected = std::move(expected);
  };
  std::string mistake;
  for (const auto& [name, value] : named_words(text, "weight", &mistake)) {
    const auto file = std::ranges::find(files, name, &NamedFile::name);
    const std::optional<double> weight = number(value);
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
  const bool is_list = !files.empty() && !files.front().name.empty();
  if (trimmed(data.weights).empty() && files.size() <= 1) {
    stages.push_back({0, std::vector<double>(files.size(), 1.0), {}});
    return;
  }
  if (!is_list || trimmed(data.weights).empty()) {
    wrong.found =
        is_list ? "data%path has several files, and there are no weights" : "the file of data%path has no name";
    wrong.expected =
        is_list ? "name=weight for each of " + listed(files) : "data%path = 'name=path ...', or no weights";
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
  const std::optional<double> value = number(text);
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
  for (std::size_t at = 0; (at = text.find_first_not_of(" \t", at)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(" \t", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::size_t equals = word.find('=');
    if (equals == word.npos || stage_key(word.substr(0, equals)) == nullptr) weights += std::string(word) + " ";
    at = end;
  }
  return settings;
}

bool have_names(const std::vector<NamedFile>& files) { return !files.empty() && !files.front().name.empty(); }

// The weights of a stage: those of the one before if it names no file and has settings.
std::vector<double> stage_weights(const std::string& text, const BlendStage& before, bool has_settings,
                                  const std::vector<NamedFile>& files, BlendMistake& wrong) {
  if (has_settings && text.empty()) return before.weights;
  if (!have_names(files)) {
    wrong.found = "the file of data%path has no name";
    wrong.expected =
        "data%path = 'name=path ...', or no weights in stages; keys that a stage may set are " + listed_keys();
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
  const std::optional<double> from = number(trimmed(text.substr(0, std::min(colon, text.size()))));
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
  const auto taken = std::ranges::find_if(files, [](const NamedFile& f) { return stage_key(f.name) != nullptr; });
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
