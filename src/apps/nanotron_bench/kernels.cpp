#include "kernel_rows.hpp"

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"
#include "nanotron/kernels/vocab/cross_entropy.hpp"
#include "nanotron/kernels/vocab/embedding.hpp"
#include "nanotron/nn/attention/rotation.hpp"
#include "nanotron/nn/mlp/activation.hpp"
#include "nanotron/optim/adamw/adamw.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr double giga = 1e9;

// Scattered ids from [0, below).
Kokkos::View<std::int32_t*, MemorySpace> some_ids(index_t n, index_t below) {
  const Kokkos::View<std::int32_t*, MemorySpace> ids("ids", static_cast<std::size_t>(n));
  Kokkos::parallel_for(
      "bench_ids", kernels::RangePolicy(0, n),
      KOKKOS_LAMBDA(const index_t i) { ids(i) = static_cast<std::int32_t>(i * 7919 % below); });
  Kokkos::fence();
  return ids;
}

template <class T>
class KernelBench {
 public:
  using M = master_t<T>;

  explicit KernelBench(const Bench& bench)
      : bench_(bench),
        rows_(bench),
        device_(rows_.device()),
        s_(bench.sizes()),
        in_step_(bench.micro_batches()),
        in_layers_(rows_.in_layers()),
        parameters_(bench.table().size) {}

  Table run() {
    norms();
    if (!add_compressed_kernels(rows_)) rotation();
    attention();
    add_denominator_kernels(rows_);
    if (!add_routed_kernels(rows_)) activation();
    embedding();
    cross_entropy();
    optimizer();
    return rows_.table();
  }

 private:
  static double bytes(index_t n, std::size_t size) { return KernelRows<T>::bytes(n, size); }
  template <class Work>
  void by_bytes(const char* name, index_t calls, double moved, Work&& work) {
    rows_.by_bytes(name, calls, moved, work);
  }

  void norms() {
    const index_t n = s_.hidden_rows, h = s_.hidden;
    const Buffer<T> x(n * h), y(n * h), z(n * h);
    const Buffer<M> w(h), dw(h), rstd(n), work(kernels::rms_norm_workspace_size(built_for, n, h));
    const double one = bytes(n * h, sizeof(T));
    by_bytes("rms_norm_forward", in_layers_ + in_step_, 2 * one, [&] {
      kernels::rms_norm_forward<T>(device_, x.matrix(n, h), w.vector(h), 1e-5, y.matrix(n, h), rstd.vector(n));
    });
    by_bytes("add_rms_norm_forward", in_layers_, 4 * one, [&] {
      kernels::add_rms_norm_forward<T>(device_, x.matrix(n, h), z.matrix(n, h), z.matrix(n, h), w.vector(h), 1e-5,
                                       y.matrix(n, h), rstd.vector(n));
    });
    by_bytes("rms_norm_backward", 2 * in_layers_ + in_step_, 4 * one, [&] {
      kernels::rms_norm_backward<T>(device_, y.matrix(n, h), x.matrix(n, h), w.vector(h), rstd.vector(n),
                                    z.matrix(n, h), dw.vector(h),
                                    work.vector(kernels::rms_norm_workspace_size(built_for, n, h)));
    });
    by_bytes("add", in_layers_, 3 * one, [&] { kernels::add<T>(device_, x.vector(n * h), y.vector(n * h)); });
  }

  void rotation() {
    const deck::ModelConfig& model = bench_.config.model;
    if (!model.has_rotary()) return;
    const index_t n = s_.tokens, length = bench_.config.data.sequence_length, columns = s_.query + s_.key;
    Arena planning = Arena::planning();
    nn::Rotation<T>(model, length, device_, planning);
    Arena arena(planning.plan());
    const nn::Rotation<T> rotation(model, length, device_, arena);
    const index_t rotated = 2 * static_cast<index_t>(rotation.cosine().extent(1));  // elements of a head
    const Buffer<T> qk(n * columns);
    const auto positions = some_ids(n, length);
    by_bytes(
        "rotary_forward, q and k", in_layers_, 2 * bytes(n * (columns / model.head_dim * rotated), sizeof(T)),
        [&] { rotation.forward(device_, qk.matrix(n, columns), Vector<const std::int32_t>(positions.data(), n)); });
  }

  void attention() {
    AttentionBench<T> attention(device_, attention_shape(bench_));
    rows_.by_operations("attention_forward", in_layers_, attention.forward_flops(), [&] { attention.forward(); });
    const kernels::BackwardAlgorithm of_deck = trainer::attention_backward_of(bench_.config);
    const auto backward = [&](const char* name, kernels::BackwardAlgorithm algorithm) {
      rows_.by_operations(name, built_for == Processor::cpu || algorithm == of_deck ? in_layers_ : 0,
                          attention.backward_flops(), [&] { attention.backward(algorithm); });
    };
    backward("attention_backward", kernels::BackwardAlgorithm::fastest);
    if constexpr (built_for == Processor::gpu) {
      backward("attention_backward_deterministic", kernels::BackwardAlgorithm::deterministic);
    }
  }

  void activation() {
    const deck::ModelConfig& model = bench_.config.model;
    if (model.hidden_act == deck::HiddenAct::silu) return swiglu();
    const index_t n = s_.tokens, f = s_.intermediate, in = s_.gate_up;
    const index_t sums = nn::activation_sums(model.hidden_act, built_for, n, f, {});
    const Buffer<T> x(n * in), h(n * f), dh(n * f);
    const Buffer<M> scalars(2), gradients(2), work(sums);
    const Vector<M> a = scalars.vector(2), da = gradients.vector(2);
    const auto one = [](const Vector<M>& v, index_t i) { return Vector<M>(v.data() + i, 1); };
    const auto act = nn::make_activation<T>({model, {one(a, 0), one(a, 1)}, one(da, 0), one(da, 1)});
    rows_.by_plan(in_layers_, [&](Device& device) { act->forward(device, x.matrix(n, in), h.matrix(n, f), {}); });
    rows_.by_plan(in_layers_, [&](Device& device) {
      act->backward(device, x.matrix(n, in), dh.matrix(n, f), {}, work.vector(sums));
    });
  }

  void swiglu() {
    const index_t n = s_.tokens, f = s_.intermediate;
    const Buffer<T> gate_up(2 * n * f), h(n * f), gradient(2 * n * f);
    const double one = bytes(n * f, sizeof(T));
    by_bytes("swiglu_forward", in_layers_, 3 * one,
             [&] { kernels::gated_forward<T>(device_, kernels::Swiglu(), gate_up.matrix(n, 2 * f), h.matrix(n, f)); });
    by_bytes("swiglu_backward", in_layers_, 5 * one, [&] {
      kernels::gated_backward<T>(device_, kernels::Swiglu(), gate_up.matrix(n, 2 * f), h.matrix(n, f),
                                 gradient.matrix(n, 2 * f));
    });
  }

  void embedding() {
    const index_t n = s_.tokens, h = s_.hidden;
    const Range range = bench_.table().vocabulary;
    const Buffer<T> weight(range.size() * h), x(n * h);
    const Buffer<M> gradient(range.size() * h);
    const auto memory = some_ids(n, bench_.config.model.vocab_size);
    const Vector<const std::int32_t> ids(memory.data(), n);
    by_bytes("embedding_forward", in_step_, 2 * bytes(n * h, sizeof(T)), [&] {
      kernels::embedding_forward<T>(device_, ids, range, weight.matrix(range.size(), h), x.matrix(n, h));
    });
    by_bytes("embedding_backward", in_step_, bytes(n * h, sizeof(T) + 2 * sizeof(M)), [&] {
      kernels::embedding_backward<T>(device_, ids, range, x.matrix(n, h), gradient.matrix(range.size(), h));
    });
  }

  void cross_entropy() {
    Arena planning = Arena::planning();
    const index_t rows = nn::LossWorkspace<T>(planning, s_.tokens, s_.vocabulary, s_.vocabulary).chunk();
    const index_t calls = (s_.tokens + rows - 1) / rows * in_step_;
    const Range range = bench_.table().vocabulary;
    const Buffer<T> logits(rows * range.size());
    const Buffer<M> max(rows), sum(rows), target(rows);
    const auto memory = some_ids(rows, bench_.config.model.vocab_size);
    const Vector<const std::int32_t> ids(memory.data(), rows);
    const double one = bytes(rows * range.size(), sizeof(T));
    const bool on_gpu = built_for == Processor::gpu;  // where it reads once more for the gradient
    if (const double cap = bench_.config.model.final_logit_softcapping; cap > 0.0) {
      by_bytes("cap_logits", calls, 2 * one,
               [&] { kernels::cap_logits<T>(device_, logits.matrix(rows, range.size()), cap); });
    }
    if (range.size() == bench_.config.model.vocab_size) {
      const Buffer<double> loss(rows);
      by_bytes("cross_entropy_whole", calls, (on_gpu ? 3 : 2) * one, [&] {
        kernels::cross_entropy_whole<T>(device_, logits.matrix(rows, range.size()), ids, {.scale = 1.0},
                                        loss.vector(rows));
      });
      return;
    }
    const Buffer<M> own(2 * rows);
    by_bytes("cross_entropy_local_max", calls, one, [&] {
      kernels::cross_entropy_local_max<T>(device_, logits.matrix(rows, range.size()), max.vector(rows),
                                          own.vector(2 * rows));
    });
    by_bytes("cross_entropy_local_sum", calls, on_gpu ? bytes(6 * rows, sizeof(M)) : one, [&] {
      kernels::cross_entropy_local_sum<T>(device_, logits.matrix(rows, range.size()), ids, range.begin,
                                          max.vector(rows), own.vector(2 * rows), sum.vector(rows),
                                          target.vector(rows));
    });
    by_bytes("cross_entropy_gradient", calls, 2 * one, [&] {
      kernels::cross_entropy_gradient<T>(device_, logits.matrix(rows, range.size()), ids, range.begin, max.vector(rows),
                                         sum.vector(rows), {.scale = 1.0});
    });
  }

  void optimizer() {
    const index_t n = parameters_;
    const Buffer<M> p(n), g(n), m(n), v(n);
    kernels::fill<M>(device_, v.vector(n), 1e-3);
    by_bytes("fill, of the gradient", 1, bytes(n, sizeof(M)), [&] { kernels::fill<M>(device_, p.vector(n), 0.0); });
    const Kokkos::View<kernels::ExactSum*, Kokkos::LayoutRight, MemorySpace> sum("sum", 1);
    const Kokkos::View<kernels::UpdateScalars*, Kokkos::LayoutRight, MemorySpace> scalars("scalars", 1);
    by_bytes("sum_of_squares, of the gradient", 1, bytes(n, sizeof(M)),
             [&] { kernels::sum_of_squares<M>(device_, g.vector(n), sum); });
    kernels::update_scalars<M>(device_, sum, sum, {}, scalars);
    by_bytes("adamw", 1, 7 * bytes(n, sizeof(M)), [&] {
      optim::update_by_adamw<M>(
          device_, {.p = p.vector(n), .g = g.vector(n), .states = {m.vector(n), v.vector(n)}, .scalars = scalars},
          {.learning_rate = 1e-4});
    });
    if constexpr (!std::is_same_v<T, M>) {
      const Buffer<T> narrow(n);
      by_bytes("cast, of the weights", 1, bytes(n, sizeof(M) + sizeof(T)),
               [&] { kernels::cast<M, T>(device_, p.vector(n), narrow.vector(n)); });
    }
  }

  const Bench& bench_;
  KernelRows<T> rows_;
  Device& device_;
  model::LocalSizes s_;
  index_t in_step_, in_layers_, parameters_;
};

}  // namespace

// Names are those of the kernels up to a comma.
std::vector<MeasuredRate> kernel_rates(const Bench& bench, ScalarType type) {
  std::vector<MeasuredRate> rates;
  with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
    for (const std::vector<Cell>& row : KernelBench<T>(bench).run().rows) {
      const auto& name = std::get<std::string>(row[0]);
      const auto number = [&](std::size_t column) {
        const double* const value = std::get_if<double>(&row[column]);
        return value == nullptr ? 0.0 : giga * *value;
      };
      rates.push_back({name.substr(0, name.find(',')), number(6), number(8)});
    }
  });
  return rates;
}

double copy_rate(const Bench& bench, Device& device, double bytes) {
  constexpr double most = 512e6;
  const auto half = static_cast<std::size_t>(std::clamp(bytes / 2, 64.0, most / 2));
  const Kokkos::View<std::byte*, MemorySpace> from("from", half), to("to", half);
  const Spread s = seconds_of(device, bench.grid.world(), bench.options.seconds / 2,
                              [&] { Kokkos::deep_copy(device.exec(), to, from); });
  return 2.0 * static_cast<double>(half) / s.median;
}

void measure_kernels(const Bench& bench, const std::vector<ScalarType>& types) {
  for (const ScalarType type : types) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) { bench.report.add(KernelBench<T>(bench).run()); });
  }
}

}  // namespace nanotron::apps::bench
