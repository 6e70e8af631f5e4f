#include "trainer/decode/model_scorer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

// Returns the sources packed one after the other.
PackedSide PackSources(std::span<const std::vector<int32_t>> sources) {
  PackedSide packed;
  packed.offsets.push_back(0);
  for (const std::vector<int32_t>& source : sources) {
    packed.tokens.insert(packed.tokens.end(), source.begin(), source.end());
    for (uint32_t p = 0; p < source.size(); ++p) packed.positions.push_back(p);
    packed.offsets.push_back(static_cast<int32_t>(packed.tokens.size()));
  }
  return packed;
}

// Returns the end of the sentences from `begin` on whose tokens fit.
size_t EndOfSlice(std::span<const std::vector<int32_t>> sources, size_t begin, int64_t capacity) {
  int64_t tokens = 0;
  size_t end = begin;
  while (end < sources.size() && tokens + std::ssize(sources[end]) <= capacity) {
    tokens += std::ssize(sources[end++]);
  }
  DEEPNET_CHECK(end > begin) << "a source of " << sources[begin].size() << " tokens exceeds "
                             << capacity;
  return end;
}

// Rows of a pass; 0: it has no such side.
struct RowCounts {
  int64_t source = 0, target = 0;
};

// Calls compute(chunk) for each chunk of this rank, receives before it and sends after it the rows
// that cross its boundaries on the sides of the pass.
template <typename Compute>
void RunChunks(const Transformer& model, PipelineLink* link, const RowCounts& rows,
               const BoundaryActivations& values, const Compute& compute) {
  bool has_encoder_output = link == nullptr || rows.source == 0;
  for (int i = 0; i < std::ssize(model.chunks()); ++i) {
    const Chunk& chunk = model.chunks()[i];
    const auto move = [&](const BoundarySet& crossing, auto transfer) {
      if (link == nullptr) return;
      if (crossing.source && rows.source > 0) (link->*transfer)(i, rows.source, values.source_RD);
      if (crossing.target && rows.target > 0) (link->*transfer)(i, rows.target, values.target_RD);
    };
    if (!has_encoder_output && chunk.reads_encoder_output() && !chunk.ends_encoder()) {
      link->ReceiveEncoderOutput(rows.source, values.encoder_output_RD);
      has_encoder_output = true;
    }
    move(chunk.inputs(), &PipelineLink::ReceiveBefore);
    compute(chunk);
    if (chunk.ends_encoder() && rows.source > 0) {
      if (link != nullptr) link->SendEncoderOutput(rows.source, values.encoder_output_RD);
      has_encoder_output = true;
    }
    move(chunk.outputs(), &PipelineLink::SendBehind);
  }
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
  RunChunks(model, link, {pass.rows.source.count, pass.rows.target.count}, kept.values,
            [&](const Chunk& chunk) {
              chunk.Forward(pass, kept.values, model.work(), kept.kept, {.token_nll = token_nll});
            });
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
      std::vector<int32_t> same(rows);
      std::iota(same.begin(), same.end(), 0);
      Move(same, std::max(wanted, 2 * stride));
    }
    void Reorder(std::span<const int32_t> parents) { Move(parents, stride); }
    void Move(std::span<const int32_t> parents, int64_t new_stride) {
      std::vector<int32_t> moved(parents.size() * new_stride);
      for (size_t r = 0; r < parents.size(); ++r) {
        std::copy_n(entries.begin() + parents[r] * stride, stride, moved.begin() + r * new_stride);
      }
      entries = std::move(moved);
      stride = new_stride;
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
    tokens += std::ssize(source);
    longest = std::max<int64_t>(longest, std::ssize(source));
    state->source_lengths.push_back(static_cast<int32_t>(source.size()));
  }
  std::vector<at::Tensor> kv_R2D;
  for (int i = 0; i < num_layers_; ++i) {
    kv_R2D.push_back(at::empty({tokens, 2 * d}, model_.ops().OperandOptions()));
    state->cross_caches.push_back({kv_R2D[i].narrow(1, 0, d), kv_R2D[i].narrow(1, d, d)});
  }
  state->self_caches = std::exchange(spare_caches_, {});
  while (std::ssize(state->self_caches) < num_layers_) {
    state->self_caches.push_back({at::empty({0, d}, model_.ops().OperandOptions()),
                                  at::empty({0, d}, model_.ops().OperandOptions())});
  }
  state->cross.SetStride(0, longest);
  state->cross.entries.resize(sources.size() * longest);
  int64_t first = 0;
  for (size_t begin = 0; begin < sources.size();) {
    const size_t end = EndOfSlice(sources, begin, model_.capacity().max_source_tokens());
    const PackedSide packed = PackSources(sources.subspan(begin, end - begin));
    const std::vector<uint32_t> pairs(packed.tokens.size());  // unused without dropout
    const MicrobatchRows sent = model_.ops().session().Upload(
        {.source = RowsOf(packed, pairs, static_cast<int>(end - begin))});
    const PackedRows& rows = sent.source;
    RunChunks(model_, link_, {.source = rows.count}, kept_->values, [&](const Chunk& chunk) {
      if (!chunk.has_source()) return;
      chunk.Encode({.rows = sent, .step = model_.step()}, kept_->values, model_.work(),
                   kept_->kept);
    });
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
  DEEPNET_CHECK_EQ(std::ssize(tokens), rows);
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
  RunChunks(model_, link_, {.target = rows.count}, kept_->values, [&](const Chunk& chunk) {
    if (!chunk.has_target()) return;
    chunk.DecodeStep(step, kept_->values, model_.work(), kept_->kept);
    step.self = step.self.subspan(chunk.decoder().size());
    step.cross = step.cross.subspan(chunk.decoder().size());
  });
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
    RunForward(model_, link_,
               MakePass(model_.ops(), mb, /*seed=*/0, model_.step(), /*training=*/false), *kept_,
               token_nll.data());
    model_.ops().session().ReadBack();
    if (computed_) computed_();
    for (int s = 0; s < mb.num_sentences; ++s) {
      result.emplace_back(token_nll.begin() + mb.target.offsets[s],
                          token_nll.begin() + mb.target.offsets[s + 1]);
    }
    begin = end;
  }
  return result;
}

}  // namespace deepnet
