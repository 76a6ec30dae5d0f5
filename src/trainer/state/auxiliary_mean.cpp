#include "nanotron/base/types.hpp"
#include "nanotron/optim/update_decision.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

// An exact sum, as that of the losses: the same bits on every grid where the rows have the same.
class AuxiliaryMean final : public StatisticsMonitor {
 public:
  AuxiliaryMean(double factor, index_t rows_per_term, comm::ProcessGrid& grid, Device& device, const AuxiliaryRows& of,
                index_t tokens_per_term)
      : factor_(factor),
        rows_per_term_(rows_per_term),
        tokens_per_term_(tokens_per_term),
        groups_{&grid.data_parallel(), &grid.pp()},
        device_(device),
        of_(of) {}

  void start(index_t tokens) override {
    kernels::sum(device_, Vector<const double>(of_.rows.data(), rows_per_term_ * tokens / tokens_per_term_), of_.sum);
    optim::sum_over(device_, groups_, of_.sum, of_.top_place);
    if (!device_.is_planning()) Kokkos::deep_copy(device_.exec(), host_, of_.sum);
  }

  void collect(double terms, std::span<double> values) override {
    const double sum = kernels::value(copy_.span().front());
    values.front() = factor_ * sum / (static_cast<double>(rows_per_term_) * terms);
  }

 private:
  double factor_;
  index_t rows_per_term_, tokens_per_term_;
  std::vector<comm::Group*> groups_;
  Device& device_;
  AuxiliaryRows of_;
  PinnedArray<kernels::ExactSum> copy_{1};
  Kokkos::View<kernels::ExactSum*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_{copy_.span().data(), 1};
};

}  // namespace

std::unique_ptr<StatisticsMonitor> make_auxiliary_mean(double factor, index_t rows_per_term, comm::ProcessGrid& grid,
                                                       Device& device, const AuxiliaryRows& of,
                                                       index_t tokens_per_term) {
  return std::make_unique<AuxiliaryMean>(factor, rows_per_term, grid, device, of, tokens_per_term);
}

}  // namespace nanotron::trainer
