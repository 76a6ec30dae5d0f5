// ranks: 1 2
#include "nanotron/trainer/report/host_memory.hpp"

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "support/trainer_run.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

const std::vector<comm::MemoryLimit> host{{1000, 0, "the host"}};

MemoryShortage of(int ranks, std::uint64_t certain, std::uint64_t besides,
                  const std::vector<comm::MemoryLimit>& limits) {
  return memory_shortage(std::vector(static_cast<std::size_t>(ranks), memory_need(certain, besides, limits)));
}

TEST(HostMemory, RanksShareTheMemoryOfTheirHost) {
  EXPECT_EQ(of(4, 200, 50, host).ranks, 0);
  EXPECT_EQ(of(4, 200, 51, host).ranks, 4);
  EXPECT_FALSE(of(4, 200, 51, host).is_certain);
  EXPECT_EQ(of(4, 200, 51, host).needed, 1004u);
  EXPECT_TRUE(of(4, 251, 0, host).is_certain);
  EXPECT_EQ(of(4, 251, 0, host).allowed, 1000u);
  EXPECT_EQ(of(4, 251, 0, {}).ranks, 0);
}

TEST(HostMemory, EachControlGroupHasItsOwnRanks) {
  std::vector<MemoryNeed> ranks;
  for (const std::uint64_t job : {7, 7, 8})
    ranks.push_back(memory_need(300, 0, std::vector{host[0], {500, job, "job"}}));
  const MemoryShortage found = memory_shortage(ranks);
  EXPECT_EQ(found.group, 7u);
  EXPECT_EQ(found.ranks, 2);
  EXPECT_EQ(found.needed, 600u);
  EXPECT_TRUE(found.is_certain);
}

TEST(HostMemory, TheRunIsRefusedBeforeItTakesTheMemory) {
  const comm::Communicator all = comm::Communicator::duplicate(test::world());
  comm::ProcessGrid grid(all, {.dp = all.size()}, comm::Transport::mpi);
  Log log(false);
  EXPECT_NO_THROW(check_host_memory(1 << 20, 1 << 20, grid, log));
  if (built_for == Processor::gpu) return;
  try {
    check_host_memory(comm::memory_limits().front().bytes / static_cast<std::uint64_t>(all.size()) + 4096, 0, grid,
                      log);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(error.what()).find("need more memory than they are allowed"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace nanotron::trainer
