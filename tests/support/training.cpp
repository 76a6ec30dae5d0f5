#include "support/training.hpp"

#include <hdf5.h>

#include <numeric>
#include <optional>

#include "nanotron/base/random.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/differences.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron::test {
namespace {

// Adds a part to the logical tensor, whatever its dimensions.
template <class M>
void add_part(const std::vector<index_t>& global_shape, const io::StatePart& p, std::vector<double>& logical) {
  std::vector<index_t> shape = global_shape, offset = p.offset, extent = p.extent, stride = p.stride;
  while (shape.size() < 3) {
    shape.insert(shape.begin(), 1);
    offset.insert(offset.begin(), 0);
    extent.insert(extent.begin(), 1);
    stride.insert(stride.begin(), 0);
  }
  for (index_t a = 0; a < extent[0]; ++a) {
    for (index_t b = 0; b < extent[1]; ++b) {
      for (index_t c = 0; c < extent[2]; ++c) {
        const index_t to = ((a + offset[0]) * shape[1] + b + offset[1]) * shape[2] + c + offset[2];
        logical[static_cast<std::size_t>(to)] +=
            static_cast<const M*>(p.data)[a * stride[0] + b * stride[1] + c * stride[2]];
      }
    }
  }
}

// The logical tensors of which the ranks of `world` hold between them what `place`, of the buffer, says.
template <class S>
Tensors gather(const std::vector<nn::ParameterSpec>& specs, const Vector<S>& values, const nn::BufferLayout& place,
               const trainer::Parts& part, MPI_Comm world) {
  const auto host = Kokkos::create_mirror_view(values);
  Kokkos::deep_copy(host, values);
  Tensors all;
  for (const io::StateTensor& t : trainer::moment_tensors<S>(specs, place, host.data(), part)) {
    const auto size = std::accumulate(t.global_shape.begin(), t.global_shape.end(), index_t{1}, std::multiplies<>());
    std::vector<double> logical(static_cast<std::size_t>(size), 0.0);
    for (const io::StatePart& p : t.parts) add_part<S>(t.global_shape, p, logical);
    MPI_Allreduce(MPI_IN_PLACE, logical.data(), static_cast<int>(logical.size()), MPI_DOUBLE, MPI_SUM, world);
    all[t.name] = std::move(logical);
  }
  return all;
}

std::uint64_t bytes_of(comm::DataGroups& groups) {
  return groups.data.traffic().bytes + groups.shard.traffic().bytes + groups.replicate.traffic().bytes;
}

// Of a step; 0 where the run has no such column.
double statistic(const deck::Config& config, const trainer::StepResult& r, std::string_view name) {
  const std::vector<io::ExtraColumn> columns = trainer::statistics_columns(config);
  const auto found =
      std::ranges::find(columns, name, [](const io::ExtraColumn& c) { return std::string_view(c.name); });
  return found == columns.end() ? 0.0 : r.statistics[static_cast<std::size_t>(found - columns.begin())];
}

// What went through the groups so far.
Traffic counted(comm::ProcessGrid& grid) {
  return {
      .tensor_parallel = grid.tp().traffic().bytes,
      .context_parallel =
          grid.cp().traffic().bytes + grid.cp_all_to_all().traffic().bytes + grid.cp_ring().traffic().bytes,
      .data_parallel =
          bytes_of(grid.data_groups(comm::ReplicaSet::data_parallel)) +
          (grid.shape().has_expert_groups() ? bytes_of(grid.data_groups(comm::ReplicaSet::expert_data_parallel)) : 0),
      .pipeline = grid.pp().traffic().bytes,
      .expert_parallel =
          grid.ep().traffic().bytes + grid.ep_across().traffic().bytes + grid.ep_within().traffic().bytes};
}

void add_scalars(const deck::Config& config, Traffic& traffic) {
  const std::uint64_t losses = 1 + (config.optimizer.z_loss_coefficient > 0.0 ? 1 : 0) +
                               (deck::appended_layers(config.model) > 0 ? 1 : 0) +
                               (config.preference.beta > 0.0 ? 3 : 0);
  if (config.parallel.dp * config.parallel.cp > 1) traffic.data_parallel += losses * exact_sum + hash + count;
  if (deck::shard_group_size(config.parallel) > 1) traffic.data_parallel += exact_sum;  // norm of the gradient
  if (config.parallel.tp > 1) traffic.tensor_parallel += exact_sum;                     // norm
  if (config.parallel.pp > 1) traffic.pipeline += (losses + 1) * exact_sum;             // and norm
  const comm::GridShape shape = comm::shape_of(config);
  if (shape.ep_spans_tp) {
    if (shape.dp * shape.cp > 1) traffic.data_parallel += exact_sum;
    return;
  }
  if (shape.ep == 1) return;
  traffic.expert_parallel += exact_sum;  // norm of the experts
  if (shape.expert_shards() > 1) traffic.data_parallel += exact_sum;
}

}  // namespace

void write_tokens(const std::filesystem::path& path, index_t count, int vocabulary) {
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count));
  int last = 0;
  for (index_t i = 0; i < count; ++i) {
    const double u = uniform(7, stream_id("tokens"), static_cast<std::uint64_t>(i));
    last = u < 0.8 ? (last * 5 + 3) % vocabulary : static_cast<int>(u * 1e6) % vocabulary;
    tokens[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(last);
  }
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const auto n = static_cast<hsize_t>(count);
  const hid_t space = H5Screate_simple(1, &n, nullptr);
  const hid_t set = H5Dcreate2(file, "/tokens", H5T_STD_U16LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Dwrite(set, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
  H5Dclose(set);
  H5Sclose(space);
  H5Fclose(file);
}

namespace {

// Sets a dataset of a file, of this type in the file and in memory.
template <class V>
void set_dataset(const std::filesystem::path& path, const char* name, hid_t type, hid_t memory, const V& values) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  if (H5Lexists(file, name, H5P_DEFAULT) > 0) H5Ldelete(file, name, H5P_DEFAULT);
  const auto n = static_cast<hsize_t>(values.size());
  const hid_t space = H5Screate_simple(1, &n, nullptr);
  const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Dclose(set);
  H5Sclose(space);
  H5Fclose(file);
}

}  // namespace

void write_documents(const std::filesystem::path& path, const std::vector<std::uint64_t>& starts) {
  set_dataset(path, "/documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts);
}

void write_loss_mask(const std::filesystem::path& path, const std::vector<std::uint8_t>& mask) {
  set_dataset(path, "/loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, mask);
}

void write_lines_of_pairs(const std::filesystem::path& path, const std::vector<std::uint64_t>& lines) {
  set_dataset(path, "/pairs", H5T_STD_U64LE, H5T_NATIVE_UINT64, lines);
}

deck::Config golden_config(const std::string& name, const std::vector<std::string>& set) {
  const std::filesystem::path folder = test_folder() / "golden" / name;
  deck::Config config = trainer::read_deck((folder / "input.deck").string(), set);
  config.data.path = (folder / "tokens.h5").string();
  config.checkpoint.resume = (folder / "step_00000000").string();
  config.checkpoint.at_end = false;
  return config;
}

Numbers run_training(deck::Config config, MPI_Comm world, std::int64_t until, bool save) {
  int ranks = 0;
  MPI_Comm_size(world, &ranks);
  config.parallel.backend = test::backend_of(config.parallel.backend, comm::Communicator::duplicate(world));
  trainer::resolve(config, ranks);
  return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    using M = master_t<T>;
    comm::ProcessGrid grid = trainer::make_grid(world, config);
    Log log(false, grid.world().rank());
    Timers timers;
    Device device(timers, trainer::gemm_mode_of(config));
    std::vector<data::TokenFile> tokens;
    for (const deck::NamedFile& file : deck::named_files(config.data.path)) tokens.emplace_back(file.path);
    trainer::Loaders loaders{
        data::BatchLoader(deck::data_in_parts(config), static_cast<std::uint64_t>(config.run.seed), tokens,
                          data::Split::training, grid.dp_rank(), grid.shape().dp,
                          trainer::sequence_layout(config)[grid.cp_rank()], trainer::neighbouring_sequences(config)),
        {}};
    const trainer::StepPlan plan = trainer::plan_step(config, grid.coordinate());
    trainer::RunMemory memory(config, grid, plan.memory);
    trainer::Trainer<T> run(config, {}, grid, device, memory.arena(), loaders, log);
    run.resume();
    Numbers numbers;
    while (run.step() < until) {
      const Traffic before = counted(grid);
      const trainer::StepResult r = run.train_step();
      numbers.counted = counted(grid) - before;
      numbers.losses.push_back(r.loss);
      numbers.grad_norms.push_back(r.grad_norm);
      numbers.hashes.push_back(r.token_hash);
      const auto& s = r.statistics;
      const bool has_routers = config.model.moe.num_experts > 0;
      numbers.routers.push_back(has_routers ? RouterNumbers{s[0], s[1], s[2], s[3]} : RouterNumbers{});
      numbers.z_losses.push_back(statistic(config, r, "z_loss"));
      numbers.later_losses.push_back(statistic(config, r, "mtp_loss"));
      numbers.rewards_chosen.push_back(statistic(config, r, "rewards_chosen"));
      numbers.rewards_rejected.push_back(statistic(config, r, "rewards_rejected"));
      numbers.rewards_accuracy.push_back(statistic(config, r, "rewards_accuracy"));
      numbers.rewards_margin.push_back(statistic(config, r, "rewards_margin"));
      numbers.max_scores.push_back(statistic(config, r, "max_attention_score"));
      numbers.clipped_heads.push_back(statistic(config, r, "clipped_heads"));
    }
    if (save) run.save();
    const trainer::TrainingState<T>& state = run.state();
    const model::ParameterTable& table = state.model.table();
    const nn::ParameterBuffers<T>& parameters = state.model.parameters();
    const nn::BufferLayout owned = model::owned_layout(table, state.sharding);
    const trainer::Parts owner = trainer::written_parts(grid);
    numbers.predicted = Traffic::of(plan.traffic);
    add_scalars(config, numbers.predicted);
    const auto all = [&](const optim::Moment<M>& moment) {
      return std::visit(
          [&]<class S>(const Vector<S>& values) {
            return gather<S>(moment.tensors(table), values, moment.part_of(owned), owner, world);
          },
          moment.values);
    };
    numbers.parameters =
        gather<M>(table.specs, parameters.master, parameters.layouts.master.common(owned), owner, world);
    for (const optim::Moment<M>& moment : state.optimizer->moments()) {
      numbers.states[moment.name].merge(all(moment));  // which several sets of parameters may have
    }
    for (const optim::Moment<M>& average : state.average.states()) numbers.ema = all(average);
    numbers.exp_avg = numbers.states["exp_avg"];
    numbers.exp_avg_sq = numbers.states["exp_avg_sq"];
    numbers.momentum = numbers.states["momentum"];
    numbers.adam_steps = state.optimizer->steps();
    return numbers;
  });
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  return largest_difference(a, b) / larger(1e-300, largest_of(b.size(), [&](std::size_t i) { return std::abs(b[i]); }));
}

}  // namespace nanotron::test
