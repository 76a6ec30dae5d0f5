// The keys of &parallel.
#include "nanotron/deck/keys/parallel.hpp"

#include "rows.hpp"

#define GROUP_NAME "parallel"
#define GROUP(c) (c).parallel

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> parallel_rows() {
  return {
    KEY(dp).at_least(0).at_most(1e6).in("ranks").says("Data-parallel degree; 0: derived from the number of ranks."),
    KEY(tp).at_least(0).at_most(1e6).in("ranks").says(
        "Tensor-parallel degree, at most num_attention_heads, vocab_size and each width of the feed-forward network; "
        "0: derived from the number of ranks."),
    KEY(pp).at_least(0).at_most(1e6).in("ranks").says(
        "Pipeline-parallel degree: the layers are split into stages; 0: derived from the number of ranks."),
    KEY(cp).at_least(0).at_most(1e6).in("ranks").says(
        "Context-parallel degree, at most sequence_length: each sequence is sharded over this many ranks; 0: derived "
        "from the number of ranks."),
    KEY(ep).at_least(1).at_most(1e6).in("ranks").says(
        "Expert-parallel degree, a divisor of dp * cp and of num_experts: the experts are sharded over this many "
        "neighbouring ranks of the data-parallel group (dp x cp). With expert_tp = 1 a divisor of tp * cp * dp."),
    KEY(expert_tp).at_least(0).at_most(1e6).in("ranks").says(
        "Tensor-parallel ranks over which the width of each expert is sharded: tp, or 1 (Megatron-LM: "
        "expert-tensor-parallel-size). With 1 experts are whole and ep counts neighbours among all ranks of a stage "
        "(tp x cp x dp, tp varying fastest); each tensor-parallel rank sends a slice of the tokens to them. 0: tp."),
    KEY(order).says(
        "Rank order of the grid, the axis that varies fastest (innermost, on one node) first: tp, cp, pp and dp joined "
        "by '-'."),
    ENUM(tp_mode, {"all_reduce", TpMode::all_reduce}, {"reduce_scatter", TpMode::reduce_scatter}).says(
        "Hidden states between the blocks of a tensor-parallel group: replicated, with an all-reduce after each block; "
        "or sharded over tokens, with all-gather and reduce-scatter (sequence parallel), which takes less memory."),
    KEY(tp_overlap_chunks).at_least(1).at_most(16).says(
        "Chunks into which each all-gather and reduce-scatter of tp_mode = 'reduce_scatter' is split; one is "
        "communicated during the GEMM of another. 1: all rows at once."),
    ENUM(tp_gathered_inputs, {"gather_again", GatheredInputs::gather_again}, {"keep", GatheredInputs::keep}).says(
        "With tp_mode = 'reduce_scatter', where backward gets a block's all-gathered input: 'gather_again' repeats the "
        "all-gather (as Megatron-LM), 'keep' saves it in forward (more memory, less communication)."),
    ENUM(cp_mode, {"ring", CpMode::ring}, {"all_to_all", CpMode::all_to_all}).says(
        "Attention over context-parallel ranks: keys and values are sent around a ring; or an all-to-all exchanges "
        "tokens for heads (Ulysses; cp at most the query heads of a tensor-parallel rank). With reproducible = "
        "'layout' 'ring' gathers the keys and values of all tokens instead."),
    KEY(cp_all_to_all).at_least(1).at_most(1024).in("ranks").says(
        "With cp_mode = 'ring', neighbours in cp that exchange tokens for heads, at most the query heads of a "
        "tensor-parallel rank: the ring has cp / cp_all_to_all parts (USP). Keep them inside a node."),
    ENUM(pp_schedule,
        {"gpipe", PpSchedule::gpipe}, {"1f1b", PpSchedule::one_f_one_b},
        {"interleaved_1f1b", PpSchedule::interleaved_1f1b}, {"zero_bubble", PpSchedule::zero_bubble}).says(
        "Pipeline schedule: all forwards first (GPipe); one forward, one backward (1F1B); 1F1B with several virtual "
        "stages per rank (interleaved); or backward in two parts with two virtual stages per rank, which has the "
        "smallest bubble (zero bubble). --check draws it."),
    KEY(pp_chunks).at_least(2).at_most(1e4).says(
        "Virtual stages per rank (Megatron-LM: virtual pipeline size) with pp_schedule = 'interleaved_1f1b'."),
    ENUM(pp_cut, {"flops", PpCut::flops}, {"parameters", PpCut::parameters}, {"time", PpCut::time}).says(
        "Cost that is balanced when the layers (with embedding and head) are partitioned into pipeline stages: "
        "modelled FLOPs, parameters, or measured time of each block."),
    KEY(pp_layers).says(
        "Number of layers of each stage, in the order of forward, such as '7 8 8 7': pp x (virtual stages per rank) "
        "numbers; empty: partitioned by pp_cut."),
    KEY(zero_stage).at_least(0).at_most(3).says(
        "ZeRO stage: what is sharded over the data-parallel group (dp x cp). 0: nothing, 1: optimizer state, 2: also "
        "gradients, 3: also parameters."),
    KEY(zero_size).at_least(0).at_most(1e6).in("ranks").says(
        "Ranks in one shard group (HSDP), a divisor of dp x cp: neighbouring ranks, for example those of a node, so "
        "that only shards are all-reduced between nodes; 0: all dp x cp ranks."),
    ENUM(backend, {"auto", Backend::automatic}, {"mpi", Backend::mpi}, {"nccl", Backend::nccl}).says(
        "Communication library; 'auto': NCCL in a build for GPUs, where each rank needs its own GPU, and MPI in a "
        "build for CPUs (shared memory inside a node); 'mpi' goes through the host's memory, and ranks may share a "
        "GPU."),
    ENUM(register_memory,
        {"none", MemoryRegistration::none}, {"local", MemoryRegistration::local},
        {"symmetric", MemoryRegistration::symmetric}).says(
        "With NCCL: the memory of the run is allocated by NCCL and registered with its communicators: each rank's "
        "buffers ('local', user buffer registration), or windows that all ranks share ('symmetric' memory, NCCL 2.27). "
        "It may save copies between GPUs and nodes, and takes time when a run starts."),
    ENUM(collective_engine, {"blocks", CollectiveEngine::blocks}, {"copies", CollectiveEngine::copies}).says(
        "With NCCL: collectives by thread blocks of the GPU, or by its copy engines where NCCL can, which leaves the "
        "thread blocks free for kernels."),
    KEY(message_blocks).at_least(0).at_most(64).says(
        "With NCCL: thread blocks of a GPU that a message between pipeline stages or in cp's ring may take from "
        "concurrent kernels; NCCL allocates buffers for each. With pp, GEMMs are chosen for the multiprocessors "
        "that two concurrent messages do not use. 0: 4 blocks."),
    ENUM(gradient_sum, {"sum", GradientRule::sum}, {"adasum", GradientRule::adasum}).of_training().says(
        "Gradient reduction over the data-parallel group: the sum, which is the gradient of the mean loss; or Adasum, "
        "tensor by tensor, which adds orthogonal gradients and averages parallel ones."),
    ENUM(compression,
        {"none", Compression::none}, {"bf16", Compression::bf16}, {"fp16", Compression::fp16},
        {"powersgd", Compression::powersgd}).of_training().says(
        "Compression of the gradient reduction: none; bf16 (half the bytes; from zero_stage = 1 on each gradient of a "
        "2-D parameter is rounded once and summed in fp32 by the owner of its shard); and with zero_stage = 0 fp16 "
        "with a scale per block (half the bytes), or a low-rank approximation of each 2-D gradient, with error "
        "feedback into the next step (PowerSGD)."),
    KEY(powersgd_rank).of_training().at_least(1).at_most(1024).says(
        "Rank of the approximation of compression = 'powersgd'; m x n elements become (m + n) x powersgd_rank."),
    KEY(bucket_mb).at_least(0).at_most(1e6).in("MiB").says(
        "Size of a gradient bucket of the data-parallel all-reduce; 0: chosen from the all-reduce speed measured at "
        "the start. With zero_stage > 0 a bucket is one unit (embedding, a layer, its experts, or the head), as in "
        "FSDP."),
    KEY(overlap).says(
        "Whether the gradient all-reduce or reduce-scatter over the data-parallel group overlaps with backward."),
    KEY(ep_overlap).says(
        "Whether a micro-batch is computed as two halves, by sequences, that go through the layers in turns, so that "
        "the all-to-alls of one overlap the computation of the other (as DualPipe's and Megatron-LM's). Needs ep > 1 "
        "and an even micro_batch_size; gives the results of half the micro_batch_size without it."),
    ENUM(ep_row_type,
        {"compute", ExpertRowType::compute}, {"bf16", ExpertRowType::bf16}, {"fp8", ExpertRowType::fp8})
        .of_training().says(
        "How rows travel to experts on other ranks and back: as they are computed with; in bf16; or, to the experts, "
        "in forward and in backward, as FP8 codes (E4M3) with a scale for each 128 values, and back in bf16, as in "
        "DeepSeek-V3."),
    ENUM(ep_messages, {"by_rank", ExpertMessages::by_rank}, {"by_node", ExpertMessages::by_node}).of_training().says(
        "How tokens travel to experts on other nodes: a row for each expert, to its rank; or once to each node, to the "
        "rank with the same place there, which forwards them, and which adds the outputs of its node before they "
        "return (as DeepSeek-V3's and Megatron-LM's hybrid dispatch)."),
    KEY(ep_nodes).at_least(0).at_most(100000).in("nodes").of_training().says(
        "With ep_messages = 'by_node' the nodes of each expert-parallel group, of consecutive ranks each; 0: the hosts "
        "of the run, in a plan the nodes of --machine."),
    ENUM(recompute, {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}).says(
        "Activation recomputation: 'none'; 'selective': norms and the MLP's activation (attention scores are never "
        "stored in any mode); 'full': whole layers."),
    KEY(recompute_layers).says(
        "Layers that recompute activations, if recompute is not 'none': 'all', a list of layers counted from 0 such as "
        "'0-7 16-23', or '3:1' (of each 4 layers the first 3)."),
    KEY(mlp_tile).at_least(0).at_most(1e9).in("tokens").says(
        "Tokens of a micro-batch for which dense feed-forward networks are computed at once: activations between their "
        "GEMMs exist for one such tile only, and backward computes them again (as DeepSpeed's TiledMLP). 0: all tokens "
        "at once."),
    KEY(recompute_dispatch).of_training().says(
        "Whether backward receives the input rows of experts again, by another dispatch, instead of keeping them. "
        "Layers of recompute = 'full' receive them again with all else."),
    KEY(offload_layers).at_least(0).at_most(100000).in("layers").says(
        "Layers of each virtual stage, the first ones, whose activations are copied to page-locked memory of the host "
        "after forward and back before backward, beside other layers. They share the memory of three layers on the "
        "device. On a CPU both are host memory, and nothing is gained."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
