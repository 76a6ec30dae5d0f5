#include "nanotron/comm/grid_checks.hpp"

#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::comm {

void check_grid(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  std::string order = "-" + p.order + "-";
  bool complete = p.order.size() == 11;
  for (const char* axis : {"-tp-", "-cp-", "-pp-", "-dp-"}) {
    complete = complete && order.find(axis) != std::string::npos;
  }
  if (!complete && f.is_valid({"parallel.order"})) {
    f.error({"parallel.order"}, deck::quoted(p.order) + " is not an order of the grid's axes",
            "tp, cp, pp and dp, each once, joined by '-', the innermost first: 'tp-cp-pp-dp'");
  }
  if (p.collective_engine == deck::CollectiveEngine::copies &&
      p.register_memory != deck::MemoryRegistration::symmetric &&
      f.is_valid({"parallel.collective_engine", "parallel.register_memory"})) {
    f.error({"parallel.collective_engine", "parallel.register_memory"}, "copy engines need symmetric memory",
            "register_memory = 'symmetric'", "or collective_engine = 'blocks'");
  }
}

}  // namespace nanotron::comm
