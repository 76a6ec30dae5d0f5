#include "nanotron/trainer/token_files.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/deck/validation_sets.hpp"
#include "nanotron/io/token_agreement.hpp"

namespace nanotron::trainer {
namespace {

// Calls work(); its errors name the validation set.
template <class Work>
auto of_set(const deck::ValidationSet& set, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.exit_code(), format({.what = fmt::format("{}: {}", deck::key_of(set), reason(error))}));
  }
}

}  // namespace

TokenFiles::TokenFiles(const deck::Config& config) : training(config.data.path) {
  training.require_vocab_size(config.model.vocab_size);
  for (const deck::ValidationSet& set : deck::validation_sets(config.data.validation_path)) {
    validation.push_back(of_set(set, [&] {
      data::TokenFile file(set.path);
      file.require_vocab_size(config.model.vocab_size);
      return file;
    }));
  }
}

void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log) {
  const deck::DataConfig& data = config.data;
  const bool documents = data.document_mask != deck::DocumentMask::none;
  const std::vector<deck::ValidationSet> sets = deck::validation_sets(data.validation_path);
  io::require_same_tokens(world, files.training, "data%path", data.verify, documents, log);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    io::require_same_tokens(world, files.validation[i], deck::key_of(sets[i]), data.verify, documents, log);
  }
  comm::collectively(world, [&] {
    for (std::size_t i = 0; i < sets.size(); ++i) {
      compare_tokenizers(files.training.tokenizer(), files.validation[i].tokenizer(),
                         fmt::format("the validation file {} ({})", sets[i].path, deck::key_of(sets[i])), data, log);
    }
  });
}

void compare_tokenizers(const data::TokenizerId& training, const data::TokenizerId& other, const std::string& what,
                        const deck::DataConfig& data, Log& log) {
  const data::SameTokenizer same = data::same_tokenizer(training, other);
  if (same == data::SameTokenizer::yes) return;
  if (same == data::SameTokenizer::unknown) {
    log.info(
        "tokenizers not compared: {} and the training file {} do not both have tokenizer_sha256, nor both a vocabulary",
        what, data.path);
    return;
  }
  if (data.other_tokenizer == deck::OtherTokenizer::accept) {
    log.warn("{} has the tokenizer {}, the training file {} has {}: accepted by data%other_tokenizer", what,
             describe(other, training), data.path, describe(training, other));
    return;
  }
  fail(ExitCode::data_error,
       {.what = fmt::format("{} has another tokenizer than the training file", what),
        .expected = fmt::format("that of {}: {}", data.path, describe(training, other)),
        .found = describe(other, training),
        .change =
            "make the token files with one tokenizer; where the tokens are known to mean the same, or the change is "
            "meant: --set data.other_tokenizer=accept"});
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
  return files;
}

Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at) {
  const SequenceLayout layout = sequence_layout(config);
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const auto loader = [&](const data::TokenFile& file, data::Split split) {
    return data::BatchLoader(config.data, seed, file, split, at.dp, static_cast<int>(config.parallel.dp),
                             layout[at.cp], neighbouring_sequences(config));
  };
  Loaders loaders{loader(files.training, data::Split::training), {}, files.training.tokenizer()};
  const std::vector<deck::ValidationSet> sets = deck::validation_sets(config.data.validation_path);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    loaders.validation.push_back(of_set(sets[i], [&] { return loader(files.validation[i], data::Split::validation); }));
  }
  if (config.data.validation_fraction > 0.0) {
    loaders.validation.push_back(loader(files.training, data::Split::validation));
  }
  for (data::BatchLoader& validation : loaders.validation) validation.pad_with(loaders.training);
  return loaders;
}

}  // namespace nanotron::trainer
