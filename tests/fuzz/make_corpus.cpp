// nanotron_fuzz_corpus <folder>: the inputs that fuzzing begins with, and deck.dict. Those of tests/fuzz/corpus were
// made by it, except the files regress_*, each of which was a failure once.
#include <array>

#include "io/metrics/metrics_columns.hpp"
#include "nanotron/data/tokens/token_hashes.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "tiny_checkpoint.hpp"
#include "unit/data/token_file_maker.hpp"

namespace {

using namespace nanotron;
namespace fs = std::filesystem;
using Values = std::vector<std::uint64_t>;

void put(const hdf5::File& file, const char* name, hid_t type, const Values& values, hid_t creation = H5P_DEFAULT) {
  test::put(file.id(), name, type, H5T_NATIVE_UINT64, values, {values.size()}, creation);
}

void group(const hdf5::File& file, const char* name) {
  const hdf5::Group made(H5Gcreate2(file.id(), name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

Values numbers(std::size_t count, std::uint64_t below) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (i * i + 7 * i) % below;
  return values;
}

hdf5::File new_file(const fs::path& path, bool newest_format) {
  const hdf5::PropertyList access(H5Pcreate(H5P_FILE_ACCESS));
  if (newest_format) H5Pset_libver_bounds(access.id(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  return hdf5::File(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()));
}

// Everything a token file may have. Filtered: in chunks through all filters of hdf5::checked_shape.
void token_file(const fs::path& path, bool newest_format, bool filtered) {
  const hdf5::File file = new_file(path, newest_format);
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 16;
  if (filtered) {
    H5Pset_chunk(creation.id(), 1, &chunk);
    H5Pset_shuffle(creation.id());
    H5Pset_deflate(creation.id(), 6);
    H5Pset_fletcher32(creation.id());
  }
  put(file, "tokens", filtered ? H5T_STD_U32BE : H5T_STD_U16LE, numbers(40, 50), creation.id());
  put(file, "documents", H5T_STD_U64LE, {0, 7, 20, 20, 31});
  put(file, "loss_mask", H5T_STD_U8LE, numbers(40, 2));
  group(file, "vocabulary");
  Values offsets(51);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i + (i > 10 ? 1 : 0);
  put(file, "vocabulary/offsets", H5T_STD_U64LE, offsets);
  put(file, "vocabulary/bytes", H5T_STD_U8LE, numbers(51, 251));
  hdf5::write_integer(file.id(), "vocab_size", 50);
  hdf5::write_integer(file.id(), "eos_token_id", 1);
  hdf5::write_real(file.id(), "unigram_entropy", 3.5);
  hdf5::write_string(file.id(), "chat_template", "{{ messages }}");
  hdf5::write_string(file.id(), "tokenizer", "bytes");
}

void choice_file(const fs::path& path) {
  const hdf5::File file = new_file(path, false);
  put(file, "tokens", H5T_STD_U16LE, numbers(20, 50));
  put(file, "documents", H5T_STD_U64LE, {0, 5, 9, 14});
  group(file, "choices");
  put(file, "choices/tokens", H5T_STD_U64LE, {1, 2, 1, 3});
  put(file, "choices/characters", H5T_STD_U64LE, {1, 2, 3, 4});
  put(file, "choices/bytes", H5T_STD_U64LE, {1, 2, 3, 5});
  group(file, "questions");
  put(file, "questions/choices", H5T_STD_U64LE, {2, 2});
  put(file, "questions/answer", H5T_STD_U64LE, {1, 0});
  put(file, "questions/line", H5T_STD_U64LE, {1, 2});
}

// With smaller chunks and indices than the program's own, which have 8 KiB for each column.
void metrics_file(const fs::path& path) {
  const hdf5::PropertyList creation(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_istore_k(creation.id(), 1);
  H5Pset_sym_k(creation.id(), 4, 4);
  const hdf5::File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), H5P_DEFAULT));
  hdf5::write_string(file.id(), "format", "nanotron_hpc metrics");
  hdf5::write_integer(file.id(), "version", 1);
  const hdf5::PropertyList chunked(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 4, unlimited = H5S_UNLIMITED;
  H5Pset_chunk(chunked.id(), 1, &chunk);
  const auto columns = [&](const std::string& parent, const auto& of_table, std::size_t count, const Values& rows) {
    const hsize_t size = rows.size();
    const hdf5::Dataspace space(H5Screate_simple(1, &size, &unlimited));
    for (std::size_t c = 0; c < count; ++c) {
      const hdf5::Dataset made(H5Dcreate2(file.id(), (parent + of_table[c].name).c_str(), io::type_of(of_table[c].kind),
                                          space.id(), H5P_DEFAULT, chunked.id(), H5P_DEFAULT));
      H5Dwrite(made.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data());
    }
  };
  columns("", io::row_columns, io::row_columns.size(), {1, 2, 3, 4, 5});
  columns("", io::validation_columns, io::validation_columns.size(), {2, 4});
  columns("validation_loss_", std::array{io::Column{"a", io::Kind::real, "", 0, ""}}, 1, {2, 4});
  for (const char* name : {io::bad_steps, io::starts_group, io::start_checkpoints, io::lineage}) group(file, name);
  columns("bad_steps/", io::bad_step_columns, io::bad_step_columns.size(), {4, 9});
  columns("starts/", io::start_columns, io::start_columns.size(), {1, 2});
  columns("start_checkpoints/", io::start_checkpoint_columns, io::start_checkpoint_columns.size(), {1});
}

// Words of decks, for libFuzzer's -dict.
void words(const fs::path& file) {
  std::string text;
  const auto add = [&](const std::string& word) { text += "\"" + word + "\"\n"; };
  for (const deck::NamelistGroup& group : deck::parameter_groups()) add("&" + group.name);
  for (const deck::Parameter& p : deck::parameters()) {
    add(p.name + " = ");
    add(p.group + "%" + p.name + "=");
    for (const std::string& value : p.legal_values) add("'" + value + "'");
  }
  fuzz::write(file, text);
}

void decks(const fs::path& folder) {
  fuzz::write(folder / "defaults.nml", deck::default_deck());
  fuzz::write(folder / "small.nml", R"(! a comment
&run steps = 10, output_dir = 'run' /
&model hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 16, vocab_size = 50 /
&data path = 'web=w.h5 code=c.h5', weights = 'web=0.5 code=2', sequence_length = 8, global_batch_size = 4,
      stages = '400: sequence_length=16 web=1' /
&parallel tp = 2, dp = 0 /
)");
  fuzz::write(folder / "experts.nml", R"(&run steps=10 seed=3 output_dir="run"/
&model hidden_size=8 num_hidden_layers=4 num_attention_heads=2 num_key_value_heads=2 intermediate_size=16 vocab_size=50/
&moe num_experts=4 num_experts_per_tok=2/
&data path='w.h5' sequence_length=8 global_batch_size=8 validation_fraction=1d-1 validation_every=5/
&optimizer learning_rate=1e-3/
&schedule warmup_steps=2/
&parallel dp=4 ep=2 pp=2 pp_schedule='zero_bubble' zero_stage=1/
&precision compute='bf16' moments='bf16'/
&checkpoint every_steps=5/
)");
  using namespace std::string_literals;
  fuzz::write(folder / "override.nml", deck::default_deck() + "\0parallel.tp=2\0data%path=a.h5\0run.steps = 10"s);
  fuzz::write(folder / "lists.nml",
              deck::default_deck() +
                  "\0data.path=@l/b\0data.stages=9: @s; 10: 0 0 1\0@l/b\n# list\n0.5 a.h5 1.5 'b c.h5'\0@s\n1 z/a.h5"s);
}

}  // namespace

int main(int argc, char** argv) {
  fuzz::require(argc == 2, "make_corpus <folder>");
  const fs::path all = argv[1];
  fs::create_directories(all);
  fuzz::session();
  const auto folder = [&](const char* target) {
    fs::create_directories(all / target);
    return all / target;
  };
  words(all / "deck.dict");
  decks(folder("deck"));
  token_file(folder("token_file") / "plain.h5", false, false);
  token_file(folder("token_file") / "hashed.h5", false, false);
  data::add_hashes(all / "token_file/hashed.h5", data::smallest_hash_block);
  token_file(folder("token_file") / "filtered.h5", false, true);
  token_file(folder("token_file") / "newest_format.h5", true, true);
  choice_file(folder("choices") / "choices.h5");
  metrics_file(folder("metrics") / "metrics.h5");
  fuzz::write(all / "metrics/begun_again.h5", fuzz::read(all / "metrics/metrics.h5") + '\n');
  const fuzz::TinyCheckpoint whole(all, true), least(all, false);
  fuzz::write(folder("checkpoint") / "whole.h5", whole.file);
  fuzz::write(folder("checkpoint") / "least.h5", least.file);
  fuzz::write(folder("manifest") / "whole.json", whole.manifest);
  const io::Manifest blocks{.step = 3, .bytes = 10000, .block_bytes = 4096, .blocks = {1, 2, 3}};
  fuzz::write(folder("manifest") / "blocks.json", to_json(blocks));
  fuzz::write(folder("copy_table") / "table", fuzz::TinyCopy(all).table);
  std::_Exit(0);
}
