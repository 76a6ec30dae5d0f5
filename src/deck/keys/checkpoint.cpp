// The keys of &checkpoint.
#include "nanotron/deck/keys/checkpoint.hpp"

#include "rows.hpp"

#define GROUP_NAME "checkpoint"
#define GROUP(c) (c).checkpoint

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> checkpoint_rows() {
  return {
    KEY(directory).of_folder().says("Folder for checkpoints; empty: <output_dir>/checkpoints."),
    KEY(every_steps).at_least(0).at_most(1e12).in("steps").says("Steps between checkpoints; 0: none before the end."),
    KEY(every_minutes).at_least(0).at_most(1e6).in("minutes").says(
        "Wall time between checkpoints, in addition to every_steps; 0: no checkpoints by time."),
    KEY(node_mtbf).at_least(0).at_most(1e6).in("days").says(
        "Mean time between failures of one node. The program then chooses the interval between checkpoints that "
        "minimises lost time (Daly 2006), from the cost of one checkpoint and the number of nodes; 264 matches the "
        "failures of Llama 3's 16,384 GPUs. 0: not given."),
    KEY(keep_last).at_least(0).at_most(1e9).says(
        "Number of known good checkpoints to keep, in addition to the newest; 0: all. A checkpoint is known good once "
        "a later step had a finite loss and gradient norm."),
    KEY(resume).of_files().says(
        "Where to start from: 'auto': the newest valid checkpoint, or from scratch if there is none (exit code 65 if "
        "all are damaged); 'none': from scratch; or the path of a checkpoint."),
    KEY(neighbour_every_steps).at_least(0).at_most(1e12).in("steps").says(
        "Steps between copies of each rank's state into checkpoint%neighbour_directory of its own host and of another "
        "one, from which a run resumes after a host is lost; 0: none."),
    KEY(neighbour_directory).of_folder().says(
        "Folder on each host, in memory (/dev/shm) or on a local disk, for neighbour_every_steps: an absolute path "
        "outside output_dir and directory, not shared between hosts. %h is replaced by the host name."),
    KEY(asynchronous).says(
        "Copy each checkpoint to host memory and write it while the next steps run; one at the last step or at a stop "
        "is written at once. Each rank then needs memory for its share of the file: see --plan."),
    KEY(at_end).says("Whether the last step writes a checkpoint. A run that stops early always does."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
