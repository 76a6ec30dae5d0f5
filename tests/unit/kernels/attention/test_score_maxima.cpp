// ranks: 1
#include "nanotron/kernels/attention/score_maxima.hpp"

#include "support/reference/score_maxima.hpp"
#include "unit/kernels/attention/attention_check.hpp"

namespace nanotron::test {
namespace {

constexpr index_t heads_of_model = 9;

// The maxima are compared, and then raised from values of which some are larger.
template <class T>
class ScoreMaxima : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  void check(AttentionShape s, const Array<std::int32_t>* documents = nullptr) {
    const index_t width = s.query_heads * s.head_dim, key_width = s.key_heads * s.head_dim;
    const index_t queries = s.batch * s.query_row_stride(), keys = s.batch * s.key_row_stride();
    const auto q = Array<T>::random(queries * width, 1), k = Array<T>::random(keys * key_width, 2);
    AttentionShape on_host = s;
    if (documents != nullptr) {
      s.document_stride = on_host.document_stride = documents->size() / s.batch;
      s.document_starts = documents->data();
      on_host.document_starts = documents->host.data();
    }
    for (const double first : {-1e300, 0.5}) {
      const std::vector<double> expected = kernels::reference::score_maxima<T>(
          on_host, q.on_host(queries, width), k.on_host(keys, key_width), std::vector<double>(heads_of_model, first));
      for (const Way way : {Way::program, Way::batched_gemms}) {
        Array<double> maxima(heads_of_model, first);
        s.scores.maxima = {maxima.data(), heads_of_model};
        way == Way::program ? backward(s, q, k) : by_batched_gemms(s, q, k);
        this->device_.fence();
        maxima.pull();
        expect_close(maxima.host, expected, 16 * unit_roundoff<M>());
      }
    }
  }

 private:
  void backward(const AttentionShape& s, const Array<T>& q, const Array<T>& k) {
    const index_t width = s.query_heads * s.head_dim, key_width = s.key_heads * s.head_dim;
    const index_t queries = s.batch * s.query_row_stride(), keys = s.batch * s.key_row_stride();
    const Array<T> work(static_cast<index_t>(kernels::attention_workspace_bytes<T>(s, built_for) / sizeof(T)) + 8);
    const Vector<std::byte> workspace(reinterpret_cast<std::byte*>(work.data()),
                                      static_cast<std::size_t>(work.size()) * sizeof(T));
    const Array<T> out(queries * width), dq(queries * width), dk(keys * key_width), dv(keys * key_width);
    const Array<M> lse(queries * s.query_heads);
    kernels::attention_forward<T>(this->device_, s, q.read(queries, width), k.read(keys, key_width),
                                  k.read(keys, key_width), out.matrix(queries, width), lse.vector(), workspace);
    kernels::attention_backward<T>(this->device_, s, q.read(queries, width), k.read(keys, key_width),
                                   k.read(keys, key_width), out.read(queries, width), q.read(queries, width),
                                   lse.read(), dq.matrix(queries, width), dk.matrix(keys, key_width),
                                   dv.matrix(keys, key_width), workspace);
  }
  void by_batched_gemms(const AttentionShape& s, const Array<T>& q, const Array<T>& k) {
    const Array<T> work(static_cast<index_t>(kernels::blocked::attention_workspace_bytes<T>(s) / sizeof(T)) + 8);
    kernels::blocked::raise_maxima<T>(this->device_, s,
                                      q.read(s.batch * s.query_row_stride(), s.query_heads * s.head_dim),
                                      k.read(s.batch * s.key_row_stride(), s.key_heads * s.head_dim),
                                      Vector<std::byte>(reinterpret_cast<std::byte*>(work.data()),
                                                        static_cast<std::size_t>(work.size()) * sizeof(T)));
  }
};
TYPED_TEST_SUITE(ScoreMaxima, ScalarTypes);

TYPED_TEST(ScoreMaxima, OfWholeSequences) {
  this->check(shape_of(1, 1, 1, 1, 1, 8));
  this->check(shape_of(2, 301, 301, 4, 2, 32));
  this->check(shape_of(1, 130, 130, 6, 1, 19));
}

TYPED_TEST(ScoreMaxima, OfHeadsOfAShard) {
  AttentionShape s = shape_of(2, 60, 60, 3, 2, 16);
  s.group = 2;
  s.first_query_head = 3;
  s.first_key_head = 1;
  s.scores.scale = 0.7;
  this->check(s);
}

// A window; documents; a block of a ring, of which some queries see no key.
TYPED_TEST(ScoreMaxima, OfKeysThatAreSeen) {
  AttentionShape s = shape_of(2, 300, 300, 2, 1, 24);
  s.window = 21;
  this->check(s);
  const auto documents = document_starts(300);
  s.window = 0;
  this->check(s, &documents);
  AttentionShape block = shape_of(1, 150, 200, 2, 2, 16);
  block.query_position = 300;
  this->check(block);
  block.query_position = 20;
  block.key_position = 100;
  this->check(block);
}

}  // namespace
}  // namespace nanotron::test
