#pragma once
// The words that keys of a deck choose from, those of the model apart (model_config.hpp). How a deck spells them:
// src/deck/spellings.hpp.

namespace nanotron::deck {

enum class TpMode { all_reduce, reduce_scatter };
enum class GatheredInputs { gather_again, keep };
enum class PpSchedule { gpipe, one_f_one_b, interleaved_1f1b, zero_bubble };
enum class PpCut { flops, parameters, time };
enum class CpMode { ring, all_to_all };
enum class Backend { automatic, mpi, nccl };
enum class MemoryRegistration { none, local, symmetric };
enum class CollectiveEngine { blocks, copies };
enum class GradientRule { sum, adasum };
enum class Compression { none, bf16, fp16, powersgd };
enum class Recompute { none, selective, full };
enum class OptimizerName { adamw, muon };
enum class ScheduleKind { constant, linear, cosine, one_minus_sqrt, wsd, inverse_sqrt };
enum class DecayShape { linear, one_minus_sqrt, cosine };
enum class Shuffle { none, global };
enum class DocumentMask { none, block_diagonal };
enum class SequenceKind { stream, documents };
enum class Verify { automatic, full, sample, none };
enum class OtherTokenizer { refuse, accept };
enum class OnChange { refuse, warn };
enum class Reproducible { run, layout };
enum class MomentType { master, bf16 };
enum class Console { progress, quiet };
enum class ExpertGemms { library, grouped };
enum class OnBadStep { skip, roll_back };

}  // namespace nanotron::deck
