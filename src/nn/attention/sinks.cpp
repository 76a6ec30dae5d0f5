#include "nanotron/nn/attention/sinks.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/attention/sinks.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class Sinks final : public DenominatorTerm<T> {
 public:
  using M = master_t<T>;

  Sinks(index_t first_head, const Vector<const M>& logits, const Vector<M>& gradient)
      : first_head_(first_head), logits_(logits), gradient_(gradient) {}

  void forward(Device& device, const kernels::AttentionShape& shape, const MatrixRef<T>& out,
               const Vector<M>& lse) const override {
    kernels::add_sinks<T>(device, shape, of_heads(logits_, shape), out, lse);
  }
  void backward(Device& device, const kernels::AttentionShape& shape, const MatrixRef<const T>& out,
                const MatrixRef<const T>& dout, const Vector<const M>& lse,
                const Vector<std::byte>& workspace) const override {
    kernels::sinks_backward<T>(device, shape, of_heads(logits_, shape), out, dout, lse, of_heads(gradient_, shape),
                               workspace);
  }
  std::size_t workspace_bytes(const kernels::AttentionShape& shape, Processor processor) const override {
    return kernels::sinks_workspace_bytes<T>(shape, processor);
  }

 private:
  template <class E>
  Vector<E> of_heads(const Vector<E>& x, const kernels::AttentionShape& shape) const {
    return Vector<E>(x.data() == nullptr ? nullptr : x.data() + (shape.first_query_head - first_head_),
                     static_cast<std::size_t>(shape.query_heads));
  }

  index_t first_head_;
  Vector<const M> logits_;
  Vector<M> gradient_;
};

}  // namespace

template <class T>
std::shared_ptr<const DenominatorTerm<T>> make_sinks(index_t first_head, Vector<const master_t<T>> logits,
                                                     Vector<master_t<T>> gradient) {
  return std::make_shared<Sinks<T>>(first_head, logits, gradient);
}

#define NANOTRON_INSTANTIATE(T)                                                                        \
  template std::shared_ptr<const DenominatorTerm<T>> make_sinks<T>(index_t, Vector<const master_t<T>>, \
                                                                   Vector<master_t<T>>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
