#pragma once

#include <memory>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron {

/// What is timed on a GPU: every region, or only phases (Timers::set_phases), which costs less.
enum class TimerDetail { all, phases };

/// Timers of the work that is queued on a stream. On a GPU a region lasts from when the stream gets to its beginning
/// until the stream gets to its end, by events, which are read after the outermost region without waiting; so host work
/// counts where the stream is idle meanwhile, and other streams' work where this one waits for it. On the host: Timers.
std::unique_ptr<Timers> make_stream_timers(const comm::Stream& stream, TimerDetail detail = TimerDetail::all);

}  // namespace nanotron
