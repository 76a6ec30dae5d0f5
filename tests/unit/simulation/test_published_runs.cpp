// timeout: 600
// Predictions beside published runs, and what is said of wrong tables.

#include <gtest/gtest.h>

#include <cmath>
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

void expect_errors(const std::string& table, const deck::Machine& m, std::size_t rows, double mean, double worst) {
  const auto runs = compare_published((test::test_folder() / "data" / table).string(), m);
  EXPECT_EQ(runs.size(), rows);
  EXPECT_LE(mean_absolute_error(runs), mean) << describe(runs);
  for (const RunComparison& run : runs) EXPECT_LE(std::abs(run.error()), worst) << run.run;
}

TEST(PublishedRuns, ArePredictedWithinATwentiethOnAverage) {
  expect_errors("published_runs.csv", a100(), 9, 0.04, 0.12);
  expect_errors("other_runs.csv", a100(), 9, 0.04, 0.12);
  expect_errors("published_runs_2.csv", machine("h100.nml"), 9, 0.06, 0.12);
  expect_errors("judged_runs_h100.csv", machine("h100.nml"), 7, 0.05, 0.12);
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
  EXPECT_NE(message("SC21,1.7,25,2304,24,1,1,32,512,137").find("table 1"), std::string::npos);
  EXPECT_NE(message("SC21,1.7,many,2304,24,1,1,32,512,137").find("the column layers"), std::string::npos);
}

}  // namespace
}  // namespace nanotron::simulation
