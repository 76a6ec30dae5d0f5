#include "simulation/csv.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "nanotron/base/error.hpp"

namespace nanotron::simulation {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == '\r') continue;
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

}  // namespace

void CsvRow::wrong(const std::string& column, const std::string& expected) const {
  fail(ExitCode::deck_error, {.what = "the column " + column + " has no legal value",
                              .expected = expected,
                              .found = has_column(column) ? "'" + values_.at(column) + "'" : "no such column",
                              .where = where_,
                              .change = "correct the table"});
}

std::string CsvRow::text(const std::string& column) const {
  if (!has(column)) wrong(column, "a text");
  return values_.at(column);
}

double CsvRow::real(const std::string& column) const {
  const std::string word = text(column);
  double value = 0.0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value > 0.0)) wrong(column, "a number above 0");
  return value;
}

std::int64_t CsvRow::integer(const std::string& column) const {
  const double value = real(column);
  if (value != static_cast<double>(static_cast<std::int64_t>(value))) wrong(column, "an integer above 0");
  return static_cast<std::int64_t>(value);
}

std::vector<std::string> CsvRow::words(const std::string& column) const {
  std::vector<std::string> all;
  std::istringstream stream(has(column) ? values_.at(column) : "");
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

std::vector<CsvRow> read_csv(const std::string& name, const std::string& text) {
  std::vector<CsvRow> rows;
  std::vector<std::string> names;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#' || line == "\r") continue;
    const std::vector<std::string> cells = cells_of(line);
    if (names.empty()) {
      names = cells;
      continue;
    }
    const std::string where = fmt::format("{}:{}", name, number);
    if (cells.size() != names.size()) {
      fail(ExitCode::deck_error, {.what = "a row of the table does not have as many values as its header",
                                  .expected = fmt::format("{} values", names.size()),
                                  .found = fmt::format("{}", cells.size()),
                                  .where = where,
                                  .change = "correct the table"});
    }
    std::map<std::string, std::string> values;
    for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] = cells[i];
    rows.emplace_back(where, std::move(values));
  }
  return rows;
}

}  // namespace nanotron::simulation
