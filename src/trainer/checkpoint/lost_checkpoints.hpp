#pragma once

// A resuming run that finds no checkpoint: it may start from scratch only if none was ever written. Private to the
// trainer layer. One rank calls.

#include <filesystem>

#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Error(system_error) if the link `latest`, the file known_good or the ledger in metrics.h5 says that a checkpoint was
/// written, with what a user can do. Call it where 'auto' found none.
void require_none_recorded(const deck::Config& config);

/// The same where the status file of an unfinished start names `checkpoint` in checkpoint%directory and no step folder
/// is left there. Empty: it names none.
void require_listed(const deck::Config& config, const std::filesystem::path& checkpoint,
                    const std::filesystem::path& status_file);

}  // namespace nanotron::trainer
