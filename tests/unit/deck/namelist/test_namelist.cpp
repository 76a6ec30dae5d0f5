// ranks: 1
// The namelist reader: every spelling, every refusal, and any bytes at all.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deck/deck_generator.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {
namespace {

class Read {
 public:
  explicit Read(const std::string& text)
      : source_("t.deck", text), read_(read_namelists(source_, test::judged_groups())) {}

  template <class T>
  std::optional<T> get(const std::string& name, std::size_t element = 0, const std::string& group = "alpha") const {
    const auto found = read_.assigned.find({group, name});
    if (found == read_.assigned.end() || !found->second.elements.at(element)) return {};
    return std::get<T>(found->second.elements[element]->scalar);
  }
  std::string ints(const std::string& name) const { return list<std::int64_t>(name); }
  std::string reals(const std::string& name) const { return list<double>(name); }
  std::string errors() const { return format_all(source_, read_.diagnostics); }
  std::size_t count() const { return read_.diagnostics.size(); }
  bool good() const { return read_.diagnostics.empty(); }
  const Namelists& raw() const { return read_; }

 private:
  template <class T>
  std::string list(const std::string& name) const {
    std::string out;
    const auto found = read_.assigned.find({"alpha", name});
    if (found == read_.assigned.end()) return "none";
    for (const auto& e : found->second.elements) {
      std::string word = e ? std::to_string(std::get<T>(e->scalar)) : "-";
      if (word.find('.') != std::string::npos) word.erase(word.find_last_not_of('0') + 1);
      out += (out.empty() ? "" : " ") + word;
    }
    return out;
  }
  SourceText source_;
  Namelists read_;
};

std::string alpha(const std::string& body) { return "&alpha " + body + " /\n"; }

void expect_refused(const std::string& text, const std::string& words) {
  const Read r(text);
  EXPECT_TRUE(r.raw().has_errors()) << text;
  EXPECT_NE(r.errors().find(words), std::string::npos) << text << "\n" << r.errors();
}

TEST(Namelist, GroupsInBothForms) {
  for (const std::string text :
       {"&alpha i=3 /", "$alpha i=3 $end", "&ALPHA I = 3 &END", " $Alpha\ni\n=\n3\n$END\n", "&alpha i=3/",
        "! c\n\n&alpha ! c\n i = 3 ! = 4 /\n/ ! done", "\xEF\xBB\xBF&alpha\r\n\ti = 3\r\n/\r\n"}) {
    const Read r(text);
    EXPECT_TRUE(r.good()) << text << r.errors();
    EXPECT_EQ(r.get<std::int64_t>("i"), 3) << text;
  }
  const Read two("&beta tally=1/ &alpha i=2/");
  EXPECT_EQ(two.get<std::int64_t>("tally", 0, "beta"), 1);
  EXPECT_EQ(two.get<std::int64_t>("i"), 2);
  EXPECT_TRUE(Read("").good());
  EXPECT_TRUE(Read("&alpha/").good());
}

TEST(Namelist, Integers) {
  EXPECT_EQ(Read(alpha("i=+007")).get<std::int64_t>("i"), 7);
  EXPECT_EQ(Read(alpha("i=-9223372036854775808")).get<std::int64_t>("i"), std::numeric_limits<std::int64_t>::min());
  expect_refused(alpha("i=9223372036854775808"), "integer overflow");
  for (const char* bad : {"1.0", "1e3", "0x10", "1_8", "--1", "+", "'1'", "1x", "one", "1=2"}) {
    expect_refused(alpha(std::string("i=") + bad), "error");
  }
  expect_refused(alpha("i=1e3"), "write 1000");
  expect_refused(alpha("i='12'"), "remove the quotes");
}

TEST(Namelist, Reals) {
  const std::pair<const char*, double> good[] = {{"1", 1},
                                                 {"-1.", -1},
                                                 {".5", .5},
                                                 {"1d-3", 1e-3},
                                                 {"1D+3", 1e3},
                                                 {"1.5-3", 1.5e-3},
                                                 {"2+2", 200},
                                                 {"1q2", 100},
                                                 {"1E2", 100},
                                                 {"0e99999999999999999999", 0},
                                                 {"1e-400", 0},
                                                 {"4.9e-324", 4.9e-324},
                                                 {"1.7976931348623157d308", 1.7976931348623157e308},
                                                 {"9007199254740993", 9007199254740992.}};
  for (const auto& [text, value] : good) {
    EXPECT_EQ(Read(alpha(std::string("r=") + text)).get<double>("r"), value) << text;
  }
  EXPECT_TRUE(std::signbit(*Read(alpha("r=-0")).get<double>("r")));
  for (const char* bad : {"1e309", "-1d999999999999999999999", "1.8e308"}) {
    expect_refused(alpha(std::string("r=") + bad), "real overflow");
  }
  for (const char* bad : {"inf", "-Infinity", "NaN"}) {
    expect_refused(alpha(std::string("r=") + bad), "finite");
  }
  for (const char* bad : {".", "-", "e5", "1e", "1e+", "1.2.3", "1,5", "1d3x", "(1,2)", "0x1p3", "1 2", "nan(3)"}) {
    expect_refused(alpha(std::string("r=") + bad), "error");
  }
}

TEST(Namelist, Logicals) {
  for (const char* yes : {"T", "t", ".t.", ".T", ".true.", "TRUE", ".TRUEISH", "Truely_1", ".t.rue"}) {
    EXPECT_EQ(Read(alpha(std::string("l=") + yes)).get<bool>("l"), true) << yes;
  }
  for (const char* no : {"F", "f", ".f.", ".FALSE.", "false", ".F"}) {
    EXPECT_EQ(Read(alpha(std::string("l=") + no)).get<bool>("l"), false) << no;
  }
  for (const char* bad : {"1", "yes", ".", "..t", "'t'", "t'x'"}) {
    expect_refused(alpha(std::string("l=") + bad), "error");
  }
  expect_refused(alpha("l=yes"), "write .true.");
  EXPECT_EQ(Read("&beta test=T title='x'/").get<std::string>("title", 0, "beta"), "x");
}

TEST(Namelist, Strings) {
  EXPECT_EQ(Read(alpha("s='it''s'")).get<std::string>("s"), "it's");
  EXPECT_EQ(Read(alpha("s=\"say \"\"x\"\"\"")).get<std::string>("s"), "say \"x\"");
  EXPECT_EQ(Read(alpha("s='a\"b'")).get<std::string>("s"), "a\"b");
  EXPECT_EQ(Read(alpha("s=' /&$!=, '")).get<std::string>("s"), " /&$!=,");
  EXPECT_EQ(Read(alpha("s='ab\r\ncd'")).get<std::string>("s"), "abcd");
  EXPECT_EQ(Read(alpha("s='\xC3\xA9'")).get<std::string>("s"), "\xC3\xA9");
  EXPECT_EQ(Read(alpha("s=''")).get<std::string>("s"), "");
  expect_refused(alpha("s=abc"), "write 'abc' with the quotes");
  expect_refused(alpha("s=/data/x"), "write '/data/x' with the quotes");
  expect_refused(alpha("s='a'b"), "after the closing quote");
  expect_refused(alpha("s='a\x01'"), "control character");
  expect_refused(alpha("s='" + std::string(25, 'x') + "'"), "at most 24 bytes");
}

TEST(Namelist, ListsRepeatsAndNulls) {
  EXPECT_EQ(Read(alpha("ia=1,2 3\n,4")).ints("ia"), "1 2 3 4");
  EXPECT_EQ(Read(alpha("ia=2*7,,8")).ints("ia"), "7 7 - 8");
  EXPECT_EQ(Read(alpha("ia=2* 5")).ints("ia"), "- - 5 -");
  EXPECT_EQ(Read(alpha("ia=,5,")).ints("ia"), "- 5 - -");
  EXPECT_EQ(Read(alpha("ia=1,! one\n2 ! two\n,3")).ints("ia"), "1 2 3 -");
  EXPECT_EQ(Read(alpha("ia=")).ints("ia"), "- - - -");
  EXPECT_EQ(Read(alpha("i= ia=1")).ints("i"), "-");
  EXPECT_EQ(Read(alpha("ra=5*1d-1")).reals("ra"), "0.1 0.1 0.1 0.1 0.1");
  expect_refused(alpha("ia=5*1"), "too many values");
  expect_refused(alpha("ia=1 2 3 4 5"), "too many values");
  expect_refused(alpha("i=1,,"), "too many values");
  expect_refused(alpha("ia=0*1"), "repeat count of zero");
  expect_refused(alpha("ia=99999999999999999999*1"), "repeat count is too large");
  expect_refused(alpha("ia=1000000000000000000*1"), "too many values");
  expect_refused(alpha("ia=1;2"), "';' is not a separator");
}

TEST(Namelist, Subscripts) {
  EXPECT_EQ(Read(alpha("ia(2)=5")).ints("ia"), "- 5 - -");
  EXPECT_EQ(Read(alpha("ia(2:3)=5,6")).ints("ia"), "- 5 6 -");
  EXPECT_EQ(Read(alpha("ia( 2 : )=2*1")).ints("ia"), "- 1 1 -");
  EXPECT_EQ(Read(alpha("ia(:2)=1 2 ia(3:)=3 4")).ints("ia"), "1 2 3 4");
  EXPECT_EQ(Read(alpha("ia(1:4:2)=1 2")).ints("ia"), "1 - 2 -");
  EXPECT_EQ(Read(alpha("ia(4:1:-3)=1 2")).ints("ia"), "2 - - 1");
  EXPECT_EQ(Read(alpha("ia(:)=4*0")).ints("ia"), "0 0 0 0");
  for (const char* bad : {"ia(5)=1", "ia(0)=1", "ia(-1)=1", "ia(3:2)=1", "ia()=1", "ia(x)=1", "ia(1,2)=1",
                          "ia(1:2:0)=1", "ia(2=1", "i(1)=1", "s(1:2)='ab'", "ia(2:3)=1 2 3", "ia(2)=1 2",
                          "ia(99999999999999999999)=1", "ia(1:9223372036854775807)=1"}) {
    expect_refused(alpha(bad), "error");
  }
  EXPECT_EQ(Read(alpha("ia(4:1:-9223372036854775808)=7")).ints("ia"), "- - - 7");
}

TEST(Namelist, LastValueHoldsAndIsWarnedOf) {
  const Read r(alpha("i=1\n i=2"));
  EXPECT_FALSE(r.raw().has_errors());
  EXPECT_EQ(r.get<std::int64_t>("i"), 2);
  EXPECT_NE(r.errors().find("t.deck:2:2: warning: 'i' is set twice"), std::string::npos) << r.errors();
  EXPECT_TRUE(Read(alpha("ia(1)=1 ia(2)=2")).good());
}

TEST(Namelist, RefusesWhatIsNoDeck) {
  expect_refused("&gamma x=1 /", "unknown group '&gamma'");
  expect_refused("&alhpa i=1 /", "did you mean '&alpha'?");
  expect_refused(alpha("tally=1"), "'tally' belongs in group '&beta'");
  expect_refused("&beta tlaly=1 /", "did you mean 'tally'?");
  expect_refused("&alpha i=1", "group '&alpha' is not closed");
  expect_refused("&alpha i=1\n&beta /", "not closed before the next one");
  expect_refused("&alpha / &alpha /", "given twice");
  expect_refused("title line\n&alpha /", "text outside a group");
  expect_refused("&alpha / the end", "text outside a group");
  expect_refused("& alpha /", "no group name after '&'");
  expect_refused("$end", "no group is open here");
  expect_refused(alpha("i"), "no '=' after 'i'");
  expect_refused(alpha("alpha%i = 1"), "error");
  expect_refused(alpha("i%j = 1"), "keys have no components");
  expect_refused(alpha("5 = 1"), "neither a key");
  expect_refused(alpha("i = 1 2"), "too many values");
  expect_refused(alpha("i = 1&end"), "put a blank before");
  expect_refused("\xFF\xFE&", "UTF-16");
  expect_refused(alpha("r = 04:00:00"), "in seconds: 14400");
  expect_refused(alpha("r = 1-02:00:30"), "in seconds: 93630");
  expect_refused(alpha("i = 90:30"), "in seconds: 5430");
}

TEST(Namelist, AllErrorsOfOneRun) {
  const Read r("&alpha\n  i = 1x\n  r = 'q'\n  foo = 3, 4\n  s = 'lost\n  l = maybe\n/\n&beta tally = 9.5 /\n");
  EXPECT_EQ(r.count(), 6U) << r.errors();
}

TEST(Namelist, CommentsOfOtherLanguagesAreNamed) {
  const std::string errors = Read("&alpha\n  i = 1  # old\n/\n").errors();
  EXPECT_NE(errors.find("a comment begins with '!'"), std::string::npos) << errors;
}

TEST(Namelist, CharactersThatOnlyLookRightAreNamed) {
  expect_refused(alpha("s = \u201Cx\u201D"), "is U+201C, a curly quote: write \"");
  expect_refused(alpha("s = \u2018x\u2019"), "is U+2018, a curly quote: write '");
  expect_refused(alpha("i = \u22125"), "is U+2212, a mathematical minus sign: write -");
  expect_refused(alpha("i = 5 \u2013 3"), "is U+2013, an en dash: write -");
  expect_refused(alpha("i =\u00A05"), "is U+00A0, a no-break space: write a space");
  expect_refused("&alpha\u00A0i = 5 /", "is U+00A0, a no-break space: write a space");
  EXPECT_TRUE(Read("&beta title = '\u201Cx\u201D' /").good());
  EXPECT_EQ(Read(alpha("s = \u201Cx")).errors().find("with the quotes"), std::string::npos);
}

TEST(Namelist, ErrorsLookLikeACompilers) {
  EXPECT_EQ(Read("&alpha\n\tr = 0.5,\xC3\xA9 , sa(2) = 'x' 7.5\n/\n").errors(),
            "t.deck:2:10: error: unexpected text after the value of 'r'\n"
            "   2 | \tr = 0.5,\xC3\xA9 , sa(2) = 'x' 7.5\n"
            "     | \t        ^\n"
            "     = expected a key, '/' or the end of the line\n"
            "t.deck:2:26: error: unexpected text after the value of 'sa'\n"
            "   2 | \tr = 0.5,\xC3\xA9 , sa(2) = 'x' 7.5\n"
            "     | \t                        ^~~\n"
            "     = expected a key, '/' or the end of the line\n"
            "     = put the whole string in quotes\n");
  EXPECT_EQ(Read("&alpha\n  s = 'abc\n  i = 3\n/\n").errors(),
            "t.deck:2:7: error: this string is not closed\n"
            "   2 |   s = 'abc\n"
            "     |       ^~~~\n"
            "     = expected a second '\n"
            "     = the deck ends inside of it\n");
  EXPECT_EQ(Read("&beta\n  tlaly = 3\n/").errors(),
            "t.deck:2:3: error: unknown key 'tlaly' in group '&beta'\n"
            "   2 |   tlaly = 3\n"
            "     |   ^~~~~\n"
            "     = did you mean 'tally'?\n");
}

TEST(Namelist, LongLinesAreShownInPart) {
  const Read r("&alpha " + std::string(100000, ' ') + "qq = 1 /");
  EXPECT_LT(r.errors().size(), 1000U);
  EXPECT_NE(r.errors().find("qq = 1"), std::string::npos);
}

TEST(Namelist, EditDistance) {
  const std::vector<std::string> words = {"steps", "seed", "hidden_size", "dp"};
  EXPECT_EQ(nearest_word("setps", words), "steps");
  EXPECT_EQ(nearest_word("SEED", words), "seed");
  EXPECT_EQ(nearest_word("hiddensize", words), "hidden_size");
  EXPECT_EQ(nearest_word("hidden", words), "hidden_size");
  EXPECT_EQ(nearest_word("tokens_per_second", words), "");
}

TEST(Namelist, Overrides) {
  const auto read = [](const std::string& text) {
    return read_override(SourceText("--set", text), test::judged_groups());
  };
  const auto value = [&](const std::string& text) {
    const Namelists n = read(text);
    return n.has_errors() || n.assigned.empty() ? Scalar(false) : n.assigned.begin()->second.elements[0]->scalar;
  };
  EXPECT_EQ(value("alpha.i=5"), Scalar(std::int64_t{5}));
  EXPECT_EQ(value(" ALPHA%R = 1d3"), Scalar(1000.0));
  EXPECT_EQ(value("beta.title=a b / c"), Scalar(std::string("a b / c")));
  EXPECT_EQ(value("beta.title='a'"), Scalar(std::string("a")));
  for (const char* bad : {"", "alpha", "alpha.", "alpha.i", "alpha.i=1,2", "alpha.i=x", "alpha.zz=1", "gamma.i=1",
                          "alpha.i=1 r=2", "alpha.i=1 /", "beta.title='a"}) {
    EXPECT_TRUE(read(bad).has_errors()) << bad;
  }
}

TEST(Namelist, SurvivesAnyBytes) {
  for (std::uint64_t k = 0; k < 2000; ++k) {
    test::DeckGenerator random(42, k);
    std::string text = random.deck().text;
    for (std::size_t n = random.below(30); n > 0; --n) {
      if (random.one_in(2)) {
        text = random.spoiled(text);
      } else if (!text.empty()) {
        text[random.below(text.size())] = static_cast<char>(random.next());
      }
    }
    const SourceText source("f", text);
    const Namelists read = read_namelists(source, test::judged_groups());
    EXPECT_LE(format_all(source, read.diagnostics).size(), 100000U);
    read_override(source, test::judged_groups());
  }
}

TEST(Namelist, TakesLinearTimeOnHostileDecks) {
  for (const std::string piece : {"&alpha ", "'", "\"", "i=", "(", "a%b", "1*", "/x", "i(", "!", "&", "i='x\n",
                                  "1000000*1 ", "s='\n", "_a", ",", "x = ! c\n"}) {
    std::string text = "&alpha i=";
    while (text.size() < 300000) text += piece;
    const SourceText source("f", text);
    const Namelists read = read_namelists(source, test::judged_groups());
    EXPECT_LE(read.diagnostics.size(), 250U) << piece;
  }
}

}  // namespace
}  // namespace nanotron::deck
