#include "nanotron/trainer/preference/references.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/io/files/text_file.hpp"
#include "nanotron/trainer/preference/reference_file.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::size_t max_bytes = std::size_t{1} << 32;

using OnHost = Kokkos::View<const double*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

bool has_trained_on_pairs(const StartingPoint& start) {
  const auto deck = start.deck.empty() ? std::nullopt : deck::config_of(start.deck);
  return deck && deck->preference.beta > 0.0;
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what, const std::string& expected,
                         const std::string& found, const std::string& change) {
  fail(ExitCode::data_error,
       {.what = what, .expected = expected, .found = found, .where = whole_path(path), .change = change});
}

void require_same_data(const ReferenceFile& file, const std::vector<std::uint64_t>& contents, index_t pairs,
                       const std::filesystem::path& path) {
  const auto text = [](std::size_t count, const std::vector<std::uint64_t>& of) {
    return fmt::format("{} pairs, content {:016x}", count, fmt::join(of, " "));
  };
  const std::size_t found = file.log_probabilities.size() / 2;
  if (file.data == contents && found == static_cast<std::size_t>(pairs)) return;
  refuse(path, "the log-probabilities of the reference model are of other pairs",
         text(static_cast<std::size_t>(pairs), contents), text(found, file.data),
         "give the pairs that the file is of; or, for a new run, remove the file");
}

}  // namespace

std::filesystem::path reference_path(const deck::Config& config) {
  const std::string& given = config.preference.reference;
  return given.empty() ? std::filesystem::path(config.run.output_dir) / "reference.txt" : std::filesystem::path(given);
}

template <class T>
References<T>::References(const deck::Config& config, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state,
                          const data::BatchLoader& training, Log& log)
    : config_(config),
      grid_(grid),
      device_(device),
      state_(state),
      training_(training),
      log_(log),
      batches_{PinnedArray<double>(state.pairs.reference().size()),
               PinnedArray<double>(state.pairs.reference().size())} {}

template <class T>
void References<T>::prepare(const StartingPoint& start, ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens) {
  if (!state_.pairs.exist()) return;
  const bool begins = !has_trained_on_pairs(start);
  if (read(start, begins)) return;
  if (!begins) {
    refuse(reference_path(config_), "the log-probabilities of the reference model are missing",
           "the file that the run wrote when it began", "none",
           "preference%reference names it, if it is elsewhere; to begin again with the trained weights as reference: "
           "nanotron-convert average CHECKPOINT -o FOLDER, and a deck of its own");
  }
  compute(start, schedule, tokens);
}

template <class T>
bool References<T>::read(const StartingPoint& start, bool begins) {
  const std::filesystem::path path = reference_path(config_);
  const std::string text =
      comm::text_of_root(grid_.world().mpi(), [&] { return files::text_of(path, max_bytes).value_or(""); });
  if (text.empty()) return false;
  const ReferenceFile file = parse_reference(text, whole_path(path));
  require_same_data(file, training_.contents(), training_.number_of_sequences(), path);
  if (begins && file.weights != start.weights) {
    if (config_.preference.reference.empty()) {
      refuse(path, "the log-probabilities of the reference model are of other weights than the run begins with",
             start.weights, file.weights,
             "remove the file, and this run computes it again; or name it in preference%reference to keep the other "
             "model as reference");
    }
    log_.warn("the reference model of {} ({}) is not what the run begins with ({})", path.string(), file.weights,
              start.weights);
  }
  log_probabilities_ = file.log_probabilities;
  log_.info("log-probabilities of the reference model of {} pairs, in {}: {}", log_probabilities_.size() / 2,
            file.compute, path.string());
  return true;
}

// Each rank adds what it has; all others have zeros, so that the sum is exact.
template <class T>
void References<T>::add_batch(data::BatchLoader& all, index_t first_sample, std::vector<double>& log_probabilities) {
  const index_t each = deck::sequences_at_once(config_);
  std::vector<double> sums(static_cast<std::size_t>(2 * each));
  for (index_t m = 0; m < state_.micro_batches(); ++m) {
    const Vector<const double> of_batch = state_.pairs.of(m)->sums(device_, state_.loss_rows_of(m).loss);
    Kokkos::deep_copy(
        device_.exec(),
        Kokkos::View<double*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(sums.data(), sums.size()),
        of_batch);
    device_.fence();
    for (index_t s = 0; s < each && grid_.tp_rank() == 0 && grid_.cp_rank() == 0; ++s) {
      const index_t sample = all.sample_of(first_sample, m * each + s);
      if (sample >= all.number_of_sequences()) continue;
      const index_t pair = all.sequence_of(sample);
      for (index_t answer = 0; answer < 2; ++answer)
        log_probabilities[static_cast<std::size_t>(2 * pair + answer)] -=
            sums[static_cast<std::size_t>(2 * s + answer)];
    }
  }
}

template <class T>
void References<T>::compute(const StartingPoint& start, ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens) {
  const double begin = wall_seconds();
  const std::filesystem::path path = reference_path(config_);
  data::BatchLoader all = training_.each_once();
  log_.info("computing the log-probabilities of the reference model of {} pairs", all.number_of_sequences());
  ReferenceFile file{.data = training_.contents(),
                     .weights = start.weights,
                     .compute = name_of(config_.precision.compute),
                     .log_probabilities = std::vector<double>(static_cast<std::size_t>(2 * all.number_of_sequences()))};
  std::vector<double>& values = file.log_probabilities;
  for (index_t b = 0; b < all.number_of_batches(); ++b) {
    const index_t first_sample = b * config_.data.global_batch_size;
    state_.set_loaded(tokens.load(device_, all, first_sample));
    schedule.forward();
    add_batch(all, first_sample, values);
  }
  constexpr std::size_t at_once = std::size_t{1} << 28;
  for (std::size_t i = 0; i < values.size(); i += at_once) {
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, values.data() + i,
                                     static_cast<int>(std::min(at_once, values.size() - i)), MPI_DOUBLE, MPI_SUM,
                                     grid_.world().mpi()));
  }
  const auto wrong = std::ranges::find_if(values, [](double x) { return !std::isfinite(x); });
  if (wrong != values.end()) {
    fail(ExitCode::numerics_error,
         {.what = "a log-probability of the reference model is not finite",
          .found = fmt::format("{}, pair {} of {}", *wrong, (wrong - values.begin()) / 2 + 1, values.size() / 2)});
  }
  comm::collectively(grid_.world().mpi(), [&] {
    if (grid_.world().rank() != 0) return;
    std::filesystem::create_directories(std::filesystem::absolute(path).parent_path());
    io::replace_text_durably(path, text_of(file));
  });
  log_probabilities_ = std::move(values);
  log_.info("they took {:.1f} s: {}", wall_seconds() - begin, path.string());
}

template <class T>
void References<T>::load(index_t first_sample) {
  if (!state_.pairs.exist()) return;
  const std::span<double> batch = batches_[next_].span();
  next_ = 1 - next_;
  for (index_t j = 0; j < training_.per_rank(first_sample); ++j) {
    const index_t pair = training_.sequence_of(training_.sample_of(first_sample, j));
    std::copy_n(log_probabilities_.begin() + 2 * pair, 2, batch.begin() + 2 * j);
  }
  Kokkos::deep_copy(device_.exec(), state_.pairs.reference(), OnHost(batch.data(), batch.size()));
}

NANOTRON_INSTANTIATE_CLASS(References)

}  // namespace nanotron::trainer
