// A run of encoder or of decoder layers with one level of recomputation: all that a chunk of the
// model has to know of it.
//
// Only this class decides which layer keeps what, and when what was not kept is computed again
// (trainer/model/recompute.h says what the levels are, docs/design/recomputation.md why they give
// equal bits). A chunk calls, for each microbatch,
//
//   stack.Forward(pass, stream, kept)         stream: embedded or received rows; the output on
//   return stack.Backward(pass, dstream_RD, kept)    gradient of the output; of the input on return
//
// with the same rows, seed and step. Kept lives from the one to the other; SegmentWorkspace is
// shared by all stacks of a kind on a rank and holds nothing that another action needs.
//
// Letters: R rows, D width.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/layer_done.h"
#include "trainer/model/layer_history.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

namespace deepnet {

// What every layer of a stack is given in a pass.
struct StackPass {
  PassContext context;               // rows: of this stack
  Workspace* work = nullptr;         // of this stack's rows
  const Memory* memory = nullptr;    // decoder
  Workspace* memory_work = nullptr;  // decoder: of the memory's rows
  // Called by Backward, if anybody asks, for the stack's layers from first_layer on in the chain.
  const LayerDone* layer_done = nullptr;
  int first_layer = 0;
};

// A residual stream of zeros.
Stream MakeStream(const Ops& ops, int64_t capacity, int64_t width);

// LAYER: what the layers of one segment keep while they are worked on. Other levels: empty.
template <typename LayerT>
struct SegmentWorkspace {
  std::vector<typename LayerT::Saved> saved;  // one for each layer of a segment
  Stream stream;                              // runs through a segment that is computed again
  at::Tensor input_RD;  // operand: the segment's input; undefined where that is the stream's type
  // Forward passes so far, and which segment of the last one `saved` holds (-1: none): where the
  // backward pass comes next, its first segment needs no second run.
  int64_t passes = 0;
  int held = -1;
  std::vector<at::Tensor> history_gradients_RD;  // of a stack with a history, at every level
};

// Buffers that stacks of one kind on a rank take for a microbatch and give back after it: each has
// as many as all of them hold at once.
template <typename LayerT>
struct KeptPool {
  std::map<Recompute, std::vector<typename LayerT::Saved>> saved;  // by what a stack keeps
  std::vector<at::Tensor> first_RD, inputs_RD;
  std::vector<LayerHistory::Saved> histories;
};

// LayerT: EncoderLayer or DecoderLayer.
template <typename LayerT>
class LayerStack {
 public:
  using Saved = typename LayerT::Saved;

  // What one microbatch keeps.
  struct Kept {
    std::vector<Saved> saved;           // NONE, FFN, GEMM: one a layer; inference: one for all
    at::Tensor first_RD;                // operand: input of the first layer; not for LAYER
    std::vector<at::Tensor> inputs_RD;  // LAYER: stream, input of each segment
    LayerHistory::Saved history;        // empty where there is none
    int64_t pass = 0;                   // SegmentWorkspace::passes of the forward pass
  };

  // Layers [first, first + count) of the stack. `options` as in RecomputeChoice.
  LayerStack(const ModelSpec& spec, const MicrobatchSpec& capacity, const RecomputeChoice& options,
             Ops& ops, const Parameters& parameters, int first, int count);

  // `work` (of the stack's rows; for decoder layers also `memory_work`) must have been made with
  // this level or a higher one, and outlive the result.
  Kept MakeKept(const Workspace& work, const Workspace* memory_work = nullptr) const;
  // The same out of `pool`, which makes what it lacks. All stacks that share a pool are given the
  // same workspaces.
  Kept TakeKept(KeptPool<LayerT>& pool, const Workspace& work,
                const Workspace* memory_work = nullptr) const;
  // After Backward: all of `kept`, which is empty then.
  void GiveKept(KeptPool<LayerT>& pool, Kept& kept) const;
  // One layer's buffers for all: passes without backward, Step.
  Kept MakeKeptForInference() const;
  // Makes what segments of this stack need and `segment` does not have yet. Every stack that will
  // use it says so once, before its first pass.
  void Prepare(SegmentWorkspace<LayerT>& segment) const;

  // With pass.context.keep, `kept` is filled. `segment` is unused but for LAYER.
  void Forward(const StackPass& pass, const Stream& stream, Kept& kept,
               SegmentWorkspace<LayerT>& segment) const;
  // `dstream_RD` (stream), in place. Runs no collective and touches nothing but `kept`, the
  // workspaces, gradients, and the memory's gradient.
  void Backward(const StackPass& pass, const at::Tensor& dstream_RD, Kept& kept,
                SegmentWorkspace<LayerT>& segment) const;
  void Refresh();

  // What stands before and behind layer `layer` of Step, which callers run themselves.
  void BeforeLayer(const PassContext& pass, int layer, const Stream& stream, Kept& kept) const;
  void AfterLayer(const PassContext& pass, int layer, const Stream& stream, Kept& kept) const;

  int size() const { return static_cast<int>(layers_.size()); }
  const std::vector<LayerT>& layers() const { return layers_; }

 private:
  bool by_segment() const { return options_.level == LAYER; }
  int NumSegments() const { return (size() + segment_ - 1) / segment_; }
  Saved MakeSaved(Recompute level, const Workspace* work, const Workspace* memory_work) const;
  Saved& SavedOf(int layer, Kept& kept, SegmentWorkspace<LayerT>& segment) const;
  void ForwardAgain(const StackPass& pass, int index, Kept& kept,
                    SegmentWorkspace<LayerT>& segment) const;
  Upstream UpstreamOf(const StackPass& pass, int layer, Kept& kept,
                      SegmentWorkspace<LayerT>& segment) const;

  RecomputeChoice options_;
  int segment_;  // layers between two kept inputs; without LAYER: all
  int64_t width_, source_capacity_, capacity_;
  Ops& ops_;
  std::vector<LayerT> layers_;
  std::optional<LayerHistory> history_;
};

using EncoderStack = LayerStack<EncoderLayer>;
using DecoderStack = LayerStack<DecoderLayer>;

extern template class LayerStack<EncoderLayer>;
extern template class LayerStack<DecoderLayer>;

}  // namespace deepnet
