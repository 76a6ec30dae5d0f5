#include "nanotron/io/copies/neighbour_copies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iomanip>
#include <iterator>
#include <random>
#include <sstream>

#include "copy_exchange.hpp"
#include "copy_folder.hpp"
#include "io/blocks/block_queue.hpp"
#include "io/checkpoint/checkpoint_image.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/io/files/text_file.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using comm::collectively;

constexpr std::size_t max_identities = 64;

std::string drawn_digits() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

bool is_identity(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The lines of run.id that are identities.
std::vector<std::string> identities_in(const fs::path& directory) {
  std::vector<std::string> found;
  std::istringstream in(files::text_of(directory / "run.id").value_or(""));
  std::string text;
  for (std::size_t i = 0; i < max_identities && in >> std::setw(17) >> text; ++i)
    if (is_identity(text)) found.push_back(text);
  return found;
}

}  // namespace

std::vector<std::string> earlier_identities(MPI_Comm world, const fs::path& directory) {
  std::istringstream packed(comm::text_of_root(world, [&] {
    const std::vector<std::string> all = identities_in(directory);
    return all.empty() ? std::string() : fmt::format("{}", fmt::join(all.begin() + 1, all.end(), " "));
  }));
  return {std::istream_iterator<std::string>(packed), {}};
}

std::string run_identity(MPI_Comm world, const fs::path& directory, Identity identity) {
  return comm::text_of_root(world, [&] {
    const fs::path file = directory / "run.id";
    std::vector<std::string> all = identities_in(directory);
    if (identity == Identity::of_directory && !all.empty()) return all.front();
    all.insert(all.begin(), drawn_digits());
    if (all.size() > max_identities) all.pop_back();
    std::error_code error;
    fs::create_directories(directory, error);
    if (const int cause = replace_text(file, fmt::format("{}\n", fmt::join(all, "\n"))))
      fail(ExitCode::system_error,
           {.what = fmt::format("{} cannot be written: {}", file.string(), std::strerror(cause))});
    return all.front();
  });
}

struct NeighbourCopies::Draft {
  std::uint64_t generation = 0;
  std::optional<CopyWriter> own{};
  std::vector<std::unique_ptr<CopyWriter>> of_partners{};  // in the order of partners_to()
};

NeighbourCopies::NeighbourCopies(MPI_Comm world, CopyLocation place, Log& log)
    : world_(world),
      location_(std::move(place)),
      hosts_(location_.hosts),
      log_(log),
      memory_(std::make_unique<PageBuffers>()) {
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank_));
  open_folder();
  if (hosts_.hosts() < 2) log_.warn("all ranks are on one host: no copy can be on another one, none is written");
}

NeighbourCopies::~NeighbourCopies() = default;

void NeighbourCopies::open_folder() {
  folder_ = std::make_unique<CopyFolder>(location_.directory, hosts_.name(hosts_.host_of(rank_)), location_.run);
  require_own_folders();
}

fs::path NeighbourCopies::folder_of(std::int64_t step) const {
  return folder_->path() / fmt::format("step_{:08}", step);
}

// Each host leaves a mark; none may see another's. A host that cannot is none of this check's business.
void NeighbourCopies::require_own_folders() {
  const std::string nonce = comm::text_of_root(world_, drawn_digits);
  const int host = hosts_.host_of(rank_);
  const bool leads = hosts_.leads(rank_);
  const auto mark_of = [&](int of_host) { return folder_->path() / fmt::format("{}.host_{}", nonce, of_host); };
  if (leads) {
    try {
      folder_->create();
      create_private_file(mark_of(host), 0);
    } catch (const Error&) {  // write() will say so
    }
  }
  std::exception_ptr shared;
  collectively(world_, [] {});
  const auto is_there = [](const fs::path& mark) {
    try {
      return files::exists(mark);
    } catch (const Error&) {  // of a host whose folder fails; write() and newest() will say so
      return false;
    }
  };
  for (int other = 0; leads && other < hosts_.hosts(); ++other) {
    if (other == host || shared || !is_there(mark_of(other))) continue;
    shared = std::make_exception_ptr(
        Error(ExitCode::deck_error,
              format({.what = "hosts share the folder of their copies",
                      .expected = "memory or a disk of each host",
                      .found = fmt::format("{} and {} have the same", hosts_.name(host), hosts_.name(other)),
                      .where = folder_->path().string(),
                      .change = "set another checkpoint%neighbour_directory (%h in it is the name of the host)"})));
  }
  collectively(world_, [] {});
  std::error_code ignored;
  if (leads) fs::remove(mark_of(host), ignored);
  collectively(world_, [&] {
    if (shared) std::rethrow_exception(shared);
  });
}

bool NeighbourCopies::write(const CheckpointContents& contents) {
  if (hosts_.hosts() < 2) return false;
  while (generations_.size() >= kept_generations) {
    if (hosts_.leads(rank_)) folder_->remove(generations_.front());
    generations_.erase(generations_.begin());
  }
  Draft draft{.generation = std::stoull(comm::text_of_root(world_, drawn_digits), nullptr, 16)};
  try {
    if (begins_branch_) {
      location_.run = run_identity(world_, location_.checkpoints, Identity::fresh);
      open_folder();
      begins_branch_ = false;
    }
    write_draft(contents, draft);
  } catch (const Error& error) {
    draft.own.reset();
    draft.of_partners.clear();
    if (hosts_.leads(rank_)) folder_->remove(draft.generation);
    if (!has_failed_)
      log_.warn("step {} is not copied to other hosts: {}; older copies and checkpoints are unchanged",
                contents.state.step, reason(error));
    has_failed_ = true;
    return false;
  }
  has_failed_ = false;
  generations_.push_back(draft.generation);
  bytes_held_ = std::ssize(draft.own->table().blocks) * copy_block_bytes;
  for (const auto& piece : draft.of_partners) bytes_held_ += std::ssize(piece->table().blocks) * copy_block_bytes;
  return true;
}

void NeighbourCopies::write_draft(const CheckpointContents& contents, Draft& draft) {
  FileImage image(folder_of(contents.state.step).string());
  const ImageLayout layout = lay_out(world_, image, contents);
  const CopyTable table{.name = {.step = contents.state.step,
                                 .generation = draft.generation,
                                 .rank = rank_,
                                 .ranks = static_cast<std::int64_t>(location_.hosts.size())},
                        .run = location_.run,
                        .file = {layout.bytes, copy_block_bytes},
                        .metadata = comm::text_of_root(world_, [&] { return packed_extents(image); })};
  collectively(world_, [&] {
    folder_->create();
    draft.own.emplace(*folder_, table, *memory_);
  });
  collectively(world_, [&] { assemble_blocks(world_, table.file, image, layout.tensors, draft.own->sink()); });
  collectively(world_, [&] { draft.own->finish(); });
  exchange(draft);
  collectively(world_, [&] {
    draft.own->publish();
    for (const auto& piece : draft.of_partners) piece->publish();
  });
}

void NeighbourCopies::exchange(Draft& draft) {
  const CopyExchange exchange{world_, hosts_.partner_of(rank_), hosts_.partners_to(rank_)};
  const CopyTable& mine = draft.own->table();
  const std::vector<CopyExchange::Blocks> lists = exchange.lists(mine.blocks);
  collectively(world_, [&] {
    for (const int source : exchange.sources) {
      CopyTable table = mine;
      table.name.rank = source;
      table.blocks.clear();
      draft.of_partners.push_back(std::make_unique<CopyWriter>(*folder_, std::move(table), *memory_));
    }
  });
  exchange.pieces(mine, draft.own->blocks(), lists, draft.of_partners);
  collectively(world_, [&] {
    for (std::size_t i = 0; i < lists.size(); ++i) {
      draft.of_partners[i]->finish();
      if (draft.of_partners[i]->table().blocks != lists[i])
        fail(ExitCode::system_error,
             {.what = fmt::format("blocks of rank {} changed during transfer", exchange.sources[i])});
    }
  });
}

void NeighbourCopies::remove_those_of(const std::vector<std::string>& runs) {
  if (!hosts_.leads(rank_)) return;
  for (const std::string& run : runs)
    CopyFolder(location_.directory, hosts_.name(hosts_.host_of(rank_)), run).remove_all();
}

void NeighbourCopies::remove_all() {
  if (hosts_.leads(rank_)) folder_->remove_all();
  generations_.clear();
}

}  // namespace nanotron::io
