#pragma once
// How a deck spells the values of each enumeration. Private to the deck layer.

#include <string>
#include <utility>
#include <vector>

#include "nanotron/deck/data_config.hpp"
#include "nanotron/deck/model_config.hpp"
#include "nanotron/deck/optimizer_config.hpp"
#include "nanotron/deck/output_config.hpp"
#include "nanotron/deck/parallel_config.hpp"
#include "nanotron/deck/precision_config.hpp"
#include "nanotron/deck/run_config.hpp"
#include "nanotron/deck/schedule_config.hpp"
#include "nanotron/deck/sharding_config.hpp"
#include "nanotron/deck/transport_config.hpp"


namespace nanotron::deck {

template <class E>
using Spellings = std::vector<std::pair<std::string, E>>;

inline const Spellings<TpMode>& spellings(TpMode) {
  static const Spellings<TpMode> s = {{"all_reduce", TpMode::all_reduce}, {"reduce_scatter", TpMode::reduce_scatter}};
  return s;
}
inline const Spellings<GatheredInputs>& spellings(GatheredInputs) {
  static const Spellings<GatheredInputs> s = {{"gather_again", GatheredInputs::gather_again},
                                              {"keep", GatheredInputs::keep}};
  return s;
}
inline const Spellings<PpSchedule>& spellings(PpSchedule) {
  static const Spellings<PpSchedule> s = {{"gpipe", PpSchedule::gpipe},
                                          {"1f1b", PpSchedule::one_f_one_b},
                                          {"interleaved_1f1b", PpSchedule::interleaved_1f1b},
                                          {"zero_bubble", PpSchedule::zero_bubble}};
  return s;
}
inline const Spellings<PpCut>& spellings(PpCut) {
  static const Spellings<PpCut> s = {{"flops", PpCut::flops}, {"parameters", PpCut::parameters}, {"time", PpCut::time}};
  return s;
}
inline const Spellings<CpMode>& spellings(CpMode) {
  static const Spellings<CpMode> s = {{"ring", CpMode::ring}, {"all_to_all", CpMode::all_to_all}};
  return s;
}
inline const Spellings<Backend>& spellings(Backend) {
  static const Spellings<Backend> s = {{"auto", Backend::automatic}, {"mpi", Backend::mpi}, {"nccl", Backend::nccl}};
  return s;
}
inline const Spellings<GradientRule>& spellings(GradientRule) {
  static const Spellings<GradientRule> s = {{"sum", GradientRule::sum}, {"adasum", GradientRule::adasum}};
  return s;
}
inline const Spellings<Compression>& spellings(Compression) {
  static const Spellings<Compression> s = {{"none", Compression::none},
                                           {"bf16", Compression::bf16},
                                           {"fp16", Compression::fp16},
                                           {"powersgd", Compression::powersgd}};
  return s;
}
inline const Spellings<Recompute>& spellings(Recompute) {
  static const Spellings<Recompute> s = {
      {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};
  return s;
}
inline const Spellings<Normalization>& spellings(Normalization) {
  static const Spellings<Normalization> s = {{"rms_norm", Normalization::rms_norm},
                                             {"layer_norm", Normalization::layer_norm}};
  return s;
}
inline const Spellings<PositionEmbedding>& spellings(PositionEmbedding) {
  static const Spellings<PositionEmbedding> s = {{"rope", PositionEmbedding::rope},
                                                 {"learned_absolute", PositionEmbedding::learned_absolute}};
  return s;
}
inline const Spellings<RopeType>& spellings(RopeType) {
  static const Spellings<RopeType> s = {
      {"default", RopeType::standard}, {"llama3", RopeType::llama3}, {"yarn", RopeType::yarn}};
  return s;
}
inline const Spellings<HiddenAct>& spellings(HiddenAct) {
  static const Spellings<HiddenAct> s = {
      {"silu", HiddenAct::silu}, {"gelu", HiddenAct::gelu}, {"gelu_new", HiddenAct::gelu_new}};
  return s;
}
inline const Spellings<Parametrization>& spellings(Parametrization) {
  static const Spellings<Parametrization> s = {{"standard", Parametrization::standard}, {"mup", Parametrization::mup}};
  return s;
}
inline const Spellings<AuxLossScale>& spellings(AuxLossScale) {
  static const Spellings<AuxLossScale> s = {{"per_layer", AuxLossScale::per_layer},
                                            {"hugging_face", AuxLossScale::hugging_face}};
  return s;
}
inline const Spellings<OptimizerName>& spellings(OptimizerName) {
  static const Spellings<OptimizerName> s = {{"adamw", OptimizerName::adamw}, {"muon", OptimizerName::muon}};
  return s;
}
inline const Spellings<ScheduleKind>& spellings(ScheduleKind) {
  static const Spellings<ScheduleKind> s = {
      {"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear},
      {"cosine", ScheduleKind::cosine},     {"1-sqrt", ScheduleKind::one_minus_sqrt},
      {"wsd", ScheduleKind::wsd},           {"inverse-sqrt", ScheduleKind::inverse_sqrt}};
  return s;
}
inline const Spellings<DecayShape>& spellings(DecayShape) {
  static const Spellings<DecayShape> s = {
      {"linear", DecayShape::linear}, {"1-sqrt", DecayShape::one_minus_sqrt}, {"cosine", DecayShape::cosine}};
  return s;
}
inline const Spellings<Shuffle>& spellings(Shuffle) {
  static const Spellings<Shuffle> s = {{"none", Shuffle::none}, {"global", Shuffle::global}};
  return s;
}
inline const Spellings<SequenceKind>& spellings(SequenceKind) {
  static const Spellings<SequenceKind> s = {{"stream", SequenceKind::stream}, {"documents", SequenceKind::documents}};
  return s;
}
inline const Spellings<DocumentMask>& spellings(DocumentMask) {
  static const Spellings<DocumentMask> s = {{"none", DocumentMask::none},
                                            {"block_diagonal", DocumentMask::block_diagonal}};
  return s;
}
inline const Spellings<Verify>& spellings(Verify) {
  static const Spellings<Verify> s = {
      {"auto", Verify::automatic}, {"full", Verify::full}, {"sample", Verify::sample}, {"none", Verify::none}};
  return s;
}
inline const Spellings<OtherTokenizer>& spellings(OtherTokenizer) {
  static const Spellings<OtherTokenizer> s = {{"refuse", OtherTokenizer::refuse}, {"accept", OtherTokenizer::accept}};
  return s;
}
inline const Spellings<OnChange>& spellings(OnChange) {
  static const Spellings<OnChange> s = {{"refuse", OnChange::refuse}, {"warn", OnChange::warn}};
  return s;
}
inline const Spellings<Reproducible>& spellings(Reproducible) {
  static const Spellings<Reproducible> s = {
      {"none", Reproducible::none}, {"run", Reproducible::run}, {"layout", Reproducible::layout}};
  return s;
}
inline const Spellings<MomentType>& spellings(MomentType) {
  static const Spellings<MomentType> s = {{"master", MomentType::master}, {"bf16", MomentType::bf16}};
  return s;
}
inline const Spellings<MemoryRegistration>& spellings(MemoryRegistration) {
  static const Spellings<MemoryRegistration> s = {{"none", MemoryRegistration::none},
                                                  {"local", MemoryRegistration::local},
                                                  {"symmetric", MemoryRegistration::symmetric}};
  return s;
}
inline const Spellings<CollectiveEngine>& spellings(CollectiveEngine) {
  static const Spellings<CollectiveEngine> s = {{"blocks", CollectiveEngine::blocks},
                                                {"copies", CollectiveEngine::copies}};
  return s;
}
inline const Spellings<ExpertGemms>& spellings(ExpertGemms) {
  static const Spellings<ExpertGemms> s = {{"library", ExpertGemms::library}, {"grouped", ExpertGemms::grouped}};
  return s;
}
inline const Spellings<OnBadStep>& spellings(OnBadStep) {
  static const Spellings<OnBadStep> s = {{"skip", OnBadStep::skip}, {"roll_back", OnBadStep::roll_back}};
  return s;
}
inline const Spellings<Console>& spellings(Console) {
  static const Spellings<Console> s = {{"progress", Console::progress}, {"quiet", Console::quiet}};
  return s;
}
inline const Spellings<ScalarType>& spellings(ScalarType) {
  static const Spellings<ScalarType> s = {{name_of(ScalarType::fp64), ScalarType::fp64},
                                          {name_of(ScalarType::fp32), ScalarType::fp32},
                                          {name_of(ScalarType::bf16), ScalarType::bf16},
                                          {name_of(ScalarType::fp8), ScalarType::fp8}};
  return s;
}

}  // namespace nanotron::deck
