#include "nanotron/trainer/data/token_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

constexpr const char* path_key = "data%path";
constexpr const char* validation_key = "data%validation_path";

// Calls work(); its errors name the key and the file, except for the only file of data%path.
template <class Work>
auto of_file(const char* key, const deck::NamedFile& file, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (key == path_key && file.name.empty()) throw;
    throw Error(error.exit_code(), format({.what = fmt::format("{}: {}", deck::key_of(key, file), reason(error))}));
  }
}

std::vector<data::TokenFile> opened(const char* key, const std::string& files, const deck::Config& config) {
  std::vector<data::TokenFile> found;
  for (const deck::NamedFile& file : deck::named_files(files)) {
    found.push_back(of_file(key, file, [&] {
      data::TokenFile tokens(file.path);
      tokens.require_vocab_size(config.model.vocab_size);
      tokens.loss_mask().require_targets();
      return tokens;
    }));
  }
  return found;
}

// A line for the files whose tokens nothing proves.
void tell_of_hashes(const TokenFiles& files, Log& log) {
  std::string without;
  for (const auto& of : {&files.training, &files.validation}) {
    for (const data::TokenFile& file : *of) {
      if (!file.hashes().exist()) without += " " + file.path();
    }
  }
  if (without.empty()) return;
  log.info(
      "without hashes of their blocks, so that damage goes unnoticed:{}; tools/nanotron_verify.py --add writes them",
      without);
}

// In random order nearly each sample is of another chunk.
void warn_of_packed_chunks(const TokenFiles& files, Log& log) {
  constexpr std::int64_t small = 1 << 20;
  for (const auto& of : {&files.training, &files.validation}) {
    for (const data::TokenFile& file : *of) {
      for (const data::StoredArray* const array : file.arrays()) {
        if (array->unpacked_again() <= small) continue;
        log.warn(
            "{} of {} has compressed chunks of {:.1f} MiB, one of which is decompressed for each sample in random "
            "order: "
            "h5repack -f NONE -l CONTI {} new.h5 makes a file that is faster to read",
            array->name(), file.path(), static_cast<double>(array->unpacked_again()) / (1 << 20), file.path());
      }
    }
  }
}

// Of the files without hashes, as far as they are small: what DataWatch compares. Rank 0 reads. Collective.
std::vector<std::uint64_t> contents_of(const TokenFiles& files, MPI_Comm world) {
  constexpr index_t most = index_t{256} << 20;  // bytes of tokens of all of them
  std::vector<std::uint64_t> contents;
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  comm::collectively(world, [&] {
    index_t bytes = 0;
    for (const auto& of : {&files.training, &files.validation}) {
      for (const data::TokenFile& file : *of) {
        contents.push_back(0);
        if (rank != 0 || file.hashes().exist()) continue;
        for (const data::StoredArray* const array : file.arrays()) bytes += array->size() * array->width();
        if (bytes > most) continue;
        const std::uint64_t content = data::content_of(file);
        if (file.status_now().is_unwritten_since(file.status())) contents.back() = content;
      }
    }
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(contents.data(), static_cast<int>(contents.size()), MPI_UINT64_T, 0, world));
  return contents;
}

std::string first_path(const deck::DataConfig& data) { return deck::named_files(data.path).front().path; }

}  // namespace

TokenFiles::TokenFiles(const deck::Config& config)
    : training(opened(path_key, config.data.path, config)),
      validation(opened(validation_key, config.data.validation_path, config)) {}

void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log) {
  const deck::DataConfig& data = config.data;
  const bool documents = data.document_mask != deck::DocumentMask::none;
  const std::vector<deck::NamedFile> named = deck::named_files(data.path),
                                     sets = deck::named_files(data.validation_path);
  for (std::size_t i = 0; i < named.size(); ++i) {
    io::require_same_tokens(world, files.training[i], deck::key_of(path_key, named[i]), data.verify, documents, log);
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    io::require_same_tokens(world, files.validation[i], deck::key_of(validation_key, sets[i]), data.verify, documents,
                            log);
  }
  tell_of_hashes(files, log);
  warn_of_packed_chunks(files, log);
  const data::TokenizerId& first = files.training.front().tokenizer();
  comm::collectively(world, [&] {
    for (std::size_t i = 1; i < named.size(); ++i) {
      compare_tokenizers(first, files.training[i].tokenizer(),
                         fmt::format("the file {} ({})", named[i].path, deck::key_of(path_key, named[i])), data, log);
    }
    std::vector<std::optional<std::int64_t>> begins;
    for (const data::TokenFile& file : files.training) begins.emplace_back(begin_of(file));
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const std::string what =
          fmt::format("the validation file {} ({})", sets[i].path, deck::key_of(validation_key, sets[i]));
      compare_tokenizers(first, files.validation[i].tokenizer(), what, data, log);
      compare_begins(begins, begin_of(files.validation[i]), what, log);
    }
  });
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

std::unique_ptr<TokenFiles> open_token_files(const deck::Config& config, MPI_Comm world, Log& log) {
  std::unique_ptr<TokenFiles> files;
  open_collectively(world, [&] { files = std::make_unique<TokenFiles>(config); });
  check_token_files(*files, config, world, log);
  files->contents = contents_of(*files, world);
  return files;
}

Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at) {
  const SequenceLayout layout = sequence_layout(config);
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const auto loader = [&](std::span<const data::TokenFile> of, data::Split split) {
    return data::BatchLoader(config.data, seed, of, split, at.dp, static_cast<int>(config.parallel.dp), layout[at.cp],
                             neighbouring_sequences(config));
  };
  Loaders loaders{loader(files.training, data::Split::training), {}, files.training.front().tokenizer()};
  const auto validate_on = [&](const char* key, const std::string& list, std::span<const data::TokenFile> of) {
    const std::vector<deck::NamedFile> named = deck::named_files(list);
    for (std::size_t i = 0; i < named.size(); ++i) {
      loaders.validation.push_back(
          of_file(key, named[i], [&] { return loader(of.subspan(i, 1), data::Split::validation); }));
    }
  };
  validate_on(validation_key, config.data.validation_path, files.validation);
  if (config.data.validation_fraction > 0.0) validate_on(path_key, config.data.path, files.training);
  loaders.watch = DataWatch(files.training, files.validation, files.contents);
  return loaders;
}

}  // namespace nanotron::trainer
