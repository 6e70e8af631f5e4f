// Runs a few steps of one small model under any layout. Losses and weights must be equal to the bit
// in every layout; the bytes that each rank held and sent are compared with the plan.
//
// Example, 2 stages x 2 replicas as threads:
//   const RankOutcome alone = RunAlone(model);
//   for (const RankOutcome& rank : RunAsThreads(model, *PlanFor(model, layout))) {
//     ExpectSameBits(rank, alone);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"

namespace deepnet::testing {

// The model that is trained, with every kind of dropout, clipping and weight decay.
struct ModelCase {
  TiedEmbeddings tied = TIE_ALL;
  DataType dtype = FLOAT32;
  int encoder_layers = 3, decoder_layers = 4;
  int width = 16;
  int microbatches = 8;      // of a step, on all replicas
  int virtual_replicas = 8;  // R
  Architecture architecture = ENCODER_DECODER;

  int NumLayers() const {  // of the chain
    return (architecture == ENCODER_DECODER ? 3 : 2) + encoder_layers + decoder_layers;
  }
  std::string ToText() const;
};

// The fields of `parallel` that a user may set.
struct LayoutCase {
  int stages = 1, replicas = 1;
  std::string schedule = "single_stage";  // a name, or a schedule's text
  int virtual_pipeline_size = 1;
  Recompute recompute = NONE;
  int segment = 1;

  std::string ToText() const;
};

// One rank after all steps.
struct RankOutcome {
  int stage = 0, replica = 0;
  int replicas_per_node = 0;                  // 0: sums have one level
  std::vector<double> losses, nlls, norms;    // of each step
  std::map<std::string, at::Tensor> weights;  // of what it holds, by name
  int64_t weight_bytes = 0, gradient_bytes = 0, moment_bytes = 0;
  int64_t sent_bytes = 0;      // in the last step, by a counting communicator
  int64_t exchange_bytes = 0;  // of these, by its share: gradients to replicas, weights from here
  int64_t tied_bytes = 0;      // by its share: uses of tied tensors to the stages that lack them
};

Inventory InventoryOf(const ModelCase& model);
absl::StatusOr<Plan> PlanFor(const ModelCase& model, const LayoutCase& layout);

// Every schedule and placement there is for so many ranks, as far as the model has layers: those
// with a name, and sweeps (all forwards chunk by chunk, then all backwards) over placements that
// none of them has.
std::vector<LayoutCase> SchedulesFor(const ModelCase& model, int stages, int replicas);
// Each of `layouts` with NONE, SELECTIVE_FFN, SELECTIVE_GEMM, FULL and segments of two layers, one
// after the other.
std::vector<LayoutCase> WithEveryRecompute(const std::vector<LayoutCase>& layouts);

// Collective over `world`, as MakeRankContext.
absl::StatusOr<RankOutcome> RunOnRank(const ModelCase& model, const Plan& plan, Communicator& world,
                                      const std::string& node = "the only one");

// Runs the reference: one rank, one chunk, one microbatch after the other.
RankOutcome RunAlone(const ModelCase& model);
// Returns the outcome of each rank, in order; a failure fails the test. `node_of` gives the
// pretended nodes of ranks; without it all are on one.
std::vector<RankOutcome> RunAsThreads(const ModelCase& model, const Plan& plan,
                                      const std::function<std::string(int rank)>& node_of = {});

void ExpectSameBits(const RankOutcome& rank, const RankOutcome& alone);
// Compares runs whose number of replicas does not divide R: the loss of the first step must be the
// same to the bit, its norm and all later figures within float32 rounding of sums over
// microbatches. `agreed` is a rank of the same stage, whose bits must be the same in any case.
void ExpectWithinRounding(const RankOutcome& rank, const RankOutcome& alone,
                          const RankOutcome& agreed);

// One rank: parameter bytes as planned, and bytes sent in a step as the sum of what crosses its
// cuts (Plan) times its microbatches, of the exchange of gradients and weights, of tied tensors, of
// the norm's block sums and of the losses.
void ExpectBytesAsPlanned(const RankOutcome& rank, const ModelCase& model, const Plan& plan);
// All ranks: what the replicas of a stage exchange is (d_p - 1) times the planned gradients and
// weights, and they hold the moments of every weight once between them.
void ExpectExchangesAsPlanned(const std::vector<RankOutcome>& ranks, const Plan& plan);

}  // namespace deepnet::testing
