// "group.name=value", as given on the command line.
#include <algorithm>

#include "namelist_reader.hpp"
#include "nanotron/deck/namelist/suggestions.hpp"

namespace nanotron::deck {
namespace detail {

Namelists NamelistReader::read_override() {
  const std::string form = "group.name=value";
  skip_blanks();
  const std::size_t begin = at_;
  const std::string group_name = to_lower(take_name());
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const NamelistGroup& g) { return g.name == group_name; });
  if (found == groups_.end()) {
    const bool key_alone = done() || (peek() != '.' && peek() != '%');
    const Suggestion meant = key_alone ? suggest_key(group_name, "", groups_) : Suggestion{};
    const std::string near = key_alone ? "" : suggest_group(group_name, groups_);
    if (!meant.key.empty()) result_.refused.emplace(meant.group, meant.key);
    error(begin, at_ - begin, (key_alone ? "no group before '" : "unknown group '") + group_name.substr(0, 64) + "'",
          form, near.empty() ? meant.hint : "did you mean '" + near + "'?");
    return std::move(result_);
  }
  if (done() || (peek() != '.' && peek() != '%')) {
    error(at_, 1, "no key after the group's name", form);
    return std::move(result_);
  }
  ++at_;
  if (done() || !is_name_begin(peek())) {
    error(at_, 1, "no key after the group's name", form);
    return std::move(result_);
  }
  const std::size_t key = at_;
  const std::string name = to_lower(take_name());
  skip_blanks();
  const auto variable =
      std::find_if(found->variables.begin(), found->variables.end(), [&](const Variable& v) { return v.name == name; });
  const bool text_key = variable != found->variables.end() && variable->type == ValueType::string;
  if (text_key && !done() && peek() == '=') {
    std::size_t from = at_ + 1;
    while (from < text_.size() && text_[from] == ' ') ++from;
    const bool quoted = from < text_.size() && (text_[from] == '\'' || text_[from] == '"');
    if (!quoted) {
      Assigned& assigned = result_.assigned[{group_name, name}];
      assigned.key_offset = key;
      assigned.key_length = name.size();
      assigned.is_whole = true;
      const std::string value(text_.substr(from));
      assigned.elements.emplace_back(
          Value{Scalar(value), from < text_.size() ? from : key, std::max<std::size_t>(value.size(), 1)});
      return std::move(result_);
    }
  }
  if (variable != found->variables.end() && !done() && peek() == '=' &&
      text_.find_first_not_of(" \t", at_ + 1) == std::string_view::npos) {
    error(at_, 1, "no value after '='", form);
    return std::move(result_);
  }
  at_ = key;
  read_object(&*found, group_name, true);
  skip_gaps();
  if (!done() && !result_.has_errors()) {
    error(at_, text_.size() - at_, "unexpected text after the value", form, "give --set once for each key");
  }
  return std::move(result_);
}

}  // namespace detail

Namelists read_override(const SourceText& source, const std::vector<NamelistGroup>& groups) {
  return detail::NamelistReader(source, groups).read_override();
}

}  // namespace nanotron::deck
