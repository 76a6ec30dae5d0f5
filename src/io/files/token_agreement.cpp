#include "nanotron/io/files/shared_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <vector>

#include <xxhash.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::io {
namespace {

bool is_same(MPI_Comm world, std::int64_t value) {
  std::int64_t range[2] = {value, -value};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_INT64_T, MPI_MAX, world));
  return range[0] == -range[1];
}

bool is_same_hash(MPI_Comm world, std::uint64_t hash) {
  std::uint64_t range[2] = {hash, ~hash};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_UINT64_T, MPI_MAX, world));
  return range[0] == ~range[1];
}

// The ranks of this node that see the same file as this rank.
struct Sharers {
  MPI_Comm ranks;
  comm::Communicator made{};  // where not all of the node do
  int rank = 0, size = 1;
  bool all = false;  // ranks of the world
};

Sharers sharers_of(MPI_Comm world, MPI_Comm node, const data::FileStatus& mine) {
  Sharers sharers{.ranks = node};
  if (!is_same(node, mine.device) || !is_same(node, mine.inode)) {
    int rank = 0, size = 1, first = 0;
    NANOTRON_CHECK_MPI(MPI_Comm_rank(node, &rank));
    NANOTRON_CHECK_MPI(MPI_Comm_size(node, &size));
    std::vector<std::int64_t> on_node(2 * static_cast<std::size_t>(size));
    const std::int64_t here[2] = {mine.device, mine.inode};
    NANOTRON_CHECK_MPI(MPI_Allgather(here, 2, MPI_INT64_T, on_node.data(), 2, MPI_INT64_T, node));
    while (on_node[2 * static_cast<std::size_t>(first)] != mine.device ||
           on_node[2 * static_cast<std::size_t>(first) + 1] != mine.inode)
      ++first;
    sharers.made = comm::Communicator::duplicate(node).split(first, rank);
    sharers.ranks = sharers.made.get();
  }
  int ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(sharers.ranks, &sharers.rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(sharers.ranks, &sharers.size));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  sharers.all = is_same(world, sharers.size) && sharers.size == ranks;
  return sharers;
}

std::uint64_t hash_of_head(const data::TokenFile& file, bool documents) {
  std::uint64_t starts = 0;
  if (documents) {
    const std::vector<std::uint64_t> offsets = file.read_documents();
    starts = XXH3_64bits(offsets.data(), offsets.size() * sizeof(std::uint64_t));
  }
  const data::TokenizerId& tokenizer = file.tokenizer();
  const std::string head =
      fmt::format("tokens {} vocab_size {} eos {} documents {:016x} tokenizer_sha256 {} vocabulary {}", file.size(),
                  file.vocab_size(), file.eos_token_id().value_or(-1), starts, tokenizer.sha256, tokenizer.vocabulary);
  return XXH3_64bits_withSeed(head.data(), head.size(), ~XXH64_hash_t{0});
}

// What a rank found; plain bytes, so that MPI can gather it.
struct Finding {
  std::uint64_t hash = 0;
  std::int64_t tokens = 0;
  std::array<char, 64> host{};
  std::array<char, 256> path{};
};

Finding finding_of(const data::TokenFile& file, std::uint64_t hash) {
  Finding found{.hash = hash, .tokens = file.size()};
  const auto put = [](const std::string& text, std::span<char> into) {
    std::copy_n(text.data(), std::min(text.size(), into.size() - 1), into.begin());
  };
  std::error_code ignored;
  put(host_name(), found.host);
  put(std::filesystem::absolute(file.path(), ignored).string(), found.path);
  return found;
}

// A line for each hash, sorted by number of ranks: "hash 12ab..., 1000 tokens: node1 (4 ranks), node2 (4 ranks)".
std::string text_of(const std::vector<Finding>& all) {
  constexpr std::size_t max_places = 8;
  struct Content {
    int ranks = 0;
    std::int64_t tokens = 0;
    std::map<std::string, int> places;
  };
  std::map<std::uint64_t, Content> contents;
  for (const Finding& f : all) {
    Content& c = contents[f.hash];
    c.tokens = f.tokens;
    ++c.ranks;
    ++c.places[fmt::format("{} on host {}", f.path.data(), f.host.data())];
  }
  std::vector<std::pair<std::uint64_t, Content>> sorted(contents.begin(), contents.end());
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.second.ranks > b.second.ranks; });
  std::string text;
  for (const auto& [hash, content] : sorted) {
    text += fmt::format("{}hash {:016x}, {} tokens:", text.empty() ? "" : "\n", hash, content.tokens);
    std::size_t said = 0;
    for (const auto& [place, ranks] : content.places) {
      if (said++ < max_places)
        text += fmt::format("{} {} ({} rank{})", said > 1 ? "," : "", place, ranks, ranks == 1 ? "" : "s");
    }
    if (said > max_places) text += fmt::format(", and {} more", said - max_places);
  }
  return text;
}

[[noreturn]] void refuse(MPI_Comm world, const data::TokenFile& file, const std::string& key, std::uint64_t hash) {
  const Finding mine = finding_of(file, hash);
  int rank = 0, size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  std::vector<Finding> all(static_cast<std::size_t>(rank == 0 ? size : 0));
  NANOTRON_CHECK_MPI(MPI_Gather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, 0, world));
  const std::string found = comm::text_of_root(world, [&] { return text_of(all); });
  fail(ExitCode::data_error,
       {.what = "the hosts of this run see different token files under the same path",
        .expected = "the same tokens on every host",
        .found = found,
        .where = fmt::format("{} = '{}'", key, file.path()),
        .change = "name a file on a file system that all hosts share, or copy the right one to every host again"});
}

}  // namespace

std::uint64_t hash_part(const data::TokenFile& file, bool sample, bool documents, int part, int parts, index_t blocks) {
  const index_t all = (file.size() - 1) / token_block + 1;
  const bool some = sample && all > blocks;
  const index_t count = some ? blocks : all;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(file.size(), token_block)));
  std::vector<std::uint8_t> mask;
  std::uint64_t sum = part == 0 ? hash_of_head(file, documents) : 0;
  for (index_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
    const index_t block = some ? i * (all - 1) / std::max<index_t>(blocks - 1, 1) : i;
    const index_t length = std::min(token_block, file.size() - block * token_block);
    file.read_unchecked(block * token_block, length, tokens.data());
    sum += XXH3_64bits_withSeed(tokens.data(), static_cast<std::size_t>(length) * sizeof(std::int32_t),
                                static_cast<XXH64_hash_t>(block));
    if (!file.loss_mask().exists()) continue;
    mask.resize(static_cast<std::size_t>(length));
    file.loss_mask().read(block * token_block, mask);
    sum += XXH3_64bits_withSeed(mask.data(), mask.size(), ~static_cast<XXH64_hash_t>(block) - 1);
  }
  return sum;
}

void require_same_tokens(MPI_Comm world, const data::TokenFile& file, const std::string& key, deck::Verify verify,
                         bool documents, Log& log) {
  const comm::Communicator node = comm::Communicator::duplicate(world).split_by_node();
  require_same_tokens(world, node.get(), {&file, key}, verify, documents, log);
}

void require_same_tokens(MPI_Comm world, MPI_Comm node, const ListedTokens& listed, deck::Verify verify, bool documents,
                         Log& log) {
  const double begin = wall_seconds();
  const data::TokenFile& file = *listed.file;
  int ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  if (ranks == 1 || verify == deck::Verify::none) return;
  data::FileStatus status;
  comm::collectively(world, [&] { status = data::status_of(file.path()); });
  const Sharers sharers = sharers_of(world, node, status);
  if (sharers.all) {
    log.info("token file {}: one file, seen by all ranks", file.path());
    return;
  }
  const bool same_size = is_same(world, file.size());
  bool one_file = same_size;
  for (const std::int64_t value : {status.inode, status.bytes, status.modified, status.changed})
    one_file = is_same(world, value) && one_file;
  const bool sample = verify == deck::Verify::sample ||
                      (verify == deck::Verify::automatic && one_file && status.bytes > max_bytes_read_fully);
  if (same_size && !sample && status.bytes > max_bytes_read_fully) {
    log.info("token file {}: every host reads {:.1f} GB to compare; data%verify = 'sample' reads 64 blocks of it",
             file.path(), static_cast<double>(status.bytes) / 1e9);
  }
  std::uint64_t hash = 0;
  comm::collectively(world, [&] {  // files of different sizes differ already: only the heads are hashed
    hash = same_size           ? hash_part(file, sample, documents, sharers.rank, sharers.size)
           : sharers.rank == 0 ? hash_of_head(file, documents)
                               : 0;
  });
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &hash, 1, MPI_UINT64_T, MPI_SUM, sharers.ranks));
  if (!is_same_hash(world, hash)) refuse(world, file, listed.key, hash);
  log.info("token file {}: the same on all hosts, hash {:016x} of {} ({:.2f} s)", file.path(), hash,
           sample ? "a sample" : "all tokens", wall_seconds() - begin);
}

}  // namespace nanotron::io
