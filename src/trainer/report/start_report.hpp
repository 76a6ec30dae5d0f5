#pragma once

// What the start of the run cost besides computation (base/start_account.hpp), as text.

#include <span>
#include <string>

#include "nanotron/base/start_account.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::trainer {

/// A line for each phase and their total. first: of rank 0; others: the largest of any other rank.
std::string start_table(std::span<const StartPhase> first, std::span<const StartPhase> others);

/// Of this run's account, when the start is over. Collective.
std::string start_report(comm::Group& world);

}  // namespace nanotron::trainer
