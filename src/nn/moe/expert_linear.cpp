#include "nanotron/nn/moe/expert_linear.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"
#include "nanotron/kernels/gemm/own_tiles.hpp"
#include "nn/linear/rows.hpp"
#include "nn/moe/expert_pieces.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class OfLibrary final : public ExpertLinear<T> {
 public:
  OfLibrary(const std::vector<LinearWeights<T>>& weights, const ExpertOrders& orders)
      : sequences_(orders.sequences), gradient_stride_(orders.gradient_stride) {
    for (const LinearWeights<T>& w : weights) experts_.emplace_back(w, orders.features);
  }

  void forward(Device& device, const ExpertRows& rows, Matrix<T> x, Matrix<T> y) const override {
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) { experts_[e].forward()(device, rows_of(x, piece), rows_of(y, piece)); },
        is_whole(device));
  }
  void backward_input(Device& device, const ExpertRows& rows, Matrix<T> dy, Matrix<T> dx) const override {
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) {
          experts_[e].backward_input()(device, rows_of(dy, piece), rows_of(dx, piece));
        },
        is_whole(device));
  }
  void backward_weight(Device& device, const ExpertRows& rows, Matrix<T> dy, Matrix<T> x) const override {
    if (rows.cuts.extent(0) > 0) return backward_cut_weight(device, rows, dy, x);
    const bool any_number = kernels::runs_on_tiles<T>(device, static_cast<index_t>(dy.extent(1)));
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) {
          experts_[e].backward_matrix(device, rows_of(dy, piece), rows_of(x, piece), SumOrder());
        },
        [=](index_t) { return any_number; });
  }

  void prepare(Device& device, Matrix<T> x, Matrix<T> y) const override {
    const Linear<T>& expert = experts_.front();
    for (index_t n = 1; n <= static_cast<index_t>(x.extent(0)); n *= 2) {
      expert.forward()(device, first(x, n), first(y, n));
      expert.backward_input()(device, first(y, n), first(x, n));
      expert.backward_weight(device, first(y, n), first(x, n));
    }
  }

 private:
  // Of rows that are multiplied with a weight.
  static auto is_whole(const Device& device) {
    return [&device](index_t left) { return kernels::runs_on_tiles<T>(device, left); };
  }

  // Where token shards are fixed: once per sequence, each with its own gradient, summed in the order of its shards.
  void backward_cut_weight(Device& device, const ExpertRows& rows, const Matrix<T>& dy, const Matrix<T>& x) const {
    const auto places = static_cast<index_t>(rows.cuts.extent(1));
    const std::int64_t* cuts = rows.cuts.data();
    for (std::size_t e = 0; e < experts_.size(); ++e) {
      for (index_t s = 0; s < sequences_; ++s, cuts += places) {
        const Range of_sequence = rows.of_sequence(e, s, sequences_);
        experts_[e].backward_matrix(device, rows_of(dy, of_sequence), rows_of(x, of_sequence),
                                    SumOrder::at_cuts(cuts, static_cast<int>(places) - 1, of_sequence.size()),
                                    s * gradient_stride_);
      }
    }
  }

  std::vector<Linear<T>> experts_;
  index_t sequences_, gradient_stride_;
};

class Grouped final : public ExpertLinear<bf16> {
 public:
  explicit Grouped(const std::vector<LinearWeights<bf16>>& weights) {
    std::vector<Matrix<const bf16>> matrices;
    std::vector<Matrix<float>> gradients;
    for (const LinearWeights<bf16>& w : weights) {
      matrices.push_back(w.weight);
      gradients.push_back(w.gradient);
    }
    weights_ = kernels::together(matrices);
    gradients_ = kernels::together(gradients);
    NANOTRON_REQUIRE(kernels::can_group(weights_), "experts of ({}, {}), {} elements apart, have no grouped GEMM",
                     weights_.rows, weights_.columns, weights_.stride);
  }

  void forward(Device& device, const ExpertRows& rows, Matrix<bf16> x, Matrix<bf16> y) const override {
    kernels::grouped_forward(device, first(x, rows.received_rows), weights_, rows.offsets,
                             first(y, rows.received_rows));
  }
  void backward_input(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> dx) const override {
    kernels::grouped_backward_input(device, first(dy, rows.received_rows), weights_, rows.offsets,
                                    first(dx, rows.received_rows));
  }
  void backward_weight(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> x) const override {
    kernels::grouped_backward_weight(device, first(dy, rows.received_rows), first(x, rows.received_rows), rows.offsets,
                                     gradients_);
  }
  void prepare(Device&, Matrix<bf16>, Matrix<bf16>) const override {}

 private:
  kernels::GroupMatrices<const bf16> weights_;
  kernels::GroupMatrices<float> gradients_;
};

}  // namespace

template <class T>
std::unique_ptr<const ExpertLinear<T>> make_expert_linear(deck::ExpertGemms gemms,
                                                          const std::vector<LinearWeights<T>>& weights,
                                                          const ExpertOrders& orders) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (gemms == deck::ExpertGemms::grouped) return std::make_unique<Grouped>(weights);
  }
  NANOTRON_REQUIRE(gemms == deck::ExpertGemms::library, "grouped GEMMs are of bf16");
  return std::make_unique<OfLibrary<T>>(weights, orders);
}

#define NANOTRON_INSTANTIATE(T)                                       \
  template std::unique_ptr<const ExpertLinear<T>> make_expert_linear( \
      deck::ExpertGemms, const std::vector<LinearWeights<T>>&, const ExpertOrders&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
