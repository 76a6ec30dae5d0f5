// QK-clip (kernels/optim/qk_clip.hpp) after the update of any optimizer. S is of the step whose gradient the update is
// of, so there is no state. Biases stay as they are, as in Megatron-LM (core/transformer/attention.py, clip_qk): with
// them a score may stay above tau.

#include "optim/qk_clip/qk_clip.hpp"

#include <algorithm>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameters/name_patterns.hpp"
#include "nanotron/nn/attention/score_map.hpp"

namespace nanotron::optim {
namespace {

std::vector<ClippedTensor> clipped_tensors(const deck::ModelConfig& m) {
  if (deck::attention_sizes(m).is_compressed) return compressed_attention_tensors(m);
  const std::string attention = "model/layers/self_attn/";
  const kernels::HeadRows key{.rows = m.head_dim, .heads_per_gamma = 1, .balanced = m.head_dim};
  kernels::HeadRows query = key;
  query.heads_per_gamma = m.num_attention_heads / std::max<index_t>(1, m.num_key_value_heads);  // resolved: at least 1
  return {{attention + "q_proj/weight", query}, {attention + "k_proj/weight", key}};
}

template <class M>
class QkClip final : public WeightRule<M> {
 public:
  QkClip(const deck::Config& config, const OptimizerSetup& setup, const nn::ScoreMaxima& maxima, Arena& arena)
      : tau_(config.optimizer.qk_clip),
        maxima_(maxima),
        gamma_(arena.take<double>(MemoryKind::workspace, static_cast<index_t>(maxima.of_step().extent(0)),
                                  config.model.num_key_value_heads)) {
    for (const ClippedTensor& tensor : clipped_tensors(config.model)) add(tensor, setup);
  }

  void apply(Device& device, const UpdatedWeights<M>& weights, Vector<const kernels::UpdateScalars> scalars) override {
    const Region region(device.timers(), "qk_clip");
    kernels::clip_factors(device, tau_, maxima_.of_step(), gamma_);
    const auto columns = static_cast<index_t>(gamma_.extent(1));
    for (const auto& [part, first, layer, heads] : pieces_) {
      const double* const gamma = gamma_.data() == nullptr ? nullptr : gamma_.data() + layer * columns;
      kernels::clip_rows<M>(device, weights.master_of(part), first, heads, Vector<const double>(gamma, columns),
                            scalars, weights.copy_of(part));
    }
  }

 private:
  struct Piece {
    UpdatePart part;
    index_t first = 0;  // element of the logical matrix
    index_t layer = 0;  // its number in the model
    kernels::HeadRows heads;
  };

  void add(const ClippedTensor& tensor, const OptimizerSetup& setup) {
    const nn::ParameterSpec& spec = setup.table[tensor.name];
    kernels::HeadRows heads = tensor.heads;
    heads.columns = spec.columns;
    for (index_t l = 0; l < spec.local_layers(); ++l) {
      const index_t begin = spec.offset_of(l), row = spec.local.begin;
      for (const UpdatePart& part : update_parts(Range{begin, begin + spec.local_size()}, setup.layouts)) {
        pieces_.push_back({part, row * spec.columns + part.range.begin - begin,
                           spec.layer_numbers[static_cast<std::size_t>(l)], heads});
      }
    }
  }

  double tau_;
  nn::ScoreMaxima maxima_;
  Matrix<double> gamma_;  // (layers, key heads), of the model
  std::vector<Piece> pieces_;
};

bool are_trained(const std::vector<ClippedTensor>& tensors, const model::ParameterTable& table) {
  return std::ranges::all_of(tensors, [&](const ClippedTensor& tensor) { return table[tensor.name].has_gradient; });
}

}  // namespace

template <class M>
std::unique_ptr<WeightRule<M>> make_qk_clip(const deck::Config& config, const OptimizerSetup& setup,
                                            const nn::ScoreMaxima& maxima, Arena& arena) {
  return std::make_unique<QkClip<M>>(config, setup, maxima, arena);
}

void check_qk_clip(const deck::Config& c, const OptimizerKind& optimizer, deck::Findings& f) {
  if (!f.is_valid({"optimizer.qk_clip"}) || c.optimizer.qk_clip == 0.0) return;
  const std::string key = "optimizer.qk_clip";
  if (optimizer.derives_weights)
    f.error({key, "optimizer.name"},
            "qk_clip scales weights, which name = '" + optimizer.name + "' derives from its states at each update",
            "another optimizer, or qk_clip = 0");
  if (f.is_valid({"model.qk_norm"}) && c.model.qk_norm)
    f.error({key, "model.qk_norm"}, "qk_clip with qk_norm, which undoes the scaling of queries and keys",
            "qk_norm = .false., or qk_clip = 0");
  if (!nn::score_map(c.model).is_scale())
    f.error({key}, "qk_clip with attention scores that are not multiples of products of queries and keys",
            "scores without a soft cap and a bias of the distance, or qk_clip = 0");
  if (f.errors() == 0 && !are_trained(clipped_tensors(c.model), model::named_parameters(c)))
    f.error({key}, "qk_clip scales projections of queries and keys, which this run does not train", "qk_clip = 0");
}

#define NANOTRON_INSTANTIATE(M)                                                                    \
  template std::unique_ptr<WeightRule<M>> make_qk_clip(const deck::Config&, const OptimizerSetup&, \
                                                       const nn::ScoreMaxima&, Arena&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::optim
