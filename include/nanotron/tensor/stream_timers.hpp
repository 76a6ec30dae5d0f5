#pragma once

#include <memory>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron {

/// What is timed on a GPU: every region, or only phases (Timers::set_phases), which costs less.
enum class TimerDetail { all, phases };

/// Timers of the work that is queued on a stream. On a GPU a region lasts from the time the stream reaches its
/// beginning to the time it reaches its end (events, read without waiting after the outermost region). So host work
/// counts while the stream is idle, and other streams' work while this one waits for it. On the host: Timers.
std::unique_ptr<Timers> make_stream_timers(const comm::Stream& stream, TimerDetail detail = TimerDetail::all);

}  // namespace nanotron
