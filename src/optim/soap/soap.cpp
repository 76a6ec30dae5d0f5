// SOAP (Vyas et al. 2024, "SOAP: Improving and stabilizing Shampoo using Adam", algorithm 3), in the order of
// operations of the authors' code (https://github.com/nikhilvyas/SOAP, soap.py of a1e5535), for the 2-D parameters of
// the layers; AdamW for 1-D parameters, embedding and head. For a whole logical matrix G (m, n), gradient_scale times
// its gradient, in update t, with QL (m, m) and QR (n, n), or the identity for a side above max_precondition_size:
//
//   t = 1   L = (1 - beta2) G G^T,   R = (1 - beta2) G^T G,   QL, QR: their eigenvectors; no weight changes
//   t > 1   M = beta1 M + (1 - beta1) G
//           V = beta2 V + (1 - beta2) (QL^T G QR)^2
//           N = QL ((QL^T M QR) / (sqrt(V) + eps)) QR^T sqrt(1 - beta2^(t-1)) / (1 - beta1^(t-1))
//           p = (1 - learning_rate weight_decay) (p - learning_rate N)
//           L = beta2 L + (1 - beta2) G G^T,   R = beta2 R + (1 - beta2) G^T G
//           where precondition_every divides t - 1: the next QL and QR (kernels/optim/eigenbasis.hpp), and the rows and
//           columns of V in the order of theirs
//
// The states exp_avg (M), exp_avg_sq (V), GG_left (L), GG_right (R), Q_left and Q_right of a matrix are on the rank
// that computes with it (matrices/matrix_optimizer.hpp). M is not in the eigenbasis, as in the paper: it stays where
// that turns; the authors' code turns it there and back. Signs of eigenvectors cancel: V has squares.
//
// Bases are computed by LAPACK on the host, in fp64, on a GPU through pinned copies of the matrices: it waits for the
// device once for each side of a matrix every precondition_every updates, and a GPU, the emulated one, and a host have
// the same algorithm, without a workspace that only a GPU's library can tell the memory plan.

#include "nanotron/kernels/optim/soap.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "host_memory.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/optim/eigenbasis.hpp"
#include "nanotron/kernels/optim/element_update.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/matrices/matrix_optimizer.hpp"
#include "optim/matrices/matrix_states.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

// p = s = beta s + (1 - beta) g.
template <class M>
struct SoapMean {
  static constexpr int states = 1;
  M beta, rest;

  NANOTRON_FUNCTION M operator()(M, M g, M (&s)[states]) const {
    s[0] = beta * s[0] + rest * g;
    return s[0];
  }
};

// s = beta s + (1 - beta) g^2, p = p / (sqrt(s) + eps).
template <class M>
struct SoapSquare {
  static constexpr int states = 1;
  M beta, rest, eps;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    s[0] = beta * s[0] + rest * (g * g);
    return p / (std::sqrt(s[0]) + eps);
  }
};

// s = beta s + (1 - beta) g, as torch.lerp rounds it; p is not used.
template <class M>
struct SoapLerp {
  static constexpr int states = 1;
  M rest;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    s[0] = s[0] + rest * (g - s[0]);
    return p;
  }
};

namespace {

using kernels::Op;

// GEMMs of an update and the decompositions, up to a constant factor.
double work_of(index_t n_rows, index_t n_columns) {
  const auto rows = static_cast<double>(n_rows), columns = static_cast<double>(n_columns);
  return 4.0 * rows * columns * (rows + columns) + rows * rows * rows + columns * columns * columns;
}

template <class M>
class Soap final : public MatrixOptimizer<M> {
 public:
  using Base = MatrixOptimizer<M>;
  using Scalars = Vector<const kernels::UpdateScalars>;

  Soap(const deck::Config& config, const OptimizerSetup& setup, Arena& arena);

  std::string name() const override { return "soap"; }
  std::vector<Moment<M>> moments() const override {
    std::vector<Moment<M>> all = Base::moments();
    for (const MatrixState<M>* state : {&mean_, &square_, &gg_[0], &gg_[1], &q_[0], &q_[1]}) state->append_to(all);
    return all;
  }

 private:
  using Place = typename Base::Place;
  /// The states of a matrix that this rank owns.
  struct Owned {
    kernels::UpdateOperands<M> mean, square, gg[2];
    Matrix<M> q[2];  // empty for a side that is not preconditioned
  };

  bool has_side(index_t n) const { return n <= this->config().max_precondition_size; }
  MatrixState<M> whole_state(const char* state, const deck::Config& config, const OptimizerSetup& setup,
                             Arena& arena) const;
  MatrixState<M> side_state(const char* state, int side, const OptimizerSetup& setup, Arena& arena) const;
  OwnedLayers owned_layers() const;
  template <class Size>
  index_t most(const Size& of) const;
  void find_states(const deck::Config& config, const model::ParameterTable& table);
  std::size_t index_of(const Place& at) const {
    return first_[at.stack] + at.layer * this->stacks()[at.stack].layout.matrices.size() + at.matrix;
  }

  bool descends() const override { return this->steps() > 0; }
  void prepare(Device& device, const UpdatePart&, Vector<const M> gradient, Vector<M> to, Scalars) override {
    kernels::copy<M>(device, gradient, to);
  }
  void compute(Device& device, const Place& at, Matrix<M> whole, Scalars scalars) override;
  void compute_in_eigenbasis(Device& device, Owned& o, Matrix<M> whole);
  typename Base::Descent descent(const HiddenMatrix& m, bool decays, double learning_rate) const override;

  Matrix<M> turned(Device& device, const Owned& o, bool back, Matrix<M> x, Matrix<M> to, Matrix<M> between);
  void add_products(Device& device, Owned& o, Matrix<M> whole);
  void turn_basis(Device& device, Owned& o, int side, const HiddenMatrix& m);
  template <class Rule>
  void apply(Device& device, const char* label, kernels::UpdateOperands<M>& o, const Matrix<M>& p, const Matrix<M>& g,
             const Rule& rule);
  M beta(double of_deck) const { return static_cast<M>(of_deck); }
  M rest(double of_deck) const { return static_cast<M>(1.0 - of_deck); }

  MatrixState<M> mean_, square_;
  std::array<MatrixState<M>, 2> gg_, q_;
  std::vector<std::size_t> first_;  // of a stack in owned_
  std::vector<Owned> owned_;        // of all matrices; without states where other ranks own one
  index_t elements_, side_;         // the most of a matrix, and the largest side of one, that this rank works on
  Vector<M> buffers_[3], of_side_;
  Vector<kernels::UpdateScalars> scaled_;
  Vector<std::int32_t> order_;
  HostArray<double> reals_;
  HostArray<std::int32_t> integers_;
  HostCopy<M> matrix_, basis_;
  HostCopy<kernels::UpdateScalars> decision_;
  HostCopy<std::int32_t> numbers_;
};

template <class M>
Soap<M>::Soap(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
    : Base("soap", work_of, config, setup, arena),
      mean_(whole_state("exp_avg", config, setup, arena)),
      square_(whole_state("exp_avg_sq", config, setup, arena)),
      gg_{side_state("GG_left", 0, setup, arena), side_state("GG_right", 1, setup, arena)},
      q_{side_state("Q_left", 0, setup, arena), side_state("Q_right", 1, setup, arena)},
      elements_(most([](index_t rows, index_t columns) { return rows * columns; })),
      side_(most([&](index_t rows, index_t columns) {
        return std::max(has_side(rows) ? rows : 0, has_side(columns) ? columns : 0);
      })),
      of_side_(arena.take<M>(MemoryKind::workspace, side_ * side_)),
      scaled_(arena.take<kernels::UpdateScalars>(MemoryKind::workspace, 1)),
      order_(arena.take<std::int32_t>(MemoryKind::workspace, side_)),
      reals_(arena, static_cast<index_t>(kernels::eigen_sizes(side_).reals)),
      integers_(arena, static_cast<index_t>(kernels::eigen_sizes(side_).integers)),
      matrix_(arena, side_ * side_),
      basis_(arena, side_ * side_),
      decision_(arena, 1),
      numbers_(arena, side_) {
  for (Vector<M>& buffer : buffers_) buffer = arena.take<M>(MemoryKind::workspace, elements_);
  find_states(config, setup.table);
}

template <class M>
OwnedLayers Soap<M>::owned_layers() const {
  OwnedLayers layers;
  this->for_each_owned(
      [&](const Place& at) { layers[this->matrix(at).name].push_back(this->stacks()[at.stack].numbers[at.layer]); });
  for (auto& [name, numbers] : layers) std::ranges::sort(numbers);
  return layers;
}

template <class M>
MatrixState<M> Soap<M>::whole_state(const char* state, const deck::Config& config, const OptimizerSetup& setup,
                                    Arena& arena) const {
  using Shape = typename MatrixState<M>::Shape;
  return {state,
          setup.table,
          owned_layers(),
          config.precision.moments == deck::MomentType::bf16,
          [](const nn::ParameterSpec& spec) {
            return Shape({spec.rows, spec.columns});
          },
          arena};
}

template <class M>
MatrixState<M> Soap<M>::side_state(const char* state, int side, const OptimizerSetup& setup, Arena& arena) const {
  using Shape = typename MatrixState<M>::Shape;
  const auto shape = [&](const nn::ParameterSpec& spec) {
    const index_t n = side == 0 ? spec.rows : spec.columns;
    return has_side(n) ? Shape({n, n}) : Shape();
  };
  return {state, setup.table, owned_layers(), false, shape, arena};
}

template <class M>
template <class Size>
index_t Soap<M>::most(const Size& of) const {
  index_t most = 0;
  this->for_each_owned(
      [&](const Place& at) { most = std::max(most, of(this->matrix(at).rows, this->matrix(at).columns)); });
  return most;
}

template <class M>
void Soap<M>::find_states(const deck::Config& config, const model::ParameterTable& table) {
  std::size_t matrices = 0;
  for (const auto& stack : this->stacks()) {
    first_.push_back(matrices);
    matrices += stack.layers.size() * stack.layout.matrices.size();
  }
  owned_.resize(matrices);
  this->for_each_owned([&](const Place& at) {
    const HiddenMatrix& m = this->matrix(at);
    const index_t layer = this->stacks()[at.stack].numbers[at.layer];
    const nn::ParameterSpec& spec = table[m.name];
    const auto local = std::ranges::find(spec.layer_numbers, layer) - spec.layer_numbers.begin();
    const auto noise = [&](const char* state) {
      return kernels::RoundingNoise{
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .stream = stream_id(std::string(state) + " of " + m.name),
          .index = {
              .columns = m.columns, .logical_columns = m.columns, .first = spec.stack_row(local) * m.rows * m.columns}};
    };
    Owned& o = owned_[index_of(at)];
    o.mean.states = {mean_.of(m.name, layer)}, o.mean.noise = noise("exp_avg");
    o.square.states = {square_.of(m.name, layer)}, o.square.noise = noise("exp_avg_sq");
    for (const int side : {0, 1}) {
      o.gg[side].states = {gg_[static_cast<std::size_t>(side)].of(m.name, layer)};
      o.q[side] = q_[static_cast<std::size_t>(side)].matrix_of(m.name, layer);
    }
  });
}

template <class M>
template <class Rule>
void Soap<M>::apply(Device& device, const char* label, kernels::UpdateOperands<M>& o, const Matrix<M>& p,
                    const Matrix<M>& g, const Rule& rule) {
  o.p = Vector<M>(p.data(), p.size());
  o.g = Vector<const M>(g.data(), g.size());
  o.scalars = scaled_;
  o.update = this->steps() + 1;
  kernels::update_elements(device, label, o, rule);
}

// QL^T x QR, or back QL x QR^T: in one of the three, which differ.
template <class M>
Matrix<M> Soap<M>::turned(Device& device, const Owned& o, bool back, Matrix<M> x, Matrix<M> to, Matrix<M> between) {
  const bool has_left = o.q[0].size() > 0, has_right = o.q[1].size() > 0;
  if (has_left) {
    const Matrix<M> after = has_right ? between : to;
    kernels::gemm<M, M>(device, back ? Op::none : Op::transpose, Op::none, 1.0, o.q[0], x, 0.0, after);
    x = after;
  }
  if (!has_right) return x;
  kernels::gemm<M, M>(device, Op::none, back ? Op::transpose : Op::none, 1.0, x, o.q[1], 0.0, to);
  return to;
}

template <class M>
void Soap<M>::compute(Device& device, const Place& at, Matrix<M> whole, Scalars scalars) {
  const HiddenMatrix& m = this->matrix(at);
  Owned& o = owned_[index_of(at)];
  kernels::scale_gradient<M>(device, Vector<M>(whole.data(), whole.size()), scalars, scaled_);
  if (descends() || device.is_planning())
    compute_in_eigenbasis(device, o, whole);
  else
    add_products(device, o, whole);
  if ((this->steps() + (device.is_planning() ? 1 : 0)) % this->config().precondition_every == 0) {
    for (const int side : {0, 1}) {
      if (o.q[side].size() > 0) turn_basis(device, o, side, m);
    }
  }
}

// whole: G <- N without the factor of the step, which descent() has.
template <class M>
void Soap<M>::compute_in_eigenbasis(Device& device, Owned& o, Matrix<M> whole) {
  const deck::OptimizerConfig& c = this->config();
  const auto matrix = [&](int i) { return Matrix<M>(buffers_[i].data(), whole.extent(0), whole.extent(1)); };
  const Matrix<M> first = matrix(0), second = matrix(1), between = matrix(2);
  apply(device, "soap mean", o.mean, first, whole, SoapMean<M>{beta(c.beta1), rest(c.beta1)});
  const Matrix<M> direction = turned(device, o, false, first, second, between);
  const Matrix<M> gradient =
      turned(device, o, false, whole, direction.data() == first.data() ? second : first, between);
  apply(device, "soap square", o.square, direction, gradient,
        SoapSquare<M>{beta(c.beta2), rest(c.beta2), static_cast<M>(c.eps)});
  add_products(device, o, whole);
  const Matrix<M> update = turned(device, o, true, direction, whole, between);
  if (update.data() != whole.data()) kernels::copy_matrix<M>(device, update, whole);
}

template <class M>
void Soap<M>::add_products(Device& device, Owned& o, Matrix<M> whole) {
  for (const int side : {0, 1}) {
    if (o.q[side].size() == 0) continue;
    const Matrix<M> product(of_side_.data(), o.q[side].extent(0), o.q[side].extent(0));
    const Op left = side == 0 ? Op::none : Op::transpose, right = side == 0 ? Op::transpose : Op::none;
    kernels::gemm<M, M>(device, left, right, 1.0, whole, whole, 0.0, product);
    apply(device, "soap products", o.gg[side], product, product, SoapLerp<M>{rest(this->config().beta2)});
  }
}

// On the host, which waits for the device; nothing where that skips the update.
template <class M>
void Soap<M>::turn_basis(Device& device, Owned& o, int side, const HiddenMatrix& m) {
  const Region region(device.timers(), "eigenbasis");
  const auto n = static_cast<index_t>(o.q[side].extent(0));
  const Vector<M> basis(o.q[side].data(), n * n);
  const bool is_first = this->steps() == 0 && !device.is_planning();
  Vector<M> matrix = std::get<Vector<M>>(o.gg[side].states.front());
  if (!is_first) {
    const Matrix<M> gg(matrix.data(), n, n), product(of_side_.data(), n, n);
    kernels::gemm<M, M>(device, Op::none, Op::none, 1.0, gg, o.q[side], 0.0, product);
    matrix = Vector<M>(product.data(), n * n);
  }
  if (device.is_planning()) return device.wait_planned();
  matrix_.read(device, matrix), basis_.read(device, basis), decision_.read(device, scaled_);
  device.fence();
  if (!decision_.data(scaled_)->updates) return;
  const kernels::EigenWorkspace workspace{reals_.data(), integers_.data()};
  if (is_first) {
    kernels::first_basis<M>(matrix_.data(matrix), basis_.data(basis), n, workspace);
    return basis_.write(device, basis);
  }
  const Vector<std::int32_t> order(order_.data(), n);
  kernels::next_basis<M>(matrix_.data(matrix), basis_.data(basis), n, numbers_.data(order), workspace);
  basis_.write(device, basis), numbers_.write(device, order);
  std::visit(
      [&]<class S>(const Vector<S>& square) {
        kernels::permute<S>(device, Matrix<S>(square.data(), m.rows, m.columns),
                            side == 0 ? kernels::Lines::rows : kernels::Lines::columns, order,
                            Vector<S>(reinterpret_cast<S*>(buffers_[0].data()), m.rows * m.columns));
      },
      o.square.states.front());
}

template <class M>
typename Soap<M>::Base::Descent Soap<M>::descent(const HiddenMatrix& m, bool decays, double learning_rate) const {
  const deck::OptimizerConfig& c = this->config();
  UpdatePart part;
  part.decays = decays, part.fan_in_ratio = m.fan_in_ratio;
  const PartRate of_part(c, part, learning_rate);
  const auto t = static_cast<double>(this->steps());
  const double keep = 1.0 - of_part.learning_rate * of_part.weight_decay;
  const double correction = std::sqrt(1.0 - power(c.beta2, t)) / (1.0 - power(c.beta1, t));
  return {.keep = keep, .rate = keep * of_part.learning_rate * correction};
}

}  // namespace

OptimizerKind soap() {
  OptimizerKind kind = kind_of<Soap>("soap");
  kind.has_host_states = false;
  kind.keys = {"optimizer.precondition_every", "optimizer.max_precondition_size"};
  kind.check = [](const deck::Config& c, deck::Findings& f) { check_matrices(c, f, "SOAP"); };
  return kind;
}

}  // namespace nanotron::optim
