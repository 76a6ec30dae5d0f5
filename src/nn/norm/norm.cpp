#include "nanotron/nn/norm/norm.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class RmsNorm final : public Norm<T> {
 public:
  using M = master_t<T>;
  RmsNorm(const NormWeights<T>& w, double eps, const kernels::RowSegments& segments)
      : w_(w), eps_(eps), segments_(segments) {}

  void forward(Device& device, const HiddenStates<T>& x, Matrix<T> y, Vector<M> statistics,
               Vector<float> maxima) const override {
    if (x.is_whole()) {
      kernels::rms_norm_forward<T>(device, x.x, w_.weight, eps_, y, statistics, maxima);
    } else {
      kernels::add_rms_norm_forward<T>(device, x.addend, x.x, x.x, w_.weight, eps_, y, statistics, maxima);
    }
  }
  void backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const M> statistics, Matrix<T> dx,
                Vector<M> workspace) const override {
    kernels::rms_norm_backward<T>(device, dy, x, w_.weight, statistics, dx, w_.gradient, workspace, segments_);
  }
  void add_forward(Device& device, Matrix<const T> x, Matrix<const T> residual, Matrix<T> y,
                   Vector<M> statistics) const override {
    kernels::rms_norm_add_forward<T>(device, x, w_.weight, eps_, residual, y, statistics);
  }
  void add_backward(Device& device, Matrix<const T> dy, Matrix<T> x, Vector<const M> statistics,
                    Vector<M> workspace) const override {
    kernels::rms_norm_add_backward<T>(device, dy, x, w_.weight, statistics, x, w_.gradient, workspace, segments_);
  }

 private:
  NormWeights<T> w_;
  double eps_;
  kernels::RowSegments segments_;
};

template <class T>
class LayerNorm final : public Norm<T> {
 public:
  using M = master_t<T>;
  LayerNorm(const NormWeights<T>& w, double eps, const kernels::RowSegments& segments)
      : w_(w), eps_(eps), segments_(segments) {}

  void forward(Device& device, const HiddenStates<T>& x, Matrix<T> y, Vector<M> statistics,
               Vector<float> maxima) const override {
    if (x.is_whole()) {
      kernels::layer_norm_forward<T>(device, x.x, w_.weight, w_.bias, eps_, y, statistics, maxima);
    } else {
      kernels::add_layer_norm_forward<T>(device, x.addend, x.x, x.x, w_.weight, w_.bias, eps_, y, statistics, maxima);
    }
  }
  void backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const M> statistics, Matrix<T> dx,
                Vector<M> workspace) const override {
    kernels::layer_norm_backward<T>(device, dy, x, w_.weight, statistics, dx, w_.gradient, w_.bias_gradient, workspace,
                                    segments_);
  }
  void add_forward(Device& device, Matrix<const T> x, Matrix<const T> residual, Matrix<T> y,
                   Vector<M> statistics) const override {
    kernels::layer_norm_add_forward<T>(device, x, w_.weight, w_.bias, eps_, residual, y, statistics);
  }
  void add_backward(Device& device, Matrix<const T> dy, Matrix<T> x, Vector<const M> statistics,
                    Vector<M> workspace) const override {
    kernels::layer_norm_add_backward<T>(device, dy, x, w_.weight, statistics, x, w_.gradient, w_.bias_gradient,
                                        workspace, segments_);
  }

 private:
  NormWeights<T> w_;
  double eps_;
  kernels::RowSegments segments_;
};

template <class T>
class NoNorm final : public Norm<T> {
 public:
  using M = master_t<T>;
  void forward(Device& device, const HiddenStates<T>& x, Matrix<T>, Vector<M>, Vector<float> maxima) const override {
    NANOTRON_REQUIRE(x.is_whole(), "a block without a norm of its input needs whole hidden states");
    if (maxima.extent(0) > 0) kernels::row_maxima<T>(device, x.x, maxima);
  }
  void backward(Device& device, Matrix<const T> dy, Matrix<const T>, Vector<const M>, Matrix<T> dx,
                Vector<M>) const override {
    kernels::add<T>(device, flat(dy), flat(dx));
  }
  void add_forward(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>, Vector<M>) const override {
    NANOTRON_REQUIRE(false, "no norm of a block's output");
  }
  void add_backward(Device&, Matrix<const T>, Matrix<T>, Vector<const M>, Vector<M>) const override {
    NANOTRON_REQUIRE(false, "no norm of a block's output");
  }
};

}  // namespace

NormSizes norm_sizes(deck::Normalization kind, Processor processor, index_t rows, index_t columns,
                     const kernels::RowSegments& segments) {
  const index_t parts = segments.tokens * segments.heads;
  if (kind == deck::Normalization::rms_norm)
    return {1, kernels::rms_norm_workspace_size(processor, rows, columns, parts)};
  return {2, kernels::layer_norm_workspace_size(processor, rows, columns, parts)};
}

template <class T>
std::unique_ptr<const Norm<T>> make_norm(deck::Normalization kind, const NormWeights<T>& weights, double eps,
                                         const kernels::RowSegments& segments) {
  if (kind == deck::Normalization::rms_norm) return std::make_unique<const RmsNorm<T>>(weights, eps, segments);
  return std::make_unique<const LayerNorm<T>>(weights, eps, segments);
}

template <class T>
std::unique_ptr<const Norm<T>> make_no_norm() {
  return std::make_unique<const NoNorm<T>>();
}

#define NANOTRON_INSTANTIATE(T)                                                                         \
  template std::unique_ptr<const Norm<T>> make_no_norm();                                               \
  template std::unique_ptr<const Norm<T>> make_norm(deck::Normalization, const NormWeights<T>&, double, \
                                                    const kernels::RowSegments&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

void check_norm(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"model.normalization"})) return;
  if (c.model.qk_norm && c.model.norm_weight == deck::NormWeight::none &&
      f.is_valid({"model.qk_norm", "model.norm_weight"})) {
    f.error({"model.norm_weight", "model.qk_norm"}, "norms of queries and keys have weights, but norm_weight = 'none'",
            "norm_weight = 'plain' or 'one_plus'", "or qk_norm = .false.");
  }
  if (c.model.normalization == deck::Normalization::rms_norm) {
    refuse_unused(c, {"model.layer_norm_epsilon", "model.norm_bias"}, "LayerNorm",
                  "normalization = 'layer_norm', or rms_norm_eps", f);
  } else if (!c.model.qk_norm) {  // qk_norm is RMSNorm in every model
    refuse_unused(c, {"model.rms_norm_eps"}, "RMSNorm", "normalization = 'rms_norm', or layer_norm_epsilon", f);
  }
}

}  // namespace nanotron::nn
