// ranks: 1
// A checkpoint answers the requests that came before it began; a signal while it is written asks for the next one.
#include "nanotron/trainer/loop/save_request.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "nanotron/base/process.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

class SaveRequests : public testing::Test {
 protected:
  SaveRequests() { hold_stop_signals(); }
  ~SaveRequests() override {
    save_signal_came();
    release_stop_signals();
  }
  void ask() const { std::raise(SIGURG); }
  bool is_open() { return request_.is_open(true); }
  bool is_answered_by(std::int64_t step) {
    request_.answer_with(step);
    const bool waits = !is_open();  // while it is written
    request_.saved(step);
    return waits && !is_open();
  }

  test::TemporaryFolder folder_{test::world(), "save_request"};
  Log log_{true};
  SaveRequest request_{folder_.path(), log_};
};

TEST_F(SaveRequests, AreAnsweredOnce) {
  EXPECT_FALSE(is_open());
  ask();
  EXPECT_TRUE(is_open());
  EXPECT_TRUE(is_open());
  EXPECT_TRUE(is_answered_by(3));
  request_.answer_with(4);
  request_.saved(4);
  EXPECT_FALSE(is_open());
}

TEST_F(SaveRequests, ASignalDuringACheckpointAsksForTheNextOne) {
  ask();
  ASSERT_TRUE(is_open());
  request_.answer_with(3);
  ask();
  EXPECT_FALSE(is_open());
  request_.saved(3);
  EXPECT_TRUE(is_open());
  EXPECT_TRUE(is_answered_by(5));
}

// The next checkpoint begins before the one that is written is known to be on disk.
TEST_F(SaveRequests, ACheckpointThatIsDueAnswersTheSignalDuringTheOneBefore) {
  ask();
  ASSERT_TRUE(is_open());
  request_.answer_with(3);
  ask();
  EXPECT_FALSE(is_open());
  request_.answer_with(6);
  request_.saved(3);
  EXPECT_FALSE(is_open());
  request_.saved(6);
  EXPECT_FALSE(is_open());
}

TEST_F(SaveRequests, AreOpenAgainAfterARollBack) {
  for (const bool comes_again : {false, true}) {
    ask();
    ASSERT_TRUE(is_open());
    request_.answer_with(6);
    if (comes_again) ask();
    EXPECT_FALSE(is_open());
    request_.rolled_back_to(6);
    EXPECT_FALSE(is_open());
    request_.rolled_back_to(4);
    EXPECT_TRUE(is_open());
    EXPECT_TRUE(is_answered_by(5));
  }
}

TEST_F(SaveRequests, AFileAsksOnceUntilItIsRemoved) {
  std::ofstream(folder_ / "SAVE");
  ASSERT_TRUE(is_open());
  request_.answer_with(3);
  std::ofstream(folder_ / "SAVE");
  request_.saved(3);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "SAVE"));
  EXPECT_FALSE(is_open());
}

}  // namespace
}  // namespace nanotron::trainer
