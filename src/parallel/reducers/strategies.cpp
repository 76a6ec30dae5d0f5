// The table of strategies for gradient reduction.

#include "parallel/reducers/strategies.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/parallel/reducers/reducers.hpp"
#include "nanotron/tensor/layout_checks.hpp"
#include "parallel/reducers/low_precision/bf16_reducers.hpp"

namespace nanotron::parallel {
namespace {

using namespace deck::phrases;

template <class T>
struct Strategy {
  bool (*applies)(const ReducerContext<T>&);
  std::unique_ptr<GradientReducer<T>> (*make)(const ReducerContext<T>&);
};

template <class T>
bool is_sharded(const ReducerContext<T>& c) {
  return c.sharding.size() > 1;
}

template <class T>
bool compresses(const ReducerContext<T>& c, deck::Compression compression) {
  return c.groups.data.size() > 1 && c.config.parallel.compression == compression;
}

// The first row that applies is used.
template <class T>
constexpr Strategy<T> strategies[] = {
    {[](const auto& c) { return c.config.precision.reproducible == deck::Reproducible::layout; },
     make_layout_invariant<T>},
    {[](const auto& c) { return is_sharded(c) && c.sharding.stage == 1; }, make_zero_1<T>},
    {[](const auto& c) { return is_sharded(c); }, make_zero_23<T>},
    {[](const auto& c) {
       return c.groups.data.size() > 1 && c.config.parallel.gradient_sum == deck::GradientRule::adasum;
     },
     make_adasum<T>},
    {[](const auto& c) { return compresses(c, deck::Compression::bf16); }, make_bf16<T>},
    {[](const auto& c) { return compresses(c, deck::Compression::fp16); }, make_fp16<T>},
    {[](const auto& c) { return compresses(c, deck::Compression::powersgd); }, make_power_sgd<T>},
    {[](const auto&) { return true; }, make_all_reduce<T>},
};

// Addends rounded to bf16 are added in any order of ranks, and so with every stage. The other kinds are for the
// gradient all-reduce.
void check_compression(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.compression == deck::Compression::none || p.compression == deck::Compression::bf16) return;
  if (p.zero_stage > 0 && f.is_valid({"parallel.compression", "parallel.zero_stage"})) {
    f.error({"parallel.compression", "parallel.zero_stage"},
            "compression in fp16 or by PowerSGD is for the gradient all-reduce, which zero_stage = " +
                text(p.zero_stage) + " does not have",
            "compression = 'bf16' or 'none'", "or zero_stage = 0");
  }
  refuse_layout(c, f, "parallel.compression", "compression in fp16 or by PowerSGD", "compression = 'bf16' or 'none'");
}

}  // namespace

void check_reducers(const deck::Config& c, deck::Findings& f) {
  check_zero(c, f);
  check_compression(c, f);
  check_adasum(c, f);
}

bool keeps_no_state(const deck::ParallelConfig& p) { return p.compression != deck::Compression::powersgd; }

template <class T>
std::unique_ptr<GradientReducer<T>> make_reducer(const ReducerContext<T>& context) {
  for (const Strategy<T>& strategy : strategies<T>) {
    if (strategy.applies(context)) return strategy.make(context);
  }
  return nullptr;  // the last row always applies
}

template <class T>
Reducers<T>::Reducers(const deck::Config& config, const model::Transformer<T>& model, const model::Sharding& sharding,
                      comm::ProcessGrid& grid, Device& device, Arena& arena) {
  for (const model::Section& section : model.table().sections) {
    if (section.is_frozen) continue;
    reducers_.push_back(
        make_reducer<T>({config, model, section, grid.data_groups(section.replicas), sharding, device, arena}));
  }
}

template <class T>
std::vector<PersistentState<master_t<T>>> Reducers<T>::persistent_state() const {
  std::vector<PersistentState<M>> all;
  for (const auto& r : reducers_) {
    if (PersistentState<M> state = r->persistent_state(); !state.layout.empty()) all.push_back(std::move(state));
  }
  return all;
}

template <class T>
comm::StepTraffic Reducers<T>::traffic() const {
  comm::StepTraffic sum;
  for (const auto& r : reducers_) sum += r->traffic();
  return sum;
}

template <class T>
double Reducers<T>::exposed_seconds() const {
  double sum = 0.0;
  for (const auto& r : reducers_) sum += r->exposed_seconds();
  return sum;
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_reducer(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_CLASS(Reducers)

}  // namespace nanotron::parallel
