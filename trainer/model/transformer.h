// The Transformer, or the chunks of it that one rank of a pipeline holds.
//
// All arithmetic goes through Ops, all shapes are capacities fixed at construction. A whole model
// is one chunk. Decoding goes chunk by chunk (trainer/decode/model_scorer.h).
#pragma once

#include <memory>
#include <vector>

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/chunk.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Everything that one microbatch keeps in a whole model; in inference, everything that passes
// through the chunks of a rank need.
struct Activations {
  Chunk::Kept kept;
  BoundaryActivations values;
  BoundaryActivations gradients;  // of the decoder's and encoder's output; undefined in inference
};

class Transformer {
 public:
  // The whole model. `capacity` is resolved (no zero fields, except max_source_tokens of a model of
  // one stack). `trainable`: with gradients, moments and the weights' form for backward passes.
  // `ops` must outlive the model.
  Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops, bool trainable);
  // The part of a rank: `chunks`, not empty, in chain order, disjoint.
  Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops, bool trainable,
              const std::vector<ChunkSpec>& chunks);

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  const ModelSpec& spec() const { return spec_; }
  const MicrobatchSpec& capacity() const { return capacity_; }
  Ops& ops() { return ops_; }
  // Steps that made the weights, for passes that translate or score: BRANCH_NORM is another
  // function after each step. 0 until set_step.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  const Inventory& whole() const { return whole_; }  // of the whole model
  const std::vector<Chunk>& chunks() const { return chunks_; }
  ChunkWorkspace& work() { return work_; }

  // Working copies of all weights, after the masters moved.
  void Refresh() { parameters_.Refresh(); }

  // `shared`: one layer's buffers serve all layers of all chunks, for passes without backward.
  // Without it, for whole models only.
  std::unique_ptr<Activations> MakeActivations(bool shared) const;

 private:
  BuildContext Build() { return {spec_, capacity_, ops_, parameters_}; }
  std::vector<Chunk> MakeChunks(const std::vector<ChunkSpec>& specs);

  ModelSpec spec_;
  MicrobatchSpec capacity_;
  int64_t step_ = 0;
  Ops& ops_;
  Inventory whole_;
  Parameters parameters_;
  std::vector<Chunk> chunks_;
  ChunkWorkspace work_;
};

}  // namespace deepnet
