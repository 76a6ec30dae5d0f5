#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "nanotron/base/error.hpp"

namespace nanotron::apps::bench {
namespace {

std::string text_of(const Cell& cell, int digits) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&cell)) return fmt::format("{:.{}f}", *real, digits);
  return "";
}

nlohmann::json json_of(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return *integer;
  if (const auto* real = std::get_if<double>(&cell)) return *real;
  return nullptr;
}

bool is_text(const Table& table, std::size_t column) {
  return std::ranges::any_of(table.rows,
                             [&](const auto& row) { return std::holds_alternative<std::string>(row[column]); });
}

std::size_t width_of(const Table& table, std::size_t column) {
  std::size_t width = table.columns[column].heading.size();
  for (const auto& row : table.rows) {
    width = std::max(width, text_of(row[column], table.columns[column].digits).size());
  }
  return width;
}

// Text is aligned to the left, numbers to the right.
std::string laid_out(const Table& table) {
  std::vector<std::string> lines(table.rows.size() + 1);
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const std::size_t width = width_of(table, c);
    const bool left = is_text(table, c);
    const auto append = [&](std::string& line, const std::string& text) {
      line += c == 0 ? "  " : "   ";
      line += left ? fmt::format("{:<{}}", text, width) : fmt::format("{:>{}}", text, width);
    };
    append(lines[0], table.columns[c].heading);
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      append(lines[r + 1], text_of(table.rows[r][c], table.columns[c].digits));
    }
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace

void Report::line(const std::string& text) const {
  if (!is_writer_) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Report::add(const Table& table) {
  if (!is_writer_) return;
  fmt::print("\n{}\n{}", table.title, laid_out(table));
  if (!table.note.empty()) fmt::print("  {}\n", table.note);
  std::fflush(stdout);
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : table.rows) {
    nlohmann::json object;
    for (std::size_t c = 0; c < row.size(); ++c) object[table.columns[c].key] = json_of(row[c]);
    rows.push_back(std::move(object));
  }
  values_[table.key] = std::move(rows);
}

void Report::write(const std::string& path) const {
  if (!is_writer_ || path.empty()) return;
  std::ofstream file(path);
  file << values_.dump(2) << '\n';
  if (!file.flush()) {
    fail(ExitCode::system_error, {.what = "the measurements cannot be written", .where = path});
  }
}

}  // namespace nanotron::apps::bench
