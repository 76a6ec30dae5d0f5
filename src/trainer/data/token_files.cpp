#include "nanotron/trainer/data/token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

constexpr const char* path_key = "data%path";
constexpr const char* validation_key = "data%validation_path";

constexpr std::size_t max_held = 16;  // files that stay open on each rank
constexpr std::size_t max_told = 10;  // files in a message

// A file of the deck.
struct Entry {
  const char* key;
  deck::NamedFile file;
};

std::vector<Entry> entries_of(const deck::Config& config) {
  std::vector<Entry> all;
  for (deck::NamedFile& file : deck::named_files(config.data.path)) all.push_back({path_key, std::move(file)});
  for (deck::NamedFile& file : deck::named_files(config.data.validation_path))
    all.push_back({validation_key, std::move(file)});
  return all;
}

// Calls work(); its errors name the key, the file and its line in a list, except for the only file of data%path.
template <class Work>
auto of_file(const deck::Config& config, const Entry& entry, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const auto& [key, file] = entry;
    if (key == path_key && file.name.empty()) throw;
    const std::string place = deck::place_of(config, key == path_key ? "data.path" : "data.validation_path", file.line);
    throw Error(error.exit_code(),
                format({.what = fmt::format("{}{}: {}", deck::key_of(key, file),
                                            place.empty() ? "" : fmt::format(" ({})", place), reason(error))}));
  }
}

data::TokenFile whole_file(const deck::Config& config, const Entry& entry) {
  return of_file(config, entry, [&] {
    data::TokenFile tokens(entry.file.path);
    tokens.require_vocab_size(config.model.vocab_size);
    tokens.loss_mask().require_targets();
    return tokens;
  });
}

// Long lists.

// The heads of the files whose turn it is, each after its length. One error for all files that cannot be used.
std::string heads_of(const deck::Config& config, const std::vector<Entry>& entries, const FileTurns& turns) {
  std::string heads, wrong;
  ExitCode code = ExitCode::ok;
  std::size_t failed = 0;
  for (std::size_t i = static_cast<std::size_t>(turns.rank); i < entries.size();
       i += static_cast<std::size_t>(turns.ranks)) {
    try {
      const std::string head = packed(whole_file(config, entries[i]).head());
      heads += fmt::format("{} ", head.size()) + head;
    } catch (const Error& error) {
      if (failed++ == 0) code = error.exit_code();
      if (failed <= max_told) wrong += (failed > 1 ? "\n" : "") + reason(error);
    }
  }
  if (failed == 0) return heads;
  if (failed > max_told) wrong += fmt::format("\nand {} more files", failed - max_told);
  throw Error(code, format({.what = wrong}));
}

// What all ranks have read, in the order of the files: rank 0 gathers it.
std::vector<data::TokenHead> gathered_heads(const std::string& mine, std::size_t files, MPI_Comm world) {
  const std::vector<std::string> of_ranks = comm::texts_at_root(world, mine);
  const std::string all = comm::text_of_root(world, [&] {
    std::vector<std::size_t> read(of_ranks.size(), 0);
    std::string text;
    for (std::size_t i = 0; i < files; ++i) {
      const std::string& of_rank = of_ranks[i % of_ranks.size()];
      std::size_t& at = read[i % of_ranks.size()];
      const std::size_t begin = of_rank.find(' ', at) + 1, end = begin + std::stoul(of_rank.substr(at, begin - at));
      text += std::string_view(of_rank).substr(at, end - at);
      at = end;
    }
    return text;
  });
  std::vector<data::TokenHead> heads;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t begin = all.find(' ', at) + 1, size = std::stoul(all.substr(at, begin - at));
    heads.push_back(data::unpacked(std::string_view(all).substr(begin, size)));
    at = begin + size;
  }
  return heads;
}

// What this host sees under the paths whose turn it is: copies on its own disk have other inodes than those of another
// host.
using Looks = std::vector<std::int64_t>;
constexpr std::size_t fields = 5;

Looks look_at_files(const std::vector<data::TokenHead>& heads, const FileTurns& turns) {
  Looks seen(fields * heads.size(), 0);
  for (std::size_t i = static_cast<std::size_t>(turns.rank); i < heads.size();
       i += static_cast<std::size_t>(turns.ranks)) {
    const data::FileStatus here = data::status_of(heads[i].path);
    if (here.bytes != heads[i].status.bytes)
      fail(ExitCode::data_error, {.what = "the hosts of this run see different token files under the same path",
                                  .expected = fmt::format("{} bytes", heads[i].status.bytes),
                                  .found = fmt::format("{}", here.bytes),
                                  .where = heads[i].path,
                                  .change = "copy the right file to every host again"});
    std::ranges::copy(std::array{here.device, here.inode, here.bytes, here.modified, here.changed},
                      seen.begin() + static_cast<std::ptrdiff_t>(fields * i));
  }
  return seen;
}

// seen: of this rank; the others of its host have looked at the other files.
void take_status(std::vector<data::TokenHead>& heads, Looks seen, MPI_Comm host) {
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, seen.data(), static_cast<int>(seen.size()), MPI_INT64_T, MPI_SUM, host));
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::int64_t* const s = &seen[fields * i];
    heads[i].status = {s[0], s[1], s[2], s[3], s[4]};
  }
}

// "a.h5 b.h5 and 3 more"
std::string paths_text(const std::vector<const data::TokenFile*>& files) {
  std::string text;
  for (std::size_t i = 0; i < std::min(files.size(), max_told); ++i) text += (i == 0 ? "" : " ") + files[i]->path();
  return files.size() > max_told ? text + fmt::format(" and {} more", files.size() - max_told) : text;
}

std::vector<const data::TokenFile*> all_of(const TokenFiles& files) {
  std::vector<const data::TokenFile*> all;
  for (const auto& of : {&files.training, &files.validation}) {
    for (const data::TokenFile& file : *of) all.push_back(&file);
  }
  return all;
}

// A line for the files whose tokens nothing proves.
void tell_of_hashes(const TokenFiles& files, Log& log) {
  std::vector<const data::TokenFile*> without = all_of(files);
  std::erase_if(without, [](const data::TokenFile* file) { return file->hashes().exist(); });
  if (without.empty()) return;
  log.info(
      "without hashes of their blocks, so that damage goes unnoticed: {}; tools/nanotron_verify.py --add writes them",
      paths_text(without));
}

// In random order nearly each sample is of another chunk.
void warn_of_packed_chunks(const TokenFiles& files, Log& log) {
  constexpr std::int64_t small = 1 << 20;
  std::size_t told = 0;
  for (const data::TokenFile* const file : all_of(files)) {
    for (const data::StoredArray* const array : file->arrays()) {
      if (array->unpacked_again() <= small || ++told > max_told) continue;
      log.warn(
          "{} of {} has compressed chunks of {:.1f} MiB, one of which is decompressed for each sample in random order: "
          "h5repack -f NONE -l CONTI {} new.h5 makes a file that is faster to read",
          array->name(), file->path(), static_cast<double>(array->unpacked_again()) / (1 << 20), file->path());
    }
  }
  if (told > max_told) log.warn("{} more datasets have such chunks", told - max_told);
}

// Of the files without hashes, as far as they are small: what DataWatch compares. Rank 0 reads. Collective.
std::vector<std::uint64_t> contents_of(const TokenFiles& files, MPI_Comm world) {
  constexpr index_t most = index_t{256} << 20;  // bytes of tokens of all of them
  std::vector<std::uint64_t> contents;
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  comm::collectively(world, [&] {
    index_t bytes = 0;
    for (const data::TokenFile* const file : all_of(files)) {
      contents.push_back(0);
      if (rank != 0 || file->hashes().exist()) continue;
      for (const data::StoredArray* const array : file->arrays()) bytes += array->size() * array->width();
      if (bytes > most) continue;
      const std::uint64_t content = data::content_of(*file);
      if (file->status_now().is_unwritten_since(file->status())) contents.back() = content;
    }
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(contents.data(), static_cast<int>(contents.size()), MPI_UINT64_T, 0, world));
  return contents;
}

std::string first_path(const deck::DataConfig& data) { return deck::named_files(data.path).front().path; }

}  // namespace

TokenFiles::TokenFiles(const deck::Config& config, MPI_Comm world) {
  const auto on_all = [&](const std::function<void()>& open) {
    if (world == MPI_COMM_SELF) return open();
    open_collectively(world, open);
  };
  const std::vector<Entry> entries = entries_of(config);
  const auto add = [&](const Entry& entry, data::TokenFile file) {
    (entry.key == path_key ? training : validation).push_back(std::move(file));
  };
  if (entries.size() <= max_held) {
    on_all([&] {
      for (const Entry& entry : entries) add(entry, whole_file(config, entry));
    });
    return;
  }
  const comm::Communicator all = comm::Communicator::duplicate(world), host = all.split_by_node();
  turns = {host.rank(), host.size()};
  std::string mine;
  on_all([&] { mine = heads_of(config, entries, {all.rank(), all.size()}); });
  std::vector<data::TokenHead> heads = gathered_heads(mine, entries.size(), world);
  Looks seen;
  on_all([&] { seen = look_at_files(heads, turns); });
  take_status(heads, std::move(seen), host.get());
  const auto open_files = std::make_shared<data::OpenFiles>();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::TokenFile file(heads[i], open_files);
    file.require_vocab_size(config.model.vocab_size);
    add(entries[i], std::move(file));
  }
}

void fill_weights(const TokenFiles& files, deck::Config& config) {
  if (!deck::are_weighted_by_tokens(config.data)) return;
  std::vector<std::int64_t> tokens;
  for (const data::TokenFile& file : files.training) tokens.push_back(file.size());
  config.data.weights = deck::weights_by_tokens(config.data, tokens);
}

namespace {

void require_same_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, MPI_Comm node, Log& log) {
  const bool documents = config.data.document_mask != deck::DocumentMask::none;
  const std::vector<const data::TokenFile*> opened = all_of(files);
  std::vector<io::ListedTokens> listed;
  for (const Entry& entry : entries_of(config))
    listed.push_back({opened[listed.size()], deck::key_of(entry.key, entry.file)});
  if (world == MPI_COMM_SELF) return;
  comm::Communicator made;
  if (node == MPI_COMM_NULL) made = comm::Communicator::duplicate(world).split_by_node();
  const MPI_Comm host = node == MPI_COMM_NULL ? made.get() : node;
  if (files.is_long_list()) return io::require_same_tokens(world, host, listed, config.data.verify, documents, log);
  for (const io::ListedTokens& file : listed)
    io::require_same_tokens(world, host, file, config.data.verify, documents, log);
}

// Each file with the first one; of a long list each tokenizer once.
void compare_all_tokenizers(const TokenFiles& files, const deck::Config& config, Log& log) {
  const data::TokenizerId& first = files.training.front().tokenizer();
  std::vector<std::optional<std::int64_t>> begins;
  for (const data::TokenFile& file : files.training) begins.emplace_back(begin_of(file));
  std::set<std::pair<std::string, std::string>> seen;
  std::set<std::int64_t> bos;
  const std::vector<const data::TokenFile*> opened = all_of(files);
  std::size_t i = 0;
  for (const Entry& entry : entries_of(config)) {
    const data::TokenFile& file = *opened[i];
    const bool is_validation = entry.key == validation_key;
    const std::string what = fmt::format("the {}file {} ({})", is_validation ? "validation " : "", entry.file.path,
                                         deck::key_of(entry.key, entry.file));
    const bool is_new = seen.emplace(file.tokenizer().sha256, file.tokenizer().vocabulary).second;
    if (i++ > 0 && (is_new || !files.is_long_list()))
      compare_tokenizers(first, file.tokenizer(), what, config.data, log);
    if (is_validation && (bos.insert(begin_of(file)).second || !files.is_long_list()))
      compare_begins(begins, begin_of(file), what, log);
  }
}

}  // namespace

void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log, MPI_Comm node) {
  require_same_files(files, config, world, node, log);
  tell_of_hashes(files, log);
  warn_of_packed_chunks(files, log);
  comm::collectively(world, [&] { compare_all_tokenizers(files, config, log); });
}

void compare_tokenizers(const TokenizerOf& wanted, const TokenizerOf& other, const deck::DataConfig& data, Log& log) {
  const data::SameTokenizer same = data::same_tokenizer(wanted.id, other.id);
  if (same == data::SameTokenizer::yes) return;
  if (same == data::SameTokenizer::unknown) {
    log.info("tokenizers not compared: {} and {} do not both have tokenizer_sha256, nor both a vocabulary", other.what,
             wanted.what);
    return;
  }
  if (data.other_tokenizer == deck::OtherTokenizer::accept) {
    log.warn("{} has the tokenizer {}, {} has {}: accepted by data%other_tokenizer", other.what,
             describe(other.id, wanted.id), wanted.what, describe(wanted.id, other.id));
    return;
  }
  fail(ExitCode::data_error,
       {.what = fmt::format("{} has a different tokenizer than {}", other.what, wanted.what),
        .expected = describe(wanted.id, other.id),
        .found = describe(other.id, wanted.id),
        .change = "make the token files with one tokenizer; if the tokens are known to be equivalent, or the change is "
                  "intended: --set data.other_tokenizer=accept"});
}

void compare_tokenizers(const data::TokenizerId& training, const data::TokenizerId& other, const std::string& what,
                        const deck::DataConfig& data, Log& log) {
  compare_tokenizers({training, fmt::format("the training file {}", first_path(data))}, {other, what}, data, log);
}

std::int64_t begin_of(const data::TokenFile& file) { return file.bos_token_id().value_or(io::no_bos); }

void compare_begins(std::span<const std::optional<std::int64_t>> training, std::int64_t bos, const std::string& what,
                    Log& log) {
  const auto is_as_here = [&](const auto& of) { return !of || *of == bos; };
  if (training.empty() || std::ranges::any_of(training, is_as_here)) return;
  const auto words = [](std::int64_t token) {
    return token == io::no_bos ? "without a bos token" : fmt::format("with token {}", token);
  };
  log.warn(
      "the texts of {} begin {}, the training texts {}: losses will be too high. Rewrite the file "
      "with the --bos of the training data (nanotron-choices: --token-file)",
      what, words(bos), words(*training.front()));
}

void open_collectively(MPI_Comm world, const std::function<void()>& open) {
  comm::collectively(world, [&] {
    try {
      open();
    } catch (const Error& error) {
      int rank = 0;
      NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
      const std::string seen_by = fmt::format("  {:<10}rank {} on host {}", "seen by:", rank, host_name());
      throw Error(error.exit_code(), fmt::format("{}\n{}", error.what(), seen_by));
    }
  });
}

std::unique_ptr<TokenFiles> open_token_files(const deck::Config& config, MPI_Comm world, Log& log, MPI_Comm node) {
  auto files = std::make_unique<TokenFiles>(config, world);
  check_token_files(*files, config, world, log, node);
  files->contents = contents_of(*files, world);
  return files;
}

Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at) {
  const SequenceLayout layout = sequence_layout(config);
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const auto loader = [&](std::span<const data::TokenFile> of, data::Split split) {
    return data::BatchLoader(deck::data_in_parts(config), seed, of, split, at.dp, static_cast<int>(config.parallel.dp),
                             layout[at.cp], neighbouring_sequences(config));
  };
  Loaders loaders{loader(files.training, data::Split::training), {}, files.training.front().tokenizer()};
  const auto validate_on = [&](const char* key, const std::string& list, std::span<const data::TokenFile> of) {
    const std::vector<deck::NamedFile> named = deck::named_files(list);
    const bool is_one_set = named.size() > 1 && !named.front().is_named;
    if (is_one_set) return loaders.validation.push_back(loader(of, data::Split::validation));
    for (std::size_t i = 0; i < named.size(); ++i) {
      loaders.validation.push_back(
          of_file(config, {key, named[i]}, [&] { return loader(of.subspan(i, 1), data::Split::validation); }));
    }
  };
  validate_on(validation_key, config.data.validation_path, files.validation);
  if (config.data.validation_fraction > 0.0) validate_on(path_key, config.data.path, files.training);
  loaders.watch = DataWatch(files.training, files.validation, files.contents, files.turns);
  return loaders;
}

}  // namespace nanotron::trainer
