// The names of other programs, in one table.
#include "nanotron/deck/suggestions.hpp"

namespace nanotron::deck {

// clang-format off
const std::vector<KnownName>& known_names() {
  static constexpr const char* accumulation =
      "gradients accumulate over as many micro-batches as data%global_batch_size / (data%micro_batch_size * dp) gives; "
      "there is no key for it";
  static constexpr const char* batch =
      "data%global_batch_size is the sequences of one optimizer step over all ranks, data%micro_batch_size those that a rank "
      "computes at a time";
  static constexpr const char* epochs = "the length of a run is run%steps; --check says how many epochs that is";
  static constexpr const char* dropout = "there is no dropout";
  static constexpr const char* launcher = "the number of ranks is what mpirun or srun starts";
  static constexpr const char* exporter = "nanotron-export writes the numbers of a run for TensorBoard, W&B, CSV or Parquet";
  static const std::vector<KnownName> names = {
    // the run
    {"max_steps", "run.steps", ""}, {"train_iters", "run.steps", ""}, {"max_iters", "run.steps", ""}, {"train_steps", "run.steps", ""},
    {"num_steps", "run.steps", ""}, {"num_iterations", "run.steps", ""}, {"iterations", "run.steps", ""}, {"total_steps", "run.steps", ""},
    {"epochs", "", epochs}, {"num_epochs", "", epochs}, {"num_train_epochs", "", epochs}, {"max_epochs", "", epochs},
    {"exit_interval", "run.stop_after_steps", ""}, {"random_seed", "run.seed", ""}, {"manual_seed", "run.seed", ""},
    {"out_dir", "run.output_dir", ""}, {"logging_dir", "run.output_dir", ""}, {"run_name", "run.title", ""}, {"run", "run.title", ""},
    {"log_interval", "run.log_every", ""}, {"logging_steps", "run.log_every", ""}, {"iteration_step_info_interval", "run.log_every", ""},
    {"exit_duration_in_mins", "run.wall_time_limit", "in seconds"}, {"max_time", "run.wall_time_limit", "in seconds"},
    {"world_size", "", launcher}, {"num_gpus", "", launcher}, {"nproc_per_node", "", launcher},
    {"tensorboard", "", exporter}, {"tensorboard_dir", "", exporter}, {"log_with_tensorboard", "", exporter}, {"use_tensorboard", "", exporter},
    {"wandb", "", exporter}, {"wandb_project", "", exporter}, {"wandb_log", "", exporter}, {"use_wandb", "", exporter}, {"report_to", "", exporter},
    // the model
    {"num_layers", "model.num_hidden_layers", ""}, {"n_layer", "model.num_hidden_layers", ""}, {"n_layers", "model.num_hidden_layers", ""},
    {"depth", "model.num_hidden_layers", ""},
    {"n_head", "model.num_attention_heads", ""}, {"n_heads", "model.num_attention_heads", ""}, {"num_heads", "model.num_attention_heads", ""},
    {"n_kv_head", "model.num_key_value_heads", ""}, {"n_kv_heads", "model.num_key_value_heads", ""}, {"num_kv_heads", "model.num_key_value_heads", ""},
    {"num_query_groups", "model.num_key_value_heads", ""}, {"kv_channels", "model.head_dim", ""}, {"d_head", "model.head_dim", ""},
    {"n_embd", "model.hidden_size", ""}, {"d_model", "model.hidden_size", ""}, {"dim", "model.hidden_size", ""}, {"embed_dim", "model.hidden_size", ""},
    {"hidden_dim", "model.hidden_size", ""}, {"model_dim", "model.hidden_size", ""},
    {"ffn_hidden_size", "model.intermediate_size", ""}, {"ffn_dim", "model.intermediate_size", ""}, {"d_ff", "model.intermediate_size", ""},
    {"n_inner", "model.intermediate_size", ""}, {"mlp_dim", "model.intermediate_size", ""},
    {"n_vocab", "model.vocab_size", ""}, {"padded_vocab_size", "model.vocab_size", ""},
    {"norm_eps", "model.rms_norm_eps", ""}, {"norm_epsilon", "model.rms_norm_eps", ""}, {"layer_norm_eps", "model.layer_norm_epsilon", ""},
    {"layernorm_epsilon", "model.layer_norm_epsilon", ""}, {"rotary_base", "model.rope_theta", ""},
    {"tie_embeddings", "model.tie_word_embeddings", ""}, {"tie_weights", "model.tie_word_embeddings", ""},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings", ".false., the default, unties them"},
    {"attention_bias", "model.qkv_bias", ""}, {"add_qkv_bias", "model.qkv_bias", ""}, {"qk_layernorm", "model.qk_norm", ""},
    {"init_method_std", "model.initializer_range", ""}, {"init_std", "model.initializer_range", ""},
    {"activation_function", "model.hidden_act", ""}, {"activation", "model.hidden_act", ""}, {"swiglu", "model.hidden_act", "'silu', the default"},
    {"norm_type", "model.normalization", ""}, {"use_rmsnorm", "model.normalization", ""}, {"add_bias_linear", "", "give qkv_bias, o_proj_bias and mlp_bias of group '&model'"},
    {"rope_scaling", "model.rope_type", "with rope_factor and original_max_position_embeddings"},
    {"rotary_scaling_factor", "model.rope_factor", ""}, {"window_size", "model.sliding_window", ""},
    {"fp8", "precision.compute", "'fp8'"},
    {"dropout", "", dropout}, {"attention_dropout", "", dropout}, {"hidden_dropout", "", dropout},
    // experts
    {"num_local_experts", "moe.num_experts", ""}, {"n_routed_experts", "moe.num_experts", ""}, {"num_moe_experts", "moe.num_experts", ""},
    {"moe_num_experts", "moe.num_experts", ""}, {"moe_router_topk", "moe.num_experts_per_tok", ""}, {"num_experts_per_token", "moe.num_experts_per_tok", ""},
    {"moe_ffn_hidden_size", "moe.moe_intermediate_size", ""}, {"moe_aux_loss_coeff", "moe.router_aux_loss_coef", ""},
    {"moe_z_loss_coeff", "moe.router_z_loss_coef", ""}, {"moe_expert_capacity_factor", "moe.capacity_factor", ""},
    // the grid
    {"tensor_model_parallel_size", "parallel.tp", ""}, {"tensor_parallel_size", "parallel.tp", ""}, {"tensor_parallel_degree", "parallel.tp", ""},
    {"tp_size", "parallel.tp", ""}, {"pipeline_model_parallel_size", "parallel.pp", ""}, {"pipeline_parallel_size", "parallel.pp", ""},
    {"pipeline_parallel_degree", "parallel.pp", ""}, {"pp_size", "parallel.pp", ""}, {"pp_engine", "parallel.pp_schedule", ""},
    {"num_layers_per_virtual_pipeline_stage", "parallel.pp_chunks", "with pp_schedule = 'interleaved_1f1b', virtual stages per rank"},
    {"context_parallel_size", "parallel.cp", ""}, {"context_parallel_degree", "parallel.cp", ""}, {"cp_size", "parallel.cp", ""},
    {"expert_model_parallel_size", "parallel.ep", ""}, {"expert_parallel_size", "parallel.ep", ""}, {"ep_size", "parallel.ep", ""},
    {"tensor_parallel", "parallel.tp", ""}, {"pipeline_parallel", "parallel.pp", ""}, {"context_parallel", "parallel.cp", ""},
    {"virtual_pipeline_model_parallel_size", "parallel.pp_chunks", "with pp_schedule = 'interleaved_1f1b'"},
    {"data_parallel_size", "parallel.dp", ""}, {"data_parallel_replicate_degree", "parallel.dp", ""}, {"dp_size", "parallel.dp", ""},
    {"sequence_parallel", "parallel.tp_mode", "'reduce_scatter'"},
    {"fsdp", "parallel.zero_stage", "3 shards parameters, gradients and moments"}, {"sharding_strategy", "parallel.zero_stage", ""},
    {"zero_optimization", "parallel.zero_stage", ""}, {"use_distributed_optimizer", "parallel.zero_stage", "1 shards the moments"},
    {"overlap_grad_reduce", "parallel.overlap", ""}, {"bucket_cap_mb", "parallel.bucket_mb", ""},
    {"gradient_checkpointing", "parallel.recompute", "'selective' or 'full'"}, {"activation_checkpointing", "parallel.recompute", "'selective' or 'full'"},
    {"recompute_granularity", "parallel.recompute", ""}, {"recompute_activations", "parallel.recompute", "'selective'"},
    // optimizer and schedule
    {"lr", "optimizer.learning_rate", ""}, {"max_lr", "optimizer.learning_rate", ""}, {"optim", "optimizer.name", ""}, {"optimizer", "optimizer.name", ""},
    {"adam_beta1", "optimizer.beta1", ""}, {"adam_beta2", "optimizer.beta2", ""}, {"betas", "", "give beta1 and beta2 of group '&optimizer'"},
    {"adam_eps", "optimizer.eps", ""}, {"adam_epsilon", "optimizer.eps", ""}, {"wd", "optimizer.weight_decay", ""},
    {"grad_clip", "optimizer.clip_grad_norm", ""}, {"clip_grad", "optimizer.clip_grad_norm", ""}, {"max_grad_norm", "optimizer.clip_grad_norm", ""},
    {"gradient_clip_val", "optimizer.clip_grad_norm", ""},
    {"lr_scheduler_type", "schedule.kind", ""}, {"lr_scheduler", "schedule.kind", ""}, {"lr_decay_style", "schedule.kind", ""}, {"lr_schedule", "schedule.kind", ""},
    {"warmup", "schedule.warmup_steps", ""}, {"num_warmup_steps", "schedule.warmup_steps", ""}, {"warmup_iters", "schedule.warmup_steps", ""},
    {"lr_warmup_iters", "schedule.warmup_steps", ""}, {"lr_warmup_steps", "schedule.warmup_steps", ""},
    {"warmup_ratio", "schedule.warmup_steps", "a number of steps"}, {"lr_warmup_fraction", "schedule.warmup_steps", "a number of steps"},
    {"lr_decay_iters", "schedule.decay_steps", ""}, {"lr_decay_steps", "schedule.decay_steps", ""}, {"lr_wsd_decay_iters", "schedule.decay_steps", ""},
    {"min_lr", "schedule.min_lr_ratio", "the lowest rate over optimizer%learning_rate"}, {"min_decay_lr", "schedule.min_lr_ratio", "the lowest rate over optimizer%learning_rate"},
    // data
    {"tokenizer", "", "texts become tokens by tools/nanotron_tokenize.py"}, {"tokenizer_path", "", "texts become tokens by tools/nanotron_tokenize.py"},
    {"split", "data.validation_fraction", "the part that is held out"},
    {"seq_len", "data.sequence_length", ""}, {"seq_length", "data.sequence_length", ""}, {"max_seq_len", "data.sequence_length", ""},
    {"max_seq_length", "data.sequence_length", ""}, {"context_length", "data.sequence_length", ""}, {"block_size", "data.sequence_length", ""},
    {"n_ctx", "data.sequence_length", ""}, {"n_positions", "model.max_position_embeddings", "of learned positions; else data%sequence_length"},
    {"batch_size", "", batch}, {"train_batch_size", "", batch}, {"total_batch_size", "", batch},
    {"micro_batch", "data.micro_batch_size", ""}, {"mbs", "data.micro_batch_size", ""}, {"gbs", "data.global_batch_size", ""},
    {"batch_size_rampup", "data.rampup_batch_size", "with rampup_increment and rampup_samples"}, {"start_batch_size", "data.rampup_batch_size", ""},
    {"device_batch_size", "data.micro_batch_size", ""}, {"per_device_train_batch_size", "data.micro_batch_size", ""},
    {"train_micro_batch_size_per_gpu", "data.micro_batch_size", ""}, {"gradient_accumulation_steps", "", accumulation},
    {"batch_accumulation_per_replica", "", accumulation}, {"grad_accum_steps", "", accumulation},
    {"data_path", "data.path", ""}, {"train_data_path", "data.path", ""}, {"dataset", "data.path", ""}, {"train_file", "data.path", ""},
    {"valid_data_path", "data.validation_path", ""}, {"validation_file", "data.validation_path", ""},
    {"eval_interval", "data.validation_every", ""}, {"eval_steps", "data.validation_every", ""}, {"val_check_interval", "data.validation_every", ""},
    {"eval_iters", "data.validation_batches", ""}, {"reset_position_ids", "data.document_mask", "'block_diagonal'"},
    // precision
    {"dtype", "precision.compute", ""}, {"torch_dtype", "precision.compute", ""}, {"params_dtype", "precision.compute", ""},
    {"mixed_precision", "precision.compute", ""}, {"precision", "precision.compute", ""}, {"bf16", "precision.compute", "'bf16'"},
    {"fp32", "precision.compute", "'fp32'"}, {"fp16", "precision.compute", "'bf16'; there is no fp16"}, {"deterministic_mode", "precision.reproducible", ""},
    {"exp_avg_dtype", "precision.moments", ""}, {"exp_avg_sq_dtype", "precision.moments", ""}, {"opt_m_dtype", "precision.moments", ""},
    {"opt_v_dtype", "precision.moments", ""},
    // checkpoints
    {"save", "checkpoint.directory", ""}, {"checkpoints_path", "checkpoint.directory", ""}, {"load", "checkpoint.resume", ""},
    {"resume_from_checkpoint", "checkpoint.resume", ""}, {"resume_checkpoint_path", "checkpoint.resume", ""}, {"init_from", "checkpoint.resume", ""},
    {"save_interval", "checkpoint.every_steps", ""}, {"save_steps", "checkpoint.every_steps", ""}, {"checkpoint_interval", "checkpoint.every_steps", ""},
    {"save_total_limit", "checkpoint.keep_last", ""}, {"save_final_state", "checkpoint.at_end", ""},
  };
  return names;
}
// clang-format on

}  // namespace nanotron::deck
