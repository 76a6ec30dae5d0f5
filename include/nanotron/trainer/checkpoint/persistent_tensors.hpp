#pragma once

// What gradient reducers carry from step to step, as datasets of a checkpoint: one per name, with the values of rank 0,
// then those of rank 1, ...

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::trainer {

template <class M>
class PersistentTensors {
 public:
  /// of_sections: what this rank carries for each section, the same names on every rank. Collective over the world.
  PersistentTensors(const std::vector<parallel::PersistentState<M>>& of_sections, comm::ProcessGrid& grid);

  /// Describes the values. Only a run with an equal layout can read them. Empty: nothing is carried.
  const std::string& layout() const { return layout_; }
  /// Views of the reducers' own memory: writing or reading a checkpoint passes the values in place. Empty without a
  /// layout.
  std::vector<io::StateTensor> tensors();

 private:
  struct Part {
    index_t begin = 0;  // in the dataset
    Vector<M> values;
  };
  struct Dataset {
    std::string name;
    index_t size = 0;  // of all ranks
    std::vector<Part> parts;
  };
  std::vector<Dataset> datasets_;
  std::string layout_;
};

}  // namespace nanotron::trainer
