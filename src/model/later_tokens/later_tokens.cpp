#include "nanotron/model/later_tokens/later_tokens.hpp"

#include "model/parameters/table_builder.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"

namespace nanotron::model {
namespace detail {

// Under Hugging Face's names.
void add_appended_1d(TableBuilder& build, bool partial) {
  for (const char* const norm : {"enorm/", "hnorm/", "shared_head/norm/"}) {
    build.norm(std::string("model/layers/") + norm, partial);
  }
}

void add_appended(TableBuilder& build, const deck::ModelConfig& m, bool partial) {
  build.align();
  build.whole_matrix("model/layers/eh_proj/weight", m.hidden_size, 2 * m.hidden_size, Role::hidden, partial);
  build.align();
}

}  // namespace detail

void check_later_tokens(const deck::Config& c, deck::Findings& f) {
  using namespace deck::phrases;
  if (!f.is_valid({"model.num_nextn_predict_layers"})) return;
  if (c.model.num_nextn_predict_layers == 0) {
    return refuse_unused(c, {"optimizer.mtp_loss_coefficient"}, "layers that predict later tokens",
                         "num_nextn_predict_layers more than 0", f);
  }
  if (nn::objective_of(c).of_sequences) {
    f.error({"model.num_nextn_predict_layers"},
            "layers that predict later tokens have a loss of tokens alone, and this run trains on pairs of sequences",
            "num_nextn_predict_layers = 0");
  }
}

}  // namespace nanotron::model
