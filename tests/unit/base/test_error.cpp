// ranks: 1
#include <gtest/gtest.h>
#include <mpi.h>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

TEST(Error, MessageHasEveryPartOnItsLine) {
  try {
    fail(ExitCode::data_error, {.what = "the token file is empty",
                                .expected = "at least one token",
                                .found = "0",
                                .where = "tokens.h5",
                                .change = "run the tokenizer\nagain"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data_error);
    EXPECT_STREQ(error.what(),
                 "error: the token file is empty\n"
                 "  expected: at least one token\n"
                 "  found:    0\n"
                 "  where:    tokens.h5\n"
                 "  change:   run the tokenizer\n"
                 "            again");
  }
}

TEST(Error, EmptyPartsAreLeftOut) {
  EXPECT_EQ(format({.what = "w", .expected = "", .found = "f", .where = "", .change = ""}), "error: w\n  found:    f");
}

TEST(Error, ChecksOfLibrariesNameTheCall) {
  EXPECT_NO_THROW(NANOTRON_CHECK_MPI(MPI_SUCCESS));
  try {
    NANOTRON_CHECK_MPI(MPI_ERR_COMM);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::system_error);
    const std::string text = error.what();
    EXPECT_NE(text.find("MPI_ERR_COMM at tests/unit/base/test_error.cpp:"), std::string::npos) << text;
  }
  EXPECT_THROW(NANOTRON_CHECK_NCCL(5), Error);
  EXPECT_THROW(NANOTRON_CHECK_CUBLAS(13), Error);
  EXPECT_THROW(NANOTRON_CHECK_GPU(2), Error);
}

TEST(Error, RequireStatesConditionAndValues) {
  const int n = 3;
  EXPECT_NO_THROW(NANOTRON_REQUIRE(n == 3, "n = {}", n));
  try {
    NANOTRON_REQUIRE(n > 4, "n = {}", n);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("n = 3"), std::string::npos);
    EXPECT_NE(text.find("n > 4"), std::string::npos);
  }
}

}  // namespace
}  // namespace nanotron
