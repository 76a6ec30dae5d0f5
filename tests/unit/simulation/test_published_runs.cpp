// timeout: 600
// Predictions beside published runs, and what is said of wrong tables.

#include <gtest/gtest.h>

#include <fstream>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/simulation/published_runs.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron::simulation {
namespace {

deck::Machine machine(const std::string& name) {
  const std::string path = (test::test_folder() / "../input/machines" / name).string();
  return deck::read_machine(path, deck::read_deck_file(path));
}
deck::Machine a100() { return machine("a100_80gb.nml"); }

double error_of(const std::string& table, const deck::Machine& m) {
  const auto runs = compare_published((test::test_folder() / "data" / table).string(), m);
  return mean_absolute_error(runs);
}

TEST(PublishedRuns, ArePredictedWithinATenthOnAverage) {
  const auto runs = compare_published((test::test_folder() / "data/published_runs.csv").string(), a100());
  EXPECT_EQ(runs.size(), 9U);
  EXPECT_LE(mean_absolute_error(runs), 0.07) << describe(runs);
  EXPECT_LE(error_of("published_runs_2.csv", machine("h100.nml")), 0.11);
  EXPECT_LE(error_of("judged_runs_h100.csv", machine("h100.nml")), 0.11);
}

// A prediction that knows nothing of the machine would pass the bound by luck only: half the GEMM rate does not.
TEST(PublishedRuns, AreNotPredictedOnAnotherMachine) {
  deck::Machine slow = a100();
  slow.gemm_bf16 *= 0.5;
  test::TemporaryFolder folder(test::world(), "published");
  const std::string path = (folder.path() / "runs.csv").string();
  std::ofstream(path) << "source,parameters_B,layers,hidden,heads,tp,pp,gpus,batch,tflops_per_gpu,seconds_full,"
                         "seconds_selective\nK22,22,48,6144,64,8,1,8,4,,1.42,1.10\n";
  EXPECT_GT(mean_absolute_error(compare_published(path, slow)), 0.30);
}

TEST(PublishedRuns, AWrongTableIsRefusedWithItsLine) {
  test::TemporaryFolder folder(test::world(), "published_wrong");
  const std::string path = (folder.path() / "runs.csv").string();
  const std::string head = "# comment\nsource,parameters_B,layers,hidden,heads,tp,pp,gpus,batch,tflops_per_gpu\n";
  const auto message = [&](const std::string& row) {
    std::ofstream(path) << head + row + "\n";
    try {
      compare_published(path, a100());
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message("SC21,1.7,24").find("runs.csv:3"), std::string::npos);
  EXPECT_NE(message("SC21,1.7,many,2304,24,1,1,32,512,137").find("the column layers"), std::string::npos);
}

}  // namespace
}  // namespace nanotron::simulation
