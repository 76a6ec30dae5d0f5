#pragma once
// Fortran namelist input: text -> typed values, each with its place. What differs from gfortran, and
// why, is listed in doc/deck_differences.md.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanotron/deck/namelist/source_text.hpp"

namespace nanotron::deck {

enum class ValueType { integer, real, logical, string };

/// A variable a group may hold. extent 0: a scalar; n > 0: an array with subscripts 1 to n.
struct Variable {
  std::string name;  // lower case
  ValueType type = ValueType::integer;
  std::int64_t extent = 0;
  std::size_t max_length = 1024;  // bytes of a string
};

struct NamelistGroup {
  std::string name;  // lower case
  std::vector<Variable> variables;
};

using Scalar = std::variant<std::int64_t, double, bool, std::string>;  // the order of ValueType

struct Value {
  Scalar scalar;
  std::size_t offset = 0;  // position of the value in the source
  std::size_t length = 0;
};

/// The elements of one variable; an empty one was not set or given as a null and keeps its default.
struct Assigned {
  std::size_t key_offset = 0;  // the name left of '=', for messages
  std::size_t key_length = 0;
  bool is_whole = false;  // once without a subscript
  std::vector<std::optional<Value>> elements;
};

struct Namelists {
  std::map<std::string, std::size_t> groups;                         // name -> offset of its '&'
  std::map<std::pair<std::string, std::string>, Assigned> assigned;  // (group, name)
  std::set<std::pair<std::string, std::string>> refused;             // keys that were meant, with an error
  std::vector<Diagnostic> diagnostics;

  bool has_errors() const;
};

/// Reads every group of the text. Never throws on any bytes; what is wrong is in `diagnostics`, all
/// of it. Time is linear in the text, memory too: a repeat count is checked before it is expanded.
Namelists read_namelists(const SourceText& source, const std::vector<NamelistGroup>& groups);

/// Reads "group.name = value" (also group%name), the whole text of `source`. Strings may go without
/// quotes here, because shells eat them: everything after '=' is then the string.
Namelists read_override(const SourceText& source, const std::vector<NamelistGroup>& groups);

/// One bare token or the inside of a quoted one as a value of a type; empty if it is not one. `problem` says what is
/// wrong beyond the form: overflow, non-finite.
std::optional<Scalar> convert_bare(std::string_view token, ValueType type, std::string& problem);

/// "an integer", "a real number", ...
std::string type_name(ValueType type);

}  // namespace nanotron::deck
