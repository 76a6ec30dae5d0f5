#include "nanotron/comm/group.hpp"

#include <utility>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::comm {
namespace {

std::unique_ptr<Channel> make_host_channel(const Communicator& communicator) {
  if (auto shared = make_shared_memory_channel(communicator)) return shared;
  return make_mpi_channel(communicator);
}

std::unique_ptr<Channel> make_channel(const Communicator& communicator, Transport transport, Sums sums,
                                      deck::CollectiveEngine engine) {
  if (communicator.size() < 2) return nullptr;
  const auto host = [&] {
    auto channel = make_host_channel(communicator);
    return sums == Sums::tree ? make_tree_channel(communicator, std::move(channel)) : std::move(channel);
  };
  if (transport == Transport::mpi) return host();
  return detail::make_device_channel(communicator, transport, {sums, engine}, host);
}

std::unique_ptr<Messages> make_messages(const Communicator& communicator, Transport transport, int blocks) {
  NANOTRON_REQUIRE(communicator.size() > 1, "a message needs two ranks");
  if (transport == Transport::mpi) return make_mpi_messages(communicator);
  return detail::make_device_messages(communicator, transport, blocks);
}

}  // namespace

const char* name_of(Transport transport) {
  switch (transport) {
    case Transport::mpi:
      return "mpi";
    case Transport::nccl:
      return "nccl";
    default:
      return "staged_mpi";
  }
}

Group::Group(Communicator communicator, Transport transport, Sums sums, deck::CollectiveEngine engine)
    : communicator_(std::move(communicator)),
      rank_(communicator_.rank()),
      size_(communicator_.size()),
      transport_(transport),
      channel_(make_channel(communicator_, transport, sums, engine)) {}

Group::Group(Communicator communicator, std::unique_ptr<Channel> channel)
    : communicator_(std::move(communicator)),
      rank_(communicator_.rank()),
      size_(communicator_.size()),
      transport_(Transport::mpi),
      channel_(std::move(channel)) {}

Group& alone() {
  static Group group(1, 0, Group::Alone::yes);
  return group;
}

Group::Group(int size, int rank, Alone alone, const PlannedLog& log)
    : alone_(alone),
      rank_(rank),
      size_(size),
      transport_(detail::transport_of_device()),
      channel_(size > 1 ? make_planned_channel(size, log) : nullptr),
      log_(log) {
  NANOTRON_REQUIRE(rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

Group::~Group() = default;
Group::Group(Group&&) noexcept = default;

MPI_Comm Group::mpi() const {
  NANOTRON_REQUIRE(communicator_.get() != MPI_COMM_NULL, "a planned group of {} ranks has no communicator", size_);
  return communicator_.get();
}

Channel& Group::channel() {
  NANOTRON_REQUIRE(channel_ != nullptr, "a group of {} ranks has no channel for bulk data", size_);
  return *channel_;
}

Messages& Group::messages() {
  if (!messages_) {
    messages_ = is_planned() ? make_planned_messages(log_) : make_messages(communicator_, transport_, message_blocks_);
    messages_->register_memory(registration_);
  }
  return *messages_;
}

void Group::register_memory(const Registration& registration) {
  registration_ = registration;
  if (channel_) channel_->register_memory(registration);
  if (messages_) messages_->register_memory(registration);
}

void Group::open_messages() {
  if (size_ > 1) messages();
}

std::string Group::path() const { return channel_ ? channel_->path() : "none"; }
std::size_t Group::staging_bytes() const { return channel_ ? channel_->staging_bytes() : 0; }

}  // namespace nanotron::comm
