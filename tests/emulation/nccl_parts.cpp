#include "emulation/nccl_parts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "emulation/device_memory.hpp"
#include "nanotron/base/fp16.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::emulation {

Shared::Shared(const std::string& name, std::size_t bytes) : bytes_(bytes) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) fault("no shared memory for " + name);
  memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory_ == MAP_FAILED) fault("no shared memory for " + name);
}

Shared::~Shared() { munmap(memory_, bytes_); }

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    default:
      return 8;
  }
}

namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "ncclAllReduce";
    case Kind::all_gather:
      return "ncclAllGather";
    case Kind::reduce_scatter:
      return "ncclReduceScatter";
    default:
      return "ncclBroadcast";
  }
}

std::string text(const Call& call) {
  return fmt::format("{} of {} elements of {} bytes{}", name_of(call.kind), call.count, size_of(call.type),
                     call.offset < 0 ? "" : fmt::format(" at offset {} of a window", call.offset));
}

template <class T>
void reduce(ncclRedOp_t op, std::byte* into, const std::byte* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    using Wide = std::conditional_t<(sizeof(T) < 4), float, T>;
    const Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
    a = static_cast<T>(op == ncclSum ? x + y : op == ncclMax ? std::max(x, y) : std::min(x, y));
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, std::byte* into, const std::byte* from, std::size_t n) {
  switch (type) {
    case ncclFloat64:
      return reduce<double>(op, into, from, n);
    case ncclFloat32:
      return reduce<float>(op, into, from, n);
    case ncclBfloat16:
      return reduce<bf16>(op, into, from, n);
    case ncclFloat16:
      return reduce<fp16>(op, into, from, n);
    case ncclInt64:
      return reduce<std::int64_t>(op, into, from, n);
    case ncclUint64:
      return reduce<std::uint64_t>(op, into, from, n);
    default:
      fault("a reduction of a type that the program does not use");
  }
}

std::string who_misses(const ncclComm& comm, const std::function<bool(int)>& is_here) {
  std::string missing;
  for (int r = 0; r < comm.size; ++r) {
    if (!is_here(r)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", comm.row(r).world_rank.load());
  }
  return missing.empty() ? "nobody" : "rank " + missing;
}

// Collectives that this rank has launched so far on each of its communicators, by the hash of its name.
struct Launched {
  std::uint64_t communicator, collectives;
};
std::vector<Launched> launched;

std::uint64_t name_of(const ncclComm& comm) { return XXH3_64bits(comm.name.data(), comm.name.size()); }

// How far the others were when one of a communicator was launched. Ranks that share two communicators must launch their
// collectives in one order: on a GPU each may hold what the other one needs to begin.
using LaunchOrder = std::array<Launched, 64>;

LaunchOrder launch(const ncclComm& comm) {
  LaunchOrder order{};
  if (launched.size() > order.size()) fault("more communicators than the emulated NCCL follows");
  std::ranges::copy(launched, order.begin());
  ++std::ranges::find(launched, name_of(comm), &Launched::communicator)->collectives;
  return order;
}

bool are_in_order(const LaunchOrder& ours, const LaunchOrder& theirs) {
  return std::ranges::all_of(ours, [&](const Launched& a) {
    const auto b = std::ranges::find(theirs, a.communicator, &Launched::communicator);
    return a.communicator == 0 || b == theirs.end() || a.collectives == b->collectives;
  });
}

// The data of one rank for one collective, or of one message.
struct Parcel {
  std::atomic<int> readers;
  Call call;
  LaunchOrder order;
  std::size_t bytes;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

void publish(const std::string& name, const Call& call, const LaunchOrder& order, const void* data, std::size_t bytes) {
  const Shared file(name, sizeof(Parcel) + bytes);
  auto* parcel = static_cast<Parcel*>(file.get());
  parcel->call = call;
  parcel->order = order;
  parcel->bytes = bytes;
  if (bytes > 0) std::memcpy(parcel->data(), data, bytes);
}

// Calls read(parcel). The last of `readers` removes it.
template <class F>
void open(const std::string& name, int readers, const F& read) {
  std::size_t bytes = 0;
  {
    const int file = shm_open(name.c_str(), O_RDWR, 0600);
    if (file < 0) fault("shared memory vanished: " + name);
    bytes = static_cast<std::size_t>(lseek(file, 0, SEEK_END));
    close(file);
  }
  const Shared file(name, bytes);
  auto* parcel = static_cast<Parcel*>(file.get());
  read(*parcel);
  if (parcel->readers.fetch_add(1) + 1 == readers) shm_unlink(name.c_str());
}

class Collective final : public Part {
 public:
  Collective(const Call& call, const void* send, void* recv, const ncclComm& comm)
      : call_(call),
        order_(launch(comm)),
        send_(static_cast<const std::byte*>(send)),
        recv_(static_cast<std::byte*>(recv)),
        sent_(call.count * size_of(call.type) *
              (call.kind == Kind::reduce_scatter ? static_cast<std::size_t>(comm.size) : 1)) {
    const std::size_t received =
        call.count * size_of(call.type) * (call.kind == Kind::all_gather ? static_cast<std::size_t>(comm.size) : 1);
    require_device(send_, sent_, name_of(call.kind));
    require_device(recv_, received, name_of(call.kind));
  }

  Progress run(ncclComm& comm) override {
    if (!is_published_) {
      publish(parcel(comm, comm.rank), call_, order_, send_, sent_);
      number_ = comm.collectives++;
      comm.own().published.store(number_ + 1);
      is_published_ = true;
    }
    for (int r = 0; r < comm.size; ++r) {
      if (comm.row(r).published.load() <= number_) return Progress::waits;
    }
    receive(comm);
    return Progress::done;
  }

  std::string describe(const ncclComm& comm) const override {
    return fmt::format("{} (collective {} of communicator {}), which {} has not issued", text(call_),
                       is_published_ ? number_ : comm.collectives, comm.name,
                       who_misses(comm, [&](int r) { return comm.row(r).published.load() > number_; }));
  }

 private:
  std::string parcel(const ncclComm& comm, int rank) const {
    return fmt::format("{}-{}-{}", comm.name, is_published_ ? number_ : comm.collectives, rank);
  }

  void receive(ncclComm& comm) const {
    const std::size_t bytes = call_.count * size_of(call_.type);
    for (int r = 0; r < comm.size; ++r) {
      open(parcel(comm, r), comm.size, [&](Parcel& theirs) {
        if (theirs.call != call_) {
          fault(fmt::format("collective {} of communicator {} is {} on rank {} and {} on rank {}", number_, comm.name,
                            text(call_), world_rank(), text(theirs.call), comm.row(r).world_rank.load()));
        }
        if (!are_in_order(order_, theirs.order)) {
          fault(fmt::format("ranks {} and {} launch {} and the collectives of another communicator in different orders",
                            world_rank(), comm.row(r).world_rank.load(), text(call_)));
        }
        const auto at = static_cast<std::size_t>(r);
        switch (call_.kind) {
          case Kind::all_gather:
            std::memcpy(recv_ + at * bytes, theirs.data(), bytes);
            break;
          case Kind::broadcast:
            if (r == call_.root) std::memcpy(recv_, theirs.data(), bytes);
            break;
          default: {
            const std::byte* const part =
                theirs.data() + (call_.kind == Kind::reduce_scatter ? static_cast<std::size_t>(comm.rank) * bytes : 0);
            if (r == 0) {
              std::memcpy(recv_, part, bytes);
            } else {
              reduce(call_.type, call_.op, recv_, part, call_.count);
            }
          }
        }
      });
    }
  }

  Call call_;
  LaunchOrder order_;
  const std::byte* send_;
  std::byte* recv_;
  std::size_t sent_;
  bool is_published_ = false;
  std::uint64_t number_ = 0;
};

// The k-th message from one rank to another.
std::string message(const ncclComm& comm, int from, int to, std::uint64_t k) {
  return fmt::format("{}-message-{}-{}-{}", comm.name, from, to, k);
}

// Done when it was received: a send needs its receive.
class Send final : public Part {
 public:
  Send(const void* data, std::size_t bytes, int to) : data_(data), bytes_(bytes), to_(to) {
    require_device(data, bytes, "ncclSend");
  }
  Progress run(ncclComm& comm) override {
    std::atomic<std::uint64_t>& sent = comm.own().sent[static_cast<std::size_t>(to_)];
    if (!is_published_) {
      number_ = sent.load();
      publish(message(comm, comm.rank, to_, number_), {}, {}, data_, bytes_);
      sent.store(number_ + 1);
      is_published_ = true;
    }
    return comm.row(to_).received[static_cast<std::size_t>(comm.rank)].load() > number_ ? Progress::done
                                                                                        : Progress::waits;
  }
  std::string describe(const ncclComm& comm) const override {
    return fmt::format("ncclSend of {} bytes on communicator {}, which rank {} has not received", bytes_, comm.name,
                       comm.row(to_).world_rank.load());
  }

 private:
  const void* data_;
  std::size_t bytes_;
  int to_;
  bool is_published_ = false;
  std::uint64_t number_ = 0;
};

class Receive final : public Part {
 public:
  Receive(void* data, std::size_t bytes, int from) : data_(data), bytes_(bytes), from_(from) {
    require_device(data, bytes, "ncclRecv");
  }
  Progress run(ncclComm& comm) override {
    std::atomic<std::uint64_t>& received = comm.own().received[static_cast<std::size_t>(from_)];
    const std::uint64_t number = received.load();
    if (comm.row(from_).sent[static_cast<std::size_t>(comm.rank)].load() <= number) return Progress::waits;
    open(message(comm, from_, comm.rank, number), 1, [&](Parcel& parcel) {
      if (parcel.bytes != bytes_) {
        fault(fmt::format(
            "message {} on communicator {} has {} bytes where rank {} sends and {} where rank {} receives it", number,
            comm.name, parcel.bytes, comm.row(from_).world_rank.load(), bytes_, world_rank()));
      }
      if (bytes_ > 0) std::memcpy(data_, parcel.data(), bytes_);
    });
    received.store(number + 1);
    return Progress::done;
  }
  std::string describe(const ncclComm& comm) const override {
    return fmt::format("ncclRecv of {} bytes on communicator {}, which rank {} has not sent", bytes_, comm.name,
                       comm.row(from_).world_rank.load());
  }

 private:
  void* data_;
  std::size_t bytes_;
  int from_;
};

}  // namespace

void follow_launches(const ncclComm& comm) { launched.push_back({name_of(comm), 0}); }
void forget_launches(const ncclComm& comm) {
  std::erase_if(launched, [&](const Launched& l) { return l.communicator == name_of(comm); });
}

std::shared_ptr<Part> make_collective(const Call& call, const void* send, void* recv, const ncclComm& comm) {
  return std::make_shared<Collective>(call, send, recv, comm);
}
std::shared_ptr<Part> make_send(const void* data, std::size_t bytes, int to) {
  return std::make_shared<Send>(data, bytes, to);
}
std::shared_ptr<Part> make_receive(void* data, std::size_t bytes, int from) {
  return std::make_shared<Receive>(data, bytes, from);
}

}  // namespace nanotron::emulation
