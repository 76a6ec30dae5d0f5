#pragma once

// The log of a run: the same lines to the console and to run.log, from one rank.

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

namespace nanotron {

/// info, summary and warn print on the writing rank only; error prints on any rank, to stderr, with the rank as prefix.
/// Every line is flushed. A file that cannot be written (a full disk) is reported once on stderr and tried again with
/// the next line. Not thread-safe.
class Log {
 public:
  explicit Log(bool speaks, int rank = 0) : speaks_(speaks), rank_(rank) {}

  /// Appends further lines to this file as well. Only the writing rank opens it. Throws Error(system_error) when it
  /// cannot be opened.
  void open(const std::filesystem::path& file);

  /// With quiet, info goes to the file only; summary, warnings and errors still go to the console.
  void set_quiet(bool quiet) { quiet_ = quiet; }
  bool is_writer() const { return speaks_; }

  template <class... A>
  void info(fmt::format_string<A...> text, A&&... values) {
    if (speaks_) write(Level::info, fmt::format(text, std::forward<A>(values)...));
  }
  template <class... A>
  void summary(fmt::format_string<A...> text, A&&... values) {
    if (speaks_) write(Level::summary, fmt::format(text, std::forward<A>(values)...));
  }
  template <class... A>
  void warn(fmt::format_string<A...> text, A&&... values) {
    if (speaks_) write(Level::warning, fmt::format(text, std::forward<A>(values)...));
  }
  template <class... A>
  void error(fmt::format_string<A...> text, A&&... values) {
    write(Level::error, fmt::format(text, std::forward<A>(values)...));
  }

 private:
  enum class Level { info, summary, warning, error };
  void write(Level level, std::string_view text);
  void write_to_file(std::string_view line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  bool speaks_;
  int rank_;
  bool quiet_ = false;
  std::unique_ptr<std::FILE, Close> file_;  // null until open()
  std::filesystem::path path_;
  bool told_of_failure_ = false;
};

}  // namespace nanotron
