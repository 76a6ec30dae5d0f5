#include "nanotron/comm/communicator.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <exception>
#include <numeric>
#include <utility>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

Communicator::Communicator(MPI_Comm owned, int node) : handle_(owned), node_(node) {
  NANOTRON_CHECK_MPI(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN));
  NANOTRON_CHECK_MPI(MPI_Comm_rank(handle_, &rank_));
  NANOTRON_CHECK_MPI(MPI_Comm_size(handle_, &size_));
}

Communicator Communicator::duplicate(MPI_Comm other) {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_dup(other, &made));
  return Communicator(made);
}

Communicator Communicator::self() { return duplicate(MPI_COMM_SELF); }

Communicator Communicator::split(int color, int key) const {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_split(handle_, color, key, &made));
  return Communicator(made, node_);
}

Communicator Communicator::of_ranks(std::span<const int> ranks, int tag) const {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Group all = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_group(handle_, &all));
  NANOTRON_CHECK_MPI(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group));
  NANOTRON_CHECK_MPI(MPI_Comm_create_group(handle_, group, tag, &made));
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  return Communicator(made, node_);
}

bool Communicator::is_on_one_node() const {
  int range[2] = {node_, -node_};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_INT, MPI_MAX, handle_));
  const int lowest = -range[1], highest = range[0];
  return lowest >= 0 ? lowest == highest : split_by_node().size() == size_;
}

Communicator Communicator::split_by_node() const {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &made));
  return Communicator(made, node_);
}

Communicator::~Communicator() { release(); }

Communicator::Communicator(Communicator&& other) noexcept
    : handle_(std::exchange(other.handle_, MPI_COMM_NULL)),
      rank_(other.rank_),
      size_(other.size_),
      node_(other.node_) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    release();
    handle_ = std::exchange(other.handle_, MPI_COMM_NULL);
    rank_ = other.rank_;
    size_ = other.size_;
    node_ = other.node_;
  }
  return *this;
}

void Communicator::release() noexcept {
  if (handle_ == MPI_COMM_NULL || std::uncaught_exceptions() > 0) return;
  MPI_Comm_free(&handle_);
}

namespace {

int rank_in(MPI_Comm world) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  return rank;
}

void broadcast(MPI_Comm world, std::string& text, int root) {
  auto size = static_cast<std::int64_t>(text.size());
  NANOTRON_CHECK_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, root, world));
  NANOTRON_REQUIRE(size <= INT_MAX, "a text of {} bytes", size);
  text.resize(static_cast<std::size_t>(size));
  NANOTRON_CHECK_MPI(MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, root, world));
}

}  // namespace

void collectively(MPI_Comm world, const std::function<void()>& work) {
  int code = 0;
  std::string message;
  try {
    work();
  } catch (const Error& error) {
    code = static_cast<int>(error.exit_code());
    message = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ExitCode::system_error);
    message = format({.what = error.what()});
  }
  const int mine = code == 0 ? INT_MAX : rank_in(world);
  int lowest = INT_MAX;
  NANOTRON_CHECK_MPI(MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, world));
  if (lowest == INT_MAX) return;
  NANOTRON_CHECK_MPI(MPI_Bcast(&code, 1, MPI_INT, lowest, world));
  broadcast(world, message, lowest);
  throw Error(static_cast<ExitCode>(code), message);
}

std::string text_of_root(MPI_Comm world, const std::function<std::string()>& make) {
  std::string text;
  collectively(world, [&] {
    if (rank_in(world) == 0) text = make();
  });
  broadcast(world, text, 0);
  return text;
}

std::vector<std::string> texts_at_root(MPI_Comm world, const std::string& mine) {
  int ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  NANOTRON_REQUIRE(mine.size() <= INT_MAX, "a text of {} bytes", mine.size());
  const int size = static_cast<int>(mine.size());
  std::vector<int> sizes(rank_in(world) == 0 ? static_cast<std::size_t>(ranks) : 0), begins(sizes.size());
  NANOTRON_CHECK_MPI(MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, world));
  const std::int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  NANOTRON_REQUIRE(bytes <= INT_MAX, "texts of {} bytes", bytes);
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), 0);
  std::string all(static_cast<std::size_t>(bytes), '\0');
  NANOTRON_CHECK_MPI(
      MPI_Gatherv(mine.data(), size, MPI_CHAR, all.data(), sizes.data(), begins.data(), MPI_CHAR, 0, world));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    texts.push_back(all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(sizes[r])));
  return texts;
}

}  // namespace nanotron::comm
