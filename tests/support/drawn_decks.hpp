#pragma once

// What tests that draw their grids and options begin with: tokens with documents, and decks that may be refused.

#include <fmt/format.h>

#include <optional>

#include "nanotron/base/error.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron::test {

/// A token file with documents of 1 to `longest` tokens; collective over world, rank 0 writes it.
class TokensOfDocuments {
 public:
  TokensOfDocuments(const std::string& name, std::uint64_t count, std::uint64_t longest = 23) : folder_(world(), name) {
    int rank = 0;
    MPI_Comm_rank(world(), &rank);
    if (rank == 0) {
      write_tokens(path(), static_cast<index_t>(count), 131);
      std::vector<std::uint64_t> starts;
      for (std::uint64_t at = 2, i = 0; at < count; at += 1 + i * i % longest, ++i) starts.push_back(at);
      write_documents(path(), starts);
      write_pairs();
    }
    MPI_Barrier(world());
  }

  std::string path() const { return (folder_.path() / "tokens.h5").string(); }
  /// Of pairs of answers that fit 13 positions.
  std::string path_of_pairs() const { return (folder_.path() / "pairs.h5").string(); }
  /// Of a file that does not exist, the same on all ranks; of another rank another one.
  std::string new_path(int rank) { return (folder_.path() / fmt::format("{}_{}", made_++, rank)).string(); }

 private:
  void write_pairs() const {
    constexpr std::uint64_t pairs = 60;
    std::vector<std::uint64_t> starts, lines;
    std::vector<std::uint8_t> mask;
    for (std::uint64_t i = 0; i < pairs; ++i) {
      lines.push_back(i + 1);
      for (const std::uint64_t answer : {1 + i % 4, 1 + i % 3}) {
        starts.push_back(mask.size());
        mask.insert(mask.end(), 2 + i % 2, 0);
        mask.insert(mask.end(), answer, 1);
      }
    }
    write_tokens(path_of_pairs(), static_cast<index_t>(mask.size()), 131);
    write_documents(path_of_pairs(), starts);
    write_loss_mask(path_of_pairs(), mask);
    write_lines_of_pairs(path_of_pairs(), lines);
  }

  int made_ = 0;
  TemporaryFolder folder_;
};

/// The deck of a golden case with these keys, resolved for so many ranks; nothing when it is refused.
inline std::optional<deck::Config> deck_if_legal(const std::string& golden, const std::vector<std::string>& set,
                                                 int ranks) {
  try {
    deck::Config config = trainer::read_deck((test_folder() / "golden" / golden / "input.deck").string(), set);
    trainer::resolve(config, ranks);
    return config;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace nanotron::test
