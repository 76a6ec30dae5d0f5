// ranks: 2 3
// timeout: 300
// The validation loss: the mean over all targets of the held-out sequences, a last batch that is not full included, the
// same on every grid; of several sets one each.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron {
namespace {

using Losses = std::vector<double>;

class Validation : public testing::Test {
 protected:
  Validation() : folder_(test::world(), "validation") {
    int rank = 0;
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0) {
      std::vector<std::uint64_t> starts;
      for (std::uint64_t at = 2, i = 0; at < 6000; at += 1 + i * i % 23, ++i) starts.push_back(at);
      for (const char* name : {"tokens.h5", "other.h5"}) {
        test::write_tokens(folder_.path() / name, *name == 't' ? 6000 : 24 * 5 + 1, 131);
        if (*name == 't') test::write_documents(folder_.path() / name, starts);
      }
    }
    MPI_Barrier(test::world());
  }
  std::string path(const char* name) const { return (folder_.path() / name).string(); }

  // 249 sequences of 24, of which 25 are held out: batches of 12, 12 and 1.
  deck::Config config(const char* model, std::vector<std::string> set) const {
    set.insert(set.begin(),
               {"model.num_hidden_layers=4", "checkpoint.resume=none", "checkpoint.at_end=false",
                "data.sequence_length=24", "data.global_batch_size=12", "data.micro_batch_size=1",
                "data.path=" + path("tokens.h5"), "data.validation_fraction=0.1", "data.validation_batches=0"});
    return trainer::read_deck((test::test_folder() / "golden" / model / "input.deck").string(), set);
  }

  // After one step.
  Losses validate(deck::Config config, MPI_Comm world) const {
    int size = 0;
    MPI_Comm_size(world, &size);
    trainer::resolve(config, size);
    return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
      comm::ProcessGrid grid = trainer::make_grid(world, config);
      Log log(false);
      Timers timers;
      Device device(timers, trainer::gemm_mode_of(config));
      std::vector<data::TokenFile> files;
      files.emplace_back(config.data.path);
      for (const deck::NamedFile& set : deck::named_files(config.data.validation_path)) files.emplace_back(set.path);
      const auto loader = [&](std::size_t file, data::Split split) {
        return data::BatchLoader(config.data, 1, {&files[file], 1}, split, grid.dp_rank(), grid.shape().dp,
                                 trainer::sequence_layout(config)[grid.cp_rank()],
                                 trainer::neighbouring_sequences(config));
      };
      trainer::Loaders loaders{loader(0, data::Split::training), {}};
      if (files.size() == 1) loaders.validation.push_back(loader(0, data::Split::validation));
      for (std::size_t i = 1; i < files.size(); ++i) loaders.validation.push_back(loader(i, data::Split::validation));
      Arena arena(trainer::plan_step(config, grid.coordinate()).memory);
      trainer::Trainer<T> run(config, {}, grid, device, arena, loaders, log);
      run.resume();
      run.train_step();
      return run.validate();
    });
  }

  // On one rank and on every kind of grid; `same` is told both.
  template <class Same>
  void on_all_grids(const deck::Config& given, const Same& same) const {
    const Losses reference = validate(given, MPI_COMM_SELF);
    for (const auto& [dp, tp, pp, cp, zero] : {std::array{ranks_, 1, 1, 1, 0},
                                               {1, ranks_, 1, 1, 0},
                                               {1, 1, ranks_, 1, 0},
                                               {1, 1, 1, ranks_, 0},
                                               {ranks_, 1, 1, 1, 3}}) {
      SCOPED_TRACE(fmt::format("dp {} tp {} pp {} cp {} zero {}", dp, tp, pp, cp, zero));
      deck::Config config = given;
      config.parallel.dp = dp;
      config.parallel.tp = tp;
      config.parallel.pp = pp;
      config.parallel.cp = cp;
      config.parallel.zero_stage = zero;
      const Losses ours = validate(config, test::world());
      ASSERT_EQ(ours.size(), reference.size());
      for (std::size_t i = 0; i < ours.size(); ++i) same(ours[i], reference[i]);
    }
  }

  test::TemporaryFolder folder_;
  int ranks_ = 1;
};

void expect_close(double ours, double theirs) { EXPECT_NEAR(ours, theirs, 1e-12 * theirs); }
void expect_equal(double ours, double theirs) { EXPECT_EQ(ours, theirs); }

TEST_F(Validation, IsTheSameOnEveryGrid) {
  on_all_grids(config("llama", {"precision.compute=fp64", "data.validation_batches=2"}), expect_close);
  on_all_grids(config("llama", {"precision.compute=fp64"}), expect_close);
  on_all_grids(
      config("qwen3", {"precision.compute=fp64", "data.sequences=documents", "data.document_mask=block_diagonal"}),
      expect_close);
}

TEST_F(Validation, HasTheSameBitsOnEveryGridOfALayout) {
  if (ranks_ != 2) GTEST_SKIP() << "shards of two";
  on_all_grids(
      config("llama", {"precision.compute=fp32", "precision.reproducible=layout", "model.num_key_value_heads=4",
                       "precision.tensor_shards=4", "precision.context_shards=4", "parallel.cp_mode=all_to_all"}),
      expect_equal);
}

// The last batch of 12 has one sequence: batches of 1 and of 25 have none that is not full.
TEST_F(Validation, IsTheMeanOverAllTargets) {
  for (const char* kind : {"stream", "documents"}) {
    const auto loss = [&](int batch) {
      deck::Config c = config("llama", {"precision.compute=fp64", std::string("data.sequences=") + kind,
                                        "data.document_mask=block_diagonal"});
      c.optimizer.learning_rate = 0.0;  // the step before it differs
      c.data.global_batch_size = batch;
      return validate(c, MPI_COMM_SELF).at(0);
    };
    const double reference = loss(1);
    for (const int batch : {12, 25, 7}) expect_close(loss(batch), reference);
  }
}

TEST_F(Validation, DropsNothing) {
  const auto loss = [&](const char* rate) {
    deck::Config c = config("llama", {"precision.compute=fp64", std::string("model.hidden_dropout=") + rate,
                                      std::string("model.attention_dropout=") + rate});
    c.optimizer.learning_rate = 0.0;  // the step before it differs
    return validate(c, test::world()).at(0);
  };
  EXPECT_EQ(loss("0.3"), loss("0"));
}

TEST_F(Validation, OfSeveralSetsIsOneLossEach) {
  deck::Config c = config("llama", {"precision.compute=fp64"});
  c.data.validation_fraction = 0.0;
  const auto of = [&](const std::string& sets) {
    c.data.validation_path = sets;
    return validate(c, MPI_COMM_SELF);
  };
  const Losses both = of("a=" + path("other.h5") + " b=" + path("tokens.h5"));
  EXPECT_EQ(both, (Losses{of(path("other.h5")).at(0), of(path("tokens.h5")).at(0)}));
  EXPECT_NE(both.at(0), both.at(1));
  c.data.validation_path = "a=" + path("other.h5") + " b=" + path("tokens.h5");
  on_all_grids(c, expect_close);
}

// Of one sequence, whose tokens are all the same and so take the same experts: on one rank, not on all of them.
TEST_F(Validation, OfFewSequencesAsksForNoMoreRoomThanTraining) {
  if (ranks_ != 2) GTEST_SKIP() << "experts of two ranks";
  deck::Config c = config("mixtral", {"precision.compute=fp64", "parallel.ep=2", "moe.receive_factor=1.8"});
  c.data.validation_fraction = 0.0;
  c.data.validation_path = path("one.h5");
  c.parallel.dp = 2;
  for (std::uint32_t token = 0; token < 6; ++token) {
    if (comm::Communicator::duplicate(test::world()).rank() == 0) {
      const hdf5::File file = test::new_file(path("one.h5"));
      test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, std::vector<std::uint32_t>(25, token), {25});
    }
    MPI_Barrier(test::world());
    EXPECT_NO_THROW(validate(c, test::world())) << token;
  }
}

}  // namespace
}  // namespace nanotron
