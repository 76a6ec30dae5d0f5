#include "nanotron/comm/communicator.hpp"

#include <exception>
#include <utility>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

Communicator::Communicator(MPI_Comm owned) : handle_(owned) {
  NANOTRON_CHECK_MPI(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN));
  NANOTRON_CHECK_MPI(MPI_Comm_rank(handle_, &rank_));
  NANOTRON_CHECK_MPI(MPI_Comm_size(handle_, &size_));
}

Communicator Communicator::duplicate(MPI_Comm other) {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_dup(other, &made));
  return Communicator(made);
}

Communicator Communicator::split(int color, int key) const {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_split(handle_, color, key, &made));
  return Communicator(made);
}

Communicator Communicator::split_by_node() const {
  MPI_Comm made = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &made));
  return Communicator(made);
}

Communicator::~Communicator() { release(); }

Communicator::Communicator(Communicator&& other) noexcept
    : handle_(std::exchange(other.handle_, MPI_COMM_NULL)), rank_(other.rank_), size_(other.size_) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    release();
    handle_ = std::exchange(other.handle_, MPI_COMM_NULL);
    rank_ = other.rank_;
    size_ = other.size_;
  }
  return *this;
}

void Communicator::release() noexcept {
  if (handle_ == MPI_COMM_NULL || std::uncaught_exceptions() > 0) return;
  MPI_Comm_free(&handle_);
}

}  // namespace nanotron::comm
