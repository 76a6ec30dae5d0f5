// ranks: 1
// Packed documents in cuDNN: what its graphs are asked for, and that they are what the batched GEMMs give.
#include <array>

#include "emulation/cudnn_test.hpp"

namespace nanotron::test {
namespace {

namespace fe = cudnn_frontend::graph;
using cudnn_frontend::DataType_t;

class CudnnDocuments : public Cudnn {
 protected:
  // Sequences whose documents have these lengths, the last of a sequence up to its end.
  AttentionShape packed(AttentionShape s, index_t length, const std::vector<std::vector<index_t>>& lengths) {
    starts_ = std::make_unique<Array<std::int32_t>>(s.batch * length);
    index_t documents = 0;
    for (index_t b = 0; b < s.batch; ++b) {
      index_t start = 0;
      const std::vector<index_t>& of_sequence = lengths[static_cast<std::size_t>(b)];
      for (std::size_t i = 0; i <= of_sequence.size(); ++i) {
        const index_t end = i < of_sequence.size() ? start + of_sequence[i] : length;
        std::fill_n(starts_->host.begin() + b * length + start, end - start, static_cast<std::int32_t>(start));
        documents += end - start > 1 ? 1 : 0;
        start = end;
      }
    }
    starts_->push();
    s.document_starts = starts_->data();
    s.document_stride = length;
    s.documents = static_cast<std::int32_t>(documents);
    return s;
  }
  static std::vector<index_t> ones(index_t n) { return std::vector<index_t>(static_cast<std::size_t>(n), 1); }
  static std::vector<index_t> then(std::vector<index_t> lengths, const std::vector<index_t>& more) {
    lengths.insert(lengths.end(), more.begin(), more.end());
    return lengths;
  }

 private:
  std::unique_ptr<Array<std::int32_t>> starts_;
};

// One that fills the sequence; of one position at its begin, inside and at its end; empty positions at the end.
TEST_F(CudnnDocuments, AreWhatTheBatchedGemmsGive) {
  const std::vector<std::vector<index_t>> lengths{{},   {30, 50},           {1, 70, 1, 1, 2}, then({61}, ones(34)),
                                                  {95}, then(ones(40), {3})};
  for (const index_t key_heads : {4, 2, 1}) {
    AttentionShape s = packed(shape(6, 96, 4, key_heads, 16), 96, lengths);
    expect_as_blocked(s, planned_bytes(s));
    s.documents += 7;  // as many more as the count may be too large
    expect_as_blocked(s, planned_bytes(s));
  }
  for (const index_t window : {1, 2, 40, 200}) {
    AttentionShape s = packed(shape(6, 96, 4, 2, 16), 96, lengths);
    s.window = window;
    expect_as_blocked(s, planned_bytes(s));
  }
}

// Documents lie in the piece, begin before it, end after it, or both.
TEST_F(CudnnDocuments, OfTheDiagonalOfARing) {
  const std::vector<std::vector<index_t>> lengths{{},          {70, 30, 60},         {64, 64}, {65, 1, 61, 40},
                                                  {63, 64, 1}, then({70}, ones(122))};
  for (const index_t window : {0, 30}) {
    AttentionShape s = packed(shape(6, 64, 4, 2, 16), 192, lengths);
    s.query_position = s.key_position = 64;
    s.query_rows = s.key_rows = 80;
    s.window = window;
    expect_as_blocked(s, planned_bytes(s));
  }
}

// Keys 32 ... 103 for queries 128 ... 191: of a document of both, from the piece's first key or query on or not, of one
// key, of one query; and of none.
TEST_F(CudnnDocuments, OfAnEarlierPieceOfARing) {
  const std::vector<std::vector<index_t>> lengths{{},        {50, 100},     {103, 26}, {128},
                                                  {104, 50}, {10, 30, 120}, ones(191), {20, 109, 1}};
  for (const index_t key_heads : {4, 2}) {
    AttentionShape s = packed(shape(8, 64, 4, key_heads, 16), 192, lengths);
    s.query_position = 128, s.key_position = 32, s.key_length = 72;
    s.query_rows = 100, s.key_rows = 80;
    expect_as_blocked(s, planned_bytes(s));
  }
}

// Key heads at a time, of all documents: what cuDNN 9.19 answers, with lengths and offsets, lse, dq, dk and dv beside
// it.
TEST_F(CudnnDocuments, RunInPartsThatFitTheWorkspace) {
  const AttentionShape s = packed(shape(2, 96, 4, 2, 16), 96, {{30, 50}, {96}});
  constexpr std::size_t table = 8 * 6 * 8 + 128 + 2 * 256;  // of 4 documents
  constexpr std::size_t lse = 192 * 4 * 4, gradients = 2 * 192 * 16 * 8;
  const std::size_t whole = 153'600 + table + lse + gradients, half = 78'336 + table + (lse + gradients) / 2;
  expect_as_blocked(s, whole, 1);
  expect_as_blocked(s, whole - 256, 2);
  expect_as_blocked(s, half, 2);
  Tensors t(s, 8);
  EXPECT_FALSE(backward(s, t, half - 256));
}

TEST_F(CudnnDocuments, OneCallTakesTheWorkspaceThatIsPlanned) {
  for (const AttentionShape& s : {shape(1, 1024, 2, 1, 16), shape(2, 256, 2, 2, 64), shape(3, 200, 6, 2, 32)}) {
    const index_t length = s.query_length;
    for (index_t of = 2; of < length; of *= 4) {
      const std::vector<index_t> equal(static_cast<std::size_t>(length / of), of);
      const AttentionShape all = packed(s, length, {equal, {length / 3}, equal});
      if (all.documents > kernels::planned_documents(s.batch, length).back()) continue;
      expect_as_blocked(all, planned_bytes(all), 1);
    }
  }
}

TEST_F(CudnnDocuments, AreGivenToItWhereItTakesThem) {
  const auto asked = [&](const AttentionShape& s) {
    Tensors t(s, 8);
    const bool runs = forward(s, t, planned_bytes(s));
    EXPECT_EQ(backward(s, t, planned_bytes(s)), runs);
    return runs;
  };
  const AttentionShape good = packed(shape(1, 128, 4, 2, 16), 128, {{50, 40}});
  EXPECT_TRUE(asked(good));
  const auto with = [&](const auto& change) {
    AttentionShape s = good;
    change(s);
    return s;
  };
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.documents = 0; }))) << "not counted";
  EXPECT_TRUE(asked(with([](AttentionShape& s) { s.documents = 4; })));
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.documents = 5; }))) << "of less than 32 positions";
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.head_dim = 24; }))) << "a head of 24";
  EXPECT_FALSE(asked(with([](AttentionShape& s) {
    s.query_position = s.query_length = s.key_length = 64;
    s.window = 70;
  }))) << "a window over an earlier piece";
  EXPECT_FALSE(asked(with([](AttentionShape& s) {
    s.query_length = s.key_length = 64;
    s.query_position = 63;
  }))) << "a key at the position of a query";
  const AttentionShape repeated = deterministic(good);
  Tensors t(repeated, 8);
  EXPECT_TRUE(forward(repeated, t, planned_bytes(repeated)));
  EXPECT_FALSE(backward(repeated, t, planned_bytes(repeated))) << "scores of the longest document for each";
}

TEST_F(CudnnDocuments, HavePlansByPowersOfTwo) {
  EXPECT_EQ(kernels::planned_documents(1, 128), (std::vector<index_t>{1, 2, 4}));
  EXPECT_EQ(kernels::planned_documents(8, 2048), (std::vector<index_t>{8, 16, 32, 64, 128, 256, 512}));
  EXPECT_EQ(kernels::planned_documents(3, 100), (std::vector<index_t>{4, 8, 16}));
  EXPECT_EQ(kernels::planned_documents(3, 16), std::vector<index_t>{4});
}

// More than were counted would be left out.
TEST_F(CudnnDocuments, MoreThanWereCountedEndTheRun) {
  EXPECT_DEATH(
      {
        AttentionShape s = packed(shape(1, 128, 4, 2, 16), 128, {{50, 40}});
        s.documents = 2;
        Tensors t(s, 8);
        forward(s, t, planned_bytes(s));
        this->device_.fence();
      },
      "more documents than were counted");
}

// The emulated library ---------------------------------------------------------------------------------

// Of 8 sequences of up to 96 rows, 4 heads of 64 and 2 of keys, 192 rows in all, as the program asks for them.
struct RaggedGraph {
  using Tensor = std::shared_ptr<fe::Tensor_attributes>;

  Tensor indices(std::int64_t id, std::int64_t count, DataType_t type) const {
    const Tensor t = graph.tensor({});
    t->set_uid(id).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type);
    return t;
  }
  Tensor rows(std::int64_t id, std::int64_t heads) const { return rows(graph.tensor({}), id, heads); }
  Tensor rows(const Tensor& t, std::int64_t id, std::int64_t heads) const {
    t->set_uid(id).set_dim({sequences, heads, 96, 64}).set_stride({96 * heads * 64, 64, heads * 64, 1});
    t->set_ragged_offset(indices(10 + id, sequences + more_offsets, DataType_t::INT64)).set_output(true);
    return t;
  }
  Tensor statistics(const Tensor& t) const {
    t->set_uid(5).set_data_type(DataType_t::FLOAT).set_dim({sequences, 4, 96, 1}).set_stride({384, 1, 4, 1});
    t->set_ragged_offset(indices(15, sequences + more_offsets, DataType_t::INT64)).set_output(true);
    return t;
  }
  template <class Options>
  Options options() const {
    Options o;
    o.set_causal_mask(true);
    if (has_padding) {
      o.set_padding_mask(true)
          .set_seq_len_q(indices(20, sequences + more_lengths, DataType_t::INT32))
          .set_seq_len_kv(indices(21, sequences, DataType_t::INT32));
    }
    return o;
  }
  // The workspace, or the refusal.
  std::string forward() {
    graph.set_io_data_type(DataType_t::BFLOAT16);
    auto o = options<fe::SDPA_attributes>().set_generate_stats(true);
    auto [out, lse] = graph.sdpa(rows(1, 4), rows(2, 2), rows(3, 2), o);
    rows(out, 4, 4), statistics(lse);
    return built();
  }
  std::string backward() {
    graph.set_io_data_type(DataType_t::BFLOAT16);
    auto o = options<fe::SDPA_backward_attributes>();
    o.set_max_total_seq_len_q(192).set_max_total_seq_len_kv(192);
    auto [dq, dk, dv] = graph.sdpa_backward(rows(1, 4), rows(2, 2), rows(3, 2), rows(4, 4), rows(6, 4),
                                            statistics(graph.tensor({})), o);
    rows(dq, 7, 4), rows(dk, 8, 2), rows(dv, 9, 2);
    return built();
  }
  std::string built() {
    auto error = graph.build(nullptr, {cudnn_frontend::HeurMode_t::A});
    if (error.is_bad()) return error.get_message();
    std::int64_t bytes = 0;
    EXPECT_TRUE(graph.get_workspace_size(bytes).is_good());
    return std::to_string(bytes);
  }

  fe::Graph graph{};
  std::int64_t sequences = 8, more_offsets = 1, more_lengths = 0;
  bool has_padding = true;
};

// Answers of cuDNN 9.19 and cudnn-frontend 1.28, planned for an H200 and an H100 without one.
TEST(EmulatedCudnn, AnswersAboutRaggedTensorsAsTheLibrary) {
  EXPECT_EQ(RaggedGraph{}.forward(), "17152");
  EXPECT_EQ(RaggedGraph{}.backward(), "597632");
  EXPECT_EQ(RaggedGraph{.sequences = 512}.forward(), "131840");
  EXPECT_EQ(RaggedGraph{.has_padding = false}.forward(), "Ragged offsets are only supported with padding mask.");
  EXPECT_EQ(RaggedGraph{.more_lengths = 1}.forward(), "dimensions mismatch as broadcasting");
  for (const std::string& words :
       {RaggedGraph{.more_offsets = 0}.forward(), RaggedGraph{.more_offsets = 0}.backward()}) {
    EXPECT_EQ(words, "ragged dim should match dim value + 1 of original tensor.");
  }
}

// Two sequences of 96 rows, one begun `unit` elements a row behind the other.
void run_forward(std::int64_t unit, bool lengths_on_device) {
  RaggedGraph g{.sequences = 2};
  EXPECT_EQ(g.forward(), "17152");
  const DeviceArray<bf16> rows(192 * 4 * 64);
  const DeviceArray<float> lse(192 * 4);
  const DeviceArray<std::byte> workspace(17'152);
  const std::vector<std::int32_t> on_host(4, 96);
  const DeviceArray<std::int32_t> on_device(on_host);
  void* const lengths = lengths_on_device ? on_device.data() : const_cast<std::int32_t*>(on_host.data());
  const auto offsets = [&](std::int64_t row) { return std::vector<std::int64_t>{0, 96 * row, 192 * row}; };
  const DeviceArray<std::int64_t> of_queries(offsets(unit * 4 * 64)), of_keys(offsets(unit * 2 * 64)),
      of_lse(offsets(4));
  std::unordered_map<std::int64_t, void*> pointers{{5, lse.data()}, {15, of_lse.data()}, {20, lengths}, {21, lengths}};
  for (const std::int64_t id : {1, 2, 3, 4}) {
    const bool is_key = id == 2 || id == 3;
    pointers.emplace(id, rows.data());
    pointers.emplace(10 + id, (is_key ? of_keys : of_queries).data());
  }
  const OwnStream stream;
  cudnnHandle_t handle = nullptr;
  EXPECT_EQ(cudnn_frontend::detail::create_handle(&handle), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnn_frontend::detail::set_stream(handle, stream.get()), CUDNN_STATUS_SUCCESS);
  EXPECT_TRUE(g.graph.execute(handle, pointers, workspace.data()).is_good());
  gpuStreamSynchronize(stream.get());
  cudnn_frontend::detail::destroy_handle(handle);
}

const auto found = testing::ExitedWithCode(99);

TEST(EmulatedCudnnDeathTest, FindsOffsetsInBytes) {
  run_forward(1, true);
  EXPECT_EXIT(run_forward(2, true), found, "a ragged sequence of cuDNN");
}

TEST(EmulatedCudnnDeathTest, FindsSequencesThatOverlap) {
  EXPECT_EXIT(run_forward(0, true), found, "two ragged sequences of a result overlap");
}

TEST(EmulatedCudnnDeathTest, FindsLengthsOfTheHost) {
  EXPECT_EXIT(run_forward(1, false), found, "the sequence lengths of cuDNN");
}

}  // namespace
}  // namespace nanotron::test
