// Contiguous layers of the chain source embedding, encoder, target embedding, decoder, output: what
// one rank of a pipeline computes between two boundaries. A whole model is one chunk.
//
// A chunk is handed the tensors that pass through the model and works on them in place:
//
//   boundary before     values, forward                    gradients, backward
//   an encoder layer    source [S, D] residual             source
//   target embedding    encoder output [S, D] operand      encoder output [S, D] residual
//   a decoder layer     encoder output,                    encoder output,
//                       target [T, D] residual             target
//   the output layer    target                             target
//
// A model of one stack (trainer/model/architecture.h) begins at the target embedding and has no
// encoder output.
//
// The gradient of the encoder's output is an accumulator: it starts as zeros at the last decoder
// layer, every chunk adds the gradients of its own decoder layers, last layer first, and the chunk
// with the last encoder layer takes it for the gradient of its output. So it is one left fold over
// the decoder layers M..1 wherever the chain is cut (docs/design/determinism.md).
//
// Letters: R rows, S source rows, T target rows, D width.
#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/embedding.h"
#include "trainer/model/layer_stack.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"
#include "trainer/model/residual.h"

namespace deepnet {

struct ChunkSpec {
  LayerSpan layers;           // of the whole chain
  RecomputeChoice recompute;  // of its encoder and decoder layers
};

// The arguments of a decoding step, one more token for each of rows.count hypotheses: keys and
// values of a chunk's decoder layers, a cache a layer, and the rows of them that each hypothesis
// attends to.
struct DecodeStepArgs {
  PackedRows rows;
  int64_t step = 0;               // as in MicrobatchPass
  std::span<KeyValueCache> self;  // the step appends its rows from first_row on
  int64_t first_row = 0;
  CacheIndex self_index;
  std::span<const KeyValueCache> cross;
  CacheIndex cross_index;
  at::Tensor logits_RV;  // residual: the output layer writes it; undefined: not wanted
};

// Buffers that the chunks of a rank share: they hold nothing that another action needs.
struct SideWorkspace {
  Workspace layers;
  at::Tensor operand_RD;  // operand; undefined where the types are equal
  SegmentWorkspace segment;
};
struct ChunkWorkspace {
  SideWorkspace source, target;
};

// Buffers for the state of microbatches, which the chunks of a rank use by turns.
struct ChunkPools {
  KeptPool source, target;
};

class Chunk {
 public:
  // State of one microbatch from Forward to Backward. Nothing else is remembered between calls, so
  // many microbatches may be in flight.
  struct Kept {
    struct SideState {
      LayerStack::Kept layers;
      at::Tensor mask;  // embedding dropout
      NormState norm;   // after the embedding
      NormState end;
    };
    SideState source, target;
  };

  // `whole` describes the model, build.parameters hold at least these layers.
  Chunk(const BuildContext& build, const Inventory& whole, const ChunkSpec& chunk);

  const ChunkSpec& spec() const { return spec_; }
  const BoundarySet& inputs() const { return inputs_; }    // cross the boundary before this chunk
  const BoundarySet& outputs() const { return outputs_; }  // cross the boundary after it
  bool has_source() const { return has_source_; }          // source embedding or encoder layers
  bool has_target() const { return has_target_; }          // any layer after the encoder
  bool ends_encoder() const { return ends_encoder_; }      // makes the encoder's output
  bool ends_decoder() const { return ends_decoder_; }      // has the last layer before the output
  bool reads_encoder_output() const { return reads_encoder_output_; }  // has decoder layers that do
  bool has_output() const { return output_.has_value(); }
  const LayerStack& encoder() const { return source_.layers; }
  const LayerStack& decoder() const { return target_.layers; }  // or the only stack of the model

  // Makes the state of a microbatch, TakeLayers included. `work`, the same for all chunks of a
  // rank, must outlive the result.
  Kept MakeKept(ChunkPools& pools, const ChunkWorkspace& work) const;
  // The layers' part of `kept` goes to `pools` when a microbatch is done, and comes back for
  // another one, perhaps in another chunk of the rank. The chunk's own masks and norms stay in
  // `kept`.
  void GiveLayers(ChunkPools& pools, Kept& kept) const;
  void TakeLayers(ChunkPools& pools, const ChunkWorkspace& work, Kept& kept) const;
  // One layer's buffers for all layers: for passes without backward.
  Kept MakeKeptForInference() const;

  // `values` has every tensor that this chunk reads, makes or works in: those of inputs() hold on
  // entry what the chunk before wrote, those of outputs() hold on return what the next chunk reads.
  // With the output layer what `loss` asks for is written.
  void Forward(const MicrobatchPass& pass, const BoundaryActivations& values, ChunkWorkspace& work,
               Kept& kept, const LossArgs& loss = {}) const;

  // `gradients` has those of outputs() on entry (with the output layer: what Forward wrote to
  // loss.dhidden_RD; with the last decoder layer: a buffer for the encoder output's, which is
  // cleared) and those of inputs() on return, in the same buffers. `encoder_output_RD`: as in
  // Forward; read by decoder layers only. pass.layer_done is called for every layer except the
  // output layer, whose gradient Forward completes.
  void Backward(const MicrobatchPass& pass, BoundaryActivations& gradients,
                const at::Tensor& encoder_output_RD, ChunkWorkspace& work, Kept& kept) const;

  // --- decoding: each call runs the chunk's own layers ---

  // Runs Forward up to the encoder's output. Needs has_source().
  void Encode(const MicrobatchPass& pass, const BoundaryActivations& values, ChunkWorkspace& work,
              Kept& kept) const;
  // Writes keys and values of `encoder_output_RD` (operand) for each decoder layer of the chunk to
  // kv_R2D[layer] (operand, at least source.count rows).
  void FillCrossCaches(const PackedRows& source, const at::Tensor& encoder_output_RD,
                       std::span<const at::Tensor> kv_R2D) const;
  // values.target_RD in and out as in Forward. Needs has_target().
  void DecodeStep(const DecodeStepArgs& step, const BoundaryActivations& values,
                  ChunkWorkspace& work, Kept& kept) const;

 private:
  // The layers of the chunk that work on source rows, or those on target rows.
  struct SideLayers {
    int64_t capacity;  // rows
    int embedding_at;  // in the chain, if there is one
    LayerStack layers;
    std::optional<Embedding> embedding = {};
    std::optional<NormLayer> norm = {};  // after the embedding
    std::optional<StackEndStep> end = {};
  };

  SideLayers MakeSide(const BuildContext& build, const Inventory& whole, bool source) const;
  // A stream of boundary activations, with the operand tensor of `work` where the types differ.
  ResidualStream Stream(const at::Tensor& value_RD, const SideWorkspace& work) const;
  PassContext Context(const MicrobatchPass& pass, const PackedRows& rows, Workspace& work) const;
  // The step before the layers of `side`: the embedding, or received rows in operand type.
  void Enter(const SideLayers& side, const PassContext& pass, const ResidualStream& stream,
             Kept::SideState& kept) const;
  void ForwardSide(const SideLayers& side, const PassContext& pass, const ResidualStream& stream,
                   SideWorkspace& work, Kept::SideState& kept) const;
  void BackwardSide(const SideLayers& side, const PassContext& pass, const at::Tensor& dstream_RD,
                    SideWorkspace& work, Kept::SideState& kept) const;

  ChunkSpec spec_;
  BoundarySet inputs_, outputs_;
  bool has_source_, has_target_, ends_encoder_, ends_decoder_, reads_encoder_output_;
  Ops& ops_;
  SideLayers source_, target_;
  std::optional<OutputLayer> output_;
};

// Makes the workspace of `chunks`: one at least, all of one model.
ChunkWorkspace MakeChunkWorkspace(const BuildContext& build, const std::vector<Chunk>& chunks);

}  // namespace deepnet
