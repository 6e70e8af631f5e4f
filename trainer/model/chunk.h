// Contiguous layers of the chain source embedding, encoder, target embedding, decoder, output: what
// one rank of a pipeline computes between two cuts. A whole model is one chunk.
//
// A chunk is handed the tensors that flow through the model and works on them in place:
//
//   cut before          values, forward                   gradients, backward
//   an encoder layer    source [S, D] stream              source
//   target embedding    memory [S, D] operand             memory [S, D] stream
//   a decoder layer     memory, target [T, D] stream      memory, target
//   the output layer    target                            target
//
// The gradient of the memory is an accumulator: it starts as zeros at the last decoder layer, every
// chunk adds to it what its own decoder layers have to add, last layer first, and the chunk with
// the last encoder layer takes it for the gradient of its output. So it is one left fold over the
// decoder layers M..1 wherever the chain is cut (docs/design/sums.md).
//
// Nothing is remembered between calls but in Kept, so many microbatches may be in flight.
//
// Letters: R rows, S source rows, T target rows, D width.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/embedding.h"
#include "trainer/model/final_norm.h"
#include "trainer/model/layer_stack.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// What the chunks of a rank are made of.
struct ChunkSpec {
  LayerSpan layers;            // of the whole chain
  RecomputeOptions recompute;  // of its encoder and decoder layers
};

// One microbatch of one step, as every chunk sees it.
struct MicrobatchPass {
  PackedRows source, target;
  const int32_t* labels = nullptr;  // [T]
  uint64_t seed = 0;                // with step: keys of dropout
  int64_t step = 0;
  bool training = false;  // dropout on, state kept, gradients wanted
  // Backward: weight gradients of layers are recorded here instead of computed; null: computed.
  DeferredWeights* deferred = nullptr;
};

// `microbatch` must outlive the result.
MicrobatchPass MakePass(const Microbatch& microbatch, uint64_t seed, int64_t step, bool training);

// The tensors of one microbatch that flow through chunks: values forward, gradients backward.
struct Flow {
  at::Tensor source_RD;  // stream
  at::Tensor memory_RD;  // values: operand; gradients: stream
  at::Tensor target_RD;  // stream
};

// Which of them cross a cut.
struct CutTensors {
  bool source = false;
  bool memory = false;
  bool target = false;

  friend bool operator==(const CutTensors&, const CutTensors&) = default;
};

// Before layer `position` of the whole chain; none at its ends.
CutTensors CutBefore(const Inventory& whole, int position);

// Buffers that the chunks of a rank share: they hold nothing that another action needs.
struct ChunkWorkspace {
  Workspace source, target;
  at::Tensor source_operand_RD, target_operand_RD;  // operand: of the streams; undefined if equal
  SegmentWorkspace<EncoderLayer> encoder;
  SegmentWorkspace<DecoderLayer> decoder;
};

class Chunk {
 public:
  // What one microbatch keeps from Forward to Backward.
  struct Kept {
    EncoderStack::Kept encoder;
    DecoderStack::Kept decoder;
    at::Tensor source_mask, target_mask;  // embedding dropout
    NormState encoder_norm, decoder_norm;
  };

  // `whole` describes the model, `parameters` hold at least these layers. `ops` and `parameters`
  // must outlive the chunk.
  Chunk(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
        const ChunkSpec& chunk, Ops& ops, const Parameters& parameters);

  const ChunkSpec& spec() const { return spec_; }
  const CutTensors& inputs() const { return inputs_; }    // cross the cut before this chunk
  const CutTensors& outputs() const { return outputs_; }  // cross the cut behind it
  bool has_source() const { return has_source_; }         // source embedding or encoder layers
  bool has_target() const { return has_target_; }         // any layer behind the encoder
  bool ends_encoder() const { return ends_encoder_; }     // makes the memory
  bool ends_decoder() const { return ends_decoder_; }     // starts the memory's gradient
  bool has_output() const { return output_.has_value(); }
  const EncoderStack& encoder() const { return encoder_; }
  const DecoderStack& decoder() const { return decoder_; }
  const OutputLayer& output() const { return *output_; }
  const Embedding& target_embedding() const { return *target_embedding_; }

  // `work` must outlive the result.
  Kept MakeKept(const ChunkWorkspace& work) const;
  // One layer's buffers for all; for passes without backward.
  Kept MakeKeptForInference() const;

  // `values` has every tensor that this chunk takes, makes or runs on: those of inputs() hold what
  // the chunk before left, those of outputs() hold what the chunk behind takes on return. With the
  // output layer the result is the loss, and with pass.training `dhidden_RD` (stream) is the
  // gradient of the last hidden rows; the output layer's own gradient is already added.
  LossSums Forward(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work, Kept& kept,
                   const LossOptions& loss = {}, const at::Tensor& dhidden_RD = {},
                   float* token_nll = nullptr) const;

  // `gradients` has those of outputs() (with the output layer: what Forward left in dhidden_RD;
  // with the last decoder layer: a buffer for the memory's, which is cleared) and on return those
  // of inputs(), in the same buffers. `memory_RD`: as in Forward; only looked at by decoder layers.
  void Backward(const MicrobatchPass& pass, Flow& gradients, const at::Tensor& memory_RD,
                ChunkWorkspace& work, Kept& kept) const;

  // Working copies of the weights, after the masters moved.
  void Refresh();

  // The part of Forward up to the memory.
  void Encode(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
              Kept& kept) const;
  // PRE_LN: the norm behind the decoder; others: nothing.
  void FinishDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const;
  // The streams of a flow, with the operand copy of `work` where types differ.
  Stream SourceStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const;
  Stream TargetStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const;

 private:
  PassContext Context(const MicrobatchPass& pass, const PackedRows& rows) const;
  void ForwardTarget(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                     Kept& kept) const;
  void BackwardSource(const MicrobatchPass& pass, const at::Tensor& dsource_RD,
                      ChunkWorkspace& work, Kept& kept) const;
  void BackwardTarget(const MicrobatchPass& pass, const Flow& gradients,
                      const at::Tensor& memory_RD, ChunkWorkspace& work, Kept& kept) const;

  ChunkSpec spec_;
  CutTensors inputs_, outputs_;
  bool has_source_, has_target_, ends_encoder_, ends_decoder_;
  int64_t source_capacity_, target_capacity_;
  Ops& ops_;
  std::optional<Embedding> source_embedding_, target_embedding_;
  EncoderStack encoder_;
  DecoderStack decoder_;
  std::optional<FinalNorm> encoder_norm_, decoder_norm_;
  std::optional<OutputLayer> output_;
};

// The workspace of `chunks`, not empty, all of one model.
ChunkWorkspace MakeChunkWorkspace(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Ops& ops, const std::vector<Chunk>& chunks);

// Rows of a packed side as the kernels want them; `side` and `pairs` must outlive the result.
PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences);

}  // namespace deepnet
