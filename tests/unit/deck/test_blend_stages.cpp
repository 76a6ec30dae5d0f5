// ranks: 1
#include "nanotron/deck/blend_stages.hpp"

#include <gtest/gtest.h>

#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

DataConfig blend(const std::string& weights, const std::string& stages = "", const std::string& path = "web=w code=c") {
  DataConfig data;
  data.path = path;
  data.weights = weights;
  data.stages = stages;
  return data;
}

// "0: 1 2; 5: 3 4"
std::string shown(const DataConfig& data) {
  std::string text;
  for (const BlendStage& stage : blend_stages(data)) {
    text += (text.empty() ? "" : "; ") + std::to_string(stage.from_token) + ":";
    for (const double weight : stage.weights) text += " " + std::to_string(weight).substr(0, 4);
  }
  return text;
}

std::string mistake(const DataConfig& data) {
  BlendMistake found;
  blend_stages(data, &found);
  return found.key + ": " + found.found;
}

TEST(BlendStages, BeginWithTheWeights) {
  EXPECT_EQ(shown(blend("", "", "a.h5")), "0: 1.00");
  EXPECT_EQ(shown(blend("", "", "web=a.h5")), "0: 1.00");
  EXPECT_EQ(shown(blend("code=3 web=0.25")), "0: 0.25 3.00");
  EXPECT_EQ(shown(blend("web=1 code=0", " 2e9: web=.5 code=0.5;3000000001 :code=1; ")),
            "0: 1.00 0.00; 2000000000: 0.50 0.50; 3000000001: 0.00 1.00");
  for (const char* stages : {"", "7: code=1"}) EXPECT_EQ(mistake(blend("web=1 code=1", stages)), ": ");
}

TEST(BlendStages, MistakesNameTheKey) {
  EXPECT_EQ(mistake(blend("")), "data.weights: data%path has several files, and there are no weights");
  EXPECT_EQ(mistake(blend("web=1", "", "w.h5")), "data.weights: the file of data%path has no name");
  EXPECT_EQ(mistake(blend("web=1")), "data.weights: there is no weight for 'code'");
  EXPECT_EQ(mistake(blend("web=1 cod=1")), "data.weights: there is no file 'cod' in data%path");
  EXPECT_EQ(mistake(blend("web=1 code=1 web=2")), "data.weights: 'web' is given twice");
  EXPECT_EQ(mistake(blend("web=1 0.5")), "data.weights: '0.5' is not name=weight");
  for (const char* weight : {"-0.5", "half", "1x", "nan", "inf", "1e999"}) {
    EXPECT_EQ(mistake(blend(std::string("web=1 code=") + weight)),
              std::string("data.weights: the weight '") + weight + "' of 'code' is not a number of 0 or more");
  }
  EXPECT_EQ(mistake(blend("web=0 code=0")), "data.weights: the sum of the weights is not positive");
  EXPECT_EQ(mistake(blend("web=1 code=0")), "data.weights: 'code' has weight 0 in every stage");
}

TEST(BlendStages, MistakesInAStageToo) {
  const auto in_stages = [](const std::string& stages) { return mistake(blend("web=1 code=1", stages)); };
  EXPECT_EQ(mistake(blend("", "5: web=1", "w.h5")), "data.stages: the file of data%path has no name");
  EXPECT_EQ(in_stages("web=1"), "data.stages: 'web=1' does not begin with a number of tokens and ':'");
  EXPECT_EQ(in_stages("0: web=1"), "data.stages: '0: web=1' does not begin with a number of tokens and ':'");
  EXPECT_EQ(in_stages("1.5: web=1"), "data.stages: '1.5: web=1' does not begin with a number of tokens and ':'");
  EXPECT_EQ(in_stages("1e30: web=1"), "data.stages: '1e30: web=1' does not begin with a number of tokens and ':'");
  EXPECT_EQ(in_stages("9: web=1;; 10: web=1"), "data.stages: '' does not begin with a number of tokens and ':'");
  EXPECT_EQ(in_stages("9: web=1; 9: code=1"),
            "data.stages: the stage from token 9 on does not come after the one before it");
  EXPECT_EQ(in_stages("9: wiki=1"), "data.stages: there is no file 'wiki' in data%path");
  EXPECT_EQ(in_stages("9: web=0"), "data.stages: the sum of the weights is not positive");
  EXPECT_EQ(in_stages("9:"), "data.stages: the sum of the weights is not positive");
}

// "sequence_length 64, rope_theta 5e5" of each stage.
std::string settings(const DataConfig& data) {
  std::string text;
  for (const BlendStage& stage : blend_stages(data)) {
    text += "[";
    for (const StageSetting& s : stage.settings) text += " " + s.key->name + " " + spelled(s.value);
    text += " ]";
  }
  return text;
}

TEST(BlendStages, SetKeysOfTheDeck) {
  const DataConfig data = blend("web=1 code=1",
                                "5: sequence_length=64 code=2 rope_theta=5e5; 6: web=1;"
                                "7: global_batch_size=1e2 micro_batch_size=2 recompute=full");
  EXPECT_EQ(shown(data), "0: 1.00 1.00; 5: 0.00 2.00; 6: 1.00 0.00; 7: 1.00 0.00");
  EXPECT_EQ(
      settings(data),
      "[ ][ sequence_length 64 rope_theta 5e+05 ][ ][ global_batch_size 100 micro_batch_size 2 recompute 'full' ]");
  const DataConfig one = blend("", "5: sequence_length=64", "a.h5");
  EXPECT_EQ(mistake(one), ": ");
  EXPECT_EQ(settings(one), "[ ][ sequence_length 64 ]");
}

TEST(BlendStages, ValuesOfKeysAreLegal) {
  const auto in_stages = [](const std::string& stages) { return mistake(blend("web=1 code=1", stages)); };
  for (const char* wrong : {"sequence_length=0", "sequence_length=1.5", "sequence_length=x", "rope_theta=0",
                            "micro_batch_size=-1", "global_batch_size=1e30", "recompute=all"}) {
    const std::string text = wrong, key = text.substr(0, text.find('='));
    EXPECT_EQ(in_stages("5: " + text),
              "data.stages: '" + text.substr(key.size() + 1) + "' is not a legal value of " + key);
  }
  EXPECT_EQ(in_stages("5: sequence_length=64 sequence_length=64"), "data.stages: 'sequence_length' is given twice");
  EXPECT_EQ(in_stages("5: sequence_length=64 wiki=1"), "data.stages: there is no file 'wiki' in data%path");
  EXPECT_EQ(mistake(blend("", "5: sequence_length=64 web=1", "w.h5")),
            "data.stages: the file of data%path has no name");
  EXPECT_EQ(mistake(blend("", "5: web=1", "rope_theta=w.h5")),
            "data.stages: the file 'rope_theta' of data%path has the name of a key that stages may set");
}

}  // namespace
}  // namespace nanotron::deck
