// Layers of a stack, and a run of them with one level of recomputation.
//
// Only LayerStack decides which layer keeps what, and when it recomputes what was not kept
// (docs/design/recomputation.md says why that gives equal bits).
//
// Letters: R rows, D width.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/attention.h"
#include "trainer/model/feed_forward.h"
#include "trainer/model/norm.h"
#include "trainer/model/pass.h"

namespace deepnet {

// The state that layers of a level do not keep is in buffers of `work`, which must have them; keys
// and values of the encoder's output are in `source_work`.
struct Recomputed {
  Recompute level = NONE;
  const Workspace* work = nullptr;
  const Workspace* source_work = nullptr;
};

// A layer of either stack. The decoder of a model of two stacks (trainer/model/architecture.h) has
// a cross-attention between self-attention and feed-forward block, which reads pass.encoder_output.
class TransformerLayer {
 public:
  struct Saved {
    AttentionLayer::Saved self_attention, cross_attention;
    FeedForward::Saved feed_forward;
  };

  TransformerLayer(const BuildContext& build, int stack, int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity, int64_t source_capacity,
                  const Recomputed& recomputed = {}) const;
  void Forward(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Saved& saved) const;
  // Decoding; with cross-attention only.
  void FillCache(const PassContext& pass, const at::Tensor& kv_R2D) const {
    cross_attention_->FillCache(pass, kv_R2D);
  }
  void Step(const PassContext& pass, const ResidualStream& stream, Saved& saved,
            const StepCache& self, const StepCache& cross) const;
  // Returns the origin of the next layer's input.
  Upstream Output(const Saved& saved) const;

 private:
  AttentionLayer self_attention_;
  std::optional<AttentionLayer> cross_attention_;
  FeedForward feed_forward_;
};

// DLCL (Wang et al., 2019, arXiv:1906.01787, section 3): a layer reads a trained sum of all layers
// before it, in pre-norm form.
//
//   z_0 = the rows that entered the stack        z_k = N_k(output of layer k)
//   input of layer l + 1 = sum over k <= l of W[l, k] z_k;  the stack's output: l = its layers
//
// Rows of W start as means: W[l, k] = 1 / (l + 1). Every z_k is kept until the backward pass has
// passed its layer, at every level of recomputation, and the gradients of all z_k grow together.
// So a stack with a history is in one piece: no boundary of a pipeline goes through it
// (Inventory::one_piece).
class LayerHistory {
 public:
  // State of one microbatch: z_0 .. z_n (residual), of which the stack writes z_0, and states of
  // the n norms.
  struct Saved {
    std::vector<at::Tensor> outputs_RD;
    std::vector<NormState> norms;
  };

  // `stack`, as a whole: 0 encoder, 1 decoder.
  LayerHistory(const BuildContext& build, int stack);

  // `trains`: with states of norms.
  Saved MakeSaved(const Ops& ops, int64_t capacity, bool trains) const;
  // Gradients of z_0 .. z_n, for one backward pass at a time.
  std::vector<at::Tensor> MakeGradients(const Ops& ops, int64_t capacity) const;

  // The stream becomes the input of `layer` (from 0), or with the number of layers the output.
  void Mix(const PassContext& pass, int layer, const ResidualStream& stream,
           const Saved& saved) const;
  // z_(layer + 1) = N(the stream after `layer`).
  void Keep(const PassContext& pass, int layer, const ResidualStream& stream, Saved& saved) const;

  // Backward of Mix: adds the gradient of its result to those of the z_k and of the weights. The
  // call for the output comes first and clears `gradients`.
  void MixBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                   const Saved& saved, const std::vector<at::Tensor>& gradients) const;
  // Backward of Keep: `dstream_RD` becomes the gradient of the stream after `layer`.
  void KeepBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD, Saved& saved,
                    const std::vector<at::Tensor>& gradients) const;

 private:
  int64_t width_;
  std::vector<TrainedTensor> weights_;  // [layer + 1]; the last are the output's
  std::vector<NormLayer> norms_;        // of z_1 .. z_n
};

// Consecutive layers of a stack.
struct LayerRun {
  int stack = 0;  // 0 encoder, 1 decoder
  int first = 0;  // the first one's index in its stack
  int count = 0;
  int position = 0;  // the first one's in the chain
};

// All runs of a stack on a rank share it, and no other action needs it. FULL: the state of the
// layers of one segment while they are worked on. Other levels: the last member.
struct SegmentWorkspace {
  std::vector<TransformerLayer::Saved> saved;  // one for each layer of a segment
  ResidualStream stream;                       // runs through a segment that is recomputed
  at::Tensor input_RD;  // operand: the segment's input; undefined where that is the residual type
  // Forward passes so far, and the segment of the last one that `saved` holds (-1: none): where the
  // backward pass comes next, its first segment needs no recomputation.
  int64_t passes = 0;
  int held = -1;
  std::vector<at::Tensor> history_gradients_RD;  // with a history, at every level
};

// Buffers that runs of one stack on a rank take for a microbatch and give back after it: each has
// as many as all of them hold at once.
struct KeptPool {
  // Puts what is there in order: equal steps then use equal memory.
  void Sort();

  std::map<Recompute, std::vector<TransformerLayer::Saved>> saved;  // by the run's level
  std::vector<at::Tensor> first_RD, inputs_RD;
  std::vector<LayerHistory::Saved> histories;
};

class LayerStack {
 public:
  using Saved = TransformerLayer::Saved;

  // State of one microbatch from Forward to Backward.
  struct Kept {
    std::vector<Saved> saved;           // one a layer; not for FULL; inference: one for all
    at::Tensor first_RD;                // operand: input of the first layer; not for FULL
    std::vector<at::Tensor> inputs_RD;  // FULL: residual, input of each segment
    LayerHistory::Saved history;        // empty where there is none
    int64_t pass = 0;                   // SegmentWorkspace::passes of the forward pass
  };

  LayerStack(const BuildContext& build, const RecomputeChoice& options, const LayerRun& run);

  // `work` (of the stack's rows) and `source_work` (of the encoder output's rows, for
  // cross-attention) must have been made with this level or a higher one, and outlive the result.
  // Takes the buffers out of `pool`, which makes those that it lacks. All stacks that share a pool
  // are given the same workspaces.
  Kept TakeKept(KeptPool& pool, const Workspace& work, const Workspace& source_work) const;
  // Gives all of `kept`, which is empty then, back to `pool`; after Backward.
  void GiveKept(KeptPool& pool, Kept& kept) const;
  // One layer's buffers for all layers: for passes without backward, and decoding.
  Kept MakeKeptForInference() const;
  // Makes the buffers that segments of this stack need and `segment` does not have yet. Every stack
  // that will use `segment` calls this once, before its first pass.
  void Prepare(SegmentWorkspace& segment) const;

  // `stream`: embedded or received rows on entry, the stack's output on return. In training `kept`
  // is filled. Below FULL `segment` holds a history's gradients alone.
  void Forward(const PassContext& pass, const ResidualStream& stream, Kept& kept,
               SegmentWorkspace& segment) const;
  // `dstream_RD` (residual): gradient of the output on entry, of the input on return. With rows,
  // seed and step of Forward. Changes nothing but `kept`, workspaces and gradients.
  void Backward(const PassContext& pass, const at::Tensor& dstream_RD, Kept& kept,
                SegmentWorkspace& segment) const;

  // The steps before and after layer `layer` when decoding, where the caller runs the layers.
  void BeforeLayer(const PassContext& pass, int layer, const ResidualStream& stream,
                   Kept& kept) const;
  void AfterLayer(const PassContext& pass, int layer, const ResidualStream& stream,
                  Kept& kept) const;

  int size() const { return static_cast<int>(layers_.size()); }
  const std::vector<TransformerLayer>& layers() const { return layers_; }

 private:
  bool by_segment() const { return options_.level == FULL; }
  int NumSegments() const { return (size() + segment_ - 1) / segment_; }
  Saved MakeSaved(const Recomputed& recomputed = {}) const {
    return layers_[0].MakeSaved(ops_, capacity_, source_capacity_, recomputed);
  }
  Saved& SavedOf(int layer, Kept& kept, SegmentWorkspace& segment) const;
  void RecomputeSegment(const PassContext& pass, int index, Kept& kept,
                        SegmentWorkspace& segment) const;
  Upstream UpstreamOf(const PassContext& pass, int layer, Kept& kept,
                      SegmentWorkspace& segment) const;

  RecomputeChoice options_;
  int segment_;                                 // layers between two kept inputs; without FULL: all
  int position_;                                // of the first layer in the chain
  int64_t width_, source_capacity_, capacity_;  // rows of the source, and of this stack
  Ops& ops_;
  std::vector<TransformerLayer> layers_;
  std::optional<LayerHistory> history_;
};

}  // namespace deepnet
