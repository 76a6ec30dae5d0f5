#include "nanotron/model/generation/generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::model {
namespace {

bool likelier(const Candidate& a, const Candidate& b) {
  return a.probability > b.probability || (a.probability == b.probability && a.token < b.token);
}

std::size_t likeliest(std::span<const double> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      fail(ExitCode::numerics_error, {.what = "a logit is not a number",
                                      .where = fmt::format("token {}", i),
                                      .change = "try --compute fp32; check the checkpoint's last losses"});
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (!std::isfinite(logits[best])) {
    fail(ExitCode::numerics_error, {.what = "the largest logit is not finite",
                                    .found = fmt::format("{} for token {}", logits[best], best),
                                    .change = "try --compute fp32; check the checkpoint's last losses"});
  }
  return best;
}

void normalise(std::vector<Candidate>& kept) {
  double sum = 0.0;
  for (const Candidate& c : kept) sum += c.probability;
  for (Candidate& c : kept) c.probability /= sum;
}

void keep_top_k(std::vector<Candidate>& kept, index_t k) {
  if (k <= 0 || k >= static_cast<index_t>(kept.size())) return;
  std::nth_element(kept.begin(), kept.begin() + k - 1, kept.end(), likelier);
  kept.resize(static_cast<std::size_t>(k));
  normalise(kept);
}

// Keeps the token that crosses the threshold, so at least one.
void keep_top_p(std::vector<Candidate>& kept, double p) {
  if (p >= 1.0) return;
  std::sort(kept.begin(), kept.end(), likelier);
  double sum = 0.0;
  std::size_t count = 0;
  while (count < kept.size() && (count == 0 || sum < p)) sum += kept[count++].probability;
  kept.resize(count);
  normalise(kept);
}

}  // namespace

std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling) {
  const std::size_t best = likeliest(logits);
  if (sampling.temperature == 0.0) return {{static_cast<std::int32_t>(best), 1.0}};
  std::vector<Candidate> kept(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    kept[i] = {static_cast<std::int32_t>(i), exponential((logits[i] - logits[best]) / sampling.temperature)};
  }
  normalise(kept);
  keep_top_k(kept, sampling.top_k);
  keep_top_p(kept, sampling.top_p);
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  return kept;
}

std::int32_t draw_token(std::span<const double> logits, const Sampling& sampling, std::uint32_t sample,
                        std::uint64_t position) {
  const std::vector<Candidate> kept = candidates(logits, sampling);
  // Cumulative sum in the order of ids: a rounding difference between two grids only moves the borders
  // by that much. In the order of probabilities it could exchange two tokens.
  const double u = uniform(sampling.seed, stream_id("generate"), position, sample);
  double sum = 0.0;
  for (const Candidate& c : kept) {
    sum += c.probability;
    if (u <= sum && c.probability > 0.0) return c.token;
  }
  return std::max_element(kept.begin(), kept.end(),
                          [](const Candidate& a, const Candidate& b) { return likelier(b, a); })
      ->token;
}

namespace {

using HostTokens = Kokkos::View<const std::int32_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

index_t chunk_of(const GenerationSetup& setup) { return std::min(setup.chunk, setup.capacity); }

// Dropless: which tokens would be left out depends on later tokens, which are not known.
// With 'full' all layers share one set of activations: inference has no backward.
TransformerSetup transformer_setup(const GenerationSetup& setup) {
  return {.model = deck::dropless(setup.model),
          .recompute = deck::Recompute::full,
          .purpose = Purpose::inference,
          .sequences = setup.sequences,
          .length = chunk_of(setup),
          .key_length = setup.capacity,
          .tp = setup.tp};
}

template <class T>
std::vector<nn::KeyValueCache<T>> take_caches(const GenerationSetup& setup, const nn::CacheColumns& columns,
                                              Arena& arena) {
  const index_t rows = setup.sequences * setup.capacity;
  std::vector<nn::KeyValueCache<T>> caches;
  for (index_t l = 0; l < setup.model.num_hidden_layers; ++l) {
    const auto keys = arena.take<T>(MemoryKind::activations, rows, columns.keys);
    const auto values = arena.take<T>(MemoryKind::activations, rows, columns.values);
    caches.push_back({.keys = keys, .values = values, .capacity = setup.capacity});
  }
  return caches;
}

// positions(i) <- past + i mod count: `count` tokens of each sequence, after `past` others.
void fill_positions(Device& device, const Vector<std::int32_t>& positions, index_t past, index_t count) {
  kernels::for_each_element(
      device, "positions", static_cast<index_t>(positions.size()),
      KOKKOS_LAMBDA(const index_t i) { positions(i) = static_cast<std::int32_t>(past + i % count); });
}

index_t widest_shard(const GenerationSetup& setup) {
  return shard_range(setup.model.vocab_size, setup.tp->size(), 0).size();
}

}  // namespace

template <class T>
Generator<T>::Generator(const GenerationSetup& setup, Device& device, Arena& arena)
    : setup_(setup),
      device_(&device),
      transformer_(transformer_setup(setup), device, arena),
      caches_(take_caches<T>(setup, transformer_.cache_columns(), arena)),
      inputs_(arena.take<std::int32_t>(MemoryKind::workspace, setup.sequences * chunk_of(setup))),
      positions_(arena.take<std::int32_t>(MemoryKind::workspace, setup.sequences * chunk_of(setup))),
      logits_(arena.take<T>(MemoryKind::workspace, setup.sequences, transformer_.table().vocabulary.size())),
      part_(arena.take<T>(MemoryKind::workspace, setup.sequences, widest_shard(setup))),
      gathered_(arena.take<T>(MemoryKind::workspace, setup.tp->size() * setup.sequences * widest_shard(setup))),
      host_inputs_(static_cast<std::size_t>(setup.sequences * chunk_of(setup))),
      host_gathered_(Kokkos::create_mirror_view(gathered_)),
      host_logits_(arena.is_planning() ? 0 : static_cast<std::size_t>(setup.sequences * setup.model.vocab_size)) {}

// Forward of tokens [begin, begin + count) out of the `of` given tokens of each sequence.
template <class T>
void Generator<T>::take_chunk(std::span<const std::int32_t> tokens, index_t begin, index_t count, index_t of) {
  const index_t n = setup_.sequences * count;
  for (index_t s = 0; s < setup_.sequences; ++s) {
    std::copy_n(tokens.begin() + s * of + begin, count, host_inputs_.begin() + s * count);
  }
  const Vector<std::int32_t> inputs(inputs_.data(), n);
  const Vector<std::int32_t> positions(positions_.data(), n);
  Kokkos::deep_copy(device_->exec(), inputs, HostTokens(host_inputs_.data(), static_cast<std::size_t>(n)));
  fill_positions(*device_, positions, length_, count);
  for (nn::KeyValueCache<T>& cache : caches_) cache.past = length_;
  transformer_.forward_cached({.sequences = setup_.sequences, .length = count, .positions = positions}, inputs, caches_,
                              logits_);
  device_->fence();  // the next chunk overwrites the host buffer
  length_ += count;
}

// All-gather of logits. Shards of unequal width are padded to the widest.
template <class T>
void Generator<T>::collect_logits() {
  const index_t width = widest_shard(setup_);
  const auto columns = static_cast<index_t>(logits_.extent(1));
  kernels::copy_matrix<T>(*device_, MatrixRef<T>(logits_), MatrixRef<T>(part_).column_block(0, columns));
  comm::all_gather(*setup_.tp, part_.data(), part_.size(), gathered_.data(), device_->stream());
  Kokkos::deep_copy(device_->exec(), host_gathered_, gathered_);
  device_->fence();
  for (int rank = 0; rank < setup_.tp->size(); ++rank) {
    const Range shard = shard_range(setup_.model.vocab_size, setup_.tp->size(), rank);
    for (index_t s = 0; s < setup_.sequences; ++s) {
      const T* const from = host_gathered_.data() + (rank * setup_.sequences + s) * width;
      double* const to = host_logits_.data() + s * setup_.model.vocab_size + shard.begin;
      for (index_t i = 0; i < shard.size(); ++i) to[i] = static_cast<double>(from[i]);
    }
  }
}

template <class T>
std::span<const double> Generator<T>::extend(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<index_t>(tokens.size()) / setup_.sequences;
  NANOTRON_REQUIRE(count > 0 && count * setup_.sequences == static_cast<index_t>(tokens.size()),
                   "{} tokens for {} sequences", tokens.size(), setup_.sequences);
  if (length_ + count > setup_.capacity) {
    fail(ExitCode::deck_error, {.what = "the sequences do not fit into the context",
                                .expected = fmt::format("at most {} tokens", setup_.capacity),
                                .found = fmt::format("{} and {} more", length_, count),
                                .change = "a shorter prompt, fewer new tokens or a larger context"});
  }
  for (index_t begin = 0; begin < count; begin += chunk_of(setup_)) {
    take_chunk(tokens, begin, std::min(chunk_of(setup_), count - begin), count);
  }
  collect_logits();
  return host_logits_;
}

template <class T>
std::vector<std::vector<std::int32_t>> Generator<T>::generate(const GenerationRequest& request) {
  const auto n = static_cast<std::size_t>(setup_.sequences);
  const auto vocabulary = static_cast<std::size_t>(setup_.model.vocab_size);
  std::vector<std::int32_t> tokens;
  for (std::size_t s = 0; s < n; ++s) {
    tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
  }
  std::vector<std::vector<std::int32_t>> answers(n);
  std::vector<bool> ended(n, false);
  reset();
  for (index_t made = 0; made < request.new_tokens; ++made) {
    const std::span<const double> logits = extend(tokens);
    tokens.assign(n, request.prompt.back());  // any token will do for an ended sequence
    for (std::size_t s = 0; s < n; ++s) {
      if (ended[s]) continue;
      tokens[s] = draw_token(logits.subspan(s * vocabulary, vocabulary), request.sampling,
                             static_cast<std::uint32_t>(s), static_cast<std::uint64_t>(length_));
      ended[s] = tokens[s] == request.eos;
      if (!ended[s]) answers[s].push_back(tokens[s]);
    }
    if (std::ranges::all_of(ended, [](bool is) { return is; })) break;
  }
  return answers;
}

NANOTRON_INSTANTIATE_CLASS(Generator)

}  // namespace nanotron::model
