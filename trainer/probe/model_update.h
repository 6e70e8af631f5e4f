// How far a model has moved: ||F(x, theta_t) - F(x, theta_0)||, the quantity that DeepNet bounds
// (section 4) and that its figures 4 and 5 show.
//
// F is the decoder's output, the rows that the output layer turns into logits, without dropout; x
// is one fixed microbatch of T target tokens. The Frobenius norm over all rows is given
//
//   a token      / sqrt(T): the root mean square over tokens of the length of a row's change. What
//                figure 4 shows: of rows of norm sqrt(512), unrelated ones are sqrt(2 * 512) = 32
//                apart, and its Post-LN without warm-up stays at 28 to 29.
//   an element   / sqrt(T * width): of at most sqrt 2 behind a normalisation, for any width.
//
// A pipeline computes F as validation does (trainer/decode/model_scorer.h); the bits are those of
// one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "proto/plan.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/rank_part.h"

namespace deepnet {

struct OutputChange {
  double per_token = 0.0;
  double per_element = 0.0;
};

// F of one microbatch.
struct OutputRows {
  int64_t tokens = 0;
  int64_t width = 0;
  std::vector<float> values;  // [tokens, width]; empty on ranks without the output layer

  friend bool operator==(const OutputRows&, const OutputRows&) = default;
};

// Rows of the same shape.
OutputChange ChangeOf(const OutputRows& rows, const OutputRows& reference);

// F on one rank of a pipeline.
class OutputProbe {
 public:
  // Collective over part.pipeline. `part` is what MakeRankPart made of `whole` and `plan` and
  // outlives the probe; nobody waits longer than `limit` for a peer.
  static absl::StatusOr<std::unique_ptr<OutputProbe>> Make(const Inventory& whole, const Plan& plan,
                                                           RankPart& part, Microbatch microbatch,
                                                           absl::Duration limit);

  const Microbatch& microbatch() const { return microbatch_; }
  bool has_output() const { return has_output_; }  // Rows has values here

  // With the working copies of now (Refresh), as a forward pass after `step` steps computes it.
  // Collective over part.pipeline.
  absl::StatusOr<OutputRows> Rows(int64_t step);

 private:
  OutputProbe(RankPart& part, Microbatch microbatch);

  RankPart& part_;
  const Microbatch microbatch_;
  bool has_output_ = false;
  std::unique_ptr<Communicator> messages_;  // null: the rank is alone
  std::unique_ptr<PipelineLink> link_;      // likewise
  std::unique_ptr<Activations> kept_;
};

}  // namespace deepnet
