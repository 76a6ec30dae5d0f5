// ranks: 2 4
// A bit that flips on one replica is found within check_replicas_every steps, and the rank is named: in anything
// that another rank holds too.

#include <gtest/gtest.h>

#include <cstring>

#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

// Flips the lowest bit of one weight that is not zero, so that nothing but the bit itself tells.
void flip_a_bit(const Vector<float>& weights, index_t at) {
  const auto host = Kokkos::create_mirror_view(weights);
  Kokkos::deep_copy(host, weights);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &host(at), sizeof bits);
  bits ^= 1u;
  std::memcpy(&host(at), &bits, sizeof bits);
  Kokkos::deep_copy(weights, host);
}

struct Sharded {
  int stage;
  int size;  // of a shard group
};

class ReplicasInTraining : public testing::TestWithParam<Sharded> {};

TEST_P(ReplicasInTraining, AFlippedBitIsFoundWithinTheInterval) {
  constexpr std::int64_t interval = 4;
  deck::Config config = test::golden_config("llama");
  config.parallel.zero_stage = GetParam().stage;
  config.parallel.zero_size = GetParam().size;
  config.precision.compute = ScalarType::fp32;
  config.run.check_replicas_every = interval;
  config.parallel.tp = 1;
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  config.parallel.dp = ranks;
  if (config.parallel.zero_size >= ranks) return;  // the piece has no copy
  deck::resolve(config, ranks);

  comm::ProcessGrid grid = trainer::make_grid(test::world(), config);
  Log log(false, grid.world().rank());
  Timers timers;
  Device device(timers);
  const data::TokenFile tokens(config.data.path);
  trainer::Loaders loaders{data::BatchLoader(config.data, 1, tokens, data::Split::training, grid.dp_rank(), ranks),
                           std::nullopt};
  Arena arena(trainer::plan_memory(config, {grid.shape(), grid.coordinate()}, grid.tp()));
  trainer::Trainer<float> run(config, {}, grid, device, arena, loaders, log);
  run.resume();
  for (int i = 0; i < 5; ++i) run.train_step();  // one comparison passes

  const int victim = ranks - 1;
  const trainer::TrainingState<float>& state = run.state();
  const nn::ParameterBuffers<float>& p = state.model.parameters();
  const Range piece = model::piece_of(state.model.table().units.front(), state.sharding);
  if (grid.world().rank() == victim) flip_a_bit(p.master, p.places.master.at(piece.begin + 123));
  std::string message;
  int steps = 0;
  for (; steps < interval && message.empty(); ++steps) {
    try {
      run.train_step();
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::system_error);
    }
  }
  EXPECT_EQ(steps, 3) << "behind step 8";
  EXPECT_NE(message.find("rank " + std::to_string(victim)), std::string::npos) << message;
  EXPECT_NE(message.find("equal behind step 4"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Stages, ReplicasInTraining, testing::Values(Sharded{0, 0}, Sharded{1, 2}, Sharded{2, 2}, Sharded{3, 2}),
                         [](const auto& info) { return fmt::format("Stage{}", info.param.stage); });

}  // namespace
}  // namespace nanotron
