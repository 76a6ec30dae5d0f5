#pragma once
// &checkpoint of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

struct CheckpointConfig {
  std::string directory;  // empty: checkpoint_directory()
  std::int64_t every_steps = 0;
  double every_minutes = 0.0;  // 0: time does not matter
  double node_mtbf = 0.0;      // days between failures of a node; 0: not given
  std::int64_t keep_last = 2;
  std::string resume = "auto";  // 'auto', 'none' or the path of a checkpoint
  std::string first_resume{};   // the deck's value if this start replaced it by 'auto'; not a key of the deck
  bool at_end = true;
  bool asynchronous = false;
  std::int64_t neighbour_every_steps = 0;  // 0: never
  std::string neighbour_directory{};       // of each host
};

}  // namespace nanotron::deck
