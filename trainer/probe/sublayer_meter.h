// Norms of what runs through the sub-layers of a model in one forward pass: how large the stream
// and each branch are where they meet, which is what the paper's figures 3 and 4 look at.
//
// Everything is as the model computes with it, in training behind dropout: the branch as it joins;
// alpha (and omega) times the stream; and what the norm behind the sum, or else the one before the
// branch, really reads. With B2T that is also the layer's input, which belongs to neither the
// branch nor the stream: the share of the stream is of those two.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/model.pb.h"
#include "proto/report.pb.h"
#include "trainer/model/sublayer_probe.h"
#include "trainer/optim/groups.h"

namespace deepnet {

class SublayerMeter : public SublayerProbe {
 public:
  explicit SublayerMeter(const ModelSpec& model);

  void AtEnter(const PassContext& pass, const SublayerView& view) override;
  void AtLeave(const PassContext& pass, const SublayerView& view) override;

  // That looking took since the last Gather, on this rank.
  double seconds() const { return seconds_; }

  // What all ranks of `groups` have seen since the last call, in chain order; forgets it. A
  // sub-layer is seen by one rank at most. Collective over groups.world, every rank gets the same.
  absl::StatusOr<std::vector<SublayerInstruments>> Gather(const Groups& groups);

 private:
  // Mean squares over rows.
  struct Seen {
    double input = 0.0, branch = 0.0, stream = 0.0, norm_input = 0.0;
  };

  Seen& SeenAt(const SublayerView& view);

  ModelSpec model_;
  std::vector<Seen> seen_;  // in chain order
  double seconds_ = 0.0;
};

}  // namespace deepnet
