#include "nanotron/deck/read_deck.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "deck/checks/nearest_grids.hpp"
#include "deck/list_files.hpp"
#include "deck/namelist/namelist_reader.hpp"
#include "deck/table/lines.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && detail::is_blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && detail::is_blank(line.back())) line.remove_suffix(1);
  return line;
}

/// "key:" or "- key: value", the key being a name or quoted.
bool is_yaml(std::string_view line) {
  if (line == "---" || line.starts_with("- ")) return true;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const bool ends_key = colon + 1 == line.size() || detail::is_blank(line[colon + 1]);
  return ends_key && line.substr(0, colon).find_first_of(" \t=!&$") == std::string_view::npos;
}

/// "[section]" or "[[section]]", with or without a comment after it.
bool is_section(std::string_view line) {
  if (line.size() < 3 || line[0] != '[') return false;
  const std::size_t name = line.find_first_not_of('['), close = line.find(']');
  return name != std::string_view::npos && (detail::is_name_begin(line[name]) || line[name] == '"') &&
         close != std::string_view::npos && line.find_first_of(",=") > close;
}

/// "YAML", "JSON", "TOML", "an HDF5 file", UTF-16 when the text has no namelist group and looks like one of these; else
/// empty.
std::string foreign_format(std::string_view text) {
  std::size_t lines = 0, yaml = 0, sections = 0;
  char first = '\0';
  if (text.starts_with("\x89HDF\r\n")) return "an HDF5 file";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return "UTF-16 text: save it as UTF-8";
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line[0] == '#' || line[0] == '!') continue;
    if ((line[0] == '&' || line[0] == '$') && line.size() > 1 && detail::is_name_begin(line[1])) return "";
    if (first == '\0') first = line[0];
    ++lines;
    yaml += is_yaml(line) ? 1 : 0;
    sections += is_section(line) ? 1 : 0;
  }
  if (first == '{') return "JSON";
  if (sections > 0 && 2 * yaml < lines) return "TOML";
  return yaml > 0 && 2 * yaml >= lines ? "YAML" : "";
}

/// Throws Error(deck_error), which says once what a deck is, when the text is of a foreign format.
void require_namelist(std::string_view text, const std::string& file_name) {
  const std::string format = foreign_format(text);
  if (format.empty()) return;
  fail(ExitCode::deck_error,
       {.what = "a deck is a Fortran namelist file, and this looks like " + format,
        .expected = "groups like this one:\n&model\n  hidden_size = 512, num_hidden_layers = 8   ! and so on\n/",
        .found = "no group (a line that begins with '&' and a group's name)",
        .where = file_name,
        .change = "nanotron_hpc --print-defaults > input.deck writes a deck of all keys to start from"});
}

bool in_range(const Parameter& p, const Scalar& scalar) {
  const auto* i = std::get_if<std::int64_t>(&scalar);
  const auto* x = std::get_if<double>(&scalar);
  if (i == nullptr && x == nullptr) return true;
  const double value = i != nullptr ? static_cast<double>(*i) : *x;
  const ValueRange& r = p.range;
  return (r.min_open ? value > r.min : value >= r.min) && (r.max_open ? value < r.max : value <= r.max);
}

/// PyTorch's names of the types count as ours.
std::string nearest_legal_value(const std::string& word, const std::vector<std::string>& legal_values) {
  static const std::pair<const char*, const char*> types[] = {
      {"bfloat16", "bf16"}, {"float32", "fp32"}, {"float", "fp32"}, {"float64", "fp64"}, {"double", "fp64"}};
  for (const auto& [theirs, ours] : types) {
    const bool ends_so = to_lower(word).ends_with(theirs);  // torch.bfloat16 too
    if (ends_so && std::find(legal_values.begin(), legal_values.end(), ours) != legal_values.end()) return ours;
  }
  return nearest_word(word, legal_values);
}

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return std::mismatch(path.begin(), path.end(), folder.begin(), folder.end()).second == folder.end();
}

/// What is wrong with `word`, a path or several with their names.
void check_paths(const Parameter& p, const std::string& word, Diagnostic& d) {
  namespace fs = std::filesystem;
  if (word.starts_with('~') || word.starts_with("@~") || word.find("=~") != std::string::npos) {
    const char* home = std::getenv("HOME");
    d.message = "a path that begins with '~' in " + p.name + ": only a shell replaces that";
    d.expected = "the whole path";
    if (home != nullptr) d.hint = std::string("your home is ") + home;
  }
  if (p.paths != Paths::written || word.empty()) return;
  std::error_code none_here;
  const fs::path path = fs::absolute(word, none_here).lexically_normal();
  for (const char* folder : {"/proc", "/sys", "/dev"}) {
    if (!lies_in(path, folder) || lies_in(path, "/dev/shm")) continue;
    d.message = p.name + " = " + spelled(Scalar(word)) + " is in " + folder + ", where the system keeps no files";
    d.expected = "a folder on a disk";
  }
}

/// The value's own error, or none (empty message).
Diagnostic check_value(const Parameter& p, const Value& value) {
  Diagnostic d{Severity::error, value.offset, std::max<std::size_t>(value.length, 1), {}, {}, {}};
  if (!in_range(p, value.scalar)) {
    d.message = p.name + " = " + spelled(value.scalar) + " is out of range";
    d.expected = legal_values(p);
    if (!p.unit.empty()) d.expected += " (" + p.unit + ")";
  }
  const auto* word = std::get_if<std::string>(&value.scalar);
  if (word == nullptr) return d;
  const bool known = std::find(p.legal_values.begin(), p.legal_values.end(), *word) != p.legal_values.end();
  if (!p.legal_values.empty() && !known) {
    d.message = deck::quoted(*word) + " is not a legal value of " + p.name;
    d.expected = legal_values(p);
    const std::string near = nearest_legal_value(*word, p.legal_values);
    if (!near.empty()) d.hint = "did you mean '" + near + "'?";
  }
  if (p.paths != Paths::none) check_paths(p, *word, d);
  const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; };
  if (std::any_of(word->begin(), word->end(), is_control)) {
    d.message = "a control character in " + p.name;
  }
  return d;
}

void apply_array(const Parameter& row, const Assigned& assigned, std::size_t source, Config& config, Origin& origin,
                 Findings& findings) {
  const std::string name = row.group + "." + row.name;
  const bool is_first = origin.spots.count(name) == 0;
  bool is_legal = true;
  for (const auto& value : assigned.elements) {
    if (!value) continue;
    if (is_legal) origin.spots[name] = {source, value->offset, value->length};
    Diagnostic wrong = check_value(row, *value);
    if (wrong.message.empty()) continue;
    is_legal = false;
    findings.add(source, std::move(wrong));
    findings.distrust(name);
  }
  if (!is_legal || origin.spots.count(name) == 0) return;
  detail::note_lines(assigned, name, source, origin);
  row.set(config, Scalar(detail::lines_from(assigned, is_first ? "" : std::get<std::string>(row.get(config)))));
}

/// Moves what was read from one source into the config.
void apply(const Namelists& read, std::size_t source, Config& config, Origin& origin, Findings& findings) {
  for (const Diagnostic& d : read.diagnostics) findings.add(source, d);
  for (const auto& key : read.refused) findings.distrust(key.first + "." + key.second);
  for (const auto& [key, assigned] : read.assigned) {
    const std::string name = key.first + "." + key.second;
    const Parameter& row = parameter(key.first, key.second);
    if (row.extent > 0) apply_array(row, assigned, source, config, origin, findings);
    if (row.extent > 0 || !assigned.elements[0]) continue;  // a null keeps what was there
    const Value& value = *assigned.elements[0];
    origin.spots[name] = {source, value.offset, value.length};
    Diagnostic wrong = check_value(row, value);
    if (!wrong.message.empty()) {
      findings.add(source, std::move(wrong));
      findings.distrust(name);
      continue;
    }
    row.set(config, value.scalar);
  }
}

void require_keys(const Origin& origin, Findings& findings) {
  for (const Parameter& p : parameters()) {
    const std::string key = p.group + "." + p.name;
    const bool missing = p.required && origin.spots.count(key) == 0;
    if (!missing || !findings.is_valid({key})) continue;  // not trusted: its value was refused
    findings.distrust(key);
    findings.add(0, {Severity::error,
                     0,
                     0,
                     "group '&" + p.group + "' needs the key '" + p.name + "'",
                     p.name + " = " + (p.type == ValueType::string ? "'...'" : "...") + "  (" + p.sentence + ")",
                     {}});
  }
}

constexpr std::int64_t largest_world = 1'000'000;

std::string ranks_text(std::int64_t ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

/// What to change when nothing but the grid may be wrong.
void advise_grid(const Config& config, Features features, Findings& findings) {
  const std::int64_t ranks = grid_size(config.parallel);
  if (findings.errors() == 0 || ranks < 1 || ranks > largest_world || detail::grid_is_legal(config, features)) return;
  const std::string grids = detail::nearest_grids(config, ranks, features);
  if (!grids.empty()) findings.advise("grids of " + ranks_text(ranks) + " that this deck allows: " + grids);
}

void check_degrees(const ParallelConfig& p, Findings& findings) {
  const std::pair<const char*, std::int64_t> degrees[] = {
      {"parallel.dp", p.dp}, {"parallel.tp", p.tp}, {"parallel.pp", p.pp}, {"parallel.cp", p.cp}};
  std::vector<std::string> open;
  for (const auto& [key, degree] : degrees) {
    if (degree == 0) open.emplace_back(key);
  }
  if (open.size() <= 1 || !findings.is_valid(open)) return;
  std::string names;
  for (const auto& key : open) names += (names.empty() ? "" : " and ") + key.substr(9);
  std::rotate(open.begin(), open.begin() + 1, open.end());  // dp is open by default: blame the next
  findings.error(open, names + " are 0: only one degree can be derived from the number of ranks",
                 "at most one degree of 0");
}

void check(const Config& config, Features features, Findings& findings) {
  check_degrees(config.parallel, findings);
  for (const Feature& feature : features) feature.check(config, findings);
}

void fill_grid(Config& c, std::int64_t world_size, Features features, Findings& findings) {
  const std::pair<const char*, std::int64_t*> degrees[] = {
      {"dp", &c.parallel.dp}, {"tp", &c.parallel.tp}, {"pp", &c.parallel.pp}, {"cp", &c.parallel.cp}};
  std::vector<std::int64_t*> open;
  std::string names, values;
  std::vector<std::string> keys;
  for (const auto& [name, degree] : degrees) {
    if (*degree == 0) {
      open.push_back(degree);
      continue;
    }
    names += (names.empty() ? "" : " * ") + std::string(name);
    values += (values.empty() ? "" : " * ") + std::to_string(*degree);
    if (*degree != 1) keys.push_back(std::string("parallel.") + name);
  }
  if (keys.empty()) keys.emplace_back("parallel.dp");
  if (open.size() > 1) return;  // check_degrees() says so
  if (!open.empty()) *open.front() = 1;
  const std::int64_t given = grid_size(c.parallel);
  if (!open.empty()) *open.front() = 0;
  const bool fits = open.empty() ? world_size == given : world_size % given == 0;
  if (!fits) {
    const std::string ranks = ranks_text(world_size), grids = detail::nearest_grids(c, world_size, features);
    findings.error(keys,
                   "the grid " + names + " = " + values + " = " + std::to_string(given) +
                       (open.empty() ? " is not the " : " does not divide the ") + ranks + " of this run",
                   grids.empty() ? "a grid of " + ranks : "a grid of " + ranks + ": " + grids,
                   "or start " + std::string(open.empty() ? "" : "a multiple of ") + std::to_string(given) +
                       (given == 1 ? " rank" : " ranks"));
    return;
  }
  if (!open.empty()) *open.front() = world_size / given;
}

}  // namespace

Config read_deck(const std::string& path, Features features, const std::vector<std::string>& overrides,
                 std::string* warnings) {
  return read_deck_text(read_deck_file(path), path, features, overrides, warnings);
}

namespace {

std::shared_ptr<Origin> origin_of(const std::string& text, const std::string& file_name,
                                  const std::vector<std::string>& overrides) {
  auto origin = std::make_shared<Origin>();
  origin->sources.emplace_back(file_name, text);
  for (const std::string& o : overrides) origin->sources.emplace_back("--set", o);
  return origin;
}

/// The values of the deck and of `overrides` overrides.
Config values_of(std::size_t overrides, Origin& origin, Findings& findings) {
  Config config;
  for (std::size_t i = 0; i < 1 + overrides; ++i) {
    const SourceText& source = origin.sources[i];
    apply(i == 0 ? read_namelists(source, parameter_groups()) : read_override(source, parameter_groups()), i, config,
          origin, findings);
  }
  return config;
}

}  // namespace

ListTexts read_lists(const std::string& text, const std::vector<std::string>& overrides) {
  const auto has_list = [](const std::string& source) { return source.find('@') != std::string::npos; };
  if (!has_list(text) && std::ranges::none_of(overrides, has_list)) return {};
  const std::shared_ptr<Origin> origin = origin_of(text, "", overrides);
  Findings of_the_deck(*origin);  // reported when it is read
  ListTexts texts;
  for (const std::string& path : detail::lists_in(values_of(overrides.size(), *origin, of_the_deck).data)) {
    if (!texts.contains(path)) texts[path] = read_deck_file(path, "list of token files");
  }
  return texts;
}

Config read_deck_text(const std::string& text, const std::string& file_name, Features features,
                      const std::vector<std::string>& overrides, std::string* warnings,
                      std::optional<std::int64_t> ranks, const std::optional<ListTexts>& given_lists) {
  require_namelist(text, file_name);
  const std::shared_ptr<Origin> origin = origin_of(text, file_name, overrides);
  std::map<std::string, std::size_t> lists;
  for (const auto& [path, list] : given_lists ? *given_lists : read_lists(text, overrides)) {
    lists[path] = origin->sources.size();
    origin->sources.emplace_back(path, list);
  }
  Findings findings(*origin);
  Config config = values_of(overrides.size(), *origin, findings);
  if (!lists.empty()) detail::expand_lists(lists, config.data, *origin, findings);
  require_keys(*origin, findings);
  const bool known = findings.is_valid({"parallel.dp", "parallel.tp", "parallel.pp", "parallel.cp"});
  if (ranks && known) fill_grid(config, *ranks, features, findings);
  check(config, features, findings);
  if (!ranks || grid_size(config.parallel) == *ranks) advise_grid(config, features, findings);
  findings.throw_errors();
  if (warnings != nullptr) *warnings = findings.text();
  config.origin = origin;
  return config;
}

void resolve(Config& config, std::int64_t world_size, Features features) {
  Origin unknown;
  unknown.sources.emplace_back("deck", "");
  Findings findings(config.origin ? *config.origin : unknown);
  fill_grid(config, world_size, features, findings);
  findings.throw_errors();
  check(config, features, findings);
  advise_grid(config, features, findings);
  findings.throw_errors();
  for (const Feature& feature : features) {
    if (feature.fill != nullptr) feature.fill(config);
  }
}

std::optional<Config> config_of(const std::string& text) {
  const Namelists old = read_namelists({"the checkpoint's deck", text}, parameter_groups());
  if (old.assigned.empty()) return std::nullopt;
  Config config;
  for (const Parameter& p : parameters()) {
    const auto found = old.assigned.find({p.group, p.name});
    if (found == old.assigned.end() || found->second.elements.empty()) continue;
    const Assigned& was = found->second;
    if (p.extent > 0) {
      p.set(config, Scalar(detail::lines_from(was, "")));
    } else if (was.elements[0]) {
      p.set(config, was.elements[0]->scalar);
    }
  }
  return config;
}

std::vector<Change> changes_since(const std::string& before, const Config& config) {
  const std::optional<Config> old = config_of(before);
  std::vector<Change> changes;
  if (!old) return changes;
  for (const Parameter& p : parameters()) {
    if (p.influence == Influence::none || p.part_of != PartOf::no_model) continue;
    const Scalar was = p.get(*old), is = p.get(config);
    if (was != is) changes.push_back({p.group + "%" + p.name, shortened(was), shortened(is), p.influence});
  }
  return changes;
}

}  // namespace nanotron::deck
