#include "trainer/decode/model_scorer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/decode/batch_limits.h"

namespace deepnet {
namespace {

// Sources packed one after the other.
struct PackedSources {
  PackedSide side;
  std::vector<uint32_t> pairs;  // unused without dropout
};

PackedSources PackSources(std::span<const std::vector<int32_t>> sources) {
  PackedSources packed;
  packed.side.offsets.push_back(0);
  for (const std::vector<int32_t>& source : sources) {
    packed.side.tokens.insert(packed.side.tokens.end(), source.begin(), source.end());
    for (uint32_t p = 0; p < source.size(); ++p) packed.side.positions.push_back(p);
    packed.side.offsets.push_back(static_cast<int32_t>(packed.side.tokens.size()));
  }
  packed.pairs.resize(packed.side.tokens.size());
  return packed;
}

// Returns the end of the sentences from `begin` on whose tokens fit.
size_t EndOfSlice(std::span<const std::vector<int32_t>> sources, size_t begin, int64_t capacity) {
  int64_t tokens = 0;
  size_t end = begin;
  while (end < sources.size() && tokens + static_cast<int64_t>(sources[end].size()) <= capacity) {
    tokens += static_cast<int64_t>(sources[end++].size());
  }
  DEEPNET_CHECK(end > begin) << "a source of " << sources[begin].size() << " tokens exceeds "
                             << capacity;
  return end;
}

int DecoderLayers(const Transformer& model) {
  int layers = 0;
  for (const Chunk& chunk : model.chunks()) layers += chunk.decoder().size();
  return layers;
}

}  // namespace

at::Tensor FirstRows(at::Tensor& buffer, int64_t rows, int64_t width, Ops& ops) {
  if (!buffer.defined() || buffer.size(0) < rows) {
    buffer = at::Tensor();
    buffer = at::empty({rows, width}, ops.ResidualOptions());
  }
  return buffer.narrow(0, 0, rows);
}

void RunForward(Transformer& model, PipelineLink* link, const MicrobatchPass& pass,
                Activations& kept, float* token_nll) {
  const int64_t sources = pass.rows.source.count, targets = pass.rows.target.count;
  const BoundaryActivations& values = kept.values;
  bool has_encoder_output = link == nullptr;
  for (int i = 0; i < static_cast<int>(model.chunks().size()); ++i) {
    const Chunk& chunk = model.chunks()[i];
    has_encoder_output = has_encoder_output || chunk.ends_encoder();
    if (!has_encoder_output && chunk.reads_encoder_output()) {
      link->ReceiveEncoderOutput(sources, values.encoder_output_RD);
      has_encoder_output = true;
    }
    if (link && chunk.inputs().source) link->ReceiveBefore(i, sources, values.source_RD);
    if (link && chunk.inputs().target) link->ReceiveBefore(i, targets, values.target_RD);
    chunk.Forward(pass, values, model.work(), kept.kept, {.token_nll = token_nll});
    if (link && chunk.outputs().source) link->SendBehind(i, sources, values.source_RD);
    if (link && chunk.ends_encoder()) link->SendEncoderOutput(sources, values.encoder_output_RD);
    if (link && chunk.outputs().target) link->SendBehind(i, targets, values.target_RD);
  }
}

struct ModelScorer::State : public DecoderState {
  explicit State(ModelScorer& scorer) : scorer(scorer) {}
  ~State() override { scorer.spare_caches_ = std::move(self_caches); }

  int num_rows() const override { return static_cast<int>(source_lengths.size()); }

  // One list per row, with room to grow.
  struct Lists {
    std::vector<int32_t> entries;  // [rows, stride]
    int64_t stride = 0;

    void SetStride(int64_t rows, int64_t wanted) {
      if (wanted <= stride) return;
      const int64_t wider = std::max(wanted, 2 * stride);
      std::vector<int32_t> moved(rows * wider);
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(entries.begin() + r * stride, stride, moved.begin() + r * wider);
      }
      entries = std::move(moved);
      stride = wider;
    }
    void Reorder(std::span<const int32_t> parents) {
      std::vector<int32_t> moved(parents.size() * stride);
      for (size_t r = 0; r < parents.size(); ++r) {
        std::copy_n(entries.begin() + parents[r] * stride, stride, moved.begin() + r * stride);
      }
      entries = std::move(moved);
    }
  };

  ModelScorer& scorer;
  int64_t position = 0;  // tokens fed so far
  Lists self, cross;
  std::vector<int32_t> source_lengths;                   // [rows]
  std::vector<KeyValueCache> self_caches, cross_caches;  // one per layer
  int64_t self_rows = 0;                                 // rows of self_caches in use
  int64_t most_rows = 0;                                 // of a step so far
  std::vector<uint8_t> host_kinds;                       // of tokens
  std::shared_ptr<const std::byte> kinds;                // the same, where the Ops reads them
};

ModelScorer::ModelScorer(Transformer& model, PipelineLink* link)
    : model_(model),
      link_(link),
      num_layers_(DecoderLayers(model)),
      kept_(model.MakeActivations(/*shared=*/true)) {}

std::unique_ptr<DecoderState> ModelScorer::Start(std::span<const std::vector<int32_t>> sources) {
  auto state = std::make_unique<State>(*this);
  const int64_t d = model_.spec().d_model();
  int64_t tokens = 0, longest = 0;
  for (const std::vector<int32_t>& source : sources) {
    tokens += static_cast<int64_t>(source.size());
    longest = std::max(longest, static_cast<int64_t>(source.size()));
    state->source_lengths.push_back(static_cast<int32_t>(source.size()));
  }
  std::vector<at::Tensor> kv_R2D;
  for (int i = 0; i < num_layers_; ++i) {
    kv_R2D.push_back(at::empty({tokens, 2 * d}, model_.ops().OperandOptions()));
    state->cross_caches.push_back({kv_R2D[i].narrow(1, 0, d), kv_R2D[i].narrow(1, d, d)});
  }
  state->self_caches = std::exchange(spare_caches_, {});
  while (state->self_caches.size() < static_cast<size_t>(num_layers_)) {
    state->self_caches.push_back({at::empty({0, d}, model_.ops().OperandOptions()),
                                  at::empty({0, d}, model_.ops().OperandOptions())});
  }
  state->cross.SetStride(0, longest);
  state->cross.entries.resize(sources.size() * longest);
  int64_t first = 0;
  for (size_t begin = 0; begin < sources.size();) {
    const size_t end = EndOfSlice(sources, begin, model_.capacity().max_source_tokens());
    const PackedSources packed = PackSources(sources.subspan(begin, end - begin));
    const MicrobatchRows sent = model_.ops().session().Upload(
        {.source = RowsOf(packed.side, packed.pairs, static_cast<int>(end - begin))});
    const PackedRows& rows = sent.source;
    EncodeSlice(sent);
    std::vector<at::Tensor> slices;
    for (const at::Tensor& kv : kv_R2D) slices.push_back(kv.narrow(0, first, rows.count));
    std::span<const at::Tensor> left = slices;
    for (const Chunk& chunk : model_.chunks()) {
      chunk.FillCrossCaches(rows, kept_->values.encoder_output_RD, left);
      left = left.subspan(chunk.decoder().size());
    }
    for (size_t s = begin; s < end; ++s) {
      int32_t* list = state->cross.entries.data() + s * longest;
      for (size_t p = 0; p < sources[s].size(); ++p) list[p] = static_cast<int32_t>(first++);
    }
    begin = end;
  }
  return state;
}

// On return values.encoder_output_RD holds the encoder's output where decoder layers read it.
void ModelScorer::EncodeSlice(const MicrobatchRows& sent) {
  const PackedRows& rows = sent.source;
  const BoundaryActivations& values = kept_->values;
  bool has_encoder_output = link_ == nullptr;
  for (int i = 0; i < static_cast<int>(model_.chunks().size()); ++i) {
    const Chunk& chunk = model_.chunks()[i];
    if (!chunk.has_source()) continue;
    if (link_ && chunk.inputs().source) link_->ReceiveBefore(i, rows.count, values.source_RD);
    chunk.Encode({.rows = sent, .step = model_.step()}, values, model_.work(), kept_->kept);
    if (link_ && chunk.outputs().source) link_->SendBehind(i, rows.count, values.source_RD);
    if (link_ && chunk.ends_encoder())
      link_->SendEncoderOutput(rows.count, values.encoder_output_RD);
    has_encoder_output = has_encoder_output || chunk.ends_encoder();
  }
  if (!has_encoder_output && num_layers_ > 0)
    link_->ReceiveEncoderOutput(rows.count, values.encoder_output_RD);
}

void ModelScorer::Reorder(DecoderState& decoder_state, std::span<const int32_t> parents) {
  auto& state = static_cast<State&>(decoder_state);
  state.self.Reorder(parents);
  state.cross.Reorder(parents);
  std::vector<int32_t> lengths;
  for (const int32_t parent : parents) lengths.push_back(state.source_lengths[parent]);
  state.source_lengths = std::move(lengths);
}

// The arrays that kernels read in one step, in the memory that the Ops reads.
struct ModelScorer::StepArrays {
  std::shared_ptr<const std::byte> memory;
  PackedRows rows;
  CacheIndex self, cross;
  const native::TokenChoice* choices = nullptr;
};

// Calls compute(sent, begin, count) for each slice of the rows.
template <typename Compute>
void ModelScorer::ComputeStep(State& state, std::span<const int32_t> tokens,
                              const native::TokenChoices& choices, const Compute& compute) {
  const int64_t rows = state.num_rows(), capacity = model_.capacity().max_target_tokens();
  DEEPNET_CHECK_EQ(static_cast<int64_t>(tokens.size()), rows);
  DEEPNET_CHECK_LT(state.position, model_.spec().max_positions());
  GrowCaches(state);
  const StepArrays sent = SendStep(state, tokens, choices);
  for (int64_t begin = 0; begin < rows; begin += capacity) {
    compute(sent, begin, std::min(capacity, rows - begin));
  }
  state.self_rows += rows;
  ++state.position;
}

void ModelScorer::Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
                       const native::TokenChoices& choices) {
  auto& state = static_cast<State&>(decoder_state);
  DEEPNET_CHECK(choices.count == 0 || model_.chunks().back().has_output());
  Ops& ops = model_.ops();
  int64_t first = 0;  // choice of the slice
  ComputeStep(state, tokens, choices, [&](const StepArrays& sent, int64_t begin, int64_t count) {
    int64_t end = first;
    while (end < choices.count && choices.choices[end].row < begin + count) ++end;
    const at::Tensor logits_RV =
        end > first ? FirstRows(logits_RV_, count, vocabulary_size(), ops) : at::Tensor();
    StepSlice(state, sent, begin, count, logits_RV);
    if (end == first) return;
    ops.LogSoftmax(count, logits_RV);
    ops.ChooseTokens(logits_RV, {.count = end - first,
                                 .choices = sent.choices + first,
                                 .kinds = reinterpret_cast<const uint8_t*>(state.kinds.get()),
                                 .k = choices.k,
                                 .temperature = choices.temperature,
                                 .cuts = choices.cuts,
                                 .chosen = choices.chosen + first * choices.k});
    first = end;
  });
  if (choices.count > 0) ops.session().ReadBack();
}

void ModelScorer::StepLogProbs(DecoderState& decoder_state, std::span<const int32_t> tokens,
                               const at::Tensor& log_probs_RV) {
  auto& state = static_cast<State&>(decoder_state);
  ComputeStep(state, tokens, {}, [&](const StepArrays& sent, int64_t begin, int64_t count) {
    const at::Tensor slice_RV =
        log_probs_RV.defined() ? log_probs_RV.narrow(0, begin, count) : at::Tensor();
    StepSlice(state, sent, begin, count, slice_RV);
    if (slice_RV.defined()) model_.ops().LogSoftmax(count, slice_RV);
  });
}

// What it takes at most is what FitBatches counts.
void ModelScorer::GrowCaches(State& state) const {
  const int64_t wanted = state.self_rows + state.num_rows();
  state.most_rows = std::max<int64_t>(state.most_rows, state.num_rows());
  int64_t wider = kFirstCacheSteps * state.most_rows;
  while (wider < wanted) wider *= 2;
  for (KeyValueCache& cache : state.self_caches) {
    if (wanted <= cache.keys_ND.size(0)) continue;
    for (at::Tensor* x : {&cache.keys_ND, &cache.values_ND}) {
      const at::Tensor grown = at::empty({wider, x->size(1)}, x->options());
      grown.narrow(0, 0, state.self_rows).copy_(x->narrow(0, 0, state.self_rows));
      *x = grown;
    }
  }
}

// Everything goes in one copy; rows of choices count from the beginning of their slice.
ModelScorer::StepArrays ModelScorer::SendStep(State& state, std::span<const int32_t> tokens,
                                              const native::TokenChoices& choices) {
  const int64_t rows = state.num_rows(), capacity = model_.capacity().max_target_tokens();
  const auto position = static_cast<int32_t>(state.position);
  state.self.SetStride(rows, std::max<int64_t>(position + 1, kFirstCacheSteps));
  for (int64_t r = 0; r < rows; ++r) {
    state.self.entries[r * state.self.stride + position] =
        static_cast<int32_t>(state.self_rows + r);
  }
  std::vector<native::TokenChoice> wanted(choices.choices, choices.choices + choices.count);
  for (native::TokenChoice& choice : wanted) choice.row %= static_cast<int32_t>(capacity);

  Ops& ops = model_.ops();
  if (state.kinds == nullptr && choices.count > 0) {
    state.host_kinds.assign(choices.kinds, choices.kinds + vocabulary_size());
    state.kinds = ops.session().Upload(std::as_bytes(std::span(state.host_kinds)));
  }
  step_bytes_.clear();
  const auto add = [&](const auto& list) {
    const auto bytes = std::as_bytes(std::span(list));
    const size_t at = step_bytes_.size();
    step_bytes_.insert(step_bytes_.end(), bytes.begin(), bytes.end());
    step_bytes_.resize((step_bytes_.size() + 15) / 16 * 16);
    return at;
  };
  const size_t fed = add(tokens), positions = add(std::vector<int32_t>(rows, position));
  const size_t self = add(state.self.entries);
  const size_t self_lengths = add(std::vector<int32_t>(rows, position + 1));
  const size_t cross = add(state.cross.entries), cross_lengths = add(state.source_lengths);
  const size_t chosen = add(wanted);

  StepArrays sent{.memory = ops.session().Upload(step_bytes_)};
  const auto at = [&](size_t offset) {
    return reinterpret_cast<const int32_t*>(sent.memory.get() + offset);
  };
  sent.rows = {.count = rows,
               .num_sentences = static_cast<int>(rows),
               .tokens = at(fed),
               .positions = reinterpret_cast<const uint32_t*>(at(positions)),
               .pairs = reinterpret_cast<const uint32_t*>(at(positions))};
  sent.self = {at(self), state.self.stride, at(self_lengths)};
  sent.cross = {at(cross), state.cross.stride, at(cross_lengths)};
  sent.choices = reinterpret_cast<const native::TokenChoice*>(at(chosen));
  return sent;
}

void ModelScorer::StepSlice(State& state, const StepArrays& sent, int64_t begin, int64_t count,
                            const at::Tensor& logits_RV) {
  const at::Tensor& target_RD = kept_->values.target_RD;
  PackedRows rows = sent.rows;
  rows.count = count;
  rows.num_sentences = static_cast<int>(count);
  rows.tokens += begin;
  rows.positions += begin;
  rows.pairs += begin;
  const auto from_begin = [&](const CacheIndex& of_all) {
    return CacheIndex{of_all.index + begin * of_all.stride, of_all.stride, of_all.lengths + begin};
  };
  DecodeStepArgs step{.rows = rows,
                      .step = model_.step(),
                      .self = state.self_caches,
                      .first_row = state.self_rows + begin,
                      .self_index = from_begin(sent.self),
                      .cross = state.cross_caches,
                      .cross_index = from_begin(sent.cross),
                      .logits_RV = logits_RV};
  for (int i = 0; i < static_cast<int>(model_.chunks().size()); ++i) {
    const Chunk& chunk = model_.chunks()[i];
    if (!chunk.has_target()) continue;
    if (link_ && chunk.inputs().target) link_->ReceiveBefore(i, rows.count, target_RD);
    chunk.DecodeStep(step, kept_->values, model_.work(), kept_->kept);
    if (link_ && chunk.outputs().target) link_->SendBehind(i, rows.count, target_RD);
    step.self = step.self.subspan(chunk.decoder().size());
    step.cross = step.cross.subspan(chunk.decoder().size());
  }
}

ModelPairScorer::ModelPairScorer(Transformer& model, PipelineLink* link,
                                 std::function<void()> computed)
    : model_(model),
      link_(link),
      computed_(std::move(computed)),
      kept_(model.MakeActivations(/*shared=*/true)) {}

std::vector<double> ModelPairScorer::LogProbabilities(std::span<const EncodedPair> pairs) {
  std::vector<double> result;
  for (const std::vector<float>& tokens : TokenNll(pairs)) {
    double sum = 0.0;
    for (const float nll : tokens) sum -= nll;
    result.push_back(sum);
  }
  return result;
}

std::vector<std::vector<float>> ModelPairScorer::TokenNll(std::span<const EncodedPair> pairs) {
  const MicrobatchSpec& spec = model_.capacity();
  const Capacity capacity{spec.max_source_tokens(), spec.max_target_tokens(), spec.max_sentences()};
  std::vector<std::vector<float>> result;
  std::vector<float> token_nll(spec.max_target_tokens());
  for (size_t begin = 0; begin < pairs.size();) {
    MicrobatchBuilder builder(capacity);
    size_t end = begin;
    for (; end < pairs.size(); ++end) {
      if (!builder.HasRoom(pairs[end])) break;
      builder.Add(static_cast<uint32_t>(end - begin), pairs[end]);
    }
    DEEPNET_CHECK(end > begin) << "a pair of " << pairs[begin].source.size() << " and "
                               << pairs[begin].labels.size() << " tokens exceeds the capacity";
    const Microbatch mb = std::move(builder).Build();
    Forward(mb, token_nll.data());
    for (int s = 0; s < mb.num_sentences; ++s) {
      result.emplace_back(token_nll.begin() + mb.target.offsets[s],
                          token_nll.begin() + mb.target.offsets[s + 1]);
    }
    begin = end;
  }
  return result;
}

void ModelPairScorer::Forward(const Microbatch& microbatch, float* token_nll) {
  RunForward(model_, link_,
             MakePass(model_.ops(), microbatch, /*seed=*/0, model_.step(), /*training=*/false),
             *kept_, token_nll);
  model_.ops().session().ReadBack();
  if (computed_) computed_();
}

}  // namespace deepnet
