// ranks: 1 2
// timeout: 600
// Nothing is allocated in the step loop, and the process takes the memory that was planned.

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "nanotron/base/process.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

// Every heap allocation of the process is counted, by the library that asked for it: what the libraries for
// products (oneDNN, BLAS, their threads) and for messages (MPI keeps what came before it was awaited) do
// inside a call is theirs, everything else is ours. A sanitizer has
// an allocator of its own, so this is left to the other builds.
#if !defined(__SANITIZE_ADDRESS__)
#define NANOTRON_COUNTS_ALLOCATIONS
#endif

namespace {

struct Counts {
  std::atomic<long> ours{0}, libraries{0};
  std::atomic<std::size_t> largest{0};  // of ours
};
Counts counts;
std::atomic<bool> counting{false};

bool is_library(const void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  for (const char* name :
       {"libdnnl", "blas", "libgomp", "libmkl", "libmpi", "libopen-", "mca_", "libfabric", "libuc", "libpmi"}) {
    if (std::strstr(info.dli_fname, name) != nullptr) return true;
  }
  return false;
}

void count(std::size_t size, const void* caller) {
  if (!counting) return;
  counting = false;  // dladdr may allocate
  if (is_library(caller)) {
    ++counts.libraries;
  } else {
    ++counts.ours;
    counts.largest = std::max(counts.largest.load(), size);
  }
  counting = true;
}

}  // namespace

#ifdef NANOTRON_COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  count(n * size, __builtin_return_address(0));
  return __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** result, std::size_t alignment, std::size_t size) {
  count(size, __builtin_return_address(0));
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}
}
// Not inlined: the compiler would take free for the wrong partner of new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  count(size, __builtin_return_address(0));
  if (void* memory = __libc_malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace nanotron {
namespace {

deck::Config config_for(const std::filesystem::path& folder, index_t hidden, index_t layers) {
  deck::Config c;
  c.model.hidden_size = hidden;
  c.model.num_hidden_layers = layers;
  c.model.num_attention_heads = hidden / 32;
  c.model.num_key_value_heads = hidden / 64;
  c.model.head_dim = 32;
  c.model.intermediate_size = hidden * 11 / 4;
  c.model.vocab_size = 1024;
  c.model.qkv_bias = true;
  c.model.qk_norm = true;
  c.data.path = (folder / "tokens.h5").string();
  c.data.sequence_length = 128;
  c.data.global_batch_size = 8;
  c.data.micro_batch_size = 2;
  c.checkpoint.directory = (folder / "checkpoints").string();
  c.checkpoint.resume = "none";
  return c;
}

// A trainer with all that it borrows.
template <class T>
struct TrainingRun {
  TrainingRun(const deck::Config& given, MPI_Comm world)
      : config(resolved(given, world)),
        grid(trainer::make_grid(world, config)),
        device(timers, trainer::gemm_mode_of(config)),
        tokens(config.data.path),
        loaders{data::BatchLoader(config.data, 1, {&tokens, 1}, data::Split::training, grid.dp_rank(), grid.shape().dp,
                                  trainer::sequence_layout(config)[grid.cp_rank()],
                                  trainer::neighbouring_sequences(config)),
                {}},
        plan(trainer::plan_step(config, grid.coordinate()).memory),
        before(resident_bytes()),
        arena(plan),
        trainer(config, {}, grid, device, arena, loaders, log) {}

  static deck::Config resolved(deck::Config c, MPI_Comm world) {
    int ranks = 0;
    MPI_Comm_size(world, &ranks);
    trainer::resolve(c, ranks);
    return c;
  }

  deck::Config config;
  comm::ProcessGrid grid;
  Log log{false};
  Timers timers;
  Device device;
  data::TokenFile tokens;
  trainer::Loaders loaders;
  MemoryPlan plan;
  std::size_t before;
  Arena arena;
  trainer::Trainer<T> trainer;
};

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_rank(test::world(), &rank_);
    if (rank_ == 0) {
      test::write_tokens(folder_.path() / "tokens.h5", 128 * 100 + 1, 1000);
      test::write_documents(folder_.path() / "tokens.h5", {7, 40, 300, 301, 2000});
    }
    MPI_Barrier(test::world());
  }
  int rank_ = 0;
  test::TemporaryFolder folder_{test::world(), "memory"};
};

#ifdef NANOTRON_COUNTS_ALLOCATIONS
TEST_F(Memory, TheCounterCounts) {
  const long before = counts.ours;
  counting = true;
  void* volatile some = std::malloc(100);
  int* volatile other = new int(1);
  counting = false;
  EXPECT_EQ(counts.ours - before, 2);
  std::free(some);
  delete other;
}

TEST_F(Memory, NothingIsAllocatedInTheStepLoop) {
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  struct Mode {
    std::int64_t tp;
    deck::TpMode tp_mode;
    std::int64_t zero_stage = 0;
    std::int64_t cp = 1;
    deck::CpMode core = deck::CpMode::ring;
    deck::DocumentMask mask = deck::DocumentMask::none;
    std::string optimizer = "adamw";
    std::int64_t chunks = 1;
    deck::GatheredInputs inputs = deck::GatheredInputs::gather_again;
    deck::Compression compression = deck::Compression::none;
    deck::GradientRule rule = deck::GradientRule::sum;
    deck::MoeConfig moe{};
    std::int64_t ep = 1;
    std::int64_t pp = 1;
    deck::PpSchedule schedule = deck::PpSchedule::one_f_one_b;
    void (*more)(deck::Config&) = [](deck::Config&) {};
  };
  const deck::MoeConfig experts{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 128};
  deck::MoeConfig capacity = experts, shared = experts;
  capacity.capacity_factor = 1.0;
  shared.shared_expert_intermediate_size = 96;
  constexpr auto muon = "muon";
  const auto beside_frozen_weights = [](deck::Config& c) {
    c.lora =
        c.precision.compute == ScalarType::fp8 ? deck::LoraConfig{} : deck::LoraConfig{.rank = 4, .base = "initial"};
  };
  constexpr auto split = deck::TpMode::reduce_scatter;
  const std::vector<Mode> modes{
      Mode{1, deck::TpMode::all_reduce},
      Mode{2, deck::TpMode::all_reduce},
      Mode{2, deck::TpMode::reduce_scatter},
      Mode{1, deck::TpMode::all_reduce, 1},
      Mode{1, deck::TpMode::all_reduce, 2},
      Mode{1, deck::TpMode::all_reduce, 3},
      Mode{1, deck::TpMode::all_reduce, 0, 2, deck::CpMode::ring, deck::DocumentMask::block_diagonal},
      Mode{1, deck::TpMode::all_reduce, 0, 2, deck::CpMode::all_to_all},
      Mode{.tp = 1, .tp_mode = {}, .optimizer = muon},
      Mode{.tp = 2, .tp_mode = {}, .optimizer = muon},
      Mode{.tp = 1, .tp_mode = {}, .zero_stage = 2, .optimizer = muon},
      Mode{.tp = 1, .tp_mode = {}, .optimizer = "soap"},
      Mode{.tp = 2, .tp_mode = {}, .zero_stage = 2, .optimizer = "soap"},
      Mode{.tp = 2, .tp_mode = split, .chunks = 3},
      Mode{.tp = 2, .tp_mode = split, .chunks = 16, .inputs = deck::GatheredInputs::keep},
      Mode{.tp = 1, .tp_mode = {}, .compression = deck::Compression::fp16},
      Mode{.tp = 1, .tp_mode = {}, .compression = deck::Compression::powersgd},
      Mode{.tp = 1, .tp_mode = {}, .zero_stage = 1, .compression = deck::Compression::bf16},
      Mode{.tp = 1, .tp_mode = {}, .zero_stage = 3, .compression = deck::Compression::bf16},
      Mode{.tp = 1, .tp_mode = {}, .pp = 2},
      Mode{.tp = 1, .tp_mode = {}, .pp = 2, .schedule = deck::PpSchedule::zero_bubble},
      Mode{.tp = 1, .tp_mode = {}, .rule = deck::GradientRule::adasum},
      Mode{.tp = 1, .tp_mode = {}, .moe = shared},
      Mode{.tp = 2, .tp_mode = split, .chunks = 3, .inputs = deck::GatheredInputs::keep, .moe = experts},
      Mode{.tp = 1, .tp_mode = {}, .cp = 2, .moe = capacity, .ep = 2},
      Mode{.tp = 1, .tp_mode = {}, .moe = shared, .ep = 2},
      Mode{.tp = 1, .tp_mode = {}, .zero_stage = 1, .moe = experts, .ep = 2},
      Mode{.tp = 1,
           .tp_mode = {},
           .optimizer = "ademamix",
           .more =
               [](deck::Config& c) {
                 c.optimizer.ema_decay = 0.99, c.optimizer.qk_clip = 0.01, c.model.qk_norm = false;
                 c.model.hidden_dropout = c.model.attention_dropout = 0.1;
                 c.model.num_nextn_predict_layers = c.precision.compute == ScalarType::fp8 ? 0 : 2;
               }},
      Mode{.tp = 1, .tp_mode = {}, .zero_stage = 3, .more = beside_frozen_weights},
      Mode{.tp = 2, .tp_mode = split, .more = beside_frozen_weights}};
  std::vector<Mode> fitting;
  std::ranges::copy_if(modes, std::back_inserter(fitting), [&](const Mode& m) {
    return ranks % (m.tp * m.cp * m.pp) == 0 && ranks / m.tp % m.ep == 0 && (m.zero_stage == 0 || ranks > 1);
  });
  for (const auto& [tp, tp_mode, zero_stage, cp, core, mask, optimizer, chunks, inputs, compression, rule, moe, ep, pp,
                    schedule, more] : test::sampled(fitting, 4, test::world())) {
    deck::Config config = config_for(folder_.path(), 128, 4);
    config.data.sequence_length = 64;
    config.parallel.zero_stage = zero_stage;
    config.parallel.tp = tp;
    config.parallel.tp_mode = tp_mode;
    config.parallel.tp_overlap_chunks = chunks;
    config.parallel.tp_gathered_inputs = inputs;
    config.parallel.compression = compression;
    config.parallel.gradient_sum = rule;
    config.parallel.cp = cp;
    config.parallel.cp_mode = core;
    config.data.document_mask = mask;
    config.optimizer.name = optimizer;
    config.model.moe = moe;
    config.parallel.ep = ep;
    config.parallel.pp = pp;
    config.parallel.pp_schedule = schedule;
    for (const ScalarType type : {ScalarType::fp64, ScalarType::fp32, ScalarType::bf16, ScalarType::fp8}) {
      config.precision.compute = type;
      more(config);
      with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
        TrainingRun<T> run(config, test::world());
        for (int i = 0; i < 3; ++i) run.trainer.train_step();
        counts.ours = counts.libraries = 0;
        counts.largest = 0;
        counting = true;
        for (int i = 0; i < 5; ++i) run.trainer.train_step();
        counting = false;
        EXPECT_EQ(counts.ours, 0) << name_of(type) << " tp " << tp << " zero_stage " << zero_stage << " cp " << cp
                                  << " pp " << pp << " ep " << ep << " experts " << moe.num_experts
                                  << ", the largest of " << counts.largest << " bytes";
        if (rank_ == 0) {
          std::printf("%s tp %d cp %d: inside the libraries %.0f a step\n", name_of(type), static_cast<int>(tp),
                      static_cast<int>(cp), static_cast<double>(counts.libraries) / 5);
        }
      });
    }
  }
}
#endif

#ifdef NANOTRON_COUNTS_ALLOCATIONS  // a sanitizer keeps freed memory and shadows the rest
void expect_peak(double planned, int rank) {
  const auto peak = static_cast<double>(peak_resident_bytes());
  if (rank == 0)
    std::printf("planned %.0f MiB, peak %.0f MiB: %+.1f %%\n", planned / 1048576, peak / 1048576,
                100 * (peak / planned - 1));
  EXPECT_NEAR(peak / planned, 1.0, 0.1);
}

void expect_planned_peak(const deck::Config& config, int rank) {
  TrainingRun<float> run(config, test::world());
  run.trainer.train_step();
  expect_peak(static_cast<double>(run.before + run.plan.total()), rank);
}

// A process's peak only rises: these run in the order of what they take.

// With kept inputs, a sixth of what is planned.
TEST_F(Memory, PeakOfSequenceParallelIsWhatWasPlanned) {
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  if (ranks != 2) return;
  deck::Config config = config_for(folder_.path(), 512, 8);
  config.data.micro_batch_size = 16;
  config.data.global_batch_size = 16;
  config.parallel.tp = 2;
  config.parallel.tp_mode = deck::TpMode::reduce_scatter;
  config.parallel.tp_overlap_chunks = 4;
  config.parallel.tp_gathered_inputs = deck::GatheredInputs::keep;
  expect_planned_peak(config, rank_);
}

TEST_F(Memory, PeakOfAPipelineIsWhatWasPlanned) {
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  if (ranks != 2) return;
  deck::Config config = config_for(folder_.path(), 1024, 6);
  config.data.global_batch_size = 8;
  config.parallel.pp = 2;
  expect_planned_peak(config, rank_);
}

TEST_F(Memory, PeakIsWhatWasPlanned) {
  deck::Config config = config_for(folder_.path(), 1024, 4);
  config.data.global_batch_size = 4;
  expect_planned_peak(config, rank_);
}

// With the errors that each replica carries on.
TEST_F(Memory, PeakOfCompressedSumsIsWhatWasPlanned) {
  deck::Config config = config_for(folder_.path(), 1024, 4);
  config.data.global_batch_size = 4;
  config.parallel.compression = deck::Compression::powersgd;
  expect_planned_peak(config, rank_);
}
#endif

}  // namespace
}  // namespace nanotron
