#include "nanotron/deck/parameters.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "spellings.hpp"

namespace nanotron::deck {
namespace {

template <class T>
constexpr ValueType value_type() {
  if constexpr (std::is_same_v<T, std::int64_t>) return ValueType::integer;
  if constexpr (std::is_same_v<T, double>) return ValueType::real;
  if constexpr (std::is_same_v<T, bool>) return ValueType::logical;
  return ValueType::string;
}

template <class T>
Scalar to_scalar(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [word, e] : spellings(T{})) {
      if (e == value) return Scalar(word);
    }
    return Scalar(std::string());
  } else {
    return Scalar(value);
  }
}

template <class T>
T from_scalar(const Scalar& scalar) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [word, e] : spellings(T{})) {
      if (word == std::get<std::string>(scalar)) return e;
    }
    return T{};
  } else {
    return std::get<T>(scalar);
  }
}

/// member_of(config): the value, whose type is T.
template <class T, class F>
Parameter row_of(std::string group, std::string name, F member_of) {
  Parameter p;
  p.group = std::move(group);
  p.name = std::move(name);
  p.type = value_type<T>();
  p.part_of = p.group == "model" ? PartOf::every_model : p.group == "moe" ? PartOf::moe_models : PartOf::no_model;
  if (p.group == "optimizer" || p.group == "schedule" || p.group == "precision") p.influence = Influence::training;
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [word, e] : spellings(T{})) p.choices.push_back(word);
  }
  p.get = [=](const Config& c) { return to_scalar(member_of(c)); };
  p.set = [=](Config& c, const Scalar& s) { member_of(c) = from_scalar<T>(s); };
  return p;
}

template <class G, class T>
Parameter row_of(std::string group, std::string name, G Config::*in, T G::*member) {
  return row_of<T>(std::move(group), std::move(name), [=](auto& c) -> auto& { return c.*in.*member; });
}

/// Of the mixture of experts, which is a part of the model and a group of the deck.
template <class T>
Parameter moe_row_of(std::string name, T MoeConfig::*member) {
  return row_of<T>("moe", std::move(name), [=](auto& c) -> auto& { return c.model.moe.*member; });
}

/// A row being written: Row(...).at_least(1).unit("s").says("...").
struct Row : Parameter {
  explicit Row(Parameter p) : Parameter(std::move(p)) {}
  Row&& needed() && { required = true; return std::move(*this); }
  Row&& at_least(double x) && { range.least = x; return std::move(*this); }
  Row&& at_most(double x) && { range.most = x; return std::move(*this); }
  Row&& above(double x) && { range.least = x, range.least_open = true; return std::move(*this); }
  Row&& below(double x) && { range.most = x, range.most_open = true; return std::move(*this); }
  Row&& of_files() && { paths = Paths::read; return std::move(*this); }
  Row&& of_folder() && { paths = Paths::written; return std::move(*this); }
  Row&& in(std::string u) && { unit = std::move(u); return std::move(*this); }
  Row&& of_dense() && { part_of = PartOf::dense_models; return std::move(*this); }
  Row&& of_all() && { part_of = PartOf::every_model; return std::move(*this); }
  Row&& may_change() && {
    part_of = PartOf::no_model;
    influence = Influence::training;
    return std::move(*this);
  }
  Row&& of_training() && {
    influence = Influence::training;
    return std::move(*this);
  }
  Row&& orders_data() && {
    influence = Influence::data_order;
    return std::move(*this);
  }
  Row&& omitted() && { omitted_at_default = true; return std::move(*this); }
  Row&& nonzero() && { stored_nonzero = true; return std::move(*this); }
  Parameter says(std::string s) && { sentence = std::move(s); return std::move(*this); }
};

#define KEY(group, name) \
  Row(row_of(#group, #name, &Config::group, &decltype(Config::group)::name))
#define MOE_KEY(name) Row(moe_row_of(#name, &MoeConfig::name))

// clang-format off
std::vector<Parameter> run_rows() {
  return {
    KEY(run, title).says("A line of text for the logs and files of this run."),
    KEY(run, seed).at_least(0).orders_data().says("Seed of all random numbers: initial weights and data order."),
    KEY(run, steps).of_training().needed().at_least(1).at_most(1e12).in("steps").says("Optimizer steps of the whole run; a resumed run goes on to this number."),
    KEY(run, stop_after_steps).at_least(0).at_most(1e12).in("steps").says("Write a checkpoint and stop (exit code 75) after this many steps of this start. The learning rate schedule stays that of the whole run. 0: no such stop."),
    KEY(run, output_dir).of_folder().says("Folder of everything that the run writes; created if it is missing."),
    KEY(run, log_every).at_least(1).at_most(1e12).in("steps").says("Steps from one progress line to the next."),
    KEY(run, wall_time_limit).at_least(0).in("s").says("Write a checkpoint and stop (exit code 75) before this wall time is reached; 0: the end of the Slurm job where SLURM_JOB_END_TIME says it, else no limit. The job scripts replace the deck's value by the time that is left."),
    KEY(run, wall_time_margin).at_least(0).in("s").says("Time kept free before wall_time_limit for the last checkpoint."),
    KEY(run, max_nonfinite_steps).of_training().at_least(0).at_most(1e12).in("steps").says("How many bad steps in a row may be skipped, or how often training may go back to the same checkpoint (on_bad_step); one more ends the run with exit code 70. 0: stop at the first."),
    KEY(run, spike_factor).of_training().at_least(0).at_most(1e6).says("A step whose gradient norm is more than this many times the median of the last 64 is a bad step, as one whose loss or norm is not finite (doc/bad_steps.md); above 1, or 0: spikes are not looked for."),
    KEY(run, on_bad_step).of_training().says("What follows a bad step that comes out the same when it is computed again: its update is skipped, or training goes back to the newest known good checkpoint and leaves out the batches since then, which needs max_nonfinite_steps > 0."),
    KEY(run, check_memory_every).at_least(0).at_most(1e12).in("steps").says("Steps between checks that parameters and optimizer states in memory are what the last update wrote; 0: none."),
    KEY(run, check_replicas_every).at_least(0).at_most(1e12).in("steps").says("Steps between bitwise comparisons of weights and moments over the ranks that must hold the same ones; 0: only where they are always compared, at the start and before each checkpoint and each copy on other hosts."),
    KEY(run, hang_timeout).at_least(0).at_most(1e7).in("s").says("End the run with exit code 71 and name the rank that is late when nothing has moved on a rank for this long, or for 10 times the longest step of this start (without its first) if that is longer; for 3 times that before the end of the first step, in data loading, validation and checkpoints, and while metrics are written. At least 1, or 0: off."),
    KEY(run, check_stragglers_every).at_least(0).at_most(1e12).in("steps").says("Steps between comparisons of the time that ranks compute: a warning names the slowest rank where it takes at least 1.5 times the median of its pipeline stage. 0: none."),
    KEY(run, expert_gemms).says("The GEMMs of a mixture of experts: one of the library for each expert, or all of them in one launch of the program's own kernels (bf16 on a GPU), which with ep = 1 need no count of rows on the host."),
    KEY(run, gemm_algorithms).of_files().says("File of the algorithms with which cuBLASLt runs the GEMMs on GPUs, made by nanotron_bench --gemm-algorithms on such a GPU; empty: its heuristic chooses. Another file may change last bits. A build for CPUs ignores it."),
  };
}

std::vector<Parameter> model_rows() {
  return {
    KEY(model, hidden_size).needed().at_least(1).at_most(1e8).says("Width of the hidden states."),
    KEY(model, num_hidden_layers).needed().at_least(1).at_most(100000).says("Number of decoder layers."),
    KEY(model, num_attention_heads).needed().at_least(1).at_most(1e6).says("Number of query heads."),
    KEY(model, num_key_value_heads).at_least(0).at_most(1e6).nonzero().says("Number of key and value heads, a divisor of num_attention_heads; 0: as many as query heads."),
    KEY(model, head_dim).at_least(0).at_most(256).nonzero().says("Width of one head, even with RoPE; 0: hidden_size / num_attention_heads."),
    KEY(model, intermediate_size).needed().at_least(1).at_most(1e8).of_dense().says("Width of the MLP; with experts, the default of moe_intermediate_size."),
    KEY(model, vocab_size).at_least(0).at_most(1e8).in("tokens").nonzero().says("Vocabulary size; 0: that of the token file."),
    KEY(model, rms_norm_eps).above(0).says("Added to the mean square inside RMSNorm."),
    KEY(model, rope_theta).above(0).says("RoPE base (theta)."),
    KEY(model, tie_word_embeddings).says("Whether the output head uses the weights of the token embedding."),
    KEY(model, qkv_bias).says("Whether query, key and value projections have a bias (Qwen2)."),
    KEY(model, qk_norm).says("Whether queries and keys pass an RMSNorm per head (Qwen3)."),
    KEY(model, normalization).omitted().says("Norm of the hidden states: RMSNorm, or LayerNorm, which subtracts the mean and has biases (GPT-2)."),
    KEY(model, layer_norm_epsilon).above(0).omitted().says("Added to the variance inside LayerNorm (normalization = 'layer_norm')."),
    KEY(model, position_embedding_type).omitted().says("Position embedding: rotary, on queries and keys; or a learned vector per position, added to the token embedding (GPT-2)."),
    KEY(model, max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says("With 'learned_absolute': number of learned positions, at least sequence_length."),
    KEY(model, rope_type).omitted().says("RoPE scaling: none, 'llama3' (Llama 3.1: low frequencies) or 'yarn'."),
    KEY(model, rope_factor).at_least(1).omitted().says("With 'llama3' and 'yarn': factor by which long wavelengths are scaled (factor of rope_scaling)."),
    KEY(model, original_max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says("With 'llama3' and 'yarn': context length of pre-training, before the scaling."),
    KEY(model, rope_low_freq_factor).above(0).omitted().says("With 'llama3': frequencies with fewer periods than this in the original length are divided by rope_factor (low_freq_factor)."),
    KEY(model, rope_high_freq_factor).above(0).omitted().says("With 'llama3': frequencies with more periods than this in the original length are unchanged; between the two, interpolated (high_freq_factor)."),
    KEY(model, rope_beta_fast).above(0).omitted().says("With 'yarn': dimensions with more rotations than this over the original length are unchanged (beta_fast)."),
    KEY(model, rope_beta_slow).above(0).omitted().says("With 'yarn': dimensions with fewer rotations than this are divided by rope_factor (beta_slow)."),
    KEY(model, rope_attention_factor).at_least(0).omitted().says("With 'yarn': factor on the rotated queries and keys (attention_factor); 0: 0.1 log(rope_factor) + 1."),
    KEY(model, sliding_window).at_least(0).at_most(1e9).in("tokens").omitted().says("Tokens that a token attends to, itself and those right before it (Mistral); 0: no window (full causal attention)."),
    KEY(model, o_proj_bias).omitted().says("Whether attention's output projection has a bias (GPT-2)."),
    KEY(model, hidden_act).omitted().says("Activation of the feed-forward network: SwiGLU, with a gate ('silu'); or GELU, without one, by the error function ('gelu') or its tanh approximation ('gelu_new', GPT-2)."),
    KEY(model, mlp_bias).omitted().says("Whether the projections of the feed-forward network have biases (GPT-2)."),
    KEY(model, initializer_range).above(0).may_change().says("Standard deviation of the initial weights; of o_proj and down_proj it is divided by sqrt(2 num_hidden_layers), as in Megatron-LM. With 'mup' that of the base model."),
    KEY(model, parametrization).may_change().says("How initial standard deviations and learning rates depend on the width: not at all ('standard'), or muP in its spectral form ('mup'), so that values tuned at base_hidden_size carry over."),
    KEY(model, base_hidden_size).at_least(0).at_most(1e8).may_change().says("With 'mup': hidden_size of the base model that initializer_range and learning_rate were tuned for. It has the same proportions and head_dim."),
  };
}

std::vector<Parameter> moe_rows() {
  return {
    MOE_KEY(num_experts).at_least(0).at_most(1e5).of_all().omitted().nonzero().says("Number of experts per layer (mixture of experts); 0: a dense feed-forward network."),
    MOE_KEY(num_experts_per_tok).at_least(1).at_most(64).says("Experts per token (top-k): those with the largest router probability; of equal ones the lower index."),
    MOE_KEY(moe_intermediate_size).at_least(0).at_most(1e8).nonzero().says("Width of an expert; 0: intermediate_size (Mixtral)."),
    MOE_KEY(shared_expert_intermediate_size).at_least(0).at_most(1e8).says("Width of the shared expert, which all tokens go to, with a sigmoid gate on its output (Qwen2-MoE); 0: none."),
    MOE_KEY(norm_topk_prob).says("Whether the probabilities of a token's experts are divided by their sum (Mixtral: yes)."),
    MOE_KEY(router_aux_loss_coef).at_least(0).may_change().says("Coefficient of the load-balancing loss, which is computed per sequence; see router_aux_loss_scale for what it multiplies."),
    MOE_KEY(router_aux_loss_scale).may_change().says("What router_aux_loss_coef multiplies: the loss of each layer, which is 1 for an even load (as Megatron's moe_aux_loss_coeff); or num_experts_per_tok times the mean over the layers (as the value of config.json in transformers)."),
    MOE_KEY(router_z_loss_coef).at_least(0).may_change().says("Coefficient of the router's z-loss, summed over the layers."),
    MOE_KEY(capacity_factor).at_least(0).may_change().says("Capacity of an expert per sequence: capacity_factor * num_experts_per_tok * sequence_length / num_experts tokens, rounded up. It takes the first ones; the others are dropped. 0: no limit (dropless)."),
    MOE_KEY(receive_factor).at_least(0).may_change().says("Size of the buffer for the tokens that a rank's experts receive, relative to an even load; more tokens end the run. 0: a buffer for the worst case."),
  };
}

std::vector<Parameter> parallel_rows() {
  return {
    KEY(parallel, dp).at_least(0).at_most(1e6).in("ranks").says("Data-parallel degree; 0: follows from the number of ranks."),
    KEY(parallel, tp).at_least(0).at_most(1e6).in("ranks").says("Tensor-parallel degree, at most num_attention_heads, vocab_size and each width of the feed-forward network; 0: follows from the number of ranks."),
    KEY(parallel, pp).at_least(0).at_most(1e6).in("ranks").says("Pipeline-parallel degree: the layers are split into stages; 0: follows from the number of ranks."),
    KEY(parallel, cp).at_least(0).at_most(1e6).in("ranks").says("Context-parallel degree, at most sequence_length: each sequence is sharded over this many ranks; 0: follows from the number of ranks."),
    KEY(parallel, ep).at_least(1).at_most(1e6).in("ranks").says("Expert-parallel degree, a divisor of dp * cp and of num_experts: the experts are sharded over this many neighbouring ranks of the data-parallel group (dp x cp)."),
    KEY(parallel, order).says("Rank order of the grid, the axis that varies fastest (innermost, on one node) first: tp, cp, pp and dp joined by '-'."),
    KEY(parallel, tp_mode).says("Hidden states between the blocks of a tensor-parallel group: replicated, with an all-reduce after each block; or sharded over tokens, with all-gather and reduce-scatter (sequence parallel), which takes less memory."),
    KEY(parallel, tp_overlap_chunks).at_least(1).at_most(16).says("Chunks into which each all-gather and reduce-scatter of tp_mode = 'reduce_scatter' is split; one is communicated during the GEMM of another. 1: all rows at once."),
    KEY(parallel, tp_gathered_inputs).says("With tp_mode = 'reduce_scatter', where backward gets a block's all-gathered input: 'gather_again' repeats the all-gather (as Megatron-LM), 'keep' saves it in forward (more memory, less communication)."),
    KEY(parallel, cp_mode).says("Attention over context-parallel ranks: keys and values go round a ring; or an all-to-all exchanges tokens for heads (Ulysses; cp at most the query heads of a tensor-parallel rank)."),
    KEY(parallel, pp_schedule).says("Pipeline schedule: all forwards first (GPipe); one forward, one backward (1F1B); 1F1B with several virtual stages per rank (interleaved); or backward in two parts with two virtual stages per rank, which has the smallest bubble (zero bubble). --check draws it."),
    KEY(parallel, pp_chunks).at_least(2).at_most(1e4).says("Virtual stages per rank (Megatron-LM: virtual pipeline size) with pp_schedule = 'interleaved_1f1b'."),
    KEY(parallel, pp_cut).says("What is balanced when the layers are partitioned into stages (embedding and head included): modelled FLOPs, parameters, or measured time of each block."),
    KEY(parallel, pp_layers).says("Number of layers of each stage, in the order of forward, such as '7 8 8 7': pp x (virtual stages per rank) numbers; empty: partitioned by pp_cut."),
    KEY(parallel, zero_stage).at_least(0).at_most(3).says("What is sharded over the data-parallel group (dp x cp), as in ZeRO: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."),
    KEY(parallel, zero_size).at_least(0).at_most(1e6).in("ranks").says("Ranks in one shard group (HSDP), a divisor of dp x cp: neighbouring ranks, such as those of a node, so that only shards are all-reduced between nodes; 0: all dp x cp ranks."),
    KEY(parallel, backend).says("Communication library; 'auto': NCCL on GPUs, one for each rank, else MPI (shared memory inside a node); 'mpi' goes through the host's memory, and ranks may share a GPU."),
    KEY(parallel, register_memory).says("With NCCL: the memory of the run is allocated by NCCL and registered with its communicators: each rank's buffers by themselves (user buffer registration), or as windows that all ranks share (symmetric memory, NCCL 2.27). It may save copies between GPUs and nodes, and takes time when a run starts."),
    KEY(parallel, collective_engine).says("With NCCL: collectives by thread blocks of the GPU, or by its copy engines where NCCL can, which leaves the thread blocks to kernels."),
    KEY(parallel, message_blocks).at_least(0).at_most(64).says("With NCCL: thread blocks of a GPU that a message between pipeline stages or of cp's ring may take from the kernels beside it, each with NCCL's buffers for it. With pp, GEMMs are then chosen for the multiprocessors that two messages leave; 0: 4."),
    KEY(parallel, gradient_sum).of_training().says("Gradient reduction over the data-parallel group: the sum, which is the gradient of the mean loss; or Adasum, tensor by tensor, which adds orthogonal gradients and averages parallel ones."),
    KEY(parallel, compression).of_training().says("Compression of the gradient all-reduce: none; bf16, or fp16 with a scale per block (half the bytes); or a low-rank approximation of each 2-D gradient, with error feedback into the next step (PowerSGD)."),
    KEY(parallel, powersgd_rank).of_training().at_least(1).at_most(1024).says("Rank of the approximation of compression = 'powersgd'; m x n elements become (m + n) x powersgd_rank."),
    KEY(parallel, bucket_mb).at_least(0).at_most(1e6).in("MiB").says("Size of a gradient bucket of the data-parallel all-reduce; 0: chosen from the all-reduce speed measured at the start. With zero_stage > 0 a bucket is one unit (embedding, a layer, its experts, or the head), as in FSDP."),
    KEY(parallel, overlap).says("Whether the gradient all-reduce or reduce-scatter over the data-parallel group overlaps with backward."),
    KEY(parallel, recompute).says("Activation recomputation: 'none'; 'selective': norms and the MLP's activation (attention scores are never stored in any mode); 'full': whole layers."),
  };
}

std::vector<Parameter> optimizer_rows() {
  return {
    KEY(optimizer, name).says("Optimizer: AdamW for all parameters; or Muon for the 2-D parameters of the layers and AdamW for embedding, head, norms and biases."),
    KEY(optimizer, learning_rate).at_least(0).says("Peak learning rate of the schedule."),
    KEY(optimizer, beta1).at_least(0).below(1).says("Decay of the first moment."),
    KEY(optimizer, beta2).at_least(0).below(1).says("Decay of the second moment."),
    KEY(optimizer, eps).above(0).says("Added to the square root of the second moment."),
    KEY(optimizer, momentum).at_least(0).below(1).says("Decay of the momentum of 'muon'."),
    KEY(optimizer, newton_schulz_steps).at_least(1).at_most(100).in("steps").says("Newton-Schulz iterations with which 'muon' orthogonalises the momentum of a 2-D parameter."),
    KEY(optimizer, weight_decay).at_least(0).says("Decoupled weight decay; not applied to 1-D parameters."),
    KEY(optimizer, clip_grad_norm).at_least(0).says("Largest global L2 norm of the gradient; 0: no clipping."),
  };
}

std::vector<Parameter> schedule_rows() {
  return {
    KEY(schedule, kind).says("Schedule of the learning rate after the warm-up."),
    KEY(schedule, warmup_steps).at_least(0).at_most(1e12).in("steps").says("Warm-up steps, in which the learning rate rises linearly from learning_rate / warmup_steps to learning_rate."),
    KEY(schedule, decay_steps).at_least(0).at_most(1e12).in("steps").says("Steps of the decay; 0: all after the warm-up, for 'wsd' the last tenth of the run."),
    KEY(schedule, min_lr_ratio).at_least(0).at_most(1).says("Lowest learning rate over the peak; without effect for 'constant' and 'inverse-sqrt'."),
    KEY(schedule, decay_shape).says("Shape of the decay of 'wsd'."),
  };
}

std::vector<Parameter> data_rows() {
  return {
    KEY(data, path).of_files().of_training().needed().says("Token file (HDF5) to train on; or several with their names, blended by weights: 'web=w.h5 code=c.h5'."),
    KEY(data, weights).orders_data().says("Share of the samples of each file of path, relative to the sum: 'web=0.7 code=0.3'; needed with several files."),
    KEY(data, stages).of_training().says("Other weights from a number of tokens on, sequence_length for each sample: '2e9: web=0.5 code=0.5; 3e9: code=1'; a file that a stage does not name has weight 0 in it. A stage may also set sequence_length, global_batch_size, micro_batch_size, rope_theta and recompute: '3e9: sequence_length=32768 global_batch_size=4 rope_theta=5e6'; it begins with the next step, and keeps the weights if it names no file."),
    KEY(data, sequence_length).orders_data().needed().at_least(1).at_most(1e9).in("tokens").says("Length of a training sequence."),
    KEY(data, global_batch_size).of_training().needed().at_least(1).at_most(1e9).in("sequences").says("Sequences per optimizer step over all ranks, a multiple of micro_batch_size * dp."),
    KEY(data, rampup_batch_size).of_training().at_least(0).at_most(1e9).in("sequences").says("Batch-size ramp: sequences of the first steps, a multiple of micro_batch_size * dp; 0: every step has global_batch_size."),
    KEY(data, rampup_increment).of_training().at_least(0).at_most(1e9).in("sequences").says("By how much the ramp enlarges the batch at a time; divides global_batch_size - rampup_batch_size."),
    KEY(data, rampup_samples).of_training().at_least(0).at_most(1e15).in("sequences").says("Samples of the run after which the batch has global_batch_size; the increments are evenly spaced over them."),
    KEY(data, micro_batch_size).at_least(1).at_most(1e9).in("sequences").says("Sequences that a rank computes at a time."),
    KEY(data, shuffle).orders_data().says("Order of the sequences: as in the file, or a new permutation of the whole file in each epoch."),
    KEY(data, sequences).orders_data().says("What a sequence is: consecutive tokens of the file ('stream'); or whole documents, packed with little padding and split only where longer than a sequence ('documents'; needs document_mask = 'block_diagonal')."),
    KEY(data, document_mask).of_training().says("Attention mask: a token attends to all earlier tokens of its sequence; or only to those of its own document, with positions that start at 0 in each ('block_diagonal'; needs /documents in the token file)."),
    KEY(data, verify).says("What is compared at the start to ensure that all hosts see the same token files: every token ('full'), 64 blocks of 1,048,576 tokens per file ('sample') or nothing ('none'). 'auto' is 'sample' where a file is larger than 1 GiB and inode, size and times say that it is one file on all hosts, else 'full'."),
    KEY(data, other_tokenizer).says("When a validation file or a checkpoint has another tokenizer than the training file: exit code 65 ('refuse'), or a warning ('accept')."),
    KEY(data, on_change).says("When a run that resumes, or goes on, finds other data under its names, or a deck under which samples would come again or never: an error that lists the differences ('refuse'), or a warning ('warn')."),
    KEY(data, validation_path).of_files().says("Token file of the validation data, or several sets with their names: 'code=code.h5 wiki=wiki.h5'; empty: see validation_fraction."),
    KEY(data, validation_fraction).orders_data().at_least(0).below(1).says("Fraction of the training file that is held out for validation, in up to 256 evenly spaced pieces."),
    KEY(data, validation_every).at_least(0).at_most(1e12).in("steps").says("Steps from one validation to the next, besides the one after the last step; 0: only that one."),
    KEY(data, validation_batches).at_least(0).at_most(1e9).in("batches").says("Batches of global_batch_size sequences in one validation, evenly spaced over each set; 0: all sequences."),
  };
}

std::vector<Parameter> other_rows() {
  return {
    KEY(precision, compute).says("Data type of weights and activations in forward and backward; with 'bf16' and 'fp8' the master weights and gradients are fp32, and the moments too unless moments says otherwise. 'fp8': as 'bf16', with FP8 operands in the GEMMs of attention's projections and of dense MLPs."),
    KEY(precision, moments).says("Data type of the moments of 'adamw': that of the master weights, or 'bf16', half the memory, rounded stochastically: up or down with the probability that makes the rounding error zero on average, from random bits that depend on run%seed, parameter and update only."),
    KEY(precision, reproducible).says("Bitwise reproducible results from the same deck: on the same grid ('run'; on GPUs by cuDNN's deterministic algorithm in attention's backward, slower and with up to 2 GiB of workspace), or on every grid that the shards below allow ('layout'; slower still; with tp > 1 sums go through host memory, on GPUs too; micro_batch_size and tp_overlap_chunks are then 1). 'none': on a host as 'run', on GPUs gradients of attention differ between runs in their last bits (doc/reproducibility.md)."),
    KEY(precision, tensor_shards).at_least(0).at_most(1024).says("With 'layout': partial sums over features and heads on every grid, a divisor of the key-value heads; tp must be 1 or leave a power of two of them per rank; 0: the largest of 8, 4, 2, 1 that divides the key-value heads."),
    KEY(precision, context_shards).at_least(1).at_most(1024).says("With 'layout': partial sums over the tokens of a sequence on every grid, a divisor of sequence_length; cp must be 1 or leave a power of two of them per rank."),
    KEY(precision, batch_shards).at_least(0).at_most(1e9).says("With 'layout': partial sums of the gradient over a global batch, added one after the other; a divisor of global_batch_size and a multiple of dp; fewer need less communication; 0: one per sequence."),
    KEY(checkpoint, directory).of_folder().says("Folder of the checkpoints; empty: <output_dir>/checkpoints."),
    KEY(checkpoint, every_steps).at_least(0).at_most(1e12).in("steps").says("Steps from one checkpoint to the next; 0: none before the end."),
    KEY(checkpoint, every_minutes).at_least(0).at_most(1e6).in("minutes").says("Wall time from one checkpoint to the next, besides every_steps; 0: time does not matter."),
    KEY(checkpoint, node_mtbf).at_least(0).at_most(1e6).in("days").says("Mean time between failures of one node. The program then chooses the interval between checkpoints that minimises lost time (Daly 2006), from what one costs training and the number of nodes; 264 is what Llama 3's 16,384 GPUs had. 0: not given."),
    KEY(checkpoint, keep_last).at_least(0).at_most(1e9).says("How many known good checkpoints are kept, besides the newest; 0: all. A checkpoint is known good once a later step had a finite loss and gradient norm."),
    KEY(checkpoint, resume).of_files().says("Where to start from: 'auto' the newest valid checkpoint, from scratch where there is none (where all are damaged, exit code 65); 'none' from scratch; or the path of a checkpoint."),
    KEY(checkpoint, neighbour_every_steps).at_least(0).at_most(1e12).in("steps").says("Steps between copies of each rank's state into checkpoint%neighbour_directory of its own host and of another one, from which a run goes on after a host is lost; 0: none."),
    KEY(checkpoint, neighbour_directory).of_folder().says("A folder of each host, in memory (/dev/shm) or on a local disk, for neighbour_every_steps: an absolute path outside of output_dir and directory, and not the same folder on two hosts. %h stands for the name of the host."),
    KEY(checkpoint, asynchronous).says("Checkpoints between the first and the last step are copied to host memory and written while the next steps run. Each rank then needs memory for its share of the file: see --plan."),
    KEY(checkpoint, at_end).says("Whether the last step writes a checkpoint. A run that is stopped early always does."),
    KEY(output, console).says("What the console shows: progress lines, or only warnings and the summary."),
    KEY(output, metrics_every).at_least(1).at_most(1e12).in("steps").says("Steps from one row of metrics.h5 to the next."),
    KEY(output, timers).says("Whether the time of each part of a step is shown at the end."),
    KEY(output, peak_tflops).at_least(0).at_most(1e9).in("TFLOP/s").says("Stated peak of a rank's device for GEMMs in the compute type, which mfu is measured against; 0: that of the data sheet for the GPUs that the program knows, on other devices mfu is not a number (NaN)."),
  };
}
// clang-format on
#undef KEY
#undef MOE_KEY

std::vector<Parameter> all_rows() {
  std::vector<Parameter> all;
  for (auto rows : {run_rows, model_rows, moe_rows, parallel_rows, optimizer_rows, schedule_rows, data_rows,
                    other_rows}) {
    for (Parameter& p : rows()) all.push_back(std::move(p));
  }
  return all;
}

}  // namespace

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> table = all_rows();
  return table;
}

const Parameter& parameter(const std::string& group, const std::string& name) {
  for (const Parameter& p : parameters()) {
    if (p.group == group && p.name == name) return p;
  }
  throw Error(ExitCode::system_error, "no parameter " + group + "." + name);
}

const std::vector<NamelistGroup>& parameter_groups() {
  static const std::vector<NamelistGroup> groups = [] {
    std::vector<NamelistGroup> out;
    for (const Parameter& p : parameters()) {
      if (out.empty() || out.back().name != p.group) out.push_back({p.group, {}});
      out.back().variables.push_back({p.name, p.type});
    }
    return out;
  }();
  return groups;
}

}  // namespace nanotron::deck
