// ranks: 1
#include "nanotron/trainer/preference/reference_file.hpp"

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

const ReferenceFile made{.data = {0x1234, 0xffffffffffffffff},
                         .weights = "checkpoint 17ab",
                         .compute = "bf16",
                         .log_probabilities = {-12.25, -1.0 / 3.0, -3e-300, -0.0, -1e5, -2.0}};

TEST(ReferenceFile, KeepsAllDigits) {
  const ReferenceFile read = parse_reference(text_of(made), "r.txt");
  EXPECT_EQ(read.data, made.data);
  EXPECT_EQ(read.weights, made.weights);
  EXPECT_EQ(read.compute, made.compute);
  EXPECT_EQ(read.log_probabilities, made.log_probabilities);
  EXPECT_TRUE(parse_reference(text_of({}), "r.txt").log_probabilities.empty());
}

// Every byte counts.
TEST(ReferenceFile, RefusesDamage) {
  const std::string text = text_of(made);
  const auto is_refused = [](const std::string& changed) {
    try {
      parse_reference(changed, "r.txt");
      return false;
    } catch (const Error& error) {
      return error.exit_code() == ExitCode::data_error && std::string(error.what()).find("r.txt") != std::string::npos;
    }
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '7' ? '8' : '7';
    EXPECT_TRUE(is_refused(changed)) << i;
    EXPECT_TRUE(is_refused(text.substr(0, i))) << i;
  }
  EXPECT_TRUE(is_refused(text + "\n"));
  EXPECT_TRUE(is_refused("hello"));
}

}  // namespace
}  // namespace nanotron::trainer
