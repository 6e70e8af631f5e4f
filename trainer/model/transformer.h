// The encoder-decoder Transformer: embeddings, two stacks, output, for training and for decoding.
//
// All arithmetic goes through Ops, all shapes are capacities fixed at construction. Nothing is
// remembered between calls except in the Activations that are handed in, so that a pipeline can
// keep several microbatches in flight.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/layers.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Everything one microbatch keeps from forward to backward.
struct Activations {
  Stream source, target;                     // residual streams
  std::vector<EncoderLayer::Saved> encoder;  // one a layer, or one for all (inference)
  std::vector<DecoderLayer::Saved> decoder;  // likewise
  at::Tensor source_embedded_RD;             // operand: first input of the encoder
  at::Tensor target_embedded_RD;             // operand: first input of the decoder
  at::Tensor source_mask, target_mask;       // embedding dropout
  at::Tensor memory_RD;                      // operand: the encoder's output
  at::Tensor dhidden_RD;                     // stream: gradient of the decoder's output
  at::Tensor dmemory_RD;                     // stream
  JoinSaved encoder_norm, decoder_norm;      // PRE_LN: norms at the end of the stacks
};

struct LossOptions {
  double label_smoothing = 0.0;
  double gradient_scale = 1.0;  // 1 / target tokens of the step
};

class Transformer {
 public:
  // `capacity` is resolved (no zero fields). `trainable`: with gradients, moments and the forms of
  // weights that backward passes want. `ops` must outlive the model.
  Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops, bool trainable);

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  const ModelSpec& spec() const { return spec_; }
  const MicrobatchSpec& capacity() const { return capacity_; }
  Ops& ops() { return ops_; }

  // Working copies of all weights, after the masters moved.
  void Refresh();

  // `shared`: one layer's buffers serve all layers; for passes without backward.
  std::unique_ptr<Activations> MakeActivations(bool shared) const;

  // Forward pass of `microbatch` with its loss, summed over its target tokens. With `training`:
  // dropout keyed by (seed, step), and the gradient of the output layer is already added.
  LossSums Forward(const Microbatch& microbatch, uint64_t seed, int64_t step, bool training,
                   const LossOptions& loss, Activations& kept, float* token_nll = nullptr);
  // Adds the gradients of everything below the output layer. After Forward with `training` on the
  // same `kept`.
  void Backward(const Microbatch& microbatch, uint64_t seed, int64_t step, Activations& kept);

  // --- decoding ---
  // Runs the encoder alone; kept.memory_RD holds the result.
  void Encode(const PackedRows& source, Activations& kept);
  // Keys and values of that memory, kv_R2D[layer] (operand, at least source.count rows).
  void FillMemoryCaches(const PackedRows& source, const Activations& kept,
                        const std::vector<at::Tensor>& kv_R2D);
  // One decoder step for rows.count hypotheses; `logits_RV` (stream) out. Caches as in layers.h.
  void DecodeStep(const PackedRows& rows, std::vector<KeyValueCache>& self_caches,
                  int64_t first_row, const CacheIndex& self_index,
                  const std::vector<KeyValueCache>& memory_caches, const CacheIndex& memory_index,
                  Activations& kept, const at::Tensor& logits_RV);

 private:
  struct Embedding {
    at::Tensor table_VD, dtable_VD;          // dtable: the accumulator of this use
    at::Tensor positions_PD, dpositions_PD;  // dpositions undefined if fixed
  };

  Embedding MakeEmbedding(EmbeddingUse use);
  void Embed(const PassContext& pass, int stack, const Embedding& embedding, const Stream& stream,
             const at::Tensor& mask) const;
  void EmbedBackward(const PassContext& pass, const Embedding& embedding, const at::Tensor& dx_RD,
                     const at::Tensor& mask) const;
  // PRE_LN: stream <- LN(stream) at the end of a stack; others: nothing.
  void FinishStack(const PassContext& pass, const NormParameters* norm, const Stream& stream,
                   JoinSaved& saved) const;
  void FinishStackBackward(const PassContext& pass, const NormParameters* norm, JoinSaved& saved,
                           const at::Tensor& dstream_RD) const;
  void RunEncoder(const PassContext& pass, Activations& kept);

  ModelSpec spec_;
  MicrobatchSpec capacity_;
  Ops& ops_;
  Parameters parameters_;
  Embedding source_, target_;
  std::unique_ptr<Weight> output_;
  at::Tensor doutput_VD_;
  std::vector<EncoderLayer> encoder_;
  std::vector<DecoderLayer> decoder_;
  std::unique_ptr<NormParameters> encoder_norm_, decoder_norm_;
  Workspace source_work_, target_work_;
};

// Rows of a packed side as the kernels want them; `side` and `pairs` must outlive the result.
PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences);

// fairseq's sinusoidal positions [count, width], offset 2: row p is that of position p + 2;
// computed in double precision.
at::Tensor SinusoidalPositions(int64_t count, int64_t width);

}  // namespace deepnet
