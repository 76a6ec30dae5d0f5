#pragma once

// Functions that make the strategies of gradient reduction, and checks of keys for some. The classes are in the
// sources. Of compression = 'bf16', with and without sharding: low_precision/bf16_reducers.hpp.

#include <memory>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// zero_size against zero_stage and dp x cp.
void check_zero(const deck::Config& config, deck::Findings& findings);

/// Adasum needs on each data-parallel rank the whole gradient of its own samples.
void check_adasum(const deck::Config& config, deck::Findings& findings);

template <class T>
std::unique_ptr<GradientReducer<T>> make_all_reduce(const ReducerContext<T>& context);

/// zero_stage = 1.
template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_1(const ReducerContext<T>& context);

/// zero_stage = 2 and 3.
template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_23(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_layout_invariant(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_adasum(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_fp16(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_power_sgd(const ReducerContext<T>& context);

}  // namespace nanotron::parallel
