#pragma once

#include <string>
#include <vector>

#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::test {

inline deck::ModelConfig fake_config() {
  deck::ModelConfig model;
  model.hidden_size = 8;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.head_dim = 5;
  model.intermediate_size = 13;
  model.vocab_size = 37;
  return model;
}

/// The logical value of an element: differs by tensor and index, exact in float.
inline double fake_value(const std::string& name, index_t linear, int salt) {
  std::uint32_t hash = 2166136261u + static_cast<std::uint32_t>(salt);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<double>((hash + 2654435761u * static_cast<std::uint32_t>(linear)) >> 9) * 0x1p-20;
}

enum class Cut { rows, columns, owner_only };

/// One rank's part of a small model: every tensor of the table below, cut over `size` ranks as
/// tensor parallelism does, in one flat buffer with the vectors and matrices of a layer side by
/// side.
template <class M>
class FakeModel {
 public:
  FakeModel(int rank, int size, index_t scale = 1) : rank_(rank), size_(size) {
    struct Entry {
      const char* name;
      index_t rows, columns;  // of one layer; rows 0: a vector
      Cut cut;
    };
    const std::vector<Entry> in_layer{{"model/layers/input_layernorm/weight", 0, 8 * scale, Cut::owner_only},
                                      {"model/layers/self_attn/q_proj/weight", 10, 8 * scale, Cut::rows},
                                      {"model/layers/self_attn/o_proj/weight", 8 * scale, 10, Cut::columns},
                                      {"model/layers/mlp/up_proj/weight", 13 * scale, 8 * scale, Cut::rows},
                                      {"model/layers/mlp/down_proj/weight", 8 * scale, 13 * scale, Cut::columns}};
    place({"model/embed_tokens/weight", {37, 8 * scale}}, Cut::rows, 0);
    const index_t layers_begin = used_;
    index_t inside = 0;
    for (const Entry& e : in_layer) {
      const std::vector<index_t> shape =
          e.rows ? std::vector<index_t>{3, e.rows, e.columns} : std::vector<index_t>{3, e.columns};
      used_ = layers_begin + inside;
      place({e.name, shape}, e.cut, 1);
      inside = used_ - layers_begin + 3;  // a gap
    }
    for (io::StateTensor& t : tensors_)
      if (t.global_shape[0] == 3) t.parts[0].stride[0] = inside;
    used_ = layers_begin + 3 * inside;
    place({"model/norm/weight", {8 * scale}}, Cut::owner_only, 0);
    place({"lm_head/weight", {37, 8 * scale}}, Cut::rows, 0);
    memory_.assign(static_cast<std::size_t>(used_), M(-1));
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].parts[0].data = memory_.data() + begins_[i];
  }

  std::vector<io::StateTensor>& tensors() { return tensors_; }
  std::vector<M>& memory() { return memory_; }

  /// Sets, or counts what differs from, the logical values. Untouched memory (gaps) must stay -1.
  void fill(int salt) {
    visit([&](M& element, const std::string& name, index_t linear) {
      element = static_cast<M>(fake_value(name, linear, salt));
    });
  }
  index_t differences(int salt) {
    index_t wrong = 0;
    std::vector<bool> expected(memory_.size(), false);
    visit([&](M& element, const std::string& name, index_t linear) {
      wrong += element != static_cast<M>(fake_value(name, linear, salt));
      expected[static_cast<std::size_t>(&element - memory_.data())] = true;
    });
    for (std::size_t i = 0; i < memory_.size(); ++i) wrong += !expected[i] && memory_[i] != M(-1);
    return wrong;
  }
  /// Reading: every rank wants its replica of the vectors.
  void want_replicas() {
    for (io::StateTensor& t : tensors_)
      if (t.name.find("norm") != std::string::npos) t.parts[0].extent = t.global_shape;
  }

 private:
  struct Named {
    std::string name;
    std::vector<index_t> shape;
  };
  void place(const Named& named, Cut cut, std::size_t first_dim) {
    io::StateTensor t{.name = named.name, .global_shape = named.shape, .parts = {{}}};
    io::StatePart& part = t.parts[0];
    part.extent = named.shape;
    part.offset.assign(named.shape.size(), 0);
    if (cut == Cut::owner_only) {
      if (rank_ != 0) part.extent.assign(named.shape.size(), 0);
    } else {
      const std::size_t d = first_dim + (cut == Cut::columns ? 1 : 0);
      part.offset[d] = named.shape[d] * rank_ / size_;
      part.extent[d] = named.shape[d] * (rank_ + 1) / size_ - part.offset[d];
    }
    const std::vector<index_t> local = cut == Cut::owner_only ? named.shape : part.extent;
    part.stride.assign(named.shape.size(), 1);
    index_t size = 1;
    for (std::size_t d = named.shape.size(); d-- > 0; size *= local[d]) part.stride[d] = size;
    begins_.push_back(used_);
    used_ += first_dim ? size / local[0] : size;
    tensors_.push_back(t);
  }
  template <class Visitor>
  void visit(const Visitor& visitor) {
    for (const io::StateTensor& t : tensors_) {
      const io::StatePart& p = t.parts[0];
      std::vector<index_t> i(p.extent.size(), 0);
      index_t count = 1;
      for (const index_t e : p.extent) count *= e;
      for (index_t n = 0; n < count; ++n) {
        index_t linear = 0, where = 0, rest = n;
        for (std::size_t d = p.extent.size(); d-- > 0; rest /= p.extent[d]) i[d] = rest % p.extent[d];
        for (std::size_t d = 0; d < i.size(); ++d) {
          linear = linear * t.global_shape[d] + p.offset[d] + i[d];
          where += i[d] * p.stride[d];
        }
        visitor(static_cast<M*>(p.data)[where], t.name, linear);
      }
    }
  }

  int rank_, size_;
  index_t used_ = 0;
  std::vector<index_t> begins_;
  std::vector<io::StateTensor> tensors_;
  std::vector<M> memory_;
};

/// Parameters and both moments of one rank.
template <class M>
struct FakeState {
  FakeState(int rank, int size, index_t scale = 1)
      : parameters(rank, size, scale), exp_avg(rank, size, scale), exp_avg_sq(rank, size, scale) {}
  void fill(int salt) {
    parameters.fill(salt);
    exp_avg.fill(salt + 1);
    exp_avg_sq.fill(salt + 2);
  }
  index_t differences(int salt) {
    return parameters.differences(salt) + exp_avg.differences(salt + 1) + exp_avg_sq.differences(salt + 2);
  }
  void want_replicas() {
    for (auto* part : {&parameters, &exp_avg, &exp_avg_sq}) part->want_replicas();
  }
  io::CheckpointContents contents(std::int64_t step) {
    io::CheckpointContents c;
    c.parameters = parameters.tensors();
    c.optimizer = "adamw";
    c.moments = moments();
    c.master = scalar_type_of<M>;
    c.state = {step, step * 100, step * 8, 1234, step};
    c.model = fake_config();
    c.deck = "&run\n/\n";
    c.hugging_face = "{\"config\": {}}";
    c.provenance = {{"program", "test"}, {"note", "\xc3\xa4 and \"quotes\""}};
    return c;
  }
  const std::vector<io::StateGroup>& moments() {
    moments_ = {{"exp_avg", scalar_type_of<M>, exp_avg.tensors()},
                {"exp_avg_sq", scalar_type_of<M>, exp_avg_sq.tensors()}};
    return moments_;
  }
  FakeModel<M> parameters, exp_avg, exp_avg_sq;

 private:
  std::vector<io::StateGroup> moments_;
};

}  // namespace nanotron::test
