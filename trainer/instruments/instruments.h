// Records of a run that trains (InstrumentsSpec): a line of metrics.jsonl with kind "instruments"
// every so many steps. Nothing that is computed depends on it (docs/design/instruments.md).
//
//   layers        norms of gradient, weights and update of each layer (meters.h)
//   model_update  of the first microbatch of step 0 (model_update.h), since the run's first step
//   sublayers     of the step's own forward passes
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/plan/inventory.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/instruments/meters.h"
#include "trainer/instruments/model_update.h"
#include "trainer/rank_context.h"

namespace deepnet {

// The file of a run folder that keeps F(x, theta_0), so that a resumed run can tell how far it is.
inline constexpr char kModelUpdateReference[] = "model_update.bin";

struct InstrumentsOptions {
  std::string folder;           // of the run
  FileSystem* files = nullptr;  // that it is reached by
  int64_t first_step = 0;       // of this start; 0: theta_0 are the weights of now
  absl::Duration message_limit = absl::InfiniteDuration();  // for one message of a forward pass
  Logger* log = nullptr;                                    // required
};

class Instruments {
 public:
  // `part` is what MakeRankContext made of `run` and `whole`, with weights and working copies, and
  // outlives the result; `batches` is asked for step 0 where the model's update is wanted. At step
  // 0 the reference is computed and written; later it is read, and without it, or with one of
  // another run, a warning is given and the model's update left out. Collective over part.world.
  static absl::StatusOr<std::unique_ptr<Instruments>> Make(const RunSpec& run,
                                                           const Inventory& whole,
                                                           RankContext& part, BatchSource& batches,
                                                           const InstrumentsOptions& options);

  // Returns true if a record is made when `step` steps are done.
  bool Due(int64_t step) const { return every_ > 0 && step % every_ == 0; }
  // Returns the seconds that this rank has spent on records.
  double seconds() const { return seconds_; }

  // Must be called before the step whose record is due.
  void BeforeStep();
  // Must be called in that step, when its gradient is complete and weights are about to change.
  void BeforeUpdate();
  // Returns the record after that update, `step` steps being done. Collective over part.world;
  // every rank gets the same but for `seconds`, which are its own.
  absl::StatusOr<InstrumentRecord> Record(int64_t step);

 private:
  Instruments(int64_t every, const Inventory& whole, RankContext& part);

  absl::Status StartModelUpdate(const RunSpec& run, const Inventory& whole, BatchSource& batches,
                                const InstrumentsOptions& options);
  absl::Status MakeReference(const RunSpec& run, const Inventory& whole,
                             const InstrumentsOptions& options);
  absl::StatusOr<double> ModelUpdate(int64_t step);

  const int64_t every_;  // steps; 0: never
  RankContext& part_;
  std::optional<LayerMeter> layers_;        // none: never looked at
  std::optional<SublayerMeter> sublayers_;  // likewise
  bool measures_model_update_ = false;      // the same on all ranks
  std::unique_ptr<OutputProbe> probe_;      // of replica 0's ranks, if so
  OutputRows reference_;                    // F(x, theta_0); where the probe has its output
  double seconds_ = 0.0;
  double before_update_seconds_ = 0.0;  // of the step under way
};

// Returns "  instruments 2.3 %" for a line of progress of a run that took `seconds` in all, if
// records took more than 1 % of that; else nothing.
std::string InstrumentsCost(double instruments_seconds, double seconds);

}  // namespace deepnet
