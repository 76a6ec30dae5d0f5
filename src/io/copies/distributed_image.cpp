#include "distributed_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "io/blocks/file_rows.hpp"
#include "io/blocks/messages.hpp"
#include "io/blocks/pieces.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::io {

using comm::collectively;

// Bytes of one block, and where they go.
struct DistributedImage::Wanted {
  std::int64_t position, bytes;
  std::byte* to;
};

namespace {

struct Request {
  std::int64_t position, bytes;
};

// Transfers of one tensor.
struct Work {
  const PlacedTensor* tensor;
  Transfer pieces;
};

std::vector<Work> work_of(std::span<const PlacedTensor> tensors) {
  std::vector<Work> work;
  for (const PlacedTensor& placed : tensors) {
    for (Transfer& pieces : transfers_of(*placed.tensor, placed.type, Staging::transfer_bytes(fetched_bytes)))
      work.push_back({&placed, std::move(pieces)});
  }
  return work;
}

Manifest manifest_of(const CopyTable& table) {
  Manifest manifest{
      .step = table.name.step, .bytes = table.file.bytes, .block_bytes = table.file.block_bytes, .blocks = {}};
  manifest.blocks.assign(static_cast<std::size_t>(table.file.blocks()), 0);
  for (const auto& [block, hash] : table.blocks) manifest.blocks[static_cast<std::size_t>(block)] = hash;
  return manifest;
}

}  // namespace

DistributedImage::DistributedImage(MPI_Comm world, const BlockedFile& file, std::vector<StoredCopy> held)
    : world_(world),
      file_(file),
      holders_(static_cast<std::size_t>(file.blocks()), -1),
      piece_of_(static_cast<std::size_t>(file.blocks()), -1) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank));
  std::vector<std::int32_t> times(holders_.size(), 0);
  collectively(world_, [&] {
    for (const StoredCopy& piece : held) {
      for (const auto& [block, hash] : piece.table.blocks) {
        const auto at = static_cast<std::size_t>(block);
        holders_[at] = rank, piece_of_[at] = static_cast<std::int32_t>(files_.size()), ++times[at];
      }
      files_.push_back(std::make_unique<VerifiedFile>(piece.blocks, manifest_of(piece.table)));
    }
  });
  const auto reduce = [&](auto& values, MPI_Op operation) {
    NANOTRON_CHECK_MPI(
        MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT32_T, operation, world_));
  };
  reduce(holders_, MPI_MAX);
  reduce(times, MPI_SUM);
  if (const auto wrong = std::ranges::find_if(times, [](auto n) { return n != 1; }); wrong != times.end())
    fail(ExitCode::data_error,
         {.what = fmt::format("block {} of the copies occurs {} times", wrong - times.begin(), *wrong)});
}

// Splits at the ends of blocks.
void DistributedImage::split_by_holder(std::int64_t position, std::byte* to, std::int64_t bytes,
                                       std::vector<std::vector<Wanted>>& wanted) const {
  for (const std::int64_t end = position + bytes; position < end;) {
    const std::int64_t block = position / file_.block_bytes;
    const std::int64_t count = std::min(end, (block + 1) * file_.block_bytes) - position;
    wanted[static_cast<std::size_t>(holders_[static_cast<std::size_t>(block)])].push_back({position, count, to});
    position += count;
    to += count;
  }
}

// A failure is kept: the other ranks wait for these bytes all the same.
void DistributedImage::read_held(std::int64_t position, std::int64_t bytes, std::byte* to) {
  try {
    const auto block = static_cast<std::size_t>(position / file_.block_bytes);
    files_[static_cast<std::size_t>(piece_of_[block])]->read(to, bytes, position);
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

// Requests, then the bytes in the order of the requests.
void DistributedImage::fetch(const std::vector<std::vector<Wanted>>& wanted) {
  const std::size_t ranks = wanted.size();
  std::vector<std::vector<std::byte>> asked(ranks), replies(ranks);
  std::vector<MPI_Request> receives, sends;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::int64_t bytes = 0;
    for (const Wanted& w : wanted[r]) {
      const Request request{w.position, w.bytes};
      const auto* const head = reinterpret_cast<const std::byte*>(&request);
      asked[r].insert(asked[r].end(), head, head + sizeof request);
      bytes += w.bytes;
    }
    replies[r].resize(static_cast<std::size_t>(bytes));
  }
  BlockingWaiting waiting;
  const auto to_serve = exchange_messages(world_, asked, waiting);
  const auto post = [&](auto call, std::vector<std::byte>& message, std::size_t r, std::vector<MPI_Request>& list) {
    if (message.empty()) return;
    NANOTRON_CHECK_MPI(call(message.data(), static_cast<int>(message.size()), MPI_BYTE, static_cast<int>(r), 1, world_,
                            &list.emplace_back()));
  };
  const auto wait = [](std::vector<MPI_Request>& list) {
    NANOTRON_CHECK_MPI(MPI_Waitall(static_cast<int>(list.size()), list.data(), MPI_STATUSES_IGNORE));
    list.clear();
  };
  for (std::size_t r = 0; r < ranks; ++r) post(MPI_Irecv, replies[r], r, receives);
  std::vector<std::vector<std::byte>> served(ranks);
  std::int64_t in_flight = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t at = 0; at < to_serve[r].size(); at += sizeof(Request)) {
      Request request;
      std::memcpy(&request, to_serve[r].data() + at, sizeof request);
      served[r].resize(served[r].size() + static_cast<std::size_t>(request.bytes));
      read_held(request.position, request.bytes, served[r].data() + (std::ssize(served[r]) - request.bytes));
    }
    post(MPI_Isend, served[r], r, sends);
    in_flight += std::ssize(served[r]);
    if (in_flight < fetched_bytes) continue;
    wait(sends);
    for (std::size_t done = 0; done <= r; ++done) std::vector<std::byte>().swap(served[done]);
    in_flight = 0;
  }
  wait(sends);
  wait(receives);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::byte* from = replies[r].data();
    for (const Wanted& w : wanted[r]) {
      std::memcpy(w.to, from, static_cast<std::size_t>(w.bytes));
      from += w.bytes;
    }
  }
}

void DistributedImage::read(std::span<const PlacedTensor> tensors) {
  int rank = 0, ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world_, &ranks));
  const std::vector<Work> work = work_of(tensors);
  const auto count = std::ssize(work);
  std::int64_t rounds = count;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &rounds, 1, MPI_INT64_T, MPI_MAX, world_));
  Staging staging;
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::vector<std::vector<Wanted>> wanted(static_cast<std::size_t>(ranks));
    if (round < count) {
      // Replicas of the same tensors begin at different ones: not all ask the same holder at a time.
      const Work& now = work[static_cast<std::size_t>((round + count * rank / ranks) % count)];
      for (const Piece& piece : staging.place(now.pieces, now.tensor->type)) {
        for_each_run(*now.tensor, part_of(piece, now.tensor->type),
                     [&](std::int64_t position, std::byte* to, std::int64_t bytes) {
                       split_by_holder(position, to, bytes, wanted);
                     });
      }
    }
    fetch(wanted);
    if (round < count) staging.copy_to_device();
  }
  collectively(world_, [&] {
    if (failure_) std::rethrow_exception(failure_);
  });
}

}  // namespace nanotron::io
