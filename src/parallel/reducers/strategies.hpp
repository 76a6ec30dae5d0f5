#pragma once

// One maker for each strategy of gradient reduction; the classes, and what they do, are in the sources.

#include <memory>

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

template <class T>
std::unique_ptr<GradientReducer<T>> make_all_reduce(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_1(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_23(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_layout_invariant(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_adasum(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_bf16(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_fp16(const ReducerContext<T>& context);

template <class T>
std::unique_ptr<GradientReducer<T>> make_power_sgd(const ReducerContext<T>& context);

}  // namespace nanotron::parallel
