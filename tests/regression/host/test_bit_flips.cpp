// ranks: 1 2 4
// timeout: 600
// A bit that flips in an activation, a gradient, a weight or a moment of one rank ends the run with its name: while it
// is computed, because the step is computed again; in memory, because the bits are not those that the update wrote.

#include <cblas.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "support/device_values.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace {

// A fault of the processor of this rank: bit 62 of an element of one result of cblas_dgemm, which everything of fp64 is
// multiplied with. Off: -1.
struct Fault {
  bool of_weight_gradients = false;  // A^T B; else of activations and their gradients
  int products_until = -1;
} fault;

[[maybe_unused]] decltype(&cblas_ddot) volatile needs_the_library = &cblas_ddot;  // else it is not linked

void flip(double& value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits ^= std::uint64_t{1} << 62;
  std::memcpy(&value, &bits, sizeof bits);
}

}  // namespace

extern "C" void cblas_dgemm(const CBLAS_ORDER order, const CBLAS_TRANSPOSE a_is, const CBLAS_TRANSPOSE b_is,
                            const blasint m, const blasint n, const blasint k, const double alpha, const double* a,
                            const blasint lda, const double* b, const blasint ldb, const double beta, double* c,
                            const blasint ldc) {
  static const auto real = reinterpret_cast<decltype(&cblas_dgemm)>(dlsym(RTLD_NEXT, "cblas_dgemm"));
  real(order, a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (fault.products_until < 0 || (a_is == CblasTrans) != fault.of_weight_gradients) return;
  if (fault.products_until-- == 0) flip(c[m / 2 * ldc + n / 2]);
}

namespace nanotron {
namespace {

using trainer::Trainer;

struct Grid {
  const char* name;
  std::vector<std::string> set;
  const char* golden = "llama";
};
const std::vector<Grid> grids{
    {"dp", {}},
    {"tp", {"parallel.tp=2"}},
    {"tp, sequence parallel", {"parallel.tp=2", "parallel.tp_mode=reduce_scatter"}},
    {"pp", {"parallel.pp=2", "data.micro_batch_size=1"}},
    {"pp with a tied embedding", {"parallel.pp=2", "parallel.dp=2", "data.micro_batch_size=1"}, "llama3_rope"},
    {"pp and tp", {"parallel.pp=2", "parallel.tp=2", "data.micro_batch_size=1"}},
    {"cp", {"parallel.cp=2"}},
    {"ZeRO 1", {"parallel.zero_stage=1"}},
    {"ZeRO 2", {"parallel.zero_stage=2"}},
    {"ZeRO 3", {"parallel.zero_stage=3"}},
    {"ep", {"parallel.ep=2"}, "mixtral"},
    {"ep and tp", {"parallel.ep=2", "parallel.tp=2"}, "mixtral"},
    {"Muon", {"optimizer.name=muon", "parallel.zero_stage=1"}},
    {"SOAP", {"optimizer.name=soap", "optimizer.precondition_every=3"}},
    {"in a fixed order", {"precision.reproducible=layout"}},
};

class BitFlips : public testing::Test {
 protected:
  BitFlips() : folder_(test::world(), "bit_flips"), tokens_("bit_flips_tokens", 60'000) {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
  }

  std::optional<deck::Config> deck_of(const Grid& grid, const std::vector<std::string>& more) const {
    std::vector<std::string> set = grid.set;
    set.insert(set.end(), more.begin(), more.end());
    for (const char* key : {"checkpoint.resume=none", "precision.compute=fp64", "run.max_nonfinite_steps=3"})
      set.emplace_back(key);
    set.push_back("data.path='" + tokens_.path() + "'");
    set.push_back("run.output_dir='" + folder_.path().string() + "'");
    return test::deck_if_legal(grid.golden, set, ranks_);
  }

  // The error of the next steps, at most so many; empty: none came.
  std::string error_of(Trainer<double>& run, int steps) const {
    try {
      for (int i = 0; i < steps; ++i) run.train_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::system_error);
      return error.what();
    }
    return "";
  }

  void expect_named(const std::string& message, int victim, const std::string& what) {
    EXPECT_NE(message.find("on rank " + std::to_string(victim) + " on "), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(message.substr(0, message.find('\n')).find(", rank"), std::string::npos) << "nobody else: " << message;
    if (rank_ != 0) return;
    std::ifstream file(folder_ / "excluded_hosts");
    std::string line, last;
    int lines = 0;
    while (std::getline(file, line)) last = line, ++lines;
    EXPECT_EQ(lines, ++excluded_);
    EXPECT_NE(last.find(what), std::string::npos) << last;
  }

  test::TemporaryFolder folder_;
  test::TokensOfDocuments tokens_;
  int ranks_ = 0, rank_ = 0, excluded_ = 0;
};

TEST_F(BitFlips, InProductsNameTheRankThatComputed) {
  int tried = 0, found = 0;
  for (const Grid& grid : grids) {
    const auto config = deck_of(grid, {"run.spike_factor=100"});
    if (!config || config->precision.reproducible == deck::Reproducible::layout) continue;  // with GEMMs of its own
    for (const bool of_weight_gradients : {false, true}) {
      for (const int products : of_weight_gradients ? std::vector{0, 5, 11} : std::vector{0, 9, 17}) {
        const int victim = (tried * 7 + 1) % ranks_;
        SCOPED_TRACE(testing::Message() << grid.name << (of_weight_gradients ? ", gradient " : ", activation ")
                                        << products << " of rank " << victim);
        test::TrainerRun<double> run(*config, test::world());
        for (int i = 0; i < 2; ++i) EXPECT_TRUE(run->train_step().updated);
        fault = {of_weight_gradients, rank_ == victim ? products : -1};
        const std::string message = error_of(*run, 1);
        fault = {};
        ++tried;
        if (message.empty()) continue;  // a gate that becomes -1e308 is one of 0: a flip without an effect
        expect_named(message, victim, "two computations of the same step differ");
        EXPECT_EQ(run->step(), 2);
        ++found;
      }
    }
  }
  EXPECT_GE(tried, 6);
  EXPECT_GE(found, tried * 9 / 10);
}

// What a rank stores, in the words of the message.
enum class Stored { master, moment };

void flip_stored(trainer::TrainingState<double>& state, Stored what) {
  const auto change = [](const auto& values) {
    using Value = typename std::remove_cvref_t<decltype(values)>::value_type;
    if constexpr (std::is_same_v<Value, double>) {
      const auto at = static_cast<index_t>(values.size()) / 2;
      double value = test::value_at(values, at);
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      bits ^= 1;  // the lowest: nothing but the bit itself tells
      std::memcpy(&value, &bits, sizeof bits);
      test::set_value(values, at, value);
    }
  };
  if (what == Stored::master) return change(state.model.parameters().master);
  std::visit(change, state.optimizer->moments().back().values);
}

TEST_F(BitFlips, InMemoryNameTheRankAndTheTensor) {
  int tried = 0;
  for (const Grid& grid : grids) {
    const auto config = deck_of(grid, {"run.check_memory_every=2"});
    if (!config) continue;
    for (const Stored what : {Stored::master, Stored::moment}) {
      const int victim = (tried * 5 + 1) % ranks_;
      SCOPED_TRACE(testing::Message() << grid.name << ", rank " << victim);
      test::TrainerRun<double> run(*config, test::world());
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(run->train_step().updated);
      trainer::TrainingState<double>& state = run->state();
      if (rank_ == victim) flip_stored(state, what);
      const std::string message = error_of(*run, 1);
      expect_named(message, victim, "memory changed between two updates");
      const std::string stored = what == Stored::master ? "master weights" : state.optimizer->moments().back().name;
      EXPECT_NE(message.find("the " + stored + " of model/"), std::string::npos) << message;
      ++tried;
    }
  }
  EXPECT_GE(tried, 2);
}

// A weight that flips where nobody looks makes both computations the same: then the replicas say which rank it is.
TEST_F(BitFlips, InAWeightAreNoDataFault) {
  if (ranks_ < 4) GTEST_SKIP() << "two ranks do not say which of them is wrong";
  const auto config = deck_of(grids.front(), {"run.spike_factor=100"});
  ASSERT_TRUE(config);
  test::TrainerRun<double> run(*config, test::world());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(run->train_step().updated);
  const Vector<double> weights = run->state().model.parameters().master;
  if (rank_ == 2) {
    double value = test::value_at(weights, 5);
    flip(value);
    test::set_value(weights, 5, value);
  }
  const std::string message = error_of(*run, 1);
  EXPECT_NE(message.find("rank 2 against ranks 0, 1, 3"), std::string::npos) << message;
  EXPECT_EQ(std::filesystem::exists(folder_ / "excluded_hosts"), true);
}

// The keys change no bit of a run without a fault.
TEST_F(BitFlips, WithoutAnyTheTrainingIsTheSame) {
  int tried = 0;
  for (const Grid& grid : grids) {
    const auto plain = deck_of(grid, {}), guarded = deck_of(grid, {"run.spike_factor=100", "run.check_memory_every=1"});
    if (!plain) continue;
    ASSERT_TRUE(guarded);
    SCOPED_TRACE(grid.name);
    test::TrainerRun<double> a(*plain, test::world()), b(*guarded, test::world());
    for (int i = 0; i < 6; ++i) {
      const trainer::StepResult x = a->train_step(), y = b->train_step();
      EXPECT_EQ(x.loss, y.loss);
      EXPECT_EQ(x.grad_norm, y.grad_norm);
    }
    EXPECT_EQ(test::values_of(a->state().model.parameters().master),
              test::values_of(b->state().model.parameters().master));
    ++tried;
  }
  EXPECT_GE(tried, 1);
}

}  // namespace
}  // namespace nanotron
