#pragma once

// The measurements: printed as aligned tables and kept as JSON.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace nanotron::apps::bench {

using Cell = std::variant<std::monostate, std::string, double, std::int64_t>;

struct Column {
  std::string heading;  // as printed
  std::string key;      // in JSON
  int digits = 1;       // after the decimal point
};

struct Table {
  std::string key;
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  std::string note{};  // printed below
};

// Prints and writes only on the writing rank.
class Report {
 public:
  explicit Report(bool is_writer) : is_writer_(is_writer) {}

  void line(const std::string& text) const;
  void add(const Table& table);
  void set(const std::string& key, nlohmann::json value) { values_[key] = std::move(value); }
  // Error(system_error) when it cannot be written.
  void write(const std::string& path) const;

 private:
  bool is_writer_;
  nlohmann::json values_ = nlohmann::json::object();
};

}  // namespace nanotron::apps::bench
