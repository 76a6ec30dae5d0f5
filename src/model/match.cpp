#include "nanotron/model/match.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"

namespace nanotron::model {

void require_same_model(const deck::ModelConfig& deck, const deck::ModelConfig& saved,
                        const std::string& checkpoint) {
  std::string expected;
  std::string found;
  const auto compare = [&](const char* key, auto in_deck, auto in_checkpoint) {
    if (in_deck == in_checkpoint) return;
    expected += fmt::format("{}model%{} = {}", expected.empty() ? "" : ", ", key, in_checkpoint);
    found += fmt::format("{}{}", found.empty() ? "" : ", ", in_deck);
  };
  compare("hidden_size", deck.hidden_size, saved.hidden_size);
  compare("num_hidden_layers", deck.num_hidden_layers, saved.num_hidden_layers);
  compare("num_attention_heads", deck.num_attention_heads, saved.num_attention_heads);
  compare("num_key_value_heads", deck.num_key_value_heads, saved.num_key_value_heads);
  compare("head_dim", deck.head_dim, saved.head_dim);
  compare("intermediate_size", deck.intermediate_size, saved.intermediate_size);
  compare("vocab_size", deck.vocab_size, saved.vocab_size);
  compare("tie_word_embeddings", deck.tie_word_embeddings, saved.tie_word_embeddings);
  compare("qkv_bias", deck.qkv_bias, saved.qkv_bias);
  compare("qk_norm", deck.qk_norm, saved.qk_norm);
  compare("rms_norm_eps", deck.rms_norm_eps, saved.rms_norm_eps);
  compare("rope_theta", deck.rope_theta, saved.rope_theta);
  if (expected.empty()) return;
  fail(ExitCode::deck_error,
       {.what = "the deck describes another model than the checkpoint holds",
        .expected = expected,
        .found = found,
        .where = checkpoint,
        .change = "set these keys to the checkpoint's values, or checkpoint%resume = 'none' and another "
                  "run%output_dir to start afresh"});
}

}  // namespace nanotron::model
