#pragma once
// How a group of the deck writes its rows of the table of parameters. Private to the deck layer.

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "deck/table/lines.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {

/// The rows of each group, in its source.
std::vector<Parameter> run_rows();
std::vector<Parameter> model_rows();
std::vector<Parameter> moe_rows();
std::vector<Parameter> parallel_rows();
std::vector<Parameter> optimizer_rows();
std::vector<Parameter> schedule_rows();
std::vector<Parameter> data_rows();
std::vector<Parameter> precision_rows();
std::vector<Parameter> checkpoint_rows();
std::vector<Parameter> output_rows();
std::vector<Parameter> lora_rows();
std::vector<Parameter> preference_rows();

namespace rows {

template <class T>
constexpr ValueType value_type() {
  static_assert(!std::is_enum_v<T>, "the row of an enumeration is an ENUM");
  if constexpr (std::is_same_v<T, std::int64_t>) return ValueType::integer;
  if constexpr (std::is_same_v<T, double>) return ValueType::real;
  if constexpr (std::is_same_v<T, bool>) return ValueType::logical;
  return ValueType::string;
}

/// A row being written: KEY(name).at_least(1).in("s").says("...").
struct Row : Parameter {
  Row(std::string in_group, std::string key, ValueType of_type) {
    group = std::move(in_group);
    name = std::move(key);
    type = of_type;
    part_of = group == "model" ? PartOf::every_model : group == "moe" ? PartOf::moe_models : PartOf::no_model;
    if (group == "optimizer" || group == "schedule" || group == "precision") influence = Influence::training;
  }
  Row&& needed() && { return with(required, true); }
  Row&& at_least(double x) && { return with(range.min, x); }
  Row&& at_most(double x) && { return with(range.max, x); }
  Row&& above(double x) && { return std::move(*this).at_least(x).with(range.min_open, true); }
  Row&& below(double x) && { return std::move(*this).at_most(x).with(range.max_open, true); }
  Row&& one_of(std::vector<std::string> words) && { return with(legal_values, std::move(words)); }
  Row&& lines() && { return with(extent, max_lines); }
  Row&& of_files() && { return with(paths, Paths::read); }
  Row&& of_folder() && { return with(paths, Paths::written); }
  Row&& in(std::string u) && { return with(unit, std::move(u)); }
  Row&& of_dense() && { return with(part_of, PartOf::dense_models); }
  Row&& of_all() && { return with(part_of, PartOf::every_model); }
  Row&& may_change() && { return with(part_of, PartOf::no_model).with(influence, Influence::training); }
  Row&& of_training() && { return with(influence, Influence::training); }
  Row&& orders_data() && { return with(influence, Influence::data_order); }
  Row&& omitted() && { return with(omitted_at_default, true); }
  Row&& nonzero() && { return with(stored_nonzero, true); }
  Parameter says(std::string s) && { return with(sentence, std::move(s)); }

 private:
  template <class T>
  Row&& with(T& member, std::type_identity_t<T> value) {
    member = std::move(value);
    return std::move(*this);
  }
};

/// value_of(config): the value of the key, in a Config or a const one.
template <class F>
Row key(const char* group, const char* name, F value_of) {
  using T = std::decay_t<decltype(value_of(std::declval<const Config&>()))>;
  Row row(group, name, value_type<T>());
  row.get = [=](const Config& c) { return Scalar(value_of(c)); };
  row.set = [=](Config& c, const Scalar& s) { value_of(c) = std::get<T>(s); };
  return row;
}

/// The same of an enumeration: the words of a deck and what each is.
template <class E>
using Words = std::vector<std::pair<std::string, E>>;

template <class F, class E = std::decay_t<decltype(std::declval<F>()(std::declval<const Config&>()))>>
Row enumeration(const char* group, const char* name, F value_of, Words<E> words) {
  Row row(group, name, ValueType::string);
  for (const auto& word : words) row.legal_values.push_back(word.first);
  row.get = [=](const Config& c) {
    return Scalar(std::ranges::find(words, value_of(c), &Words<E>::value_type::second)->first);
  };
  row.set = [=](Config& c, const Scalar& s) {  // an old deck may have a word that this version does not know
    const auto found = std::ranges::find(words, std::get<std::string>(s), &Words<E>::value_type::first);
    value_of(c) = found == words.end() ? E{} : found->second;
  };
  return row;
}

}  // namespace rows
}  // namespace nanotron::deck

/// Of the group that the source names: #define GROUP(c) c.run, and its name.
#define KEY(name) \
  rows::key(      \
      GROUP_NAME, #name, [](auto& c) -> auto& { return GROUP(c).name; })
#define ENUM(name, ...) \
  rows::enumeration(GROUP_NAME, #name, [](auto& c) -> auto& { return GROUP(c).name; }, {__VA_ARGS__})
