// ranks: 1
// '@blend.txt': files of a list in data%path, data%validation_path and data%stages; and arrays of strings.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "support/small_deck.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::deck {
namespace {

using test::small_deck;

Config read(const std::vector<std::string>& set, const ListTexts& lists = {}) {
  return read_deck_text(small_deck, "t.deck", {}, set, nullptr, std::nullopt, lists);
}

std::string refused(const std::vector<std::string>& set, const ListTexts& lists = {}) {
  try {
    read(set, lists);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    return error.what();
  }
  return "accepted";
}

// "a.h5 0.5, dir/b.h5 0.25": path and weight of each file; the weights of the stages after '|'.
std::string shown(const DataConfig& data) {
  std::string text, mistake;
  for (const NamedFile& file : named_files(data.path, &mistake)) text += (text.empty() ? "" : ", ") + file.path;
  for (const BlendStage& stage : blend_stages(data)) {
    text += " | " + std::to_string(stage.from_token);
    for (const double weight : stage.weights) text += " " + std::to_string(weight).substr(0, 4);
  }
  return text + mistake;
}

TEST(Arrays, OfStrings) {
  EXPECT_EQ(shown(read({"data.path='a.h5', 'b.h5', '', 2*'c d.h5'"}).data),
            "a.h5, b.h5, c d.h5, c d.h5 | 0 1.00 1.00 "
            "1.00 1.00'c d.h5' is given twice");
  EXPECT_EQ(shown(read({"data.path='0.5 a.h5', '1.5 my b.h5'"}).data), "a.h5, my b.h5 | 0 0.50 1.50");
  EXPECT_EQ(shown(read({"data.path=0.5 a.h5 1.5 b.h5"}).data), "a.h5, b.h5 | 0 0.50 1.50");
  EXPECT_EQ(shown(read({"data.path='a.h5', 'b.h5'", "data.path(2)='c.h5'"}).data), "a.h5, c.h5 | 0 1.00 1.00");
  EXPECT_EQ(shown(read({"data.path='a.h5', 'b.h5'", "data.path='c.h5'"}).data), "c.h5 | 0 1.00");
  EXPECT_EQ(shown(read({"data.path='x=a.h5', 'y=b.h5'", "data.weights='x=1', 'y=3'", "data.stages='5:', '0 1'"}).data),
            "a.h5, b.h5 | 0 1.00 3.00 | 5 0.00 1.00");
  EXPECT_EQ(shown(read({"data.path='a.h5', 'b.h5'", "data.weights=1 3"}).data), "a.h5, b.h5 | 0 1.00 3.00");
}

TEST(Arrays, AreReadBackFromTheCanonicalDeck) {
  const Config c = read({"data.path='0.5 it''s.h5', '1.5 b.h5'", "data.stages='5: 0 1; 6:', '1 0'"});
  const std::string text = canonical_deck(c);
  const Config again = read_deck_text(text, "deck.nml", {});
  EXPECT_EQ(again.data.path, c.data.path);
  EXPECT_EQ(again.data.stages, c.data.stages);
  EXPECT_EQ(canonical_deck(again), text);
  EXPECT_TRUE(changes_since(text, c).empty());
  EXPECT_EQ(config_of(text)->data.path, c.data.path);
}

TEST(NamedFiles, WithoutNamesHaveTheEndsOfTheirPaths) {
  std::string names;
  for (const NamedFile& file : named_files("/d/web/0.h5\n/d/code/0.h5\nmath.h5\n./x/../1/b/c.h5\n2/b/c.h5"))
    names += file.name + " ";
  EXPECT_EQ(names, "web/0.h5 code/0.h5 math.h5 1/b/c.h5 2/b/c.h5 ");
}

TEST(Lists, GiveWeightsAndPathsFromTheirFolder) {
  const ListTexts lists{{"l/b.txt", "# comment\n 0.5 a.h5 # half\n\n1.5\t\"my b.h5\" 2 /abs/c.h5\r\n"}};
  const Config c = read({"data.path=@l/b.txt"}, lists);
  EXPECT_EQ(shown(c.data), "l/a.h5, l/my b.h5, /abs/c.h5 | 0 0.50 1.50 2.00");
  EXPECT_EQ(place_of(c, "data.path", 1), "l/b.txt:4:5");
  EXPECT_EQ(read_deck_text(canonical_deck(c), "deck.nml", {}).data.path, c.data.path);
  EXPECT_EQ(shown(read({"data.path=@b"}, {{"b", "a.h5\nd/b.h5"}}).data), "a.h5, d/b.h5 | 0 1.00 1.00");
  EXPECT_EQ(shown(read({"data.path=@b"}, {{"b", "1 web=a.h5\n3 code=b.h5"}}).data), "a.h5, b.h5 | 0 1.00 3.00");
  EXPECT_EQ(shown(read({"data.path='@b', '@c'"}, {{"b", "1 a.h5"}, {"c", "3 b.h5"}}).data), "a.h5, b.h5 | 0 1.00 3.00");
  EXPECT_EQ(read({"data.path=@lr=1/b"}, {{"lr=1/b", "1 a.h5 2 x=b.h5 "}}).data.path, "1 ./lr=1/a.h5\n2 x=lr=1/b.h5");
  EXPECT_EQ(read({"data.validation_path=@b"}, {{"b", "1 v.h5 2 w.h5"}}).data.validation_path, "1 v.h5\n2 w.h5");
}

TEST(Lists, OfStagesAddTheirFiles) {
  const ListTexts lists{{"b", "1 a.h5 3 b.h5"}, {"s", "2 c.h5\n0.5 ./a.h5"}, {"t", "1 d.h5"}};
  EXPECT_EQ(shown(read({"data.path=@b", "data.stages=9: @s sequence_length=64; 10: 0 1 0 0; 11: @t"}, lists).data),
            "a.h5, b.h5, c.h5, d.h5 | 0 1.00 3.00 0.00 0.00 | 9 0.50 0.00 2.00 0.00 | 10 0.00 1.00 0.00 0.00 | 11 0.00 "
            "0.00 0.00 1.00");
  EXPECT_EQ(shown(read({"data.path=a.h5", "data.stages=9: @s"}, lists).data), "a.h5, c.h5 | 0 1.00 0.00 | 9 0.50 2.00");
  EXPECT_EQ(shown(read({"data.path='a.h5','b.h5'", "data.weights='1 2'", "data.stages=9: @s"}, lists).data),
            "a.h5, b.h5, c.h5 | 0 1.00 2.00 0.00 | 9 0.50 0.00 2.00");
  EXPECT_EQ(
      shown(read({"data.path=x=a.h5 y=b.h5", "data.weights=x=1 y=2", "data.stages=9: @u"}, {{"u", "3 a.h5 4 z=e.h5"}})
                .data),
      "a.h5, b.h5, e.h5 | 0 1.00 2.00 0.00 | 9 3.00 0.00 4.00");
  const Config c = read({"data.path=@b", "data.stages=9: @s"}, lists);
  EXPECT_EQ(place_of(c, "data.path", 2), "s:1:3");
  EXPECT_EQ(shown(read_deck_text(canonical_deck(c), "deck.nml", {}).data), shown(c.data));
}

TEST(Lists, MistakesNameTheLine) {
  const auto in_list = [](const std::string& text) { return refused({"data.path=@l/b.txt"}, {{"l/b.txt", text}}); };
  const auto expect = [&](const std::string& text, const std::string& place, const std::string& what) {
    const std::string said = in_list(text);
    EXPECT_EQ(said.find("l/b.txt" + place + ": error: "), 0U) << said;
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  expect("# nothing\n", "", "this list names no file");
  expect("1 a.h5\n0 b.h5", ":2:1", "the weight '0' is not positive");
  expect("1 a.h5\n-1 b.h5", ":2:1", "the weight '-1' is not positive");
  expect("1 a.h5\n2 b.h5\n3 ./a.h5", ":3:3", "'./a.h5' is given twice");
  expect("1 a.h5\nb.h5", ":2:1", "has no weight, others have one");
  expect("1 a.h5\n2", ":2:1", "the weight '2' has no path");
  expect("1 2 a.h5", ":1:1", "the weight '1' has no path");
  expect("1 'a.h5\n", ":1:3", "is not closed");
  expect("1 ~/a.h5", ":1:3", "begins with '~'");
  expect("1 'my 2 a.h5'", ":1:3", "would be read as a weight");
  expect("1 'a.h5 '", ":1:3", "without its blanks");
  expect("1 @c", ":1:3", "a list in a list");
  expect("1 a\x01.h5", ":1:3", "a control character");
  EXPECT_NE(
      refused({"data.path=a.h5", "data.stages=9: @s"}, {{"s", "b.h5"}}).find("s:1:1: error: 'b.h5' has no weight"),
      std::string::npos);
  EXPECT_NE(refused({"data.path=@~/b.txt"}, {{"~/b.txt", "a.h5"}}).find("only a shell"), std::string::npos);
  std::string all;
  for (int i = 0; i < 5000; ++i) all += "1 " + std::to_string(i) + ".h5\n";
  expect(all, "", "5000 files");
}

TEST(Lists, AreReadFromTheDisk) {
  const test::TemporaryFolder folder(test::world(), "lists");
  const std::string list = (folder / "b.txt").string();
  const auto from_disk = [&] { return read_deck_text(small_deck, "t.deck", {}, {"data.path=@" + list}); };
  EXPECT_THROW(from_disk(), Error);
  try {
    from_disk();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(error.what()).find("the list of token files cannot be read"), std::string::npos);
  }
  std::ofstream(list) << "1 a.h5 3 b.h5";
  EXPECT_EQ(from_disk().data.path, "1 " + (folder / "a.h5").string() + "\n3 " + (folder / "b.h5").string());
  EXPECT_EQ(
      read({"data.path=@nowhere", "data.path=a.h5"}, read_lists(small_deck, {"data.path=@nowhere", "data.path=a.h5"}))
          .data.path,
      "a.h5");
}

}  // namespace
}  // namespace nanotron::deck
