// A pipeline in one thread: stages of several ranks, driven action by action, with copies between
// their buffers for messages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "trainer/data/microbatch.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"
#include "trainer/pipeline_stage.h"

namespace deepnet::testing {

// The cuts of a model, and the rank of each chunk.
struct Layout {
  std::vector<int> chunk_ends;             // of the chain; the last one is its length
  Placement placement;                     // of as many chunks
  std::vector<RecomputeChoice> recompute;  // of each chunk; empty: NONE

  std::string ToText() const;
};

// The whole model on one rank.
Layout OneRank(int num_layers);

// Actions of all ranks in an order in which they can happen, ranks taken in turn. `schedule` has no
// transfers.
std::vector<Action> InOneOrder(const Schedule& schedule, int num_chunks);

// A random one of all orders that a Stage allows. `split`: I and W for some microbatches.
std::vector<Action> RandomOrder(int num_chunks, int num_microbatches, bool split,
                                std::mt19937& random);

struct PipelineOptions {
  int virtual_replicas = 1;
  std::string operand_type = "float32";  // as in MakeStageMessages
};

class PipelineRig {
 public:
  PipelineRig(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops, const Layout& layout,
              const PipelineOptions& options);

  // One step up to the sums over virtual replicas: uses of tied tensors are still apart.
  void Run(const StepBatch& batch, int64_t step, const std::vector<Action>& order);

  // The loss of each microbatch, from the rank with the output layer.
  const std::vector<LossSums>& losses() const;
  // Returns the accumulator of each use, by layer and parameter name.
  std::map<std::string, at::Tensor> Gradients() const;
  // Bytes that crossed cuts so far.
  int64_t bytes_sent() const { return bytes_sent_; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  Transformer& model(int rank) { return *ranks_[rank].model; }

 private:
  struct Rank {
    std::unique_ptr<Transformer> model;
    std::unique_ptr<GradientSums> sums;
    std::unique_ptr<PipelineStage> stage;
  };

  Rank MakeRank(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops, int rank,
                const PipelineOptions& options);
  void Take(const Action& action);
  // Moves what crosses the cut between two chunks, if they are on two ranks.
  void Send(Boundary from, int chunk, Boundary to, int receiver, int microbatch);
  PipelineStage& StageOf(int chunk) { return *ranks_[RankOf(chunk)].stage; }
  int RankOf(int chunk) const { return layout_.placement.rank_of_chunk[chunk]; }

  Layout layout_;
  Inventory whole_;
  std::vector<StageMessages> stage_messages_;
  std::vector<Rank> ranks_;
  int64_t bytes_sent_ = 0;
};

}  // namespace deepnet::testing
