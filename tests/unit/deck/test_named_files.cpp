// ranks: 1
#include "nanotron/deck/named_files.hpp"

#include <gtest/gtest.h>

namespace nanotron::deck {
namespace {

std::string shown(std::string_view text) {
  std::string all, mistake;
  for (const NamedFile& set : named_files(text, &mistake)) all += "[" + set.name + "|" + set.path + "]";
  return all + mistake;
}

TEST(NamedFiles, AreAPathOrNamedPaths) {
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("a/valid.h5"), "[|a/valid.h5]");
  EXPECT_EQ(shown("with blanks.h5"), "[|with blanks.h5]");
  EXPECT_EQ(shown("./lr=1.h5"), "[|./lr=1.h5]");
  EXPECT_EQ(shown("code=a/c.h5"), "[code|a/c.h5]");
  EXPECT_EQ(shown("  code=a/c.h5   wiki_2=lr=1.h5 "), "[code|a/c.h5][wiki_2|lr=1.h5]");
  EXPECT_EQ(key_of("data%path", {"code", "a.h5"}), "data%path, 'code'");
  EXPECT_EQ(key_of("data%path", {"", "a.h5"}), "data%path");
}

TEST(NamedFiles, ValidationSetsHaveTheirNamesOrThoseOfTheFilesThatTheyArePartsOf) {
  DataConfig data;
  data.path = "web=a wiki=b";
  EXPECT_TRUE(validation_set_names(data).empty());
  data.validation_fraction = 0.1;
  EXPECT_EQ(validation_set_names(data), (std::vector<std::string>{"web", "wiki"}));
  data.validation_path = "code=a";
  EXPECT_EQ(validation_set_names(data), (std::vector<std::string>{"code"}));
  data.validation_path = "a.h5";
  EXPECT_TRUE(validation_set_names(data).empty());
}

TEST(NamedFiles, MistakesInAListAreNamed) {
  EXPECT_TRUE(shown("code=a.h5 b.h5").ends_with("'b.h5' is not name=path"));
  EXPECT_TRUE(shown("code=a.h5 code=b.h5").ends_with("'code' is given twice"));
  EXPECT_TRUE(shown("code=").ends_with("'code' has no path"));
  EXPECT_TRUE(shown(std::string(33, 'x') + "=a.h5").ends_with("longer than 32 characters"));
}

}  // namespace
}  // namespace nanotron::deck
