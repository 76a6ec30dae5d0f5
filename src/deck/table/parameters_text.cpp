// The parameter table as text: help, default deck, deck.nml.
#include <algorithm>
#include <charconv>
#include <sstream>

#include "deck/table/lines.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

std::string number(double x) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, x);
  return {buffer, result.ptr};
}

/// A bound of the table: short, and an integer where it bounds integers.
std::string bound(const Parameter& p, double x) {
  return p.type == ValueType::integer ? std::to_string(static_cast<std::int64_t>(x)) : number(x);
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string wrapped(const std::string& text, std::size_t indent, std::size_t columns) {
  std::istringstream words(text);
  std::string out(indent, ' ');
  std::size_t used = indent;
  for (std::string word; words >> word;) {
    if (used > indent && used + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      used = indent;
    }
    if (used > indent) out += ' ', ++used;
    out += word;
    used += word.size();
  }
  return out + "\n";
}

std::string default_word(const Parameter& p) { return p.required ? "required" : spelled(p.get(Config{})); }

/// As a deck spells it, each element of an array on a line.
std::string in_deck(const Parameter& p, const Config& config) {
  const Scalar value = p.get(config);
  if (p.extent == 0) return spelled(value);
  std::string text;
  for (const std::string_view line : lines_of(std::get<std::string>(value)))
    text += (text.empty() ? "" : ",\n" + std::string(24, ' ')) + spelled(Scalar(std::string(line)));
  return text.empty() ? "''" : text;
}

/// Every key, group by group, with `remark` after the value.
template <class Remark>
std::string deck_text(const Config& config, Remark remark) {
  std::string out, group;
  for (const Parameter& p : parameters()) {
    if (p.group != group) {
      out += (group.empty() ? "&" : "/\n\n&") + p.group + "\n";
      group = p.group;
    }
    const std::string line = "  " + padded(p.name, 19) + " = " + in_deck(p, config);
    const std::string comment = remark(p);
    out += comment.empty() ? line + "\n" : padded(line, 40) + "  ! " + comment + "\n";
  }
  return out + "/\n";
}

}  // namespace

std::string spelled(const Scalar& scalar) {
  if (const auto* i = std::get_if<std::int64_t>(&scalar)) return std::to_string(*i);
  if (const auto* b = std::get_if<bool>(&scalar)) return *b ? ".true." : ".false.";
  if (const auto* x = std::get_if<double>(&scalar)) {
    std::string text = number(*x);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
  std::string text = "'";
  for (char c : std::get<std::string>(scalar)) text += c == '\'' ? "''" : c == '\n' ? "', '" : std::string(1, c);
  return text + "'";
}

std::string shortened(const Scalar& scalar) {
  constexpr std::size_t shown = 3;
  const auto* text = std::get_if<std::string>(&scalar);
  const std::vector<std::string_view> lines = text != nullptr ? lines_of(*text) : std::vector<std::string_view>{};
  if (lines.size() <= shown + 1) return spelled(scalar);
  std::string first;
  for (std::size_t i = 0; i < shown; ++i) add_line(first, lines[i]);
  return spelled(Scalar(first)) + ", ... (" + std::to_string(lines.size()) + " values)";
}

std::string legal_values(const Parameter& p) {
  if (!p.legal_values.empty()) {
    std::string out;
    for (const std::string& c : p.legal_values) out += (out.empty() ? "'" : " | '") + c + "'";
    return out;
  }
  if (p.type == ValueType::logical) return ".true. | .false.";
  if (p.type == ValueType::string) return "";
  const bool low = p.range.min > -std::numeric_limits<double>::infinity();
  const bool high = p.range.max < std::numeric_limits<double>::infinity();
  if (low && high) {
    return bound(p, p.range.min) + (p.range.min_open ? " < x" : " <= x") + (p.range.max_open ? " < " : " <= ") +
           bound(p, p.range.max);
  }
  if (low) return (p.range.min_open ? "> " : ">= ") + bound(p, p.range.min);
  if (high) return (p.range.max_open ? "< " : "<= ") + bound(p, p.range.max);
  return "";
}

std::string group_help(const std::string& group) {
  std::vector<const Parameter*> rows;
  std::size_t names = 0, defaults = 0;
  for (const Parameter& p : parameters()) {
    if (p.group != group) continue;
    rows.push_back(&p);
    names = std::max(names, p.name.size());
    defaults = std::max(defaults, default_word(p).size());
  }
  std::string out = "&" + group + "\n";
  for (const Parameter* p : rows) {
    std::string line = "  " + padded(p->name, names) + "  " + padded(default_word(*p), defaults) + "  ";
    line += legal_values(*p);
    if (!p->unit.empty()) line += "  [" + p->unit + "]";
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n" + wrapped(p->sentence, 6, 80);
  }
  return out;
}

std::string parameters_help() {
  std::string out = "The deck is a Fortran namelist file. Its groups and keys, with the defaults and what is legal:\n";
  for (const NamelistGroup& group : parameter_groups()) out += "\n" + group_help(group.name);
  return out;
}

std::string default_deck() {
  const std::string head =
      "! Every key with its default. Keys marked 'required' have none: the value shown is an example.\n";
  return head + deck_text(Config{}, [](const Parameter& p) {
           const std::string legal = legal_values(p);
           std::string text = p.required ? "required" : "";
           if (!p.unit.empty()) text += (text.empty() ? "" : "; ") + p.unit;
           if (!legal.empty()) text += (text.empty() ? "" : "; ") + legal;
           return text;
         });
}

std::string canonical_deck(const Config& config) {
  return "! The deck of this run, complete. Keys that are not at their default are marked.\n" +
         deck_text(config, [&](const Parameter& p) -> std::string {
           const Scalar standard = p.get(Config{});
           if (p.required) return "set: required";
           return p.get(config) == standard ? "" : "set: default " + spelled(standard);
         });
}

std::string changed_keys(const Config& config) {
  std::string out, group;
  for (const Parameter& p : parameters()) {
    if (p.required || p.get(config) == p.get(Config{})) continue;
    if (p.group != group) {
      out += (out.empty() ? "&" : "\n&") + p.group + " ";
    } else {
      out += ", ";
    }
    group = p.group;
    out += p.name + " = " + shortened(p.get(config));
  }
  return out;
}

}  // namespace nanotron::deck
