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
// A model of one stack (trainer/model/architecture.h) begins at the target embedding and has no
// memory.
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
#include <span>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/embedding.h"
#include "trainer/model/flow.h"
#include "trainer/model/layer_stack.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/stack_end.h"

namespace deepnet {

// What the chunks of a rank are made of.
struct ChunkSpec {
  LayerSpan layers;           // of the whole chain
  RecomputeChoice recompute;  // of its encoder and decoder layers
};

// Incremental decoding: keys and values of a chunk's decoder layers, one cache a layer, and the
// rows of them that each hypothesis looks at.
struct DecodeCaches {
  std::span<KeyValueCache> self;  // a step appends its rows from first_row on
  int64_t first_row = 0;
  CacheIndex self_index;
  std::span<const KeyValueCache> memory;
  CacheIndex memory_index;
};

// Buffers that the chunks of a rank share: they hold nothing that another action needs.
struct ChunkWorkspace {
  Workspace source, target;
  at::Tensor source_operand_RD, target_operand_RD;  // operand: of the streams; undefined if equal
  SegmentWorkspace<EncoderLayer> encoder;
  SegmentWorkspace<DecoderLayer> decoder;
};

// Buffers that the chunks of a rank keep microbatches in by turns.
struct ChunkPools {
  KeptPool<EncoderLayer> encoder;
  KeptPool<DecoderLayer> decoder;
};

class Chunk {
 public:
  // What one microbatch keeps from Forward to Backward.
  struct Kept {
    EncoderStack::Kept encoder;
    DecoderStack::Kept decoder;
    at::Tensor source_mask, target_mask;  // embedding dropout
    NormState source_norm, target_norm;   // behind the embeddings
    NormState encoder_end, decoder_end;
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
  bool ends_decoder() const { return ends_decoder_; }     // has the last layer before the output
  bool reads_memory() const { return reads_memory_; }     // by decoder layers of its own
  bool has_output() const { return output_.has_value(); }
  const EncoderStack& encoder() const { return encoder_; }
  const DecoderStack& decoder() const { return decoder_; }

  // `work`, the same for all chunks of a rank, must outlive the result.
  Kept MakeKept(const ChunkWorkspace& work) const;
  Kept MakeKeptFrom(ChunkPools& pools, const ChunkWorkspace& work) const;  // TakeLayers included
  // What layers keep goes to `pools` when a microbatch is done, and comes back for another one,
  // perhaps of another chunk of the rank. Masks and norms of this chunk alone stay in `kept`.
  void GiveLayers(ChunkPools& pools, Kept& kept) const;
  void TakeLayers(ChunkPools& pools, const ChunkWorkspace& work, Kept& kept) const;
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
  // pass.layer_done hears of every layer but the output's, which Forward completes.
  void Backward(const MicrobatchPass& pass, Flow& gradients, const at::Tensor& memory_RD,
                ChunkWorkspace& work, Kept& kept) const;

  // Working copies of the weights, after the masters moved.
  void Refresh();

  // --- decoding: each call does what the chunk's own layers have to do, the others nothing ---

  // The part of Forward up to the memory. With has_source().
  void Encode(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
              Kept& kept) const;
  // Keys and values of `memory_RD` (operand) for each decoder layer of the chunk: kv_R2D[layer]
  // (operand, at least source.count rows).
  void FillMemoryCaches(const PackedRows& source, const at::Tensor& memory_RD,
                        std::span<const at::Tensor> kv_R2D) const;
  // One more token for rows.count hypotheses; values.target_RD in and out as in Forward. With the
  // output layer: `logits_RV` (stream) out. `step`: as in PassContext. With has_target().
  void DecodeStep(const PackedRows& rows, int64_t step, const Flow& values,
                  const DecodeCaches& caches, ChunkWorkspace& work, Kept& kept,
                  const at::Tensor& logits_RV) const;

 private:
  // The streams of a flow, with the operand copy of `work` where types differ.
  Stream SourceStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const;
  Stream TargetStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const;
  // What stands before and behind the decoder layers of the chunk.
  void EnterDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const;
  void LeaveDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const;
  // `work`: of the rows' stack.
  PassContext Context(const MicrobatchPass& pass, const PackedRows& rows,
                      const Workspace& work) const;
  void ForwardTarget(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                     Kept& kept) const;
  void BackwardSource(const MicrobatchPass& pass, const at::Tensor& dsource_RD,
                      ChunkWorkspace& work, Kept& kept) const;
  void BackwardTarget(const MicrobatchPass& pass, const Flow& gradients,
                      const at::Tensor& memory_RD, ChunkWorkspace& work, Kept& kept) const;

  ChunkSpec spec_;
  CutTensors inputs_, outputs_;
  bool has_source_, has_target_, ends_encoder_, ends_decoder_, reads_memory_;
  int first_encoder_, first_decoder_;  // layers of the chain; if there are any
  int source_embedding_at_, target_embedding_at_;
  int64_t source_capacity_, target_capacity_;
  Ops& ops_;
  std::optional<Embedding> source_embedding_, target_embedding_;
  EncoderStack encoder_;
  DecoderStack decoder_;
  std::optional<NormLayer> source_norm_, target_norm_;  // behind the embeddings
  std::optional<StackEndStep> encoder_end_, decoder_end_;
  std::optional<OutputLayer> output_;
};

// The workspace of `chunks`, not empty, all of one model.
ChunkWorkspace MakeChunkWorkspace(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Ops& ops, const std::vector<Chunk>& chunks);

}  // namespace deepnet
