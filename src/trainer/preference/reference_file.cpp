#include "nanotron/trainer/preference/reference_file.hpp"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::string_view title = "# log-probabilities of chosen and rejected answers by the reference model\n";
constexpr std::string_view hash_key = "# hash = ";

std::string hash_line(std::string_view before) {
  return fmt::format("{}{:016x}\n", hash_key, data::block_hash({before.data(), before.size()}));
}

// Takes the text from its beginning.
class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  [[noreturn]] void refuse(const std::string& found) const {
    fail(ExitCode::data_error, {.what = "the file of the reference model's log-probabilities is damaged",
                                .expected = "a text that nanotron_hpc has written",
                                .found = found,
                                .where = path_,
                                .change = "take it from a copy; or remove it, and a new run computes it again"});
  }
  void skip(std::string_view words) {
    if (!rest_.starts_with(words)) refuse(fmt::format("'{}' is missing", words.substr(0, words.find('\n'))));
    rest_.remove_prefix(words.size());
  }
  std::string_view rest_of_line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) refuse("a line without an end");
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }
  template <class V, class... Base>
  V number(const Base&... base) {
    V value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base...);
    if (error != std::errc()) refuse("something else than a number");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  bool is_at(std::string_view words) const { return rest_.starts_with(words); }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
  const std::string& path_;
};

}  // namespace

std::string text_of(const ReferenceFile& file) {
  std::string text(title);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "# pairs = {}\n# data =", file.log_probabilities.size() / 2);
  for (const std::uint64_t content : file.data) fmt::format_to(out, " {:016x}", content);
  fmt::format_to(out, "\n# weights = {}\n# compute = {}\n", file.weights, file.compute);
  for (std::size_t i = 0; i + 1 < file.log_probabilities.size(); i += 2)
    fmt::format_to(out, "{} {}\n", file.log_probabilities[i], file.log_probabilities[i + 1]);
  return text + hash_line(text);
}

ReferenceFile parse_reference(const std::string& text, const std::string& path) {
  ReferenceFile file;
  Reader reader(text, path);
  const std::size_t hash = text.rfind(hash_key);
  if (hash == std::string::npos || text.substr(hash) != hash_line(std::string_view(text).substr(0, hash)))
    reader.refuse("its text does not have the hash in its last line");
  reader.skip(title);
  reader.skip("# pairs = ");
  const auto pairs = reader.number<std::uint64_t>();
  if (pairs > text.size()) reader.refuse(fmt::format("{} pairs in {} bytes", pairs, text.size()));
  reader.skip("\n# data =");
  while (reader.is_at(" ")) {
    reader.skip(" ");
    file.data.push_back(reader.number<std::uint64_t>(16));
  }
  reader.skip("\n# weights = ");
  file.weights = reader.rest_of_line();
  reader.skip("# compute = ");
  file.compute = reader.rest_of_line();
  for (std::uint64_t i = 0; i < pairs; ++i) {
    file.log_probabilities.push_back(reader.number<double>());
    reader.skip(" ");
    file.log_probabilities.push_back(reader.number<double>());
    reader.skip("\n");
  }
  if (reader.left() != text.size() - hash) reader.refuse("more lines than pairs");
  return file;
}

}  // namespace nanotron::trainer
