// ranks: 1
#include "nanotron/deck/validation_sets.hpp"

#include <gtest/gtest.h>

namespace nanotron::deck {
namespace {

std::string shown(std::string_view text) {
  std::string all, mistake;
  for (const ValidationSet& set : validation_sets(text, &mistake)) all += "[" + set.name + "|" + set.path + "]";
  return all + mistake;
}

TEST(ValidationSets, AreAPathOrNamedPaths) {
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("a/valid.h5"), "[|a/valid.h5]");
  EXPECT_EQ(shown("with blanks.h5"), "[|with blanks.h5]");
  EXPECT_EQ(shown("./lr=1.h5"), "[|./lr=1.h5]");
  EXPECT_EQ(shown("code=a/c.h5"), "[code|a/c.h5]");
  EXPECT_EQ(shown("  code=a/c.h5   wiki_2=lr=1.h5 "), "[code|a/c.h5][wiki_2|lr=1.h5]");
  EXPECT_EQ(validation_set_names("code=a wiki=b"), (std::vector<std::string>{"code", "wiki"}));
  EXPECT_TRUE(validation_set_names("a.h5").empty());
  EXPECT_EQ(key_of({"code", "a.h5"}), "data%validation_path, set 'code'");
}

TEST(ValidationSets, MistakesInAListAreNamed) {
  EXPECT_TRUE(shown("code=a.h5 b.h5").ends_with("'b.h5' is not name=path"));
  EXPECT_TRUE(shown("code=a.h5 code=b.h5").ends_with("there are two sets 'code'"));
  EXPECT_TRUE(shown("code=").ends_with("the set 'code' has no path"));
  EXPECT_TRUE(shown(std::string(33, 'x') + "=a.h5").ends_with("longer than 32 characters"));
}

}  // namespace
}  // namespace nanotron::deck
