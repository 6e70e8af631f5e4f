// A job of many ranks (threads) that updates a small model with made-up gradients, and the same by
// one obvious loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"
#include "trainer/optim/gradient_sums.h"
#include "trainer/optim/optimizer.h"

namespace deepnet {

// Layers of each stage: a stage may have several runs of them.
using Stages = std::vector<std::vector<LayerSpan>>;

struct Job {
  Stages stages = {{{0, 6}}};
  int replicas = 1;
  int virtual_replicas = 1;
  int replicas_per_node = 0;  // 0: one level of exchanges
  GradientSum order = STRICT;
  int64_t piece_elements = 3 * kSumBlock;
  bool native = false;  // Ops by this project's kernels, else LibTorch's
  int updates = 3;
};

// The result of one rank.
struct RankResult {
  std::vector<UpdateResult> updates;
  std::vector<std::string> names;   // of the parameters it holds
  std::vector<at::Tensor> weights;  // of each, flat
  int64_t state_elements = 0;
  int64_t weight_elements = 0;
  int64_t gradient_elements = 0;
  // By gradients and weights in one update: to other replicas, and those of other nodes among them.
  int64_t replica_bytes_sent = 0;
  int64_t node_bytes_sent = 0;
};

// Six layers: source embedding and positions, two encoder layers, target embedding, a decoder
// layer, output. `tied`: both embeddings and the output are one matrix, whose row 1 stays zero.
Inventory SixLayers(bool tied);

// All matrices decayed, gradients clipped.
OptimSpec SixLayersOptim();

std::unique_ptr<Ops> MakeJobOps(bool native);

// Returns what virtual replica `replica` adds to the accumulator of `layer`'s use of `parameter`.
// Sizes differ by orders of magnitude, so that another order of additions is another sum.
at::Tensor JobGradient(const Layer& layer, const Parameter& parameter, int64_t step, int replica);

// Runs `job`; rank = stage * replicas + replica. `before_update`, if any, is called on every rank
// before each update.
using BeforeUpdate = std::function<absl::Status(int rank, int64_t update, const ShardLayout& layout,
                                                Parameters& parameters, const Groups& groups)>;
std::vector<absl::Status> RunJob(const Job& job, const Inventory& model,
                                 std::vector<RankResult>& results,
                                 const BeforeUpdate& before_update = nullptr);

// One rank; encoder and decoder; the tied matrix on three stages; a V whose first rank has both
// ends of the chain and, with it, the first and the last use.
const std::vector<Stages>& AllStages();

// RunJob, expecting that no rank fails.
std::vector<RankResult> RunToTheEnd(const Job& job, const Inventory& model);

std::string Describe(const Job& job);

// The norm of a whole gradient in the Inventory's order, by definition: blocks of 4096 elements
// from the start of each layer's own parameters; a tied matrix is a run of its own.
double TwinNorm(Ops& ops, const Inventory& model, const at::Tensor& gradient);

// The same in one place: whole gradients of all replicas, added as docs/design/determinism.md says.
RankResult RunTwin(const Job& job, const Inventory& model);

}  // namespace deepnet
