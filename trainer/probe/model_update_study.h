// The model's update against depth and scheme, as figure 5 of the paper shows it: train each model
// a few steps from its initial weights, and see how far its output has moved on text it has not
// seen.
//
// The paper gives the sizes (64-128-2, IWSLT-14) but neither the number of updates nor the norm.
// The protocol here, and what it was compared with: docs/design/instruments.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/probe/model_update.h"

namespace deepnet {

// Which parameters the updates move; the others stay as they started.
enum class Moving {
  kAll,
  kMatrices,  // all but gains and biases: what the paper's bound is over
};

// Trains `run` (defaults filled in, seed included) as one rank for the last of `updates`
// (ascending, from 1) and returns the change of F after each of them. x is the first microbatch of
// the step after the last. A step that is skipped because it is not finite leaves the weights as
// they are.
absl::StatusOr<std::vector<OutputChange>> TraceModelUpdate(const RunSpec& run,
                                                           std::span<const int64_t> updates,
                                                           Moving moving, BatchSource& batches);

// Sentences of made-up pieces, drawn evenly, of 4 to 60 tokens a side: a function of (seed, step).
// `data` has its capacities.
std::unique_ptr<BatchSource> MakeMadeUpBatches(const DataSpec& data, int64_t vocabulary_size,
                                               uint64_t seed);

// One scheme: a figure for each depth and seed.
struct UpdateCurve {
  Residual residual = DEEPNORM;
  std::vector<std::vector<OutputChange>> changes;  // [depth][seed]

  std::vector<double> PerToken() const;    // [depth], mean over seeds
  std::vector<double> PerElement() const;  // likewise
  double Ratio() const;                    // largest of PerToken over smallest
};

struct UpdateStudy {
  std::vector<int> depths;  // layers a side
  int64_t updates = 0;      // after which F is looked at
  Moving moving = Moving::kAll;
  int seeds = 0;
  std::vector<UpdateCurve> curves;
};

struct UpdateStudyOptions {
  std::vector<int> depths;
  std::vector<Residual> schemes;
  int64_t updates = 1;
  Moving moving = Moving::kAll;
  int seeds = 1;  // 1, 2, ...
  // The data of a run whose seed is set.
  std::function<absl::StatusOr<std::unique_ptr<BatchSource>>(const RunSpec& run)> batches;
  // Told before each model is trained; may be empty.
  std::function<void(const RunSpec& run, double fraction)> show;
};

// `run`: everything but residual, layers and seed.
absl::StatusOr<UpdateStudy> StudyModelUpdate(const RunSpec& run, const UpdateStudyOptions& options);

}  // namespace deepnet
