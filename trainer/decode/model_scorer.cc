#include "trainer/decode/model_scorer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/data/batcher.h"

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
    chunk.Forward(pass, values, model.work(), kept.kept, {}, {}, {.token_nll = token_nll});
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
    void Take(std::span<const int32_t> parents) {
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
    const MicrobatchRows sent = model_.ops().Upload(
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
  state.self.Take(parents);
  state.cross.Take(parents);
  std::vector<int32_t> lengths;
  for (const int32_t parent : parents) lengths.push_back(state.source_lengths[parent]);
  state.source_lengths = std::move(lengths);
}

void ModelScorer::Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
                       float* log_probs) {
  auto& state = static_cast<State&>(decoder_state);
  const int64_t rows = state.num_rows(), vocabulary = vocabulary_size();
  DEEPNET_CHECK_EQ(static_cast<int64_t>(tokens.size()), rows);
  DEEPNET_CHECK_LT(state.position, model_.spec().max_positions());
  DEEPNET_CHECK_EQ(log_probs != nullptr, model_.chunks().back().has_output());

  for (KeyValueCache& cache : state.self_caches) {
    if (state.self_rows + rows <= cache.keys_ND.size(0)) continue;
    const int64_t wider = std::max(state.self_rows + rows, 2 * cache.keys_ND.size(0));
    for (at::Tensor* x : {&cache.keys_ND, &cache.values_ND}) {
      const at::Tensor grown = at::empty({wider, x->size(1)}, x->options());
      grown.narrow(0, 0, state.self_rows).copy_(x->narrow(0, 0, state.self_rows));
      *x = grown;
    }
  }
  state.self.SetStride(rows, state.position + 1);
  for (int64_t r = 0; r < rows; ++r) {
    state.self.entries[r * state.self.stride + state.position] =
        static_cast<int32_t>(state.self_rows + r);
  }
  const std::vector<int32_t> lengths(rows, static_cast<int32_t>(state.position + 1));
  const std::vector<uint32_t> positions(rows, static_cast<uint32_t>(state.position));

  Ops& ops = model_.ops();
  const auto self_entries = ops.Upload(state.self.entries), self_lengths = ops.Upload(lengths);
  const auto cross_entries = ops.Upload(state.cross.entries);
  const auto cross_lengths = ops.Upload(state.source_lengths);
  const int64_t capacity = model_.capacity().max_target_tokens();
  for (int64_t begin = 0; begin < rows; begin += capacity) {
    const int64_t count = std::min(capacity, rows - begin);
    const MicrobatchRows sent =
        model_.ops().Upload({.target = {.count = count,
                                        .num_sentences = static_cast<int>(count),
                                        .tokens = tokens.data() + begin,
                                        .positions = positions.data() + begin,
                                        .pairs = positions.data() + begin}});
    const PackedRows& slice = sent.target;
    const CacheIndex self{self_entries.get() + begin * state.self.stride, state.self.stride,
                          self_lengths.get() + begin};
    const CacheIndex cross{cross_entries.get() + begin * state.cross.stride, state.cross.stride,
                           cross_lengths.get() + begin};
    if (log_probs == nullptr) {
      StepSlice(state, slice, self, cross, state.self_rows + begin, at::Tensor());
      continue;
    }
    const at::Tensor out =
        at::from_blob(log_probs + begin * vocabulary, {count, vocabulary}, at::kFloat);
    const bool in_place = model_.ops().ResidualOptions().device().is_cpu() &&
                          model_.ops().ResidualOptions().dtype() == at::kFloat;
    const at::Tensor logits =
        in_place ? out : at::empty({count, vocabulary}, model_.ops().ResidualOptions());
    StepSlice(state, slice, self, cross, state.self_rows + begin, logits);
    model_.ops().LogSoftmax(count, logits);
    if (!in_place) out.copy_(logits);
  }
  state.self_rows += rows;
  ++state.position;
}

void ModelScorer::StepSlice(State& state, const PackedRows& rows, const CacheIndex& self,
                            const CacheIndex& cross, int64_t first_row,
                            const at::Tensor& logits_RV) {
  const at::Tensor& target_RD = kept_->values.target_RD;
  DecodeCaches caches{.self = state.self_caches,
                      .first_row = first_row,
                      .self_index = self,
                      .cross = state.cross_caches,
                      .cross_index = cross};
  for (int i = 0; i < static_cast<int>(model_.chunks().size()); ++i) {
    const Chunk& chunk = model_.chunks()[i];
    if (!chunk.has_target()) continue;
    if (link_ && chunk.inputs().target) link_->ReceiveBefore(i, rows.count, target_RD);
    chunk.DecodeStep(rows, model_.step(), kept_->values, caches, model_.work(), kept_->kept,
                     logits_RV);
    if (link_ && chunk.outputs().target) link_->SendBehind(i, rows.count, target_RD);
    caches.self = caches.self.subspan(chunk.decoder().size());
    caches.cross = caches.cross.subspan(chunk.decoder().size());
  }
}

ModelPairScorer::ModelPairScorer(Transformer& model, PipelineLink* link,
                                 std::function<void()> computed)
    : model_(model),
      link_(link),
      computed_(std::move(computed)),
      kept_(model.MakeActivations(/*shared=*/true)) {}

std::vector<double> ModelPairScorer::LogProbabilities(std::span<const IdPair> pairs) {
  const MicrobatchSpec& spec = model_.capacity();
  const Capacity capacity{spec.max_source_tokens(), spec.max_target_tokens(), spec.max_sentences()};
  std::vector<double> result;
  std::vector<float> token_nll(spec.max_target_tokens());
  for (size_t begin = 0; begin < pairs.size();) {
    MicrobatchBuilder builder(capacity);
    size_t end = begin;
    for (; end < pairs.size(); ++end) {
      const EncodedPair pair{pairs[end].source, pairs[end].target, pairs[end].input};
      if (!builder.HasRoom(pair)) break;
      builder.Add(static_cast<uint32_t>(end - begin), pair);
    }
    DEEPNET_CHECK(end > begin) << "a pair of " << pairs[begin].source.size() << " and "
                               << pairs[begin].target.size() << " tokens exceeds the capacity";
    const Microbatch mb = std::move(builder).Build();
    Forward(mb, token_nll.data());
    for (int s = 0; s < mb.num_sentences; ++s) {
      double sum = 0.0;
      for (int r = mb.target.offsets[s]; r < mb.target.offsets[s + 1]; ++r) sum -= token_nll[r];
      result.push_back(sum);
    }
    begin = end;
  }
  return result;
}

void ModelPairScorer::Forward(const Microbatch& microbatch, float* token_nll) {
  RunForward(model_, link_,
             MakePass(model_.ops(), microbatch, /*seed=*/0, model_.step(), /*training=*/false),
             *kept_, token_nll);
  model_.ops().ReadBack();
  if (computed_) computed_();
}

}  // namespace deepnet
