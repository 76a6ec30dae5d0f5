// The keys of &data.
#include "nanotron/deck/keys/data.hpp"

#include "rows.hpp"

#define GROUP_NAME "data"
#define GROUP(c) (c).data

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> data_rows() {
  return {
    KEY(path).lines().of_files().of_training().needed().says(
        "Token file (HDF5) to train on; or several, blended by weights: 'web=w.h5 code=c.h5' with names, '0.7 w.h5', "
        "'0.3 c.h5' with weights, '@blend.txt' for those of a list file."),
    KEY(weights).lines().orders_data().says(
        "Share of the samples of each file of path, relative to the sum: 'web=0.7 code=0.3', or '0.7 0.3' in their "
        "order; needed with several files with names. Without weights, files without names are blended in proportion "
        "to their tokens."),
    KEY(stages).lines().of_training().says(
        "Other weights from a given number of tokens on (sequence_length tokens per sample): '2e9: web=0.5 code=0.5; "
        "3e9: code=1', or '2e9: @list.txt'; files not named in a stage have weight 0. A stage may also set "
        "sequence_length, global_batch_size, micro_batch_size, rope_theta and recompute: '3e9: sequence_length=32768 "
        "global_batch_size=4 rope_theta=5e6'; it starts with the next step, and keeps the weights if it names no "
        "file."),
    KEY(sequence_length).orders_data().needed().at_least(1).at_most(1e9).in("tokens").says(
        "Length of a training sequence."),
    KEY(global_batch_size).of_training().needed().at_least(1).at_most(1e9).in("sequences").says(
        "Sequences per optimizer step over all ranks, a multiple of micro_batch_size * dp."),
    KEY(rampup_batch_size).of_training().at_least(0).at_most(1e9).in("sequences").says(
        "Batch-size ramp: sequences of the first steps, a multiple of micro_batch_size * dp; 0: every step has "
        "global_batch_size."),
    KEY(rampup_increment).of_training().at_least(0).at_most(1e9).in("sequences").says(
        "Increment of the batch-size ramp; divides global_batch_size - rampup_batch_size."),
    KEY(rampup_samples).of_training().at_least(0).at_most(1e15).in("sequences").says(
        "Samples of the run after which the batch has global_batch_size; the increments are evenly spaced over them."),
    KEY(micro_batch_size).at_least(1).at_most(1e9).in("sequences").says(
        "Sequences per micro-batch on each data-parallel rank."),
    ENUM(shuffle, {"none", Shuffle::none}, {"global", Shuffle::global}).orders_data().says(
        "Order of the sequences: as in the file, or a new permutation of the whole file in each epoch."),
    ENUM(sequences,
        {"stream", SequenceKind::stream}, {"documents", SequenceKind::documents},
        {"pairs", SequenceKind::pairs}).orders_data().says(
        "What a sequence is: consecutive tokens of the file ('stream'); whole documents, packed with little padding "
        "and split only where longer than a sequence ('documents'); or one pair of answers, of a file that "
        "nanotron-pairs wrote ('pairs', for preference%beta). The last two need document_mask = 'block_diagonal'."),
    ENUM(document_mask,
        {"none", DocumentMask::none}, {"block_diagonal", DocumentMask::block_diagonal}).of_training().says(
        "Attention mask: a token attends to all earlier tokens of its sequence; or only to those of its own document, "
        "with positions that start at 0 in each ('block_diagonal'; needs /documents in the token file)."),
    KEY(length_buckets).orders_data().says(
        "Packs documents by classes of length: each lies within one of the blocks that halve the sequence again and "
        "again. A ring of context-parallel ranks then sends keys only as far as a document reaches: not at all for "
        "documents of at most sequence_length / (2 cp) tokens, cp a power of two. Needs sequences = 'documents'."),
    KEY(goldfish_k).of_training().at_least(0).at_most(1e6).says(
        "Goldfish loss (Hans et al. 2024): about one target in k does not count in the training loss, so that the "
        "model does not memorise long passages; 0: every target counts."),
    KEY(goldfish_h).of_training().at_least(1).at_most(1e6).in("tokens").says(
        "Context of the goldfish loss: whether a target counts depends on the h tokens before it, so that a repeated "
        "passage loses the same targets."),
    ENUM(verify,
        {"auto", Verify::automatic}, {"full", Verify::full}, {"sample", Verify::sample},
        {"none", Verify::none}).says(
        "Check at the start that all hosts see the same token files. It compares every token ('full'), 64 blocks of "
        "1,048,576 tokens per file ('sample') or nothing ('none'). 'auto' is 'sample' where a file is larger than "
        "1 GiB and inode, size and times say that it is one file on all hosts, else 'full'."),
    ENUM(other_tokenizer, {"refuse", OtherTokenizer::refuse}, {"accept", OtherTokenizer::accept}).says(
        "Response to a validation file or checkpoint with a different tokenizer than the training file: exit code 65 "
        "('refuse') or a warning ('accept')."),
    ENUM(on_change, {"refuse", OnChange::refuse}, {"warn", OnChange::warn}).says(
        "Response of a resumed run to changed data files, or to a deck with which samples would be repeated or "
        "skipped: an error that lists the differences ('refuse') or a warning ('warn')."),
    KEY(validation_path).lines().of_files().says(
        "Token file of the validation data, or several sets with their names: 'code=code.h5 wiki=wiki.h5'; files "
        "without names are one set ('0.7 a.h5', '0.3 b.h5', '@valid.txt'); empty: see validation_fraction."),
    KEY(validation_fraction).orders_data().at_least(0).below(1).says(
        "Fraction of the training file held out for validation, in up to 256 evenly spaced segments."),
    KEY(validation_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between validations, in addition to the one after the last step; 0: only that one."),
    KEY(validation_batches).at_least(0).at_most(1e9).in("batches").says(
        "Batches of global_batch_size sequences in one validation, evenly spaced over each set; 0: all sequences."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
