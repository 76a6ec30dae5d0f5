#include "nanotron/trainer/plan/start_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "nanotron/base/process.hpp"
#include "nanotron/comm/grid_groups.hpp"
#include "nanotron/comm/message_nodes.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "trainer/report/start_report.hpp"

namespace nanotron::trainer {
namespace {

using comm::GroupKind;

constexpr GroupKind first_kind = GroupKind::data, last_kind = GroupKind::embedding;
constexpr std::uint64_t look_bytes = 528, binding_bytes = 2088, need_bytes = 208, largest_bytes = 88, id_bytes = 128;

// The calls of one rank in the order of the program. Each function names the one that it follows.
class StartCalls {
 public:
  StartCalls(const deck::Config& config, int rank, int ranks_of_node, Processor processor)
      : config_(config),
        shape_(comm::shape_of(config)),
        at_(comm::coordinate_of(shape_, rank)),
        rank_(rank),
        ranks_(shape_.size()),
        of_node_(std::min(ranks_of_node, ranks_)),
        is_gpu_(processor == Processor::gpu) {
    if (!comm::looks_for_message_nodes(config.parallel)) return;
    config_.parallel.ep_nodes = comm::nodes_of_experts(config, hosts());
    shape_ = comm::shape_of(config_);
    looks_for_nodes_ = true;
  }

  std::vector<StartPhase> phases(bool resumes) {
    session();
    deck();
    begin("grid");
    grid();
    begin("folders and hosts");
    folders();
    watch();
    status();
    describe();
    begin("data");
    data();
    choose_cut();
    begin("peaks and memory");
    peaks();
    begin("state");
    resumes ? read_checkpoint() : find_nothing();
    compare_replicas();
    begin("outputs");
    collectively();
    opened(rank_ == 0 ? 3 : 0);  // deck.nml and metrics.h5
    return std::move(phases_);
  }

 private:
  void begin(const char* phase) { phases_.push_back({.name = phase, .cost = {}}); }
  void add(StartCall call, int ranks, std::uint64_t bytes, int times = 1) {
    for (int i = 0; i < times; ++i) phases_.back().cost += cost_of(call, ranks, bytes, rank_ == 0);
  }
  void world(StartCall call, std::uint64_t bytes = 0, int times = 1) { add(call, ranks_, bytes, times); }
  void node(StartCall call, std::uint64_t bytes = 0, int times = 1) { add(call, of_node_, bytes, times); }
  void opened(std::uint64_t files) { phases_.back().cost.files += files; }
  bool leads() const { return rank_ % of_node_ == 0; }

  // comm/communicator.hpp
  void collectively(int times = 1) { world(StartCall::all_reduce, 4, times); }
  void text_of_root(std::uint64_t bytes) {
    collectively();
    world(StartCall::broadcast, 8);
    world(StartCall::broadcast, bytes);
  }
  void texts_at_root(std::uint64_t bytes) {
    world(StartCall::gather, 4);
    world(StartCall::gather, bytes);
  }

  // MpiSession, run_guarded, main
  void session() {
    begin("MPI and deck");
    world(StartCall::duplicate);
    world(StartCall::split);
    node(StartCall::all_gather, 8);
    node(StartCall::all_reduce, 2048);
    node(StartCall::all_gather, 16);
    world(StartCall::all_reduce, 4);
    world(StartCall::broadcast, 4);
    world(StartCall::duplicate, 0, 2);
    if (is_gpu_) world(StartCall::split), collectively();  // gpu_of_rank
  }

  // load_config
  void deck() {
    text_of_root(deck::changed_keys(config_).size());
    text_of_root(0);
    text_of_root(0);
    if (looks_for_nodes_) find_hosts();  // find_message_nodes
  }
  void find_hosts() {
    texts_at_root(host_name().size());
    text_of_root(hosts().packed().size());
  }

  std::vector<int> ranks_of(GroupKind kind) const { return comm::ranks_of_group(shape_, at_, kind); }
  int size_of(GroupKind kind) const { return static_cast<int>(ranks_of(kind).size()); }

  // Calls f(kind, ranks) for the groups of the grid.
  template <class F>
  void for_each_group(const F& f) const {
    for (int k = static_cast<int>(first_kind); k <= static_cast<int>(last_kind); ++k) {
      const auto kind = static_cast<GroupKind>(k);
      if (comm::has_group(shape_, kind)) f(kind, ranks_of(kind));
    }
  }

  // make_grid
  void grid() {
    world(StartCall::duplicate);
    if (is_gpu_) {  // choose_transport
      world(StartCall::split);
      node(StartCall::all_gather, 16);
      world(StartCall::all_reduce, 4);
    }
    world(StartCall::split);
    world(StartCall::duplicate);
    node(StartCall::broadcast, 4);
    world(StartCall::barrier);
    for_each_group([&](GroupKind, const std::vector<int>& ranks) {
      const auto size = static_cast<int>(ranks.size());
      add(size > 1 ? StartCall::group : StartCall::duplicate, size, 0);
    });
    for_each_group([&](GroupKind kind, const std::vector<int>& ranks) { open_channel(kind, ranks); });
    find_hosts();
  }

  void open_channel(GroupKind kind, const std::vector<int>& ranks) {
    const auto size = static_cast<int>(ranks.size());
    if (size == 1 || !comm::has_bulk_channel(shape_, at_, kind)) return;
    if (is_gpu_ && config_.parallel.backend != deck::Backend::mpi) return add(StartCall::broadcast, size, id_bytes);
    add(StartCall::all_reduce, size, 8);
    const auto [least, most] = std::ranges::minmax(ranks);
    if (least / of_node_ != most / of_node_) return;
    add(StartCall::broadcast, size, 64);
    add(StartCall::all_reduce, size, 4);
    add(StartCall::barrier, size, 0);
  }

  comm::HostMap hosts() const {
    std::vector<std::string> names;
    for (int r = 0; r < ranks_; ++r)
      names.push_back(ranks_ > of_node_ ? fmt::format("node{}", r / of_node_) : host_name());
    return {names};
  }

  // lock_folders
  void folders() {
    collectively();
    for (int folder = 0; folder < 2; ++folder) {
      collectively(2);
      world(StartCall::broadcast, look_bytes);
      opened(rank_ == 0 ? 4 : leads() ? 1 : 0);
    }
  }

  // watch
  void watch() {
    if (config_.run.hang_timeout == 0.0) return;
    std::uint64_t kinds = 0;
    const auto is_recorded = [&](GroupKind kind) { return kind != GroupKind::embedding || shape_.ties_embedding; };
    for_each_group([&](GroupKind kind, const auto&) { kinds += is_recorded(kind) ? 1 : 0; });
    world(StartCall::scan, 4 * kinds);
    for_each_group([&](GroupKind kind, const std::vector<int>& ranks) {
      if (ranks.size() > 1 && is_recorded(kind)) add(StartCall::broadcast, static_cast<int>(ranks.size()), 4);
    });
  }

  // begin_status
  void status() {
    collectively();
    text_of_root(0);
  }

  // describe_run
  void describe() {
    texts_at_root(host_name().size());
    node(StartCall::all_gather, binding_bytes);
    world(StartCall::all_reduce, 4);
  }

  // open_data
  void data() {
    const std::uint64_t files =
        deck::named_files(config_.data.path).size() + deck::named_files(config_.data.validation_path).size();
    collectively();
    opened(3 * files);  // of HDF5, and of the tokens
    for (std::uint64_t i = 0; i < files && ranks_ > 1 && config_.data.verify != deck::Verify::none; ++i) compare_file();
    collectively(2);
    world(StartCall::broadcast, 8 * files);
    collectively();
    world(StartCall::all_reduce, 8 * files);
  }

  // require_same_tokens
  void compare_file() {
    collectively();
    node(StartCall::all_reduce, 16, 2);
    world(StartCall::all_reduce, 16);
    if (of_node_ == ranks_) return;
    world(StartCall::all_reduce, 16, 5);
    collectively();
    node(StartCall::all_reduce, 8);
    world(StartCall::all_reduce, 16);
  }

  // choose_pipeline_cut
  void choose_cut() {
    const deck::ParallelConfig& p = config_.parallel;
    if (p.pp == 1 || !p.pp_layers.empty() || p.pp_cut != deck::PpCut::time) return;
    const auto measured = 3 + 2 * static_cast<int>(deck::LayerKinds(config_.model).all().size());
    world(StartCall::barrier, 0, 5 * measured);
    world(StartCall::all_gather, 8, measured);
  }

  // measure_peaks, plan_memory
  void peaks() {
    world(StartCall::barrier);
    world(StartCall::all_gather, 8, is_gpu_ || config_.output.peak_tflops > 0.0 ? 3 : 2);
    world(StartCall::all_reduce, 12);
    world(StartCall::broadcast, largest_bytes);
    node(StartCall::all_gather, need_bytes);
    collectively();
    world(StartCall::all_reduce, 4);
  }

  // Trainer: newest_state
  void find_nothing() {
    world(StartCall::all_reduce, 4);
    if (config_.checkpoint.resume == "auto") {
      text_of_root(0);
      collectively();
    }
    collectively();
  }

  // Trainer: CheckpointReader, of the newest of one checkpoint
  void read_checkpoint() {
    world(StartCall::all_reduce, 4);
    text_of_root(config_.run.output_dir.size() + 32);
    collectively();
    world(StartCall::broadcast, 40);
    world(StartCall::broadcast, 8 * blocks());
    collectively(2);
    collectively(2);
    world(StartCall::broadcast, look_bytes);
    collectively(3);
    opened(rank_ == 0 ? 5 : 2);
  }

  std::uint64_t blocks() const {
    const double bytes = 12.0 * static_cast<double>(model::make_parameter_table(config_.model).logical_parameters());
    return 1 + static_cast<std::uint64_t>(bytes) / static_cast<std::uint64_t>(io::manifest_block_bytes);
  }

  // ReplicaComparison
  void compare_replicas() {
    const auto compare = [&](GroupKind kind) {
      collectively();
      add(StartCall::all_reduce, size_of(kind), 16);
    };
    if (config_.run.check_replicas_every == 0) return;
    if (shape_.tp > 1) compare(GroupKind::tp);
    for (const GroupKind data : {GroupKind::data, GroupKind::expert_data}) {
      if (!comm::has_group(shape_, data) || size_of(data) == 1) continue;
      const auto replicate = static_cast<GroupKind>(static_cast<int>(data) + 2);
      const auto shard = static_cast<GroupKind>(static_cast<int>(data) + 1);
      if (size_of(replicate) > 1) compare(replicate);
      if (size_of(shard) > 1) compare(data);
    }
  }

  deck::Config config_;
  comm::GridShape shape_;
  comm::GridCoordinate at_;
  int rank_, ranks_, of_node_;
  bool is_gpu_, looks_for_nodes_ = false;
  std::vector<StartPhase> phases_;
};

// comm::HostMap: a host, a place in the order by hosts, and a begin for each host; the flight recorder: the ranks of
// the world and of this rank's groups; MPI: a table of each communicator's ranks, which its duplicates share.
std::uint64_t kept_bytes(const comm::GridShape& shape, int of_node) {
  const auto ranks = static_cast<std::uint64_t>(shape.size());
  const std::uint64_t hosts = (ranks - 1) / static_cast<std::uint64_t>(of_node) + 1;
  std::uint64_t in_groups = 0;
  for (int k = static_cast<int>(first_kind); k <= static_cast<int>(last_kind); ++k) {
    const auto kind = static_cast<GroupKind>(k);
    if (comm::has_group(shape, kind)) in_groups += comm::ranks_of_group(shape, {}, kind).size();
  }
  return 8 * ranks + (4 + sizeof(std::string)) * hosts + (4 + 8) * (ranks + in_groups);
}

}  // namespace

StartPlan plan_start(const deck::Config& config, int ranks_of_node, Processor processor, bool resumes) {
  const int ranks = comm::shape_of(config).size();
  const int last_node = (ranks - 1) / ranks_of_node, other = last_node > 0 ? last_node * ranks_of_node : ranks - 1;
  return {.first = StartCalls(config, 0, ranks_of_node, processor).phases(resumes),
          .others = StartCalls(config, other, ranks_of_node, processor).phases(resumes),
          .kept = kept_bytes(comm::shape_of(config), ranks_of_node)};
}

std::string describe_start(const deck::Config& config, const std::optional<deck::Machine>& machine) {
  constexpr int usual = 8;
  const int of_node = machine && machine->node.ranks > 0 ? machine->node.ranks : usual;
  const Processor processor = machine ? processor_of(*machine) : built_for;
  const int ranks = comm::shape_of(config).size();
  std::string text = fmt::format(
      "start on {} ranks, {} a node; collective calls, messages, bytes of their results and "
      "opened files of a rank, and of rank 0\n",
      ranks, std::min(of_node, ranks));
  for (const bool resumes : {false, true}) {
    const StartPlan plan = plan_start(config, of_node, processor, resumes);
    if (!resumes) {
      text += start_table(plan.first, plan.others);
      text += fmt::format("  tables of ranks that each rank keeps, with MPI's: {:.1f} KiB, {:.1f} bytes a rank\n",
                          static_cast<double>(plan.kept) / 1024.0,
                          static_cast<double>(plan.kept) / static_cast<double>(ranks));
    } else {
      const auto state = std::ranges::find(plan.others, "state", &StartPhase::name);
      text += fmt::format(
          "  state of a resume: {} calls, {} messages, {:.1f} KiB, {} files; besides, each rank reads it\n",
          state->cost.calls, state->cost.messages, static_cast<double>(state->cost.bytes) / 1024.0, state->cost.files);
    }
  }
  return text;
}

}  // namespace nanotron::trainer
