// Norms of what runs through the sub-layers of a model in one forward pass, and for each layer
// those of its gradient, its weights and what one update added. The paper's figures 3 and 4 look at
// how large the stream and each branch are where they meet.
//
// Everything is as the model computes with it, in training after dropout: the branch as it joins;
// alpha (and omega) times the stream; and what the norm after the sum, or else the one before the
// branch, really reads. With B2T that is also the layer's input, which belongs to neither the
// branch nor the stream: the share of the stream is of those two.
//
// Squares are added over the blocks of the whole model (SumBlockBorders), each by the one rank that
// updates it, and the blocks of a layer in order: the same bits for every layout, as the gradient's
// norm has them (trainer/optim/step_totals.h). A tied matrix counts in the first layer that uses
// it; a layer without parameters of its own has zeros.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "parallel/plan/shard.h"
#include "proto/model.pb.h"
#include "proto/report.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/step_totals.h"

namespace deepnet {

class SublayerMeter : public SublayerProbe {
 public:
  explicit SublayerMeter(const ModelSpec& model);

  void AtEnter(const PassContext& pass, const SublayerView& view) override;
  void AtLeave(const PassContext& pass, const SublayerView& view) override;

  // Returns the seconds that looking took since the last Gather, on this rank.
  double seconds() const { return seconds_; }

  // Returns what all ranks of `groups` have seen since the last call, in chain order, and forgets
  // it. A sub-layer is seen by one rank at most. Collective over groups.world, every rank gets the
  // same.
  absl::StatusOr<std::vector<SublayerInstruments>> Gather(const Groups& groups);

 private:
  // Mean squares over rows.
  struct Seen {
    double input = 0.0, branch = 0.0, stream = 0.0, norm_input = 0.0;
  };

  ModelSpec model_;
  std::vector<Seen> seen_;  // in chain order
  double seconds_ = 0.0;
};

class LayerMeter {
 public:
  // `layout`: what this rank holds of `whole`. Takes memory for a copy of what it updates, in the
  // type and place of `options`.
  LayerMeter(const Inventory& whole, const ShardLayout& layout, const at::TensorOptions& options);

  int64_t bytes() const { return static_cast<int64_t>(copy_.nbytes()); }

  // Copies the weights that this rank is about to update.
  void Remember(const at::Tensor& weights);

  // After Remember and the update, with the gradient that the update was made from. Forgets the
  // copy's contents. Elements are in chain order. Collective over groups.world, every rank gets the
  // same.
  absl::StatusOr<std::vector<LayerInstruments>> Measure(Ops& ops, const Parameters& parameters,
                                                        const Groups& groups);

 private:
  std::vector<std::string> layers_;  // names, in chain order
  std::vector<int> layer_of_block_;  // of the whole model
  std::vector<BlockRun> runs_;
  at::Tensor copy_;  // of the weights that the runs cover, packed
};

// Admin's profiling pass (Liu et al., 2020, arXiv:2004.08249, section 4.3): how much every branch
// adds to its stream, which decides how heavily each sub-layer's stream has to weigh.
//
// Returns omega of every sub-layer, 2N of the encoder and then 3M of the decoder: for each stack a
// running r, 1 at first; sub-layer i gets omega_i = r, then r <- sqrt(Var(omega_i x) + Var(f_i)),
// variances over all elements of one forward pass of `microbatch` in training mode (dropout on,
// keyed by `seed` and step 0).
//
// `model`: a whole one with residual ADMIN and its initial weights and working copies; its omegas
// are left as found here. Values are what model.scheme.admin_omega takes.
std::vector<double> ProfileAdmin(Transformer& model, const Microbatch& microbatch, uint64_t seed);

}  // namespace deepnet
