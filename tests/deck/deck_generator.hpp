#pragma once
// Random decks for the two groups of read_decks.f90: legal ones in every spelling the reader knows,
// and the same with a few mistakes. A deck is a pure function of (seed, number).

#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::test {

inline std::vector<deck::NamelistGroup> judged_groups() {
  using deck::ValueType;
  const auto text = [](std::string name, std::int64_t n) {
    return deck::Variable{std::move(name), ValueType::string, n, 24};
  };
  return {{"alpha",
           {{"i", ValueType::integer},
            {"ia", ValueType::integer, 4},
            {"r", ValueType::real},
            {"ra", ValueType::real, 5},
            {"l", ValueType::logical},
            {"la", ValueType::logical, 3},
            text("s", 0),
            text("sa", 3)}},
          {"beta",
           {{"tally", ValueType::integer},
            {"fine", ValueType::real},
            {"inf_rate", ValueType::real},
            {"test", ValueType::logical},
            text("title", 0)}}};
}

class DeckGenerator {
 public:
  DeckGenerator(std::uint64_t seed, std::uint64_t number)
      : state_(seed * 0x9E3779B97F4A7C15ULL + number * 0xD1B54A32D192ED03ULL + 1) {}

  struct Deck {
    std::string text;
    bool legal = true;  // as far as the generator meant it: numbers may still overflow
  };

  /// Two of three decks are meant to be legal.
  Deck deck() {
    crlf_ = one_in(8);
    std::string out = one_in(12) ? "\xEF\xBB\xBF" : "";
    const std::vector<deck::NamelistGroup> groups = judged_groups();
    const bool both = !one_in(4);
    const std::size_t first = below(2);
    out += group(groups[first]);
    if (both) out += group(groups[1 - first]);
    if (one_in(30)) out.pop_back();
    const bool legal = !one_in(3);
    for (std::size_t n = legal ? 0 : 1 + below(3); n > 0; --n) out = spoiled(out);
    return {out, legal};
  }

  /// One change of the kind that fingers and editors make.
  std::string spoiled(std::string text) {
    static const char* const pieces[] = {"'",
                                         "\"",
                                         "/",
                                         "&",
                                         "$",
                                         "=",
                                         ",",
                                         ",,",
                                         "(",
                                         ")",
                                         "!",
                                         "*",
                                         ";",
                                         " ",
                                         "\n",
                                         "\t",
                                         "\r",
                                         ".",
                                         "-",
                                         "+",
                                         "0",
                                         "9",
                                         "e",
                                         "t",
                                         "F",
                                         "x",
                                         "%",
                                         ":",
                                         "&end",
                                         "$end",
                                         "3*",
                                         "0*",
                                         "nan",
                                         "-inf",
                                         "Infinity",
                                         "1e999",
                                         "99999999999999999999",
                                         "1.5",
                                         "abc",
                                         "'q'",
                                         "a b",
                                         "(2)",
                                         "(9)",
                                         "(0:1)",
                                         "(2:1)",
                                         "i = 1",
                                         "ia = 1 2 3 4 5",
                                         "zeta = 1",
                                         "\x01",
                                         "\xC3\xA9",
                                         "&alpha",
                                         "&gamma x = 1 /",
                                         "i",
                                         "100000000000*1",
                                         ".5.",
                                         "1d",
                                         "T"};
    const std::size_t at = below(text.size() + 1);
    const std::string piece = pieces[below(std::size(pieces))];
    switch (below(5)) {
      case 0:
        return text.insert(at, piece);
      case 1:
        return text.replace(at, 1, piece);
      case 2:
        return text.erase(at, 1 + below(3));
      case 3:
        return text.erase(at, one_in(4) ? text.size() : 1);
      default:
        return text.insert(at, text.substr(below(text.size() + 1), 1 + below(20)));
    }
  }

  std::uint64_t next() {  // splitmix64 (Steele et al. 2014)
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : next() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::string line_end() { return crlf_ ? "\r\n" : "\n"; }

  std::string any_case(std::string word) {
    const std::size_t style = below(6);
    for (char& c : word) {
      const bool upper = style == 0 || (style == 1 && one_in(2));
      if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    }
    return word;
  }

  /// Room that means nothing: blanks, tabs, ends of line, comments.
  std::string gap(bool needed) {
    std::string out = needed ? " " : "";
    if (one_in(3)) out += std::string(below(3), ' ');
    if (one_in(12)) out += "\t";
    // gfortran goes wrong on comments behind '=' and ',' (not needed): a few of them are enough
    if (one_in(6)) out += (one_in(needed ? 2 : 10) ? " ! a 'comment' / & = 1" : "") + line_end();
    if (one_in(needed ? 30 : 200)) out += line_end() + "  ! more" + line_end();
    return out;
  }

  std::string group(const deck::NamelistGroup& g) {
    std::string out = one_in(4) ? "! before" + line_end() : "";
    out += std::string(below(2), ' ') + (one_in(4) ? "$" : "&") + any_case(g.name);
    out += one_in(2) ? line_end() : " ";
    for (std::size_t n = below(6); n > 0; --n) out += object(g.variables[below(g.variables.size())]);
    if (one_in(4)) out += line_end();
    static const char* const ends[] = {"/", "/", "/", "&end", "$end", "&END"};
    return out + " " + ends[below(std::size(ends))] + line_end();
  }

  std::string object(const deck::Variable& v) {
    std::string out = any_case(v.name);
    std::size_t most = v.extent == 0 ? 1 : static_cast<std::size_t>(v.extent);
    if (v.extent > 0 && one_in(2)) out += section(v, most);
    out += std::string(below(3), ' ') + "=" + gap(false);
    out += values(v, most == 0 ? 0 : (one_in(3) ? below(most) + 1 : most));
    out += one_in(3) ? "," + gap(false) : gap(true);
    return one_in(3) ? out + line_end() : out;
  }

  std::string section(const deck::Variable& v, std::size_t& most) {
    const std::size_t extent = most;
    const std::size_t a = below(extent) + 1, b = below(extent) + 1;
    const std::string pad = one_in(6) ? " " : "";
    const auto number = [](std::size_t n) { return std::to_string(n); };
    most = 1;
    switch (below(5)) {
      case 0:
        return "(" + pad + number(a) + ")";
      case 1:
        most = extent;
        return "(:)";
      case 2:
        most = extent - a + 1;
        return "(" + number(a) + ":)";
      case 3:
        most = a;
        return "(:" + pad + number(a) + ")";
      default:
        break;
    }
    const std::size_t low = std::min(a, b), high = std::max(a, b);
    if (one_in(3)) {
      const std::size_t stride = below(3) + 1;
      most = (high - low) / stride + 1;
      if (one_in(3) && high > low) return "(" + number(high) + ":" + number(low) + ":-" + number(stride) + ")";
      return "(" + number(low) + ":" + number(high) + ":" + number(stride) + ")";
    }
    most = high - low + 1;
    (void)v;
    return "(" + number(low) + ":" + pad + number(high) + pad + ")";
  }

  std::string separator() {
    switch (below(5)) {
      case 0:
        return " ";
      case 1:
        return "," + gap(false);
      case 2:
        return " ," + gap(false);
      case 3:
        return gap(true);
      default:
        return ", ";
    }
  }

  std::string values(const deck::Variable& v, std::size_t count) {
    std::string out;
    while (count > 0) {
      std::size_t n = 1;
      std::string item;
      if (one_in(5)) {
        n = below(count) + 1;
        item = std::to_string(n) + "*" + (one_in(4) ? "" : value(v.type));
      } else {
        item = one_in(10) ? "" : value(v.type);  // "" is a null
      }
      count -= n;
      if (item.empty()) {
        out += count > 0 ? "," + gap(false) : "";
      } else {
        out += item + (count > 0 ? separator() : "");
      }
    }
    return out;
  }

  std::string digits(std::size_t most) {
    std::string out;
    for (std::size_t n = below(most) + 1; n > 0; --n) out += static_cast<char>('0' + below(10));
    return out;
  }
  std::string sign() { return one_in(3) ? (one_in(2) ? "-" : "+") : ""; }

  std::string value(deck::ValueType type) {
    switch (type) {
      case deck::ValueType::integer:
        return integer();
      case deck::ValueType::real:
        return real();
      case deck::ValueType::logical:
        return logical();
      default:
        return string();
    }
  }

  std::string integer() {
    static const char* const special[] = {"9223372036854775807", "-9223372036854775808", "-0", "00012",
                                          "9223372036854775808", "-9223372036854775809"};
    if (one_in(25)) return special[below(std::size(special))];
    return sign() + digits(one_in(5) ? 18 : 4);
  }

  std::string real() {
    static const char* const special[] = {"1.7976931348623157d308",
                                          "4.9406564584124654e-324",
                                          "-0.0",
                                          "2.2250738585072011e-308",
                                          "1e-400",
                                          "1.7976931348623159e308",
                                          "-1d309",
                                          "9007199254740993",
                                          "0e999999999999",
                                          "1.5-3",
                                          "2+2",
                                          "1.00000000000000011102230246251565404"};
    if (one_in(12)) return special[below(std::size(special))];
    std::string out = sign();
    switch (below(4)) {
      case 0:
        out += digits(6);
        break;
      case 1:
        out += digits(4) + ".";
        break;
      case 2:
        out += "." + digits(18);
        break;
      default:
        out += digits(6) + "." + digits(20);
        break;
    }
    static const char* const letters[] = {"e", "E", "d", "D", "q", ""};
    if (one_in(2)) {
      const std::string letter = letters[below(std::size(letters))];
      const std::string plus = letter.empty() ? (one_in(2) ? "-" : "+") : sign();
      out += letter + plus + std::to_string(below(one_in(4) ? 320 : 12));
    }
    return out;
  }

  std::string logical() {
    static const char* const all[] = {"T",    "F",     "t",  "f",  ".t.",      ".F.",     ".true.", ".FALSE.", ".True.",
                                      "true", "False", ".T", ".f", ".TRUEISH", "TRUEISH", "Fun",    ".t_1"};
    return all[below(std::size(all))];
  }

  std::string string() {
    static const char* const parts[] = {"a",    "B",  " ",        "=", "/", ",",   "!", "&",  "$",  "0",
                                        "x.h5", "''", "\xC3\xA9", ";", "*", "i=1", "(", "\t", "end"};
    const bool single = one_in(2);
    const std::string quote = single ? "'" : "\"";
    std::string out;
    for (std::size_t n = below(6); n > 0; --n) {
      std::string part = parts[below(std::size(parts))];
      if (part == "''" && one_in(2))
        part = single ? "\"" : "'";  // the other quote needs no doubling
      else if (part == "''")
        part = quote + quote;
      out += part;
    }
    if (one_in(20)) out += line_end() + "next";
    return quote + out + quote;
  }

  std::uint64_t state_;
  bool crlf_ = false;
};

}  // namespace nanotron::test
