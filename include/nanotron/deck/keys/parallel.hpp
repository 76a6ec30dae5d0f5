#pragma once
// &parallel of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

enum class TpMode { all_reduce, reduce_scatter };
enum class GatheredInputs { gather_again, keep };
enum class CpMode { ring, all_to_all };
enum class PpSchedule { gpipe, one_f_one_b, interleaved_1f1b, zero_bubble };
enum class PpCut { flops, parameters, time };
enum class Backend { automatic, mpi, nccl };
enum class MemoryRegistration { none, local, symmetric };
enum class CollectiveEngine { blocks, copies };
enum class GradientRule { sum, adasum };
enum class Compression { none, bf16, fp16, powersgd };
enum class Recompute { none, selective, full };
enum class ExpertRowType { compute, bf16, fp8 };
enum class ExpertMessages { by_rank, by_node };

struct ParallelConfig {
  std::int64_t dp = 0;  // at most one of dp, tp, pp, cp may be 0; resolve() fills it
  std::int64_t tp = 1;
  std::int64_t pp = 1, cp = 1, ep = 1;
  std::string order = "tp-cp-pp-dp";
  TpMode tp_mode = TpMode::all_reduce;
  std::int64_t tp_overlap_chunks = 1;                                // with reduce_scatter
  GatheredInputs tp_gathered_inputs = GatheredInputs::gather_again;  // with reduce_scatter
  PpSchedule pp_schedule = PpSchedule::one_f_one_b;
  std::int64_t pp_chunks = 2;  // with interleaved_1f1b
  PpCut pp_cut = PpCut::flops;
  std::string pp_layers{};  // of each stage, separated by blanks or commas; empty: by pp_cut
  CpMode cp_mode = CpMode::ring;
  std::int64_t cp_all_to_all = 1;  // ranks of each all-to-all inside a ring
  bool ep_overlap = false;         // two halves of a micro-batch in turns
  ExpertRowType ep_row_type = ExpertRowType::compute;
  ExpertMessages ep_messages = ExpertMessages::by_rank;
  std::int64_t ep_nodes = 0;   // of each expert-parallel group, with by_node; 0: resolved
  std::int64_t expert_tp = 0;  // 0: tp
  std::int64_t zero_stage = 0;
  std::int64_t zero_size = 0;  // 0: dp x cp
  Backend backend = Backend::automatic;
  MemoryRegistration register_memory = MemoryRegistration::none;  // with NCCL
  CollectiveEngine collective_engine = CollectiveEngine::blocks;  // with NCCL
  std::int64_t message_blocks = 0;  // with NCCL, of messages between neighbours of pp and cp; 0: chosen
  GradientRule gradient_sum = GradientRule::sum;
  Compression compression = Compression::none;
  std::int64_t powersgd_rank = 4;
  double bucket_mb = 25.0;  // 0: choose_bucket() measures
  bool overlap = true;
  Recompute recompute = Recompute::none;
  std::string recompute_layers = "all";  // deck::LayerSet
  bool recompute_dispatch = false;       // of tokens to experts
  std::int64_t mlp_tile = 0;             // tokens; 0: all
  std::int64_t offload_layers = 0;       // whose activations wait in host memory
};

/// Virtual stages per rank of a pipeline under pp_schedule, and stages of all ranks. Both are 1 without a pipeline.
std::int64_t virtual_stages(const ParallelConfig& parallel);
std::int64_t pipeline_stages(const ParallelConfig& parallel);

/// Ranks of each all-to-all of attention: cp with cp_mode = 'all_to_all'.
std::int64_t all_to_all_ranks(const ParallelConfig& parallel);

/// The product of the degrees: ranks (dp*tp*pp*cp; ep is inside dp*cp). 0 if one is still 0.
std::int64_t grid_size(const ParallelConfig& parallel);

/// Ranks over which parameters, gradients or moments are sharded, 1 without ZeRO.
std::int64_t shard_group_size(const ParallelConfig& parallel);

}  // namespace nanotron::deck
