#include "nanotron/trainer/start/measured_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/parallel/reducers/all_reduce/bucket_size.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

void choose_bucket(deck::Config& config, comm::ProcessGrid& grid, Log& log) {
  if (config.parallel.bucket_mb > 0.0) return;
  if (grid.data_parallel().size() == 1) {
    config.parallel.bucket_mb = deck::ParallelConfig{}.bucket_mb;  // no gradient all-reduce
    return;
  }
  Timers timers;
  Device device(timers);
  const parallel::AllReduceSpeed here = parallel::measure_all_reduce(grid.data_parallel(), device);
  const parallel::AllReduceSpeed slowest{.latency = comm::max(grid.world(), here.latency),
                                         .bytes_per_second = comm::min(grid.world(), here.bytes_per_second)};
  const std::size_t element = config.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float);
  const index_t gradients = model::parameter_table_of(transformer_setup(config, grid)).trained_size();
  const auto bytes = static_cast<double>(comm::max(grid.world(), gradients * static_cast<std::int64_t>(element)));
  config.parallel.bucket_mb = parallel::bucket_megabytes(slowest, bytes);
  log.info(
      "all-reduce over {} data-parallel ranks: {:.1f} us and {:.2f} GB/s; "
      "for {:.0f} MiB of gradients bucket_mb = {}",
      grid.data_parallel().size(), 1e6 * slowest.latency, slowest.bytes_per_second / 1e9, bytes / 1048576.0,
      config.parallel.bucket_mb);
}

namespace {

constexpr int repeats = 5;

// A model of embedding, a layer of each kind, each a virtual stage, and head, and the tokens of one micro-batch.
template <class T>
class OneOfEachKind {
 public:
  OneOfEachKind(const deck::Config& config, comm::ProcessGrid& grid)
      : device_(timers_, gemm_mode_of(config)), world_(grid.world()), kinds_(config.model) {
    deck::Config whole = config;
    whole.parallel.pp = 1;
    setup_ = transformer_setup(whole, grid);
    setup_.model = deck::with_largest_buffers(config.model);  // untrained routers are uneven
    setup_.recompute = config.parallel.recompute;             // in all layers, or in none
    setup_.objective = {};
    setup_.document_mask = deck::DocumentMask::none;
    setup_.sharding = {};
    setup_.unit_shards = 1;
    setup_.in_turns = 1;
    setup_.offloaded_layers = 0;
    const std::vector<std::int64_t> layers = kinds_.first_layers();
    setup_.model = deck::only_layers(setup_.model, layers);
    for (index_t l = 0; l < static_cast<index_t>(layers.size()); ++l) setup_.stages.push_back({.layers = {l, l + 1}});
    Arena planning = Arena::planning();
    static_cast<void>(Memory(setup_, device_, planning));
    arena_.emplace(planning.plan());
    memory_.emplace(setup_, device_, *arena_);
    const nn::ParameterBuffers<T>& p = memory_->model.parameters();
    p.for_each_stored([&]<class U>(const nn::BufferLayout& layout, const Vector<U>& values) {
      model::initialise<U>(memory_->model.table(), 1, values, layout);
    });
    memory_->model.refresh_compute_weights();
    fill_tokens();
  }

  model::BlockCosts seconds() {
    model::Transformer<T>& model = memory_->model;
    const Matrix<T> dx = model.hidden_gradient(0);
    const Vector<const std::int32_t> tokens = memory_->tokens;
    const auto kinds = static_cast<index_t>(kinds_.all().size());
    std::vector<double> layers;
    const double embed = least([&] { model.embed({}, tokens); });
    for (index_t k = 0; k < kinds; ++k) {
      if (k > 0) Kokkos::deep_copy(model.input({.stage = k}), model.output({.stage = k - 1}));
      layers.push_back(least([&] { model.forward({.stage = k}); }));
    }
    const double head = least([&] { model.loss_backward({.stage = kinds - 1}, tokens, 1e-3, memory_->losses, dx); });
    for (index_t k = kinds - 1; k >= 0; --k) {
      layers[static_cast<std::size_t>(k)] += least([&] { model.backward_layer({.stage = k}, 0, dx); });
    }
    const double embed_backward = least([&] { model.backward_embedding({}, tokens, dx); });
    return {.embedding = embed + embed_backward, .layers = model::LayerCosts(kinds_, std::move(layers)), .head = head};
  }

 private:
  struct Memory {
    model::Transformer<T> model;
    Vector<std::int32_t> tokens;
    Vector<double> losses;
    Memory(const model::TransformerSetup& setup, Device& device, Arena& arena)
        : model(setup, device, arena),
          tokens(arena.take<std::int32_t>(MemoryKind::workspace, model.tokens())),
          losses(arena.take<double>(MemoryKind::workspace, model.tokens())) {}
  };

  // Different token ids, so that all experts receive tokens.
  void fill_tokens() {
    const auto host = Kokkos::create_mirror_view(memory_->tokens);
    for (std::size_t i = 0; i < host.size(); ++i) {
      host(i) = static_cast<std::int32_t>(i % static_cast<std::size_t>(setup_.model.vocab_size));
    }
    Kokkos::deep_copy(memory_->tokens, host);
  }

  // Max over ranks of each rank's min over `repeats` runs.
  template <class F>
  double least(F&& work) {
    double seconds = 1e300;
    for (int i = 0; i < repeats; ++i) {
      comm::barrier(world_);
      device_.fence();
      const double begin = wall_seconds();
      work();
      device_.fence();
      seconds = std::min(seconds, wall_seconds() - begin);
    }
    return comm::max(world_, seconds);
  }

  Timers timers_;
  Device device_;
  comm::Group& world_;
  deck::LayerKinds kinds_;
  model::TransformerSetup setup_;
  std::optional<Arena> arena_;
  std::optional<Memory> memory_;
};

}  // namespace

void choose_pipeline_cut(deck::Config& config, comm::ProcessGrid& grid) {
  if (config.parallel.pp == 1 || !config.parallel.pp_layers.empty() || config.parallel.pp_cut != deck::PpCut::time)
    return;
  const model::BlockCosts seconds = with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    const model::BlockCosts seconds = OneOfEachKind<T>(config, grid).seconds();
    return model::with_appended(seconds, config.model, seconds.head);
  });
  const auto stages = static_cast<int>(deck::pipeline_stages(config.parallel));
  std::string& counts = config.parallel.pp_layers;
  for (const Range& stage : parallel::cut_layers(seconds, config.model.num_hidden_layers, stages)) {
    counts += fmt::format("{}{}", counts.empty() ? "" : " ", stage.size());
  }
}

}  // namespace nanotron::trainer
