// The shared key of the positions stays: the queries' part with positions takes all of gamma.

#include "nanotron/deck/keys/model.hpp"
#include "optim/qk_clip/qk_clip.hpp"

namespace nanotron::optim {

std::vector<ClippedTensor> compressed_attention_tensors(const deck::ModelConfig& m) {
  using Rest = kernels::HeadRows::Rest;
  const std::string attention = "model/layers/self_attn/";
  const index_t nope = m.qk_nope_head_dim;
  return {{attention + (m.q_lora_rank > 0 ? "q_b_proj/weight" : "q_proj/weight"),
           {.rows = nope + m.qk_rope_head_dim, .balanced = nope, .rest = Rest::gamma}},
          {attention + "kv_b_proj/weight", {.rows = nope + m.v_head_dim, .balanced = nope, .rest = Rest::one}}};
}

}  // namespace nanotron::optim
