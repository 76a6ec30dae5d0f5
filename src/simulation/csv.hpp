#pragma once

// Tables of values separated by commas, with a line of names above; '#' begins a comment line.

#include <map>
#include <string>
#include <vector>

namespace nanotron::simulation {

/// An error names file and line.
class CsvRow {
 public:
  CsvRow(std::string where, std::map<std::string, std::string> values)
      : where_(std::move(where)), values_(std::move(values)) {}

  bool has_column(const std::string& column) const { return values_.contains(column); }
  bool has(const std::string& column) const { return has_column(column) && !values_.at(column).empty(); }
  std::string text(const std::string& column) const;
  std::int64_t integer(const std::string& column) const;  // more than 0
  double real(const std::string& column) const;           // more than 0
  std::vector<std::string> words(const std::string& column) const;
  [[noreturn]] void wrong(const std::string& column, const std::string& expected) const;

 private:
  std::string where_;
  std::map<std::string, std::string> values_;
};

std::vector<CsvRow> read_csv(const std::string& name, const std::string& text);

}  // namespace nanotron::simulation
