#pragma once
// Private to the deck layer: the state of one pass over a deck. See namelist.hpp for the contract.

#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck::detail {

bool is_blank(char c);
bool is_name_begin(char c);
bool is_name(char c);
bool ends_token(char c);

/// The elements a value list goes to: first, first + stride, ...; count of them.
struct Target {
  std::int64_t first = 0;  // from 0
  std::int64_t stride = 1;
  std::int64_t count = 1;
};

class NamelistReader {
 public:
  NamelistReader(const SourceText& source, const std::vector<NamelistGroup>& groups)
      : source_(source), text_(source.text()), groups_(groups) {}

  Namelists read_all();
  Namelists read_override();

 private:
  struct Object {  // what a value list is read into; variable is null after an error in the name
    const Variable* variable = nullptr;
    std::string group;
    Target target;
    std::int64_t filled = 0;
    std::size_t name_offset = 0;
    std::size_t name_length = 0;
    bool refused = false;  // one message about its values is enough
    bool has_subscript = false;
    Assigned values;
  };

  // namelist.cpp: groups and objects
  void read_group();
  void read_body(const NamelistGroup* group, const std::string& name, std::size_t begin, bool first);
  void read_object(const NamelistGroup* group, const std::string& group_name, bool store);
  const Variable* find_variable(const NamelistGroup* group, std::string_view word, std::size_t offset);
  bool read_subscript(Object& object);
  bool section_to_target(Object& object, std::size_t open, const std::vector<std::optional<std::int64_t>>& parts,
                         bool section);
  void skip_stray_text();
  void skip_statement();
  void store(Object& object);
  bool at_group_end(std::size_t& length) const;

  // namelist_list.cpp: value lists
  void read_values(Object& object);
  bool at_unquoted_path(const Object& object) const;
  void read_value(Object& object);
  std::optional<std::int64_t> read_repeat(Object& object);
  bool take_quoted(std::string& value);
  bool read_quoted(Object& object, std::int64_t repeat);
  void read_bare(Object& object, std::int64_t repeat);
  void put(Object& object, std::int64_t repeat, const std::optional<Value>& value, std::size_t offset,
           std::size_t length);
  void refuse(Object& object);
  void refuse_value(Object& object, std::size_t offset, std::size_t length, std::string message,
                    std::string expected = {}, std::string hint = {});
  bool unclosed_quote(std::size_t quote, std::size_t end, const std::string& why);

  // both
  bool done() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }
  void skip_blanks();         // blanks and tabs
  void skip_gaps();           // blanks, ends of line, comments
  bool name_follows() const;  // a key, told from a value by the '=', '(' or '%' after it
  std::string_view take_name();
  void error(std::size_t offset, std::size_t length, std::string message, std::string expected = {},
             std::string hint = {});

  const SourceText& source_;
  std::string_view text_;
  const std::vector<NamelistGroup>& groups_;
  std::size_t at_ = 0;
  std::string last_close_;   // where the last group was closed, for the message on stray text
  std::string long_string_;  // where the last string over several lines began, likewise
  Namelists result_;
};

}  // namespace nanotron::deck::detail
