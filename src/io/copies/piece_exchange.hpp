#pragma once

#include <mpi.h>

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "piece_writer.hpp"

namespace nanotron::io {

/// Each rank sends its piece to its partner, and receives the pieces of the ranks whose partner it is (comm::HostMap).
struct PieceExchange {
  using Blocks = decltype(PieceTable::blocks);

  MPI_Comm world;
  int partner;
  std::vector<int> sources;

  /// The blocks of each source. Collective.
  std::vector<Blocks> lists(const Blocks& mine) const;

  /// Reads this rank's piece back, which proves it, and sends it; what comes from source i is put into writer i.
  /// Writers are not finished. A rank that cannot read or write still sends and receives all messages; then all ranks
  /// throw its error. Collective.
  void pieces(const PieceTable& mine, const std::filesystem::path& own, std::span<const Blocks> lists,
              std::span<const std::unique_ptr<PieceWriter>> writers) const;
};

}  // namespace nanotron::io
