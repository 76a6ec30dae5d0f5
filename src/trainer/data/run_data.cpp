#include "nanotron/trainer/data/run_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/order/blend.hpp"
#include "nanotron/data/order/training_stages.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/deck/read_deck.hpp"

namespace nanotron::trainer {
namespace {

constexpr index_t sampled = 64;  // blocks

std::span<const char> bytes_of(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

io::DataFile data_file(const char* use, const std::string& name, const data::TokenFile& file) {
  return {.use = use,
          .name = name,
          .tokens = file.size(),
          .content = file.hashes().exist() ? fmt::format("{:016x}", file.hashes().content) : "",
          .tokenizer = file.tokenizer(),
          .bos = begin_of(file)};
}

// "the training file 'web' (data%path)"
std::string named(const io::DataFile& file) {
  return fmt::format("the {} file{} (data%{})", file.use, file.name.empty() ? "" : " '" + file.name + "'",
                     file.use == "training" ? "path" : "validation_path");
}

std::string described(const io::DataFile& file) {
  return fmt::format("{} tokens{}", file.tokens,
                     !file.content.empty()  ? ", content " + file.content
                     : !file.sample.empty() ? ", sample " + file.sample
                                            : "");
}

bool is_same_content(const io::DataFile& a, const io::DataFile& b) {
  if (a.tokens != b.tokens) return false;
  if (!a.content.empty() && !b.content.empty()) return a.content == b.content;
  return a.sample.empty() || b.sample.empty() || a.sample == b.sample;
}

// The samples before the cursor of a cut (data/order/training_stages.hpp), by the file's name.
struct CutSamples {
  index_t sequence_length = 0, samples = 0;
  std::map<std::string, index_t> of_file;
};

std::vector<CutSamples> samples_of(const deck::Config& run, index_t cursor) {
  deck::BlendMistake mistake;
  deck::blend_stages(run.data, &mistake);
  if (!mistake.found.empty()) return {};
  const std::vector<deck::NamedFile> files = deck::named_files(run.data.path);
  const std::vector<data::TrainingStage> stages = data::training_stages(run);
  std::vector<CutSamples> cuts;
  for (std::size_t k = 0; k < stages.size() && (k == 0 || stages[k].first_sample < cursor); ++k) {
    const index_t begin = stages[k].cut.first_sample;
    const index_t end = k + 1 < stages.size() ? std::min(cursor, stages[k + 1].first_sample) : cursor;
    if (k == 0 || stages[k].cut.number != stages[k - 1].cut.number) cuts.emplace_back();
    const deck::DataConfig data = data::stage_config(run, stages[k]).data;
    const std::vector<index_t> counts = data::Blend(data::blend_parts(data)).counts_before(end - begin);
    cuts.back() = {.sequence_length = data.sequence_length, .samples = end - begin, .of_file = {}};
    for (std::size_t i = 0; i < files.size(); ++i) cuts.back().of_file[files[i].name] = counts[i];
  }
  return cuts;
}

struct Differences {
  std::vector<std::string> lines;
  bool of_files = false;
};

// By keys of the deck. weights and stages are compared by what they give; without shuffling the seed orders nothing.
void compare_keys(const io::CheckpointInfo& info, const deck::Config& config, Log& log, Differences& found) {
  const auto before = deck::config_of(info.deck);
  const bool unshuffled =
      before && before->data.shuffle == deck::Shuffle::none && before->data.shuffle == config.data.shuffle;
  for (const deck::Change& change : deck::changes_since(info.deck, config)) {
    const std::string what = fmt::format("{} is {}, was {}", change.key, change.now, change.before);
    const bool orders = change.influence == deck::Influence::data_order && change.key != "data%weights" &&
                        change.key != "data%stages" && !(unshuffled && change.key == "run%seed");
    if (orders && info.state.sample_cursor > 0) {
      found.lines.push_back(what);
    } else {
      log.info("changed since the checkpoint: {}", what);
    }
  }
}

// Files whose samples continue at a different position than in the checkpoint.
void compare_samples(const io::CheckpointInfo& info, const deck::Config& config, Differences& found) {
  const auto before = deck::config_of(info.deck);
  if (!before || before->data.sequence_length != config.data.sequence_length) return;  // told by its key
  const std::vector<CutSamples> was = samples_of(*before, info.state.sample_cursor),
                                is = samples_of(config, info.state.sample_cursor);
  const auto has_same_cut = [](const CutSamples& a, const CutSamples& b) {
    return a.sequence_length == b.sequence_length && a.samples == b.samples;
  };
  if (was.empty() || is.empty()) return;
  if (!std::ranges::equal(was, is, has_same_cut)) {
    found.lines.push_back(
        fmt::format("data%stages: the sequence lengths of the {} samples so far differ, or change at other samples",
                    info.state.sample_cursor));
    return;
  }
  for (std::size_t c = 0; c < is.size(); ++c) {
    std::map<std::string, std::pair<index_t, index_t>> both;
    for (const auto& [name, samples] : was[c].of_file) both[name].first = samples;
    for (const auto& [name, samples] : is[c].of_file) both[name].second = samples;
    for (const auto& [name, samples] : both) {
      if (samples.first == samples.second) continue;
      found.lines.push_back(fmt::format(
          "data%path, data%weights, data%stages: of the {} samples so far{} {} are now from {}, {} were before",
          is[c].samples, is.size() > 1 ? fmt::format(" of {} tokens", is[c].sequence_length) : "", samples.second,
          name.empty() ? "the file without a name" : "'" + name + "'", samples.first));
    }
  }
}

void compare_files(const io::CheckpointInfo& info, const std::vector<io::DataFile>& here, const deck::Config& config,
                   Log& log, Differences& found) {
  const std::vector<CutSamples> cuts = samples_of(config, info.state.sample_cursor);
  for (const io::DataFile& was : info.data) {
    const auto same = std::ranges::find_if(
        here, [&](const io::DataFile& file) { return file.use == was.use && file.name == was.name; });
    if (same == here.end() || is_same_content(was, *same)) continue;
    const auto uses = [&](const CutSamples& cut) {
      const auto found_here = cut.of_file.find(was.name);
      return found_here != cut.of_file.end() && found_here->second > 0;
    };
    const bool matters = was.use != "training" || std::ranges::any_of(cuts, uses);
    const std::string what = fmt::format("{} has {}, had {}", named(was), described(*same), described(was));
    if (matters) {
      found.lines.push_back(what);
      found.of_files = true;
    } else {
      log.info("changed since the checkpoint: {}; no sample of it was used so far", what);
    }
  }
}

}  // namespace

std::uint64_t sample_hash(const data::TokenFile& file) {
  const index_t block = data::hash_block, all = (file.size() - 1) / block + 1, count = std::min(all, sampled);
  std::vector<std::uint64_t> hashes;
  for (index_t i = 0; i < count; ++i) {
    const index_t number = all <= sampled ? i : i * (all - 1) / (sampled - 1);
    const index_t length = std::min(block, file.size() - number * block);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    file.read_unchecked(number * block, length, ids.data());
    hashes.push_back(data::block_hash(bytes_of(ids)));
    if (!file.loss_mask().exists()) continue;
    std::vector<std::uint8_t> mask(ids.size());
    file.loss_mask().read(number * block, mask);
    hashes.push_back(data::block_hash(bytes_of(mask)));
  }
  return data::block_hash(bytes_of(hashes));
}

std::vector<io::DataFile> data_of(const TokenFiles& files, const deck::Config& config, MPI_Comm world) {
  std::vector<io::DataFile> all;
  std::vector<const data::TokenFile*> opened;
  const auto add = [&](const char* use, const std::string& list, const std::vector<data::TokenFile>& of) {
    const std::vector<deck::NamedFile> names = deck::named_files(list);
    for (std::size_t i = 0; i < of.size(); ++i) {
      all.push_back(data_file(use, names[i].name, of[i]));
      opened.push_back(&of[i]);
    }
  };
  add("training", config.data.path, files.training);
  add("validation", config.data.validation_path, files.validation);
  int rank = 0, ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  const auto step = static_cast<std::size_t>(ranks);
  std::vector<std::uint64_t> samples(all.size(), 0);
  comm::collectively(world, [&] {
    for (std::size_t i = static_cast<std::size_t>(rank); i < opened.size(); i += step)
      samples[i] = sample_hash(*opened[i]);
  });
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, samples.data(), static_cast<int>(samples.size()), MPI_UINT64_T, MPI_SUM, world));
  for (std::size_t i = 0; i < all.size(); ++i) all[i].sample = fmt::format("{:016x}", samples[i]);
  return all;
}

void compare_data(const io::CheckpointInfo& info, const std::vector<io::DataFile>& here, const deck::Config& config,
                  const std::string& folder, Log& log) {
  Differences found;
  compare_keys(info, config, log, found);
  if (info.state.sample_cursor > 0) {
    compare_samples(info, config, found);
    compare_files(info, here, config, log, found);
  }
  if (found.lines.empty()) return;
  constexpr std::size_t told = 20;
  if (found.lines.size() > told) {
    const std::size_t more = found.lines.size() - told;
    found.lines.resize(told);
    found.lines.push_back(fmt::format("{} more files or keys", more));
  }
  if (config.data.on_change == deck::OnChange::warn) {
    for (const std::string& line : found.lines)
      log.warn("{}: the order of the samples changes: some are repeated and some skipped", line);
    return;
  }
  fail(found.of_files ? ExitCode::data_error : ExitCode::deck_error,
       {.what = "the data of this run differ from those of the checkpoint: samples would be repeated or skipped",
        .expected = "the same samples in the same order",
        .found = fmt::format("{}", fmt::join(found.lines, "\n")),
        .where = folder,
        .change =
            "restore the old values and files. If the change is intended, as for a phase of longer sequences or of "
            "other data: --set data.on_change=warn, once"});
}

}  // namespace nanotron::trainer
