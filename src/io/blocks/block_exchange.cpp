#include "nanotron/io/blocks/block_exchange.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>

#include "file_rows.hpp"
#include "messages.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "pieces.hpp"

namespace nanotron::io {
namespace {

struct Window {
  std::int64_t first, last;  // blocks [first, last)
};

// f(row, i, j) for the rows of all parts.
template <class F>
void for_each_row(std::span<const PlacedTensor> tensors, const F& f) {
  for (const PlacedTensor& placed : tensors) {
    for (const StatePart& part : placed.tensor->parts) {
      if (is_empty(part)) continue;
      const FileRows rows(placed, part);
      for (index_t i = 0; i < rows.outer; ++i)
        for (index_t j = 0; j < rows.inner; ++j) f(rows.position(i, j), rows.bytes);
    }
  }
}

// Spreads equal claims on blocks over the ranks that have them.
int lot_of(std::int64_t block, int rank, int lots) {
  std::uint32_t mixed =
      static_cast<std::uint32_t>(block) * 0x9e3779b1u ^ static_cast<std::uint32_t>(rank) * 0x85ebca77u;
  mixed = (mixed ^ mixed >> 15) * 0x2c1b3c6du;
  return static_cast<int>((mixed ^ mixed >> 12) % static_cast<std::uint32_t>(lots));
}

struct Blocks {
  std::vector<int> owners;     // who writes each: the rank with most of its bytes, between equals by lot
  std::vector<bool> has_gaps;  // bytes of no rank
};

Blocks blocks_of(const comm::Communicator& world, const BlockedFile& file, const FileImage& image,
                 std::span<const PlacedTensor> tensors) {
  const std::int64_t size = file.block_bytes;
  std::vector<std::int64_t> held(static_cast<std::size_t>(file.blocks()), 0);
  const auto add = [&](std::int64_t position, std::int64_t bytes) {
    for (const std::int64_t end = position + bytes; position < end;) {
      const std::int64_t block = position / size, next = std::min(end, (block + 1) * size);
      held[static_cast<std::size_t>(block)] += next - position;
      position = next;
    }
  };
  for_each_row(tensors, add);
  if (world.rank() == 0) {
    for (const auto& [position, bytes] : image.extents()) add(position, static_cast<std::int64_t>(bytes.size()));
  }
  struct Claim {
    int share, rank;  // MPI_2INT
  };
  constexpr std::int64_t whole = 64;  // parts of a block: ends of rows make no difference
  constexpr int lots = 1 << 20;
  std::vector<Claim> claims(held.size());
  for (std::size_t block = 0; block < held.size(); ++block) {
    const int lot = lot_of(static_cast<std::int64_t>(block), world.rank(), lots);
    claims[block] = {static_cast<int>(held[block] * whole / size) * lots + lot, world.rank()};
  }
  NANOTRON_REQUIRE(claims.size() <= INT_MAX, "{} blocks", claims.size());
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, claims.data(), static_cast<int>(claims.size()), MPI_2INT, MPI_MAXLOC, world.get()));
  Blocks blocks;
  blocks.owners.resize(claims.size());
  std::ranges::transform(claims, blocks.owners.begin(), &Claim::rank);
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, held.data(), static_cast<int>(held.size()), MPI_INT64_T, MPI_SUM, world.get()));
  std::ranges::transform(held, std::back_inserter(blocks.has_gaps), [&](std::int64_t bytes) { return bytes < size; });
  return blocks;
}

// A window ends where a rank has held_blocks of it.
std::vector<Window> windows_of(const std::vector<int>& owners, int ranks) {
  std::vector<Window> windows;
  std::vector<std::int64_t> held(static_cast<std::size_t>(ranks), 0);
  const auto blocks = static_cast<std::int64_t>(owners.size());
  for (std::int64_t first = 0, block = 0; block < blocks; ++block) {
    const bool full = ++held[static_cast<std::size_t>(owners[static_cast<std::size_t>(block)])] == held_blocks;
    if (!full && block + 1 < blocks) continue;
    windows.push_back({first, block + 1});
    first = block + 1;
    std::ranges::fill(held, 0);
  }
  return windows;
}

struct Header {
  std::int64_t position, bytes;
};

class Exchange {
 public:
  Exchange(const comm::Communicator& world, const BlockedFile& file, const Blocks& blocks, Waiting& waiting)
      : world_(world),
        file_(file),
        blocks_(blocks),
        waiting_(waiting),
        outgoing_(static_cast<std::size_t>(world.size())) {}

  // Without memory the blocks of this rank are lost, and the others still get theirs.
  template <class F>
  void begin(const Window& window, const F& memory) {
    window_ = window;
    slots_.assign(static_cast<std::size_t>(window.last - window.first), -1);
    std::int64_t held = 0;
    for (std::int64_t block = window.first; block < window.last; ++block) {
      if (owner(block) == world_.rank()) slots_[static_cast<std::size_t>(block - window.first)] = held++;
    }
    memory_ = {};
    if (held > 0) memory_ = memory(static_cast<std::size_t>(held * file_.block_bytes));
    for (std::int64_t block = window.first; block < window.last && !memory_.empty(); ++block) {
      if (slot_of(block) >= 0 && blocks_.has_gaps[static_cast<std::size_t>(block)])
        std::ranges::fill(memory_of(block), std::byte{0});
    }
    for (std::vector<std::byte>& message : outgoing_) message.clear();
  }

  // What of these bytes lies in the window goes to the owners of its blocks.
  void add(std::int64_t position, const std::byte* from, std::int64_t bytes) {
    const std::int64_t size = file_.block_bytes;
    const std::int64_t begin = std::max(position, window_.first * size);
    const std::int64_t end = std::min(position + bytes, window_.last * size);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t next = std::min(end, (at / size + 1) * size);
      send(at, from + (at - position), next - at);
      at = next;
    }
  }

  void finish() {
    incoming_ = exchange_messages(world_.get(), outgoing_, waiting_);
    for (const std::vector<std::byte>& message : incoming_) {
      for (std::size_t at = 0; at < message.size();) {
        Header header;
        std::memcpy(&header, message.data() + at, sizeof header);
        at += sizeof header;
        put(header.position, message.data() + at, header.bytes);
        at += static_cast<std::size_t>(header.bytes);
      }
    }
  }

  // f(position, bytes) for each run of consecutive blocks of this rank.
  template <class F>
  void for_each_run(const F& f) const {
    for (std::int64_t block = window_.first; block < window_.last && !memory_.empty();) {
      const std::int64_t slot = slot_of(block);
      std::int64_t next = block + 1;
      if (slot >= 0) {
        while (next < window_.last && slot_of(next) >= 0) ++next;
        const std::int64_t position = block * file_.block_bytes;
        const std::int64_t bytes = std::min(next * file_.block_bytes, file_.bytes) - position;
        f(position,
          memory_.subspan(static_cast<std::size_t>(slot * file_.block_bytes), static_cast<std::size_t>(bytes)));
      }
      block = next;
    }
  }

 private:
  int owner(std::int64_t block) const { return blocks_.owners[static_cast<std::size_t>(block)]; }
  std::int64_t slot_of(std::int64_t block) const { return slots_[static_cast<std::size_t>(block - window_.first)]; }

  std::span<std::byte> memory_of(std::int64_t block) const {
    return memory_.subspan(static_cast<std::size_t>(slot_of(block) * file_.block_bytes),
                           static_cast<std::size_t>(file_.block_bytes));
  }

  void put(std::int64_t position, const std::byte* from, std::int64_t bytes) {
    if (memory_.empty()) return;
    std::memcpy(memory_of(position / file_.block_bytes).data() + position % file_.block_bytes, from,
                static_cast<std::size_t>(bytes));
  }

  void send(std::int64_t position, const std::byte* from, std::int64_t bytes) {
    const int to = owner(position / file_.block_bytes);
    if (to == world_.rank()) return put(position, from, bytes);
    std::vector<std::byte>& message = outgoing_[static_cast<std::size_t>(to)];
    const Header header{position, bytes};
    const auto* const head = reinterpret_cast<const std::byte*>(&header);
    message.insert(message.end(), head, head + sizeof header);
    message.insert(message.end(), from, from + bytes);
  }

  const comm::Communicator& world_;
  BlockedFile file_;
  const Blocks& blocks_;
  Waiting& waiting_;
  Window window_{};
  std::vector<std::int64_t> slots_;  // in memory_, of the blocks of the window; -1: another rank's
  std::span<std::byte> memory_;      // of this rank's blocks of the window
  std::vector<std::vector<std::byte>> outgoing_, incoming_;  // by rank; headers and bytes
};

// Parts on the device, through the staging buffer.
class DeviceParts {
 public:
  static std::int64_t transfer_bytes() { return Staging::transfer_bytes(INT64_MAX); }
  const Transfer& on_host(const Transfer& pieces, ScalarType type) {
    const Transfer& host = staging_.place(pieces, type);
    staging_.copy_to_host();
    return host;
  }

 private:
  Staging staging_;
};

struct HostParts {
  static std::int64_t transfer_bytes() { return INT64_MAX; }
  static const Transfer& on_host(const Transfer& pieces, ScalarType) { return pieces; }
};

// Adds what a tensor has in the window.
template <class Parts>
void add_tensor(const PlacedTensor& placed, std::int64_t from, std::int64_t to, Parts& parts, Exchange& exchange) {
  const std::vector<index_t>& shape = placed.tensor->global_shape;
  const std::int64_t bytes = std::accumulate(shape.begin(), shape.end(), index_t{1}, std::multiplies<>()) *
                             static_cast<std::int64_t>(size_of(placed.type));
  if (placed.begin >= to || placed.begin + bytes <= from) return;
  StateTensor within{placed.tensor->name, placed.tensor->global_shape, parts_within(placed, from, to)};
  if (within.parts.empty()) return;
  const PlacedTensor clipped{&within, placed.type, placed.begin};
  for (const Transfer& pieces : transfers_of(within, placed.type, Parts::transfer_bytes())) {
    for (const Piece& piece : parts.on_host(pieces, placed.type)) {
      for_each_run(clipped, part_of(piece, placed.type),
                   [&](std::int64_t position, const std::byte* data, std::int64_t count) {
                     exchange.add(position, data, count);
                   });
    }
  }
}

}  // namespace

struct BlockAssembly::Plan {
  comm::Communicator world;
  BlockedFile file;
  const FileImage& image;
  std::span<const PlacedTensor> tensors;
  Blocks blocks;

  template <class Parts>
  void assemble(BlockSink& sink, Parts parts, Waiting& waiting);
};

template <class Parts>
void BlockAssembly::Plan::assemble(BlockSink& sink, Parts parts, Waiting& waiting) {
  Exchange exchange(world, file, blocks, waiting);
  std::exception_ptr failure;  // the other ranks wait for our bytes all the same
  const auto unless_failed = [&](const auto& f) {
    if (failure) return;
    try {
      f();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  for (const Window& window : windows_of(blocks.owners, world.size())) {
    const std::int64_t from = window.first * file.block_bytes, to = window.last * file.block_bytes;
    exchange.begin(window, [&](std::size_t bytes) {
      std::span<std::byte> memory;
      unless_failed([&] { memory = sink.memory(bytes); });
      return memory;
    });
    if (world.rank() == 0) {
      for (const auto& [position, bytes] : image.extents())
        exchange.add(position, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    }
    for (const PlacedTensor& placed : tensors) add_tensor(placed, from, to, parts, exchange);
    exchange.finish();
    unless_failed([&] { exchange.for_each_run([&](std::int64_t at, auto run) { sink.put(at, run); }); });
  }
  if (failure) std::rethrow_exception(failure);
}

BlockAssembly::BlockAssembly(MPI_Comm world, const BlockedFile& file, const FileImage& image,
                             std::span<const PlacedTensor> tensors)
    : plan_(std::make_unique<Plan>(Plan{comm::Communicator::duplicate(world), file, image, tensors, Blocks{}})) {
  plan_->blocks = blocks_of(plan_->world, file, image, tensors);
}

BlockAssembly::~BlockAssembly() = default;

void BlockAssembly::into(BlockSink& sink) {
  BlockingWaiting waiting;
  plan_->assemble(sink, DeviceParts(), waiting);
}

void BlockAssembly::into_beside(BlockSink& sink) {
  BackgroundWaiting waiting;
  plan_->assemble(sink, HostParts(), waiting);
}

void assemble_blocks(MPI_Comm world, const BlockedFile& file, const FileImage& image,
                     std::span<const PlacedTensor> tensors, BlockSink& sink) {
  BlockAssembly(world, file, image, tensors).into(sink);
}

}  // namespace nanotron::io
