#include "trainer/model/transformer.h"

#include <cmath>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

std::string EmbeddingName(TiedEmbeddings tied, EmbeddingUse use) {
  if (tied == TIE_ALL) return "shared.weight";
  if (use == EmbeddingUse::kSource) return "encoder.embed_tokens.weight";
  if (use == EmbeddingUse::kOutput && tied == TIE_NONE) return "lm_head.weight";
  return "decoder.embed_tokens.weight";
}

Stream MakeStream(const Ops& ops, int64_t capacity, int64_t width) {
  Stream stream;
  stream.value_RD = at::zeros({capacity, width}, ops.Stream());
  stream.operand_RD = ops.Operand().dtype() == ops.Stream().dtype()
                          ? stream.value_RD
                          : at::zeros({capacity, width}, ops.Operand());
  return stream;
}

}  // namespace

at::Tensor SinusoidalPositions(int64_t count, int64_t width) {
  at::Tensor table = at::zeros({count, width}, at::kDouble);
  const int64_t half = width / 2;
  const double rate = half > 1 ? std::log(10000.0) / static_cast<double>(half - 1) : 0.0;
  for (int64_t p = 0; p < count; ++p) {
    double* row = table.data_ptr<double>() + p * width;
    for (int64_t k = 0; k < half; ++k) {
      const double angle = static_cast<double>(p + 2) * std::exp(-rate * static_cast<double>(k));
      row[k] = std::sin(angle);
      row[half + k] = std::cos(angle);
    }
  }
  return table;
}

PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = num_sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

Transformer::Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops,
                         bool trainable)
    : spec_(spec),
      capacity_(capacity),
      ops_(ops),
      parameters_(Describe(spec, capacity), ops, trainable),
      source_(MakeEmbedding(EmbeddingUse::kSource)),
      target_(MakeEmbedding(EmbeddingUse::kTarget)),
      source_work_(spec, ops, capacity.source_tokens()),
      target_work_(spec, ops, capacity.target_tokens()) {
  const std::string output = EmbeddingName(spec.tied_embeddings(), EmbeddingUse::kOutput);
  output_ = ops.MakeWeight(parameters_.Get(output), trainable);
  doutput_VD_ = parameters_.EmbeddingGradient(output, EmbeddingUse::kOutput);
  const DepthScaling scaling = MakeDepthScaling(spec);
  for (int i = 0; i < spec.encoder_layers(); ++i)
    encoder_.emplace_back(spec, scaling, ops, parameters_, i);
  for (int i = 0; i < spec.decoder_layers(); ++i)
    decoder_.emplace_back(spec, scaling, ops, parameters_, i);
  if (spec.residual() == PRE_LN) {
    encoder_norm_ = std::make_unique<NormParameters>(parameters_, "encoder.layer_norm");
    decoder_norm_ = std::make_unique<NormParameters>(parameters_, "decoder.layer_norm");
  }
}

Transformer::Embedding Transformer::MakeEmbedding(EmbeddingUse use) {
  const std::string name = EmbeddingName(spec_.tied_embeddings(), use);
  Embedding embedding;
  embedding.table_VD = parameters_.Get(name);
  embedding.dtable_VD = parameters_.EmbeddingGradient(name, use);
  if (spec_.positions() == LEARNED) {
    const std::string positions = use == EmbeddingUse::kSource ? "encoder.embed_positions.weight"
                                                               : "decoder.embed_positions.weight";
    embedding.positions_PD = parameters_.Get(positions);
    embedding.dpositions_PD = parameters_.Gradient(positions);
  } else {
    embedding.positions_PD =
        SinusoidalPositions(spec_.max_positions(), spec_.width()).to(ops_.Stream());
  }
  return embedding;
}

void Transformer::Refresh() {
  ops_.Refresh(*output_);
  for (EncoderLayer& layer : encoder_) layer.Refresh(ops_);
  for (DecoderLayer& layer : decoder_) layer.Refresh(ops_);
}

std::unique_ptr<Activations> Transformer::MakeActivations(bool shared) const {
  const int64_t s = capacity_.source_tokens(), t = capacity_.target_tokens(), d = spec_.width();
  auto kept = std::make_unique<Activations>();
  kept->source = MakeStream(ops_, s, d);
  kept->target = MakeStream(ops_, t, d);
  for (size_t i = 0; i < (shared ? 1 : encoder_.size()); ++i) {
    kept->encoder.push_back(encoder_[i].MakeSaved(ops_, s));
  }
  for (size_t i = 0; i < (shared ? 1 : decoder_.size()); ++i) {
    kept->decoder.push_back(decoder_[i].MakeSaved(ops_, s, t));
  }
  kept->memory_RD = at::zeros({s, d}, ops_.Operand());
  if (shared) return kept;
  kept->source_embedded_RD = at::zeros({s, d}, ops_.Operand());
  kept->target_embedded_RD = at::zeros({t, d}, ops_.Operand());
  kept->dhidden_RD = at::zeros({t, d}, ops_.Stream());
  kept->dmemory_RD = at::zeros({s, d}, ops_.Stream());
  if (spec_.dropout() > 0) {
    kept->source_mask = at::zeros({s, (d + 7) / 8}, ops_.Stream().dtype(at::kByte));
    kept->target_mask = at::zeros({t, (d + 7) / 8}, ops_.Stream().dtype(at::kByte));
  }
  if (encoder_norm_ != nullptr) {
    kept->encoder_norm.norm = {at::zeros({s, d}, ops_.Stream()), at::zeros({s}, ops_.Stream())};
    kept->decoder_norm.norm = {at::zeros({t, d}, ops_.Stream()), at::zeros({t}, ops_.Stream())};
  }
  return kept;
}

void Transformer::Embed(const PassContext& pass, int stack, const Embedding& embedding,
                        const Stream& stream, const at::Tensor& mask) const {
  EmbedArgs args{.rows = pass.rows,
                 .table_VD = embedding.table_VD,
                 .positions_PD = embedding.positions_PD,
                 .scale = spec_.unscaled_embedding() ? 1.0 : std::sqrt(double(spec_.width())),
                 .dropout = {.seed = pass.seed,
                             .step = pass.step,
                             .stack = stack,
                             .layer = 0,
                             .site = kSiteEmbedding,
                             .rate = pass.keep ? spec_.dropout() : 0.0},
                 .x_RD = stream.value_RD,
                 .mask = mask};
  if (!stream.operand_RD.is_same(stream.value_RD)) args.x_operand_RD = stream.operand_RD;
  ops_.Embed(args);
}

void Transformer::EmbedBackward(const PassContext& pass, const Embedding& embedding,
                                const at::Tensor& dx_RD, const at::Tensor& mask) const {
  ops_.EmbedBackward({.rows = pass.rows,
                      .dx_RD = dx_RD,
                      .scale = spec_.unscaled_embedding() ? 1.0 : std::sqrt(double(spec_.width())),
                      .dropout_rate = spec_.dropout(),
                      .mask = mask,
                      .dtable_VD = embedding.dtable_VD,
                      .dpositions_PD = embedding.dpositions_PD});
}

void Transformer::FinishStack(const PassContext& pass, const NormParameters* norm,
                              const Stream& stream, JoinSaved& saved) const {
  if (norm == nullptr) return;
  ResidualNormArgs args{.rows = pass.rows->count,
                        .x_RD = stream.value_RD,
                        .gain_D = norm->gain_D,
                        .bias_D = norm->bias_D,
                        .epsilon = spec_.layer_norm_epsilon(),
                        .y_RD = stream.value_RD,
                        .state = pass.keep ? &saved.norm : nullptr};
  if (!stream.operand_RD.is_same(stream.value_RD)) args.y_operand_RD = stream.operand_RD;
  ops_.ResidualNorm(args);
}

void Transformer::FinishStackBackward(const PassContext& pass, const NormParameters* norm,
                                      JoinSaved& saved, const at::Tensor& dstream_RD) const {
  if (norm == nullptr) return;
  ops_.ResidualNormBackward({.rows = pass.rows->count,
                             .dy_RD = dstream_RD,
                             .state = &saved.norm,
                             .gain_D = norm->gain_D,
                             .dx_RD = dstream_RD,
                             .dgain_D = norm->dgain_D,
                             .dbias_D = norm->dbias_D});
}

void Transformer::RunEncoder(const PassContext& pass, Activations& kept) {
  Embed(pass, 0, source_, kept.source, kept.source_mask);
  if (pass.keep) ops_.Copy(pass.rows->count, kept.source.operand_RD, kept.source_embedded_RD);
  for (size_t i = 0; i < encoder_.size(); ++i) {
    encoder_[i].Forward(pass, kept.source, source_work_, kept.encoder[i % kept.encoder.size()]);
  }
  FinishStack(pass, encoder_norm_.get(), kept.source, kept.encoder_norm);
  ops_.Copy(pass.rows->count, kept.source.operand_RD, kept.memory_RD);
}

LossSums Transformer::Forward(const Microbatch& microbatch, uint64_t seed, int64_t step,
                              bool training, const LossOptions& loss, Activations& kept,
                              float* token_nll) {
  const PackedRows source =
      RowsOf(microbatch.source, microbatch.source_pairs, microbatch.num_sentences);
  const PackedRows target =
      RowsOf(microbatch.target, microbatch.target_pairs, microbatch.num_sentences);
  PassContext pass{.ops = &ops_, .rows = &source, .seed = seed, .step = step, .keep = training};
  RunEncoder(pass, kept);

  pass.rows = &target;
  Embed(pass, 1, target_, kept.target, kept.target_mask);
  if (training) ops_.Copy(target.count, kept.target.operand_RD, kept.target_embedded_RD);
  const Memory memory{.rows = &source, .value_RD = kept.memory_RD, .gradient_RD = {}};
  for (size_t i = 0; i < decoder_.size(); ++i) {
    decoder_[i].Forward(pass, memory, kept.target, target_work_,
                        kept.decoder[i % kept.decoder.size()]);
  }
  FinishStack(pass, decoder_norm_.get(), kept.target, kept.decoder_norm);

  CrossEntropyArgs args{.rows = target.count,
                        .hidden_RD = kept.target.operand_RD,
                        .weight_VD = output_.get(),
                        .labels = microbatch.labels.data(),
                        .smoothing = loss.label_smoothing,
                        .scale = loss.gradient_scale,
                        .row_nll = token_nll};
  if (training) {
    args.dhidden_RD = kept.dhidden_RD;
    args.dweight_VD = doutput_VD_;
  }
  return ops_.CrossEntropy(args);
}

void Transformer::Backward(const Microbatch& microbatch, uint64_t seed, int64_t step,
                           Activations& kept) {
  const PackedRows source =
      RowsOf(microbatch.source, microbatch.source_pairs, microbatch.num_sentences);
  const PackedRows target =
      RowsOf(microbatch.target, microbatch.target_pairs, microbatch.num_sentences);
  PassContext pass{.ops = &ops_, .rows = &target, .seed = seed, .step = step, .keep = true};
  kept.dmemory_RD.zero_();
  const Memory memory{.rows = &source, .value_RD = kept.memory_RD, .gradient_RD = kept.dmemory_RD};
  FinishStackBackward(pass, decoder_norm_.get(), kept.decoder_norm, kept.dhidden_RD);
  for (size_t i = decoder_.size(); i-- > 0;) {
    const Upstream upstream = i > 0 ? decoder_[i - 1].Output(kept.decoder[i - 1])
                                    : Upstream{nullptr, nullptr, kept.target_embedded_RD};
    decoder_[i].Backward(pass, memory, upstream, kept.dhidden_RD, target_work_, source_work_,
                         kept.decoder[i]);
  }
  EmbedBackward(pass, target_, kept.dhidden_RD, kept.target_mask);

  pass.rows = &source;
  FinishStackBackward(pass, encoder_norm_.get(), kept.encoder_norm, kept.dmemory_RD);
  for (size_t i = encoder_.size(); i-- > 0;) {
    const Upstream upstream = i > 0 ? encoder_[i - 1].Output(kept.encoder[i - 1])
                                    : Upstream{nullptr, nullptr, kept.source_embedded_RD};
    encoder_[i].Backward(pass, upstream, kept.dmemory_RD, source_work_, kept.encoder[i]);
  }
  EmbedBackward(pass, source_, kept.dmemory_RD, kept.source_mask);
}

void Transformer::Encode(const PackedRows& source, Activations& kept) {
  RunEncoder({.ops = &ops_, .rows = &source, .keep = false}, kept);
}

void Transformer::FillMemoryCaches(const PackedRows& source, const Activations& kept,
                                   const std::vector<at::Tensor>& kv_R2D) {
  const PassContext pass{.ops = &ops_, .rows = &source, .keep = false};
  const Memory memory{.rows = &source, .value_RD = kept.memory_RD, .gradient_RD = {}};
  for (size_t i = 0; i < decoder_.size(); ++i) decoder_[i].FillCache(pass, memory, kv_R2D[i]);
}

void Transformer::DecodeStep(const PackedRows& rows, std::vector<KeyValueCache>& self_caches,
                             int64_t first_row, const CacheIndex& self_index,
                             const std::vector<KeyValueCache>& memory_caches,
                             const CacheIndex& memory_index, Activations& kept,
                             const at::Tensor& logits_RV) {
  const PassContext pass{.ops = &ops_, .rows = &rows, .keep = false};
  Embed(pass, 1, target_, kept.target, {});
  for (size_t i = 0; i < decoder_.size(); ++i) {
    decoder_[i].Step(pass, kept.target, target_work_, kept.decoder[i % kept.decoder.size()],
                     self_caches[i], first_row, self_index, memory_caches[i], memory_index);
  }
  FinishStack(pass, decoder_norm_.get(), kept.target, kept.decoder_norm);
  ops_.Linear(rows.count, kept.target.operand_RD, *output_, {}, /*relu=*/false, logits_RV);
}

}  // namespace deepnet
