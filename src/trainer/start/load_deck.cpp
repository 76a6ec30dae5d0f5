
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/message_nodes.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/trainer/data/run_data.hpp"
#include "nanotron/trainer/start/deck_features.hpp"

namespace nanotron::trainer {
namespace {

// Texts that rank 0 makes, on every rank.
std::vector<std::string> texts_of_root(MPI_Comm world, const std::function<std::vector<std::string>()>& make) {
  const std::string packed = comm::text_of_root(world, [&] {
    std::string all;
    for (const std::string& text : make()) all += fmt::format("{} ", text.size()) + text;
    return all;
  });
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t begin = packed.find(' ', at) + 1, size = std::stoul(packed.substr(at, begin - at));
    texts.push_back(packed.substr(begin, size));
    at = begin + size;
  }
  return texts;
}

deck::ListTexts lists_of_root(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides) {
  const std::vector<std::string> texts = texts_of_root(world, [&] {
    std::vector<std::string> all;
    for (const auto& [path, text] : deck::read_lists(deck, overrides)) all.insert(all.end(), {path, text});
    return all;
  });
  deck::ListTexts lists;
  for (std::size_t i = 0; i < texts.size(); i += 2) lists[texts[i]] = texts[i + 1];
  return lists;
}

// The pp that the layer counts in pp_layers imply.
std::int64_t named_stages(const deck::ParallelConfig& p) {
  const auto counts = parallel::layer_counts(p.pp_layers);
  return counts ? static_cast<std::int64_t>(counts->size()) / deck::virtual_stages(p) : 1;
}

// pp x dp x tp x cp. A degree of 0 counts as the smallest that fits: pp as in pp_layers,
// dp = lcm(zero_size, ep / gcd(ep, cp)), tp = cp = 1; with whole experts cp x tp instead of cp.
std::int64_t named_ranks(const deck::ParallelConfig& p) {
  std::int64_t product = p.pp > 0 ? p.pp : std::max<std::int64_t>(named_stages(p), 1);
  for (const std::int64_t degree : {p.dp, p.tp, p.cp}) product *= std::max<std::int64_t>(degree, 1);
  if (p.dp > 0) return product;
  const std::int64_t shards = p.zero_stage > 0 ? std::max<std::int64_t>(p.zero_size, 1) : 1;
  const std::int64_t others = std::max<std::int64_t>(p.cp, 1) * deck::tp_in_ep(p);
  return product * std::lcm(shards, p.ep / std::gcd(p.ep, others));
}

}  // namespace

deck::Config load_config(MPI_Comm world, const std::string& path, const std::vector<std::string>& own_overrides,
                         GridRanks ranks, std::int64_t planned) {
  const std::string text = comm::text_of_root(world, [&] { return deck::read_deck_file(path); });
  std::string warnings;
  int rank = 0, world_size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &world_size));
  std::optional<std::int64_t> known;
  if (ranks == GridRanks::of_world) known = world_size;
  if (ranks == GridRanks::of_deck && planned > 0) known = planned;
  const std::vector<std::string> overrides = texts_of_root(world, [&] { return own_overrides; });
  const deck::ListTexts lists = lists_of_root(world, text, overrides);
  deck::Config config = read_deck_text(text, path, overrides, &warnings, known, lists);
  if (rank == 0 && !warnings.empty()) fmt::print(stderr, "{}\n", warnings);
  const std::int64_t size = known ? *known : named_ranks(config.parallel);
  resolve(config, size);
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = vocabulary_of_data(config, world);
    resolve(config, size);  // the checks that need vocab_size
  }
  if (ranks == GridRanks::of_world) comm::find_message_nodes(config, world);
  return config;
}

std::optional<deck::Machine> load_machine(MPI_Comm world, const std::string& path) {
  if (path.empty()) return std::nullopt;
  return deck::read_machine(path, comm::text_of_root(world, [&] { return deck::read_deck_file(path); }));
}

}  // namespace nanotron::trainer
