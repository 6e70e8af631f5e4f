// Both stacks without embeddings and loss, cut into chunks, on made-up streams and gradients: what
// tests of recomputation and of deferred weight gradients compare bit by bit.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/support/tiny_model.h"
#include "trainer/model/deferred_weights.h"
#include "trainer/model/layer_stack.h"

namespace deepnet::testing {

// TinySpec in all the variants that select other code in layers: residuals, activations, every
// dropout on and off. 5 + 4 layers, so that segments of 2 and 3 end short.
std::vector<ModelSpec> StackVariants();

struct NamedOps {
  const char* name;
  std::unique_ptr<Ops> ops;
};

// The kernels in float32 and bfloat16, and the reference in both and in float64.
std::vector<NamedOps> AllOps();

// Microbatch `m`: its own pairs, so that its dropout is its own.
Microbatch StackMicrobatch(const ModelSpec& spec, int m);

// Every tensor that a run of some microbatches produced, in a fixed order: outputs and input
// gradients of both stacks, then the gradient buffer.
using StackResult = std::vector<at::Tensor>;

bool SameBits(const StackResult& a, const StackResult& b);

class StackRig {
 public:
  // `num_chunks` LayerStacks for each side, of nearly equal length.
  StackRig(const ModelSpec& spec, Ops& ops, const RecomputeChoice& options, int num_chunks);

  void Forward(int m);
  // `deferred`: null, or one for each chunk, encoder chunks first.
  void Backward(int m, std::vector<DeferredWeights>* deferred = nullptr);
  int num_chunks() const { return static_cast<int>(encoder_.size() + decoder_.size()); }
  Ops& ops() { return ops_; }
  StackResult Result() const;

  const Workspace& source_work() const { return source_work_; }
  const Workspace& target_work() const { return target_work_; }

 private:
  struct InFlight {
    Microbatch microbatch;
    PackedRows source_rows, target_rows;
    ResidualStream source, target;
    at::Tensor encoder_output_RD, dencoder_output_RD, dsource_RD, dtarget_RD;
    std::vector<LayerStack::Kept> encoder, decoder;
  };

  InFlight& Of(int m);
  PassContext Context(const PackedRows& rows, Workspace& work) const;

  ModelSpec spec_;
  Ops& ops_;
  Parameters parameters_;
  Workspace source_work_, target_work_;
  std::vector<LayerStack> encoder_, decoder_;
  SegmentWorkspace encoder_segment_, decoder_segment_;
  std::vector<std::unique_ptr<InFlight>> in_flight_;
  MicrobatchPass pass_;
};

// The obvious twin: layer after layer, everything kept, one microbatch after the other.
StackResult RunPlainLayers(const ModelSpec& spec, Ops& ops, int num_microbatches);

}  // namespace deepnet::testing
