// ranks: 1
// timeout: 300
// Our reader against gfortran's on generated decks, and deck.nml as gfortran reads it.
// NANOTRON_DECKS (1000) sets how many decks, NANOTRON_SEED (the day's number) which ones; both are
// printed. Needs gfortran, which install_dependencies.sh --tests brings.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "deck/deck_generator.hpp"
#include "support/test_folder.hpp"

namespace nanotron::test {
namespace {

namespace fs = std::filesystem;
using deck::Namelists;
using deck::Scalar;
using deck::SourceText;

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("nanotron_decks." + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    if (std::getenv("NANOTRON_KEEP") == nullptr) fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// One element as read_decks.f90 prints it.
std::string printed(const Scalar& scalar) {
  char buffer[64];
  if (const auto* i = std::get_if<std::int64_t>(&scalar)) {
    std::snprintf(buffer, sizeof buffer, "%016llX", static_cast<unsigned long long>(*i));
    return buffer;
  }
  if (const auto* x = std::get_if<double>(&scalar)) {
    std::snprintf(buffer, sizeof buffer, "%016llX", std::bit_cast<unsigned long long>(*x));
    return buffer;
  }
  if (const auto* b = std::get_if<bool>(&scalar)) return *b ? "T" : "F";
  std::string text = std::get<std::string>(scalar), out;
  text.resize(24, ' ');
  for (char c : text) {
    std::snprintf(buffer, sizeof buffer, "%02X", static_cast<unsigned char>(c));
    out += buffer;
  }
  return out;
}

Scalar untouched(deck::ValueType type) {
  switch (type) {
    case deck::ValueType::integer:
      return std::int64_t{-77};
    case deck::ValueType::real:
      return -77.0;
    case deck::ValueType::logical:
      return false;
    default:
      return std::string("?");
  }
}

/// A group's values as read_decks.f90 prints them, without the status.
std::string printed(const Namelists& read, const deck::NamelistGroup& group) {
  std::string out;
  for (const deck::Variable& v : group.variables) {
    const auto found = read.assigned.find({group.name, v.name});
    for (std::size_t e = 0; e < static_cast<std::size_t>(std::max<std::int64_t>(v.extent, 1)); ++e) {
      const bool set = found != read.assigned.end() && found->second.elements[e];
      out += printed(set ? found->second.elements[e]->scalar : untouched(v.type)) + " ";
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// The rules by which we may differ from gfortran. Each has its paragraph in doc/deck_differences.md.

/// Where we refuse what gfortran reads: known by the words of our message. A deck that was generated
/// as a legal one may be refused for overflow only, and strtod must agree with that.
struct StricterRule {
  const char* words;
  const char* rule;
};
constexpr StricterRule stricter_rules[] = {
    {"text outside a group", "text between groups"},
    {"no group name after", "text between groups"},
    {"no group is open here", "text between groups"},
    {"unknown group", "unknown groups"},
    {"is given twice", "groups given twice"},
    {"' is not closed", "groups not closed"},
    {"must be finite", "infinity and not-a-number"},
    {"is not an integer", "junk in a value"},
    {"is not a real number", "junk in a value"},
    {"is not a logical", "junk in a value"},
    {"unexpected text after the", "junk in a value"},
    {"this string is not closed", "junk in a value"},  // behind a quote that closes it lines below
    {"where a value should be", "junk in a value"},
    {"is not a quoted string", "strings without quotes"},
    {"is not a separator", "semicolons"},
    {"too many values", "values that do not fit"},
    {"no '=' after", "keys without '='"},
    {"unknown key", "names in pieces"},
    {"neither a key nor the end", "stray commas"},
    {"a blank must follow", "stray commas"},
    {"a control character in a string", "control characters"},
    {"a string of", "strings that are too long"},
    {"repeat count", "repeat counts"},
    {"this section holds no element", "subscripts"},
    {"this is not a subscript", "subscripts"},
    {"a subscript outside", "subscripts"},
    {"have no components", "components and substrings"},
    {"is not an array", "components and substrings"},
};

std::string stricter_rule(const std::string& text, const Namelists& read, bool legal) {
  std::string first;
  for (const auto& d : read.diagnostics) {
    if (d.severity == deck::Severity::warning) continue;
    if (d.message.rfind("real overflow", 0) == 0) {
      std::string number = text.substr(d.offset, d.length);
      const std::size_t sign = number.find_last_of("+-");
      for (char& c : number) c = std::string("dDqQ").find(c) != std::string::npos ? 'e' : c;
      const bool bare = sign != std::string::npos && sign > 0 && number.find_first_of("eE") == std::string::npos;
      if (bare) number.insert(sign, "e");
      if (std::isinf(std::strtod(number.c_str(), nullptr))) return "real overflow";
      return "? no overflow: " + number;
    }
    for (const StricterRule& r : stricter_rules) {
      if (!legal && d.message.find(r.words) != std::string::npos) return r.rule;
    }
    if (first.empty()) first = d.message;
  }
  return "? " + first;
}

/// Constructs that gfortran reads wrongly or not at all. Each can be written in another way that
/// means the same; a difference counts as explained only if that rewriting makes it go away.
constexpr const char* rewritings[] = {"comments among values",         "line ends beside ','",
                                      "blanks around a subscript",     "word logicals before '/'",
                                      "no end of the last line",       "strides without an upper bound",
                                      "groups and comments in strings"};
constexpr int rewriting_count = static_cast<int>(std::size(rewritings));
constexpr int value_changing = 1 << 6;  ///< a rewriting that changes what a string says
constexpr int all_rewritings = (1 << rewriting_count) - 1;

// What gfortran, looking for a group, takes for one or for a comment, wherever it stands.
bool misleads(char c) { return c == '&' || c == '$' || c == '!'; }

/// The extent of the array whose '(' ends `text`, as read_decks.f90 declares it.
std::string extent_before(const std::string& text) {
  const std::size_t open = text.find_last_of('(');
  const std::size_t last = open == 0 ? std::string::npos : text.find_last_not_of(" \t\r\n", open - 1);
  if (last == std::string::npos || last == 0) return "";
  const char kind = static_cast<char>(std::tolower(text[last - 1]));
  return kind == 'i' ? "4" : (kind == 'r' ? "5" : "3");
}

std::string rewritten(const std::string& text, int which) {
  const auto has = [&](int i) { return (which >> i & 1) != 0; };
  std::string out;
  int depth = 0;
  std::size_t comment_end = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::size_t last = out.find_last_not_of(" \t\r\n");
    const char before = last == std::string::npos ? ' ' : out[last];
    if (c == '\'' || c == '"') {
      const std::size_t end = std::min(text.find(c, i + 1), text.size() - 1);
      std::string quoted = text.substr(i, end - i + 1);
      if (has(6)) std::replace_if(quoted.begin(), quoted.end(), misleads, '+');
      out += quoted;
      i = end;
    } else if (c == '!') {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      if (!has(0)) comment_end = (out += text.substr(i, end - i)).size();
      i = end - 1;
    } else if (has(1) && (c == '\n' || c == '\r') && (before == '=' || before == ',')) {
      continue;
    } else if (has(1) && c == ',') {
      if (comment_end != last + 1) out.resize(last + 1);
      out += c;
    } else {
      depth += c == '(' ? 1 : (c == ')' ? -1 : 0);
      if (has(2) && depth > 0 && (c == ' ' || c == '\t')) continue;
      if (has(2) && c == '(') out.resize(last + 1);
      if (has(3) && c == '/') out += '\n';
      if (has(5) && depth > 0 && c == ':' && before == ':') out += extent_before(out);
      out += c;
    }
  }
  return has(4) && (out.empty() || out.back() != '\n') ? out + "\n" : out;
}

struct Verdict {
  bool accepted = true;
  bool crashed = false;
  std::string values[2];
};

Verdict ours(const std::string& text, Namelists& read) {
  const std::vector<deck::NamelistGroup> groups = judged_groups();
  read = deck::read_namelists(SourceText("deck", text), groups);
  return {!read.has_errors(), false, {printed(read, groups[0]), printed(read, groups[1])}};
}

bool alike(const Verdict& a, const Verdict& b) {
  return a.accepted == b.accepted && (!a.accepted || (a.values[0] == b.values[0] && a.values[1] == b.values[1]));
}

class Judge {
 public:
  Judge() {
    built_ =
        run("gfortran -O1 -o " + (folder_ / "judge") + " " + (test::test_folder() / "deck/read_decks.f90").string());
  }
  bool built() const { return built_; }

  /// gfortran's verdicts. A status of -1 (end of file) is fine for a group that is not there at all.
  std::vector<Verdict> read(const std::vector<std::string>& texts) const {
    for (std::size_t k = 0; k < texts.size(); ++k) {
      write(folder_ / (std::to_string(k + 1) + ".nml"), texts[k]);
    }
    std::vector<Verdict> verdicts;
    while (verdicts.size() < texts.size()) {
      run("timeout 100 " + (folder_ / "judge") + " " + (folder_ / "") + " " + std::to_string(verdicts.size() + 1) +
          " " + std::to_string(texts.size()) + " > " + (folder_ / "values") + " 2> /dev/null");
      std::ifstream list(folder_ / "values");
      for (std::string a, b; std::getline(list, a) && std::getline(list, b) && !list.eof();) {
        verdicts.push_back(verdict(a, b, texts[verdicts.size()]));
      }
      if (verdicts.size() < texts.size()) verdicts.push_back({false, true, {}});
    }
    return verdicts;
  }

 private:
  static Verdict verdict(const std::string& a, const std::string& b, const std::string& text) {
    Namelists read;
    ours(text, read);
    Verdict out;
    const std::string* lines[] = {&a, &b};
    for (int g = 0; g < 2; ++g) {
      const int status = std::atoi(lines[g]->c_str());
      const bool absent = status == -1 && read.groups.count(judged_groups()[g].name) == 0;
      out.accepted = out.accepted && (status == 0 || absent);
      std::string& values = out.values[g] = lines[g]->substr(lines[g]->find(' ') + 1);
      while (!values.empty() && values.back() == ' ') values.pop_back();
    }
    return out;
  }

  Folder folder_;
  bool built_ = false;
};

/// For each of these decks, which we read and gfortran does not read alike: the rewriting that
/// makes them agree, on the values that we had before; or "?".
std::vector<std::string> explanations(const Judge& judge, const std::vector<std::string>& texts) {
  std::vector<std::string> versions;
  for (const std::string& text : texts) {
    for (int r = 0; r < rewriting_count; ++r) versions.push_back(rewritten(text, 1 << r));
    versions.push_back(rewritten(text, all_rewritings));
  }
  const std::vector<Verdict> theirs = judge.read(versions);
  std::vector<std::string> out;
  Namelists read;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    std::string why = "?";
    for (std::size_t r = rewriting_count + 1; r-- > 0;) {
      const std::size_t version = (rewriting_count + 1) * k + r;
      const int which = r == rewriting_count ? all_rewritings : 1 << r;
      const Verdict wanted = ours(rewritten(texts[k], which & value_changing), read);
      if (!alike(wanted, ours(versions[version], read)) || !alike(wanted, theirs[version])) continue;
      why = r == rewriting_count ? "several of these" : rewritings[r];
    }
    out.push_back(why);
  }
  return out;
}

std::uint64_t seed_of_today() {
  using std::chrono::days;
  return static_cast<std::uint64_t>(std::chrono::floor<days>(std::chrono::system_clock::now()).time_since_epoch() /
                                    days(1));
}

// Reads the decks on both sides; what differs without a rule that we know of is a failure.
void expect_alike(const std::vector<DeckGenerator::Deck>& decks) {
  const Judge judge;
  ASSERT_TRUE(judge.built()) << "is gfortran there? install_dependencies.sh --tests brings it";
  std::vector<std::string> texts, differing;
  for (const DeckGenerator::Deck& deck : decks) texts.push_back(deck.text);
  const std::vector<Verdict> theirs = judge.read(texts);
  std::vector<std::string> kinds;
  Namelists read;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    const Verdict mine = ours(texts[k], read);
    const bool agree = alike(mine, theirs[k]);
    const bool stricter = !mine.accepted && theirs[k].accepted;
    kinds.push_back(theirs[k].crashed ? "gfortran crashed"
                    : agree           ? (mine.accepted ? "same values" : "refused by both")
                    : stricter        ? "we refuse: " + stricter_rule(texts[k], read, decks[k].legal)
                                      : "explain");
    if (kinds.back() == "explain") differing.push_back(texts[k]);
  }
  const std::vector<std::string> why = explanations(judge, differing);
  std::map<std::string, int> tally;
  std::size_t wrong = 0, next = 0;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    if (kinds[k] == "explain") {
      kinds[k] = (theirs[k].accepted ? "gfortran gets other values: " : "gfortran refuses: ") + why[next++];
    }
    ++tally[kinds[k]];
    if (kinds[k].find('?') == std::string::npos || ++wrong > 10) continue;
    ours(texts[k], read);
    ADD_FAILURE() << kinds[k] << ", deck " << k << (decks[k].legal ? " (legal)" : "") << "\n"
                  << texts[k] << "\n"
                  << deck::format_all(SourceText("deck", texts[k]), read.diagnostics);
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_LE(20 * tally["gfortran crashed"], static_cast<int>(texts.size()))
      << "so often only where its program does not run";
  for (const auto& [kind, n] : tally) std::printf("%7d  %s\n", n, kind.c_str());
}

TEST(Gfortran, ReadsGeneratedDecksAlike) {
  const char* decks = std::getenv("NANOTRON_DECKS");
  const char* chosen = std::getenv("NANOTRON_SEED");
  const std::uint64_t count = decks != nullptr ? std::strtoull(decks, nullptr, 10) : 1000;
  const std::uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : seed_of_today();
  std::printf("NANOTRON_SEED=%llu NANOTRON_DECKS=%llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(count));
  std::vector<DeckGenerator::Deck> generated;
  for (std::uint64_t k = 0; k < count; ++k) generated.push_back(DeckGenerator(seed, k).deck());
  expect_alike(generated);
}

// Of long searches: a group that is named in a string, and not closed where it is meant; a '!' in a
// string of the line on which the next group begins.
TEST(Gfortran, ReadsRareDecksAlike) {
  std::vector<DeckGenerator::Deck> rare;
  for (const auto& [seed, k] : {std::pair{1795262450, 7735}, std::pair{1795259723, 5071}}) {
    rare.push_back(DeckGenerator(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(k)).deck());
  }
  expect_alike(rare);
}

}  // namespace
}  // namespace nanotron::test
