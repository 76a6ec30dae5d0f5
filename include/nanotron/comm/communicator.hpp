#pragma once

// A communicator of MPI that is owned, and what ranks agree on.

#include <mpi.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nanotron::comm {

/// Owns one MPI communicator and frees it. Move-only; default-constructed it holds MPI_COMM_NULL.
/// Freeing is collective: destroy objects in the same order on all ranks. During stack unwinding nothing
/// is freed.
class Communicator {
 public:
  Communicator() = default;
  /// Collective over `other`.
  static Communicator duplicate(MPI_Comm other);
  ~Communicator();
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;

  /// This rank only; not collective.
  static Communicator self();

  /// Ranks with the same color, ordered by key. Collective over this communicator.
  Communicator split(int color, int key) const;
  /// Ranks that share memory (one node), in the order of this communicator. Collective.
  Communicator split_by_node() const;
  /// These ranks of this communicator, in their order; this rank is one of them. Collective over them: memory and
  /// messages grow with their number, those of a split with the size of this communicator. tag: tells groups apart that
  /// are made at the same time.
  Communicator of_ranks(std::span<const int> ranks, int tag) const;

  /// This rank is of the node with this number: communicators made from this one know it. On all ranks.
  void note_node(int number) { node_ = number; }
  /// Whether all ranks share memory. Collective; where nodes are noted a single all-reduce.
  bool is_on_one_node() const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm get() const { return handle_; }

 private:
  explicit Communicator(MPI_Comm owned, int node = -1);
  void release() noexcept;

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  int node_ = -1;
};

// Makes all ranks agree on an error or a text.

/// Runs `work` on every rank. If it throws on any, all ranks throw the error of the lowest such rank.
/// `work` must not wait for other ranks after anything that can fail on only some ranks. Collective.
void collectively(MPI_Comm world, const std::function<void()>& work);

/// Runs `make` on rank 0 only and returns its text on every rank. Its error is thrown on every rank.
/// Collective.
std::string text_of_root(MPI_Comm world, const std::function<std::string()>& make);

/// The texts of all ranks, on rank 0; none elsewhere. 2 GiB in all. Collective.
std::vector<std::string> texts_at_root(MPI_Comm world, const std::string& mine);

}  // namespace nanotron::comm
