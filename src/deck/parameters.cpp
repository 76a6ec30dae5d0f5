#include "nanotron/deck/parameters.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "nanotron/base/error.hpp"
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
  Row&& in(std::string u) && { unit = std::move(u); return std::move(*this); }
  Row&& of_dense() && { part_of = PartOf::dense_models; return std::move(*this); }
  Row&& of_all() && { part_of = PartOf::every_model; return std::move(*this); }
  Row&& may_change() && { part_of = PartOf::no_model; return std::move(*this); }
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
    KEY(run, seed).at_least(0).says("Seed of all random numbers: initial weights and data order."),
    KEY(run, steps).needed().at_least(1).at_most(1e12).in("steps").says("Optimizer steps of the whole run; a resumed run goes on to this number."),
    KEY(run, stop_after_steps).at_least(0).at_most(1e12).in("steps").says("Checkpoint and stop (exit code 75) after so many steps of this start, learning rate and decay staying those of the whole run; 0: no such stop."),
    KEY(run, output_dir).says("Folder of everything that the run writes; made if it is missing."),
    KEY(run, log_every).at_least(1).at_most(1e12).in("steps").says("Steps from one progress line to the next."),
    KEY(run, wall_time_limit).at_least(0).in("s").says("Checkpoint and stop (exit code 75) before this much time is used; 0: no limit."),
    KEY(run, wall_time_margin).at_least(0).in("s").says("Time kept free before wall_time_limit for the last checkpoint."),
    KEY(run, max_nonfinite_steps).at_least(0).at_most(1e12).in("steps").says("Updates in a row that may be skipped because they are not finite, before exit code 70; 0: stop at the first."),
    KEY(run, check_replicas_every).at_least(0).at_most(1e12).in("steps").says("Steps from one comparison of the replicas' weights and moments, bit for bit, to the next; 0: at the start and before a checkpoint only."),
  };
}

std::vector<Parameter> model_rows() {
  return {
    KEY(model, hidden_size).needed().at_least(1).at_most(1e8).says("Width of the residual stream."),
    KEY(model, num_hidden_layers).needed().at_least(1).at_most(100000).says("Number of decoder layers."),
    KEY(model, num_attention_heads).needed().at_least(1).at_most(1e6).says("Number of query heads."),
    KEY(model, num_key_value_heads).at_least(0).at_most(1e6).nonzero().says("Number of key and value heads, a divisor of num_attention_heads; 0: as many as query heads."),
    KEY(model, head_dim).at_least(0).at_most(256).nonzero().says("Width of one head, even; 0: hidden_size / num_attention_heads."),
    KEY(model, intermediate_size).needed().at_least(1).at_most(1e8).of_dense().says("Width of the feed-forward network."),
    KEY(model, vocab_size).at_least(0).at_most(1e8).in("tokens").nonzero().says("Size of the vocabulary; 0: as the token file says."),
    KEY(model, rms_norm_eps).above(0).says("Added to the mean square inside RMSNorm."),
    KEY(model, rope_theta).above(0).says("Base of the rotary embedding's wavelengths."),
    KEY(model, tie_word_embeddings).says("Whether the output head uses the weights of the token embedding."),
    KEY(model, qkv_bias).says("Whether query, key and value projections have a bias (Qwen2)."),
    KEY(model, qk_norm).says("Whether queries and keys pass an RMSNorm per head (Qwen3)."),
    KEY(model, normalization).omitted().says("Norm of the residual stream: RMSNorm, or LayerNorm, which subtracts the mean and has biases (GPT-2)."),
    KEY(model, layer_norm_epsilon).above(0).omitted().says("Added to the variance inside LayerNorm, of normalization = 'layer_norm'."),
    KEY(model, position_embedding_type).omitted().says("How positions enter: by rotating queries and keys, or as a learned vector of each position that is added to the words (GPT-2)."),
    KEY(model, max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says("Of 'learned_absolute': positions that have a vector, at least sequence_length."),
    KEY(model, rope_type).omitted().says("Scaling of the rotary embedding for sequences longer than original_max_position_embeddings: none, by wavelength (Llama 3.1), or by pair (YaRN)."),
    KEY(model, rope_factor).at_least(1).omitted().says("Of 'llama3' and 'yarn': by how much long wavelengths are stretched (rope_scaling's factor)."),
    KEY(model, original_max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says("Of 'llama3' and 'yarn': length of the sequences before the stretch."),
    KEY(model, rope_low_freq_factor).above(0).omitted().says("Of 'llama3': wavelengths with fewer turns than this in the original length are stretched in full (low_freq_factor)."),
    KEY(model, rope_high_freq_factor).above(0).omitted().says("Of 'llama3': those with more turns than this are kept (high_freq_factor)."),
    KEY(model, rope_beta_fast).above(0).omitted().says("Of 'yarn': pairs with more turns than this in the original length are kept (beta_fast)."),
    KEY(model, rope_beta_slow).above(0).omitted().says("Of 'yarn': pairs with fewer turns than this are stretched in full (beta_slow)."),
    KEY(model, rope_attention_factor).at_least(0).omitted().says("Of 'yarn': what rotated queries and keys are multiplied by (attention_factor); 0: 0.1 log(rope_factor) + 1."),
    KEY(model, sliding_window).at_least(0).at_most(1e9).in("tokens").omitted().says("Tokens that a token attends to, itself and those right before it (Mistral); 0: all earlier ones."),
    KEY(model, o_proj_bias).omitted().says("Whether attention's output projection has a bias (GPT-2)."),
    KEY(model, hidden_act).omitted().says("The feed-forward network: SwiGLU with a gate ('silu'), or GELU without one, by the error function ('gelu') or by tanh ('gelu_new', GPT-2)."),
    KEY(model, mlp_bias).omitted().says("Whether the projections of the feed-forward network have biases (GPT-2)."),
    KEY(model, initializer_range).above(0).may_change().says("Standard deviation of the initial weights; with 'mup' those of the base."),
    KEY(model, parametrization).may_change().says("How deviations and learning rates follow the width: not at all, or by the spectral condition ('mup'), so that those found at base_hidden_size serve here."),
    KEY(model, base_hidden_size).at_least(0).at_most(1e8).may_change().says("Of 'mup': hidden_size of the model that initializer_range and learning_rate are meant for, of the same proportions and head_dim."),
  };
}

std::vector<Parameter> moe_rows() {
  return {
    MOE_KEY(num_experts).at_least(0).at_most(1e5).of_all().omitted().nonzero().says("Experts of each layer's feed-forward network (mixture of experts); 0: none, the network is dense."),
    MOE_KEY(num_experts_per_tok).at_least(1).at_most(64).says("Experts that each token is sent to: those the router gives the largest probability, of equal ones the lower number."),
    MOE_KEY(moe_intermediate_size).at_least(0).at_most(1e8).nonzero().says("Width of an expert; 0: intermediate_size (Mixtral)."),
    MOE_KEY(shared_expert_intermediate_size).at_least(0).at_most(1e8).says("Width of an expert that all tokens go to, behind a sigmoid gate (Qwen2-MoE); 0: none."),
    MOE_KEY(norm_topk_prob).says("Whether the probabilities of a token's experts are divided by their sum (Mixtral: yes)."),
    MOE_KEY(router_aux_loss_coef).at_least(0).may_change().says("Factor of the load-balancing loss, which is per sequence; router_aux_loss_scale says of how much."),
    MOE_KEY(router_aux_loss_scale).may_change().says("What router_aux_loss_coef multiplies: each layer's loss, 1 for an even load (as Megatron's moe_aux_loss_coeff); or num_experts_per_tok times the mean over the layers (the strength that config.json's value has in transformers)."),
    MOE_KEY(router_z_loss_coef).at_least(0).may_change().says("Factor of the router's z loss, summed over the layers."),
    MOE_KEY(capacity_factor).at_least(0).may_change().says("An expert takes at most capacity_factor * num_experts_per_tok * sequence_length / num_experts tokens of a sequence, rounded up, the first ones; others pass it by. 0: all (dropless)."),
    MOE_KEY(receive_factor).at_least(0).may_change().says("Room for the tokens that come to a rank's experts, over what an even load brings; more than that ends the run. 0: room for the worst case."),
  };
}

std::vector<Parameter> parallel_rows() {
  return {
    KEY(parallel, dp).at_least(0).at_most(1e6).in("ranks").says("Data-parallel degree; 0: what the number of ranks leaves."),
    KEY(parallel, tp).at_least(0).at_most(1e6).in("ranks").says("Tensor-parallel degree, at most num_attention_heads, vocab_size and each width of the feed-forward network; 0: what the number of ranks leaves."),
    KEY(parallel, pp).at_least(0).at_most(1e6).in("ranks").says("Pipeline-parallel degree: the layers are cut into stages; 0: what the number of ranks leaves."),
    KEY(parallel, cp).at_least(0).at_most(1e6).in("ranks").says("Context-parallel degree, over which each sequence is cut, at most sequence_length; 0: what the number of ranks leaves."),
    KEY(parallel, ep).at_least(1).at_most(1e6).in("ranks").says("Expert-parallel degree, a divisor of dp * cp and of num_experts: so many neighbouring replicas share one set of experts."),
    KEY(parallel, order).says("Order of the grid's axes over the ranks, the innermost (on one node) first: tp, cp, pp and dp joined by '-'."),
    KEY(parallel, tp_mode).says("What lies on each tensor-parallel rank between the blocks: all tokens, sums being all-reduced; or its part of them, sums being reduce-scattered (sequence parallel), which takes less memory."),
    KEY(parallel, tp_overlap_chunks).at_least(1).at_most(16).says("Pieces into which the gathers and sums of tp_mode = 'reduce_scatter' are cut, each travelling while another is multiplied; 1: all rows at once."),
    KEY(parallel, tp_gathered_inputs).says("Where backward takes the gathered inputs of a block from with tp_mode = 'reduce_scatter': gathered again, or kept by forward, which takes more memory and less communication."),
    KEY(parallel, cp_mode).says("How attention meets the keys of other ranks: they go round a ring, or an all-to-all trades tokens for heads (cp * tp at most num_attention_heads)."),
    KEY(parallel, pp_schedule).says("Order of a pipeline's forwards and backwards: all forwards first; one forward, one backward; the same with several chunks of layers a rank; or backward in two parts on two chunks a rank, with the fewest bubbles. --check draws it."),
    KEY(parallel, pp_chunks).at_least(2).at_most(1e4).says("Chunks of layers on each rank of a pipeline with pp_schedule = 'interleaved_1f1b'."),
    KEY(parallel, pp_cut).says("What the cut of the layers into stages balances, embedding and head included: modelled operations, parameters, or the time of each block measured at the start."),
    KEY(parallel, pp_layers).says("Layers of each stage in the order in which a micro-batch passes them, such as '7 8 8 7': pp numbers, times the chunks a rank; empty: by pp_cut."),
    KEY(parallel, zero_stage).at_least(0).at_most(3).says("What the dp x cp replicas shard instead of holding it whole (ZeRO): 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."),
    KEY(parallel, zero_size).at_least(0).at_most(1e6).in("ranks").says("Replicas in one shard group, neighbours in the order of ranks, a divisor of dp x cp: the ranks of a node, so that only pieces are summed between nodes; 0: all replicas."),
    KEY(parallel, backend).says("Library of the collectives; 'auto': NCCL on GPUs of their own, MPI otherwise."),
    KEY(parallel, gradient_sum).says("What becomes of the replicas' gradients: their sum, which is the gradient of the mean loss; or, tensor by tensor, Adasum, which adds what is orthogonal and averages what is alike."),
    KEY(parallel, compression).says("How gradients travel between replicas: as they are, or rounded to bf16 or, in blocks that are scaled, to fp16 (half the bytes), or each matrix as a product of two thin ones, what is lost being sent with the next step (PowerSGD)."),
    KEY(parallel, powersgd_rank).at_least(1).at_most(1024).says("Columns of the thin matrices of compression = 'powersgd'; m x n elements become (m + n) x powersgd_rank."),
    KEY(parallel, bucket_mb).at_least(0).at_most(1e6).in("MiB").says("Size of a bucket of gradients in the data-parallel all-reduce; with zero_stage > 0 a bucket is a layer; 0: chosen by the speed of the replicas' all-reduce, measured at the start."),
    KEY(parallel, overlap).says("Whether the sum of gradients over replicas starts while backward still runs."),
    KEY(parallel, recompute).says("What backward computes again instead of keeping: nothing, the cheap parts of a layer, or whole layers."),
  };
}

std::vector<Parameter> optimizer_rows() {
  return {
    KEY(optimizer, name).says("The optimizer: AdamW for all; or Muon for the matrices of the layers and AdamW for embedding, head, norms and biases."),
    KEY(optimizer, learning_rate).at_least(0).says("Learning rate at the schedule's top."),
    KEY(optimizer, beta1).at_least(0).below(1).says("Decay of the first moment."),
    KEY(optimizer, beta2).at_least(0).below(1).says("Decay of the second moment."),
    KEY(optimizer, eps).above(0).says("Added to the root of the second moment."),
    KEY(optimizer, momentum).at_least(0).below(1).says("Decay of the momentum of 'muon'."),
    KEY(optimizer, newton_schulz_steps).at_least(1).at_most(100).in("steps").says("Newton-Schulz steps with which 'muon' orthogonalises the momentum of a matrix."),
    KEY(optimizer, weight_decay).at_least(0).says("Decoupled weight decay; not applied to 1-D parameters."),
    KEY(optimizer, clip_grad_norm).at_least(0).says("Largest global L2 norm of the gradient; 0: no clipping."),
  };
}

std::vector<Parameter> schedule_rows() {
  return {
    KEY(schedule, kind).says("How the learning rate goes on after the warm-up."),
    KEY(schedule, warmup_steps).at_least(0).at_most(1e12).in("steps").says("Steps in which the rate rises linearly, from learning_rate / warmup_steps to learning_rate."),
    KEY(schedule, decay_steps).at_least(0).at_most(1e12).in("steps").says("Steps of the decay; 0: all after the warm-up, for 'wsd' the last tenth of the run."),
    KEY(schedule, min_lr_ratio).at_least(0).at_most(1).says("The lowest rate over the highest; nothing for 'constant' and 'inverse-sqrt'."),
    KEY(schedule, decay_shape).says("Shape of the decay of 'wsd'."),
  };
}

std::vector<Parameter> data_rows() {
  return {
    KEY(data, path).needed().says("Token file (HDF5) to train on."),
    KEY(data, sequence_length).needed().at_least(1).at_most(1e9).in("tokens").says("Length of a training sequence."),
    KEY(data, global_batch_size).needed().at_least(1).at_most(1e9).in("sequences").says("Sequences of one optimizer step over all ranks, a multiple of micro_batch_size * dp."),
    KEY(data, micro_batch_size).at_least(1).at_most(1e9).in("sequences").says("Sequences that a rank computes at a time."),
    KEY(data, shuffle).says("Order of the sequences: as in the file, or a permutation of the whole file anew for each epoch."),
    KEY(data, sequences).says("What a sequence is: so many tokens of the file in a row ('stream'), or whole documents of any length put together so that little room is left, none cut unless it is longer than a sequence ('documents'; needs document_mask = 'block_diagonal')."),
    KEY(data, document_mask).says("Whether a token attends to all earlier tokens of its sequence, or to those of its own document only, with positions that begin anew in each ('block_diagonal'; needs /documents in the token file)."),
    KEY(data, verify).says("Whether all hosts see the same token files, compared at the start: every token ('full'), 64 blocks of 1,048,576 tokens of each file ('sample'), nothing ('none'), or ('auto') 'sample' where a file is larger than 1 GiB and inode, size and times say that it is one file on all hosts, else 'full'."),
    KEY(data, other_tokenizer).says("A validation file or a checkpoint of another tokenizer than that of the training file: exit code 65 ('refuse'), or a warning ('accept')."),
    KEY(data, validation_path).says("Token file of the validation data, or several sets with their names: 'code=code.h5 wiki=wiki.h5'; empty: see validation_fraction."),
    KEY(data, validation_fraction).at_least(0).below(1).says("Part of the training file that is kept for validation, taken in up to 256 evenly spaced pieces."),
    KEY(data, validation_every).at_least(0).at_most(1e12).in("steps").says("Steps from one validation to the next, besides the one after the last step; 0: only that one."),
    KEY(data, validation_batches).at_least(0).at_most(1e9).in("batches").says("Batches of global_batch_size sequences in one validation, evenly spaced over each set; 0: all sequences."),
  };
}

std::vector<Parameter> other_rows() {
  return {
    KEY(precision, compute).says("Type of weights and activations in the computation; with 'bf16' the master weights, gradients and moments are fp32."),
    KEY(precision, reproducible).says("Same numbers, bit for bit, from the same deck on the same grid ('run') or on every grid that the shards below admit ('layout'; slower, see doc/numerics.md; micro_batch_size and tp_overlap_chunks are then 1)."),
    KEY(precision, tensor_shards).at_least(0).at_most(1024).says("Of 'layout': parts of the sums over features and heads, a divisor of the key-value heads; tp must be 1 or a power of two of parts a rank; 0: the most of 8, 4, 2, 1 that divides them."),
    KEY(precision, context_shards).at_least(1).at_most(1024).says("Of 'layout': parts of the sums over the tokens of a sequence, a divisor of sequence_length; cp must be 1 or a power of two of parts a rank."),
    KEY(precision, batch_shards).at_least(0).at_most(1e9).says("Of 'layout': parts of a global batch whose gradients are added one after the other, a divisor of global_batch_size; dp must divide it; fewer mean less communication; 0: every sequence is one."),
    KEY(checkpoint, directory).says("Folder of the checkpoints; empty: <output_dir>/checkpoints."),
    KEY(checkpoint, every_steps).at_least(0).at_most(1e12).in("steps").says("Steps from one checkpoint to the next; 0: none on the way."),
    KEY(checkpoint, keep_last).at_least(0).at_most(1e9).says("How many proven checkpoints are kept, besides the newest; 0: all. One is proven by a later step with finite numbers."),
    KEY(checkpoint, resume).says("Where to start from: 'auto' the newest good checkpoint if there is one, 'none' from scratch, or the path of a checkpoint."),
    KEY(checkpoint, at_end).says("Whether the last step writes a checkpoint. A run that is stopped early always does."),
    KEY(output, console).says("What the console shows: progress lines, or only warnings and the summary."),
    KEY(output, metrics_every).at_least(1).at_most(1e12).in("steps").says("Steps from one row of metrics.h5 to the next."),
    KEY(output, timers).says("Whether the time of each part of a step is shown at the end."),
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

const std::vector<Group>& parameter_groups() {
  static const std::vector<Group> groups = [] {
    std::vector<Group> out;
    for (const Parameter& p : parameters()) {
      if (out.empty() || out.back().name != p.group) out.push_back({p.group, {}});
      out.back().variables.push_back({p.name, p.type});
    }
    return out;
  }();
  return groups;
}

}  // namespace nanotron::deck
