// From a RunSpec to a run that may begin: what every rank settles before anything is allocated.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "proto/checkpoint.pb.h"
#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/data/corpus.h"

namespace deepnet {

struct RunStart {
  RunSpec run;         // every open field decided; the same on all ranks
  std::string folder;  // of the run, as this process reaches it
  std::unique_ptr<Corpus> corpus;
  Inventory inventory;                     // of the whole model
  Plan plan;                               // who computes what
  std::optional<FoundCheckpoint> earlier;  // what the run goes on from
  Manifest state;                          // what a checkpoint will say, tensors aside
  std::unique_ptr<RunLock> lock;           // of `folder`; rank 0 only
};

struct RunStartOptions {
  std::string root;    // what paths of the RunSpec are relative to
  bool fresh = false;  // refuse a run folder that is not empty
  std::string job_id;  // of the batch system
  RunLockOptions lock;
};

// Collective over `world`, one rank per process or thread; every rank gives the same `run` and gets
// the same answer but for `folder`. In this order: program and RunSpec are the same everywhere;
// the corpus opens and is the same everywhere; rank 0 looks for an earlier run, whose choices
// (arithmetic, virtual replicas) are taken over, or measures which arithmetic is fastest; the plan
// fits; the run is the one that the checkpoint is of; rank 0 locks the run folder, in which nobody
// has saved meanwhile; all ranks see one run folder. Only the last two write anything.
//
// Exit codes on the Status: kBadConfig, kPreflight, kData, kCheckpoint, kDoesNotFit.
absl::StatusOr<RunStart> StartRun(RunSpec run, const RunStartOptions& options, Communicator& world,
                                  FileSystem& fs, Logger& log);

}  // namespace deepnet
