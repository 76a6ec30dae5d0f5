// The keys of &checkpoint.
#include "nanotron/deck/keys/checkpoint.hpp"

#include "rows.hpp"

#define GROUP_NAME "checkpoint"
#define GROUP(c) (c).checkpoint

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> checkpoint_rows() {
  return {
    KEY(directory).of_folder().says("Folder of the checkpoints; empty: <output_dir>/checkpoints."),
    KEY(every_steps).at_least(0).at_most(1e12).in("steps").says(
        "Steps from one checkpoint to the next; 0: none before the end."),
    KEY(every_minutes).at_least(0).at_most(1e6).in("minutes").says(
        "Wall time from one checkpoint to the next, besides every_steps; 0: time does not matter."),
    KEY(node_mtbf).at_least(0).at_most(1e6).in("days").says(
        "Mean time between failures of one node. The program then chooses the interval between checkpoints that "
        "minimises lost time (Daly 2006), from what one costs training and the number of nodes; 264 is what Llama "
        "3's 16,384 GPUs had. 0: not given."),
    KEY(keep_last).at_least(0).at_most(1e9).says(
        "How many known good checkpoints are kept, besides the newest; 0: all. A checkpoint is known good once a "
        "later step had a finite loss and gradient norm."),
    KEY(resume).of_files().says(
        "Where to start from: 'auto' the newest valid checkpoint, from scratch where there is none (where all are "
        "damaged, exit code 65); 'none' from scratch; or the path of a checkpoint."),
    KEY(neighbour_every_steps).at_least(0).at_most(1e12).in("steps").says(
        "Steps between copies of each rank's state into checkpoint%neighbour_directory of its own host and of "
        "another one, from which a run goes on after a host is lost; 0: none."),
    KEY(neighbour_directory).of_folder().says(
        "A folder of each host, in memory (/dev/shm) or on a local disk, for neighbour_every_steps: an absolute path "
        "outside of output_dir and directory, and not the same folder on two hosts. %h stands for the name of the "
        "host."),
    KEY(asynchronous).says(
        "Checkpoints between the first and the last step are copied to host memory and written while the next steps "
        "run. Each rank then needs memory for its share of the file: see --plan."),
    KEY(at_end).says("Whether the last step writes a checkpoint. A run that is stopped early always does."),
  };
}
// clang-format on

}  // namespace nanotron::deck
