// Host memory of ranks on one node. Every transfer is split into chunks. Each rank has a ring of slots in
// memory shared with the others, and each chunk passes through a slot in three stages:
//
//   copy in    my part of the chunk into my slot           then arrived[me] = chunk + 1
//   reduce     my slice, when all have arrived             then reduced[me] = chunk + 1
//   copy out   the others' slices, when all have reduced   then left[me]    = chunk + 1
//
// A slot is reused when all ranks have left it. Chunk numbers continue from one operation to the next, so that
// operations overlap. Sums run in rank order: their bits do not depend on the chunks.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "shared_segment.hpp"

namespace nanotron::comm {
namespace {

constexpr std::size_t slot_bytes = std::size_t{128} << 10;  // with its peers' slots it fits in a level-2 cache
constexpr std::size_t slots = 8;
constexpr std::size_t page = 4096;
// Up to this size every rank reduces the whole buffer, which saves a wait. For two ranks this moves no more data.
constexpr std::size_t direct_bytes = std::size_t{8} << 10;

enum Stage { arrived, reduced, left, stages };

// Number of chunks a rank has taken through each stage, one cache line per counter.
struct Progress {
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> chunks{0};
  };
  std::array<Counter, stages> counter;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(Progress) <= page);

enum class Kind { all_reduce, direct_all_reduce, all_gather, reduce_scatter, all_to_all, broadcast };

struct Operation {
  Kind kind;
  DataType type;
  ReduceOp op;
  int root;
  const std::byte* send;
  std::byte* recv;
  std::size_t n;               // elements, as in collectives.hpp
  std::size_t chunk_elements;  // of n
  std::uint64_t first;         // number of its first chunk
  std::uint64_t end;           // one past its last
};

// Elements [at, at + count) of an operation.
struct Chunk {
  const Operation& operation;
  std::size_t at;
  std::size_t count;
  std::size_t slot;
};

class SharedMemoryChannel final : public Channel {
 public:
  explicit SharedMemoryChannel(const Communicator& communicator)
      : comm_(communicator.get()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        exchanges_(communicator.get()),
        sources_(static_cast<std::size_t>(size_)),
        seen_{} {
    queue_.reserve(64);
  }

  bool open(const Communicator& communicator) {
    if (!segment_.open(communicator, page + slots * slot_bytes)) return false;
    new (segment_.part(rank_)) Progress;
    NANOTRON_CHECK_MPI(MPI_Barrier(comm_));
    return true;
  }

  void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& s) override {
    wait(start_all_reduce(data, n, type, op, s));
  }
  void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream&) override {
    wait(start_all_gather(send, n, recv, type, {}));
  }
  void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op, const Stream&) override {
    wait(start_reduce_scatter(send, recv, n, type, op, {}));
  }
  void broadcast(void* data, std::size_t n, DataType type, int root, const Stream&) override {
    wait(push(Kind::broadcast, type, ReduceOp::sum, root, data, data, n, slot_bytes / bytes_of(type)));
  }
  void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                  std::span<const std::size_t> recv_counts, DataType type, const Stream&) override {
    pairwise_exchange(comm_, send, send_counts, recv, recv_counts, type, ~std::size_t{0});
  }
  std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream&) override {
    const bool direct = size_ == 2 || n * bytes_of(type) <= direct_bytes;
    return push(direct ? Kind::direct_all_reduce : Kind::all_reduce, type, op, 0, data, data, n,
                slot_bytes / bytes_of(type));
  }

  std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream&) override {
    return push(Kind::all_gather, type, ReduceOp::sum, 0, send, recv, n, slot_bytes / bytes_of(type));
  }
  std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                     const Stream&) override {
    return push(Kind::reduce_scatter, type, op, 0, send, recv, n, elements_of_rank(type));
  }
  std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type, const Stream&) override {
    return push(Kind::all_to_all, type, ReduceOp::sum, 0, send, recv, n, elements_of_rank(type));
  }

  std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                 std::span<const std::size_t> recv_counts, DataType type, const StreamPoint&) override {
    return exchanges_.start(send, send_counts, recv, recv_counts, type, ~std::size_t{0});
  }

  bool test(std::uint64_t ticket) override {
    advance();
    if (StartedExchanges::owns(ticket)) return exchanges_.test(ticket);
    return done_[left] >= ticket;
  }

  void wait(std::uint64_t ticket) override {
    for (Pause pause; !test(ticket);) {
      if (!pause()) continue;
      // A peer may be waiting in MPI for something that this rank has started but MPI has not yet moved.
      int found = 0;
      NANOTRON_CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE));
    }
  }

  std::string path() const override { return "shared memory"; }
  std::size_t staging_bytes() const override { return page + slots * slot_bytes; }

 private:
  // Of a chunk that has a part for each rank.
  std::size_t elements_of_rank(DataType type) const {
    return slot_bytes / bytes_of(type) / static_cast<std::size_t>(size_);
  }

  // An operation's ticket is one past the number of its last chunk.
  std::uint64_t push(Kind kind, DataType type, ReduceOp op, int root, const void* send, void* recv, std::size_t n,
                     std::size_t chunk_elements) {
    while (!queue_.empty() && queue_[head_].end <= done_[left]) {
      if (++head_ == queue_.size()) {
        queue_.clear();
        head_ = 0;
      }
    }
    const std::uint64_t chunks = (n + chunk_elements - 1) / chunk_elements;
    if (chunks == 0) return issued_;
    queue_.push_back({kind, type, op, root, static_cast<const std::byte*>(send), static_cast<std::byte*>(recv), n,
                      chunk_elements, issued_, issued_ + chunks});
    issued_ += chunks;
    advance();
    return issued_;
  }

  // Does all that can be done without waiting. Late stages first, while their data is in cache.
  void advance() {
    for (;;) {
      if (done_[left] < done_[reduced] && ready_to_leave()) {
        copy_out(chunk(done_[left]));
        publish(left);
      } else if (done_[reduced] < done_[arrived] && all_have(arrived, done_[reduced] + 1)) {
        reduce(chunk(done_[reduced]));
        publish(reduced);
      } else if (done_[arrived] < issued_ && (done_[arrived] < slots || all_have(left, done_[arrived] + 1 - slots))) {
        copy_in(chunk(done_[arrived]));
        publish(arrived);
      } else {
        return;
      }
    }
  }

  bool ready_to_leave() {
    return operation_of(done_[left]).kind != Kind::all_reduce || all_have(reduced, done_[left] + 1);
  }

  void publish(Stage stage) { progress(rank_).counter[stage].chunks.store(++done_[stage], std::memory_order_release); }

  bool all_have(Stage stage, std::uint64_t chunks) {
    if (seen_[stage] >= chunks) return true;
    std::uint64_t least = ~std::uint64_t{0};
    for (int r = 0; r < size_; ++r) {
      least = std::min(least, progress(r).counter[stage].chunks.load(std::memory_order_acquire));
    }
    seen_[stage] = least;
    return least >= chunks;
  }

  const Operation& operation_of(std::uint64_t number) const {
    std::size_t i = head_;
    while (queue_[i].end <= number) ++i;
    return queue_[i];
  }

  Chunk chunk(std::uint64_t number) const {
    const Operation& operation = operation_of(number);
    const std::size_t at = (number - operation.first) * operation.chunk_elements;
    return {operation, at, std::min(operation.chunk_elements, operation.n - at), number % slots};
  }

  // The bytes of a chunk that a rank reduces: whole cache lines, balanced over ranks.
  struct Slice {
    std::size_t begin, bytes;
  };
  Slice slice(const Chunk& c, int rank) const {
    const std::size_t total = c.count * bytes_of(c.operation.type);
    const std::size_t lines = (total + 63) / 64, ranks = static_cast<std::size_t>(size_);
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t begin = std::min(total, lines * r / ranks * 64);
    return {begin, std::min(total, lines * (r + 1) / ranks * 64) - begin};
  }

  void copy_in(const Chunk& c) {
    const Operation& o = c.operation;
    const std::size_t size = bytes_of(o.type), at = c.at * size, bytes = c.count * size;
    std::byte* mine = slot(rank_, c.slot);
    switch (o.kind) {
      case Kind::all_reduce: {  // all but my own slice, which I reduce from the caller's buffer
        const Slice own = slice(c, rank_);
        const std::size_t behind = own.begin + own.bytes;
        std::memcpy(mine, o.send + at, own.begin);
        std::memcpy(mine + behind, o.send + at + behind, bytes - behind);
        return;
      }
      case Kind::broadcast:
        if (rank_ != o.root) return;
        [[fallthrough]];
      case Kind::direct_all_reduce:
      case Kind::all_gather:
        std::memcpy(mine, o.send + at, bytes);
        return;
      case Kind::reduce_scatter:
      case Kind::all_to_all:
        for (int r = 0; r < size_; ++r) {
          const auto owner = static_cast<std::size_t>(r);
          if (r != rank_) {
            std::memcpy(mine + owner * o.chunk_elements * size, o.send + owner * o.n * size + at, bytes);
          }
        }
        return;
    }
  }

  void reduce(const Chunk& c) {
    const Operation& o = c.operation;
    const std::size_t size = bytes_of(o.type), at = c.at * size;
    const auto me = static_cast<std::size_t>(rank_);
    if (o.kind == Kind::all_reduce) {
      const Slice own = slice(c, rank_);
      reduce_from(c, own.begin, o.send + at + own.begin, own.bytes / size, o.recv + at + own.begin,
                  slot(rank_, c.slot) + own.begin);
    } else if (o.kind == Kind::direct_all_reduce) {
      reduce_from(c, 0, o.send + at, c.count, o.recv + at, nullptr);
    } else if (o.kind == Kind::reduce_scatter) {
      reduce_from(c, me * o.chunk_elements * size, o.send + me * o.n * size + at, c.count, o.recv + at, nullptr);
    }
  }

  // Reduces `mine` and the data at `offset` bytes in the others' slots.
  void reduce_from(const Chunk& c, std::size_t offset, const std::byte* mine, std::size_t count, std::byte* result,
                   std::byte* copy) {
    for (int r = 0; r < size_; ++r) {
      sources_[static_cast<std::size_t>(r)] = r == rank_ ? mine : slot(r, c.slot) + offset;
    }
    reduce_elements(c.operation.type, c.operation.op, sources_, count, result, copy);
  }

  void copy_out(const Chunk& c) {
    const Operation& o = c.operation;
    const std::size_t size = bytes_of(o.type), at = c.at * size, bytes = c.count * size;
    if (o.kind == Kind::broadcast) {
      if (rank_ != o.root) std::memcpy(o.recv + at, slot(o.root, c.slot), bytes);
      return;
    }
    for (int r = 0; r < size_; ++r) {
      std::byte* const to = o.recv + static_cast<std::size_t>(r) * o.n * size + at;
      if (o.kind == Kind::all_to_all) {
        const auto me = static_cast<std::size_t>(rank_);
        std::memcpy(to, r == rank_ ? o.send + me * o.n * size + at : slot(r, c.slot) + me * o.chunk_elements * size,
                    bytes);
      } else if (o.kind == Kind::all_gather) {
        if (r != rank_) {
          std::memcpy(to, slot(r, c.slot), bytes);
        } else if (to != o.send + at) {
          std::memcpy(to, o.send + at, bytes);
        }
      } else if (o.kind == Kind::all_reduce && r != rank_) {
        const Slice theirs = slice(c, r);
        std::memcpy(o.recv + at + theirs.begin, slot(r, c.slot) + theirs.begin, theirs.bytes);
      }
    }
  }

  Progress& progress(int rank) const { return *std::launder(reinterpret_cast<Progress*>(segment_.part(rank))); }
  std::byte* slot(int rank, std::size_t index) const { return segment_.part(rank) + page + index * slot_bytes; }

  MPI_Comm comm_;
  int rank_;
  int size_;
  StartedExchanges exchanges_;
  SharedSegment segment_;
  std::vector<Operation> queue_;  // from head_ on: operations with chunks that this rank has not left
  std::size_t head_ = 0;
  std::uint64_t issued_ = 0;                  // chunks of all operations so far
  std::array<std::uint64_t, stages> done_{};  // chunks this rank has taken through each stage
  std::vector<const void*> sources_;
  std::array<std::uint64_t, stages> seen_;  // lower bound of chunks that all ranks have taken through each stage
};

}  // namespace

std::unique_ptr<Channel> make_shared_memory_channel(const Communicator& communicator) {
  auto channel = std::make_unique<SharedMemoryChannel>(communicator);
  if (!channel->open(communicator)) return nullptr;
  return channel;
}

}  // namespace nanotron::comm
