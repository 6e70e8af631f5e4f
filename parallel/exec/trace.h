// Traces of what the ranks of a job did and when: recorded by the executor and what is around it,
// drawn by a browser (chrome://tracing, ui.perfetto.dev), summed up in a few figures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

enum class TraceKind {
  kCompute,  // the stage works
  kWait,     // nothing is done until a message of `peer` is there, or gone
  kSend,     // from its start until it was seen to be gone: checked between actions, so an upper
  kReceive,  // bound; the same for one that arrives, from the moment its memory was offered
  // After a rank's schedule (rehearsal.h), in this order; without action and peer.
  kReduce,  // gradients between replicas
  kTied,    // gradients of tied tensors between stages
  kNorm,    // everybody is waited for
  kUpdate,  // of the rank's share of the weights
  kGather,  // weights between replicas
  // The others are of a training run, without action and peer.
  kStep,   // one step of the run
  kData,   // the step's batch is waited for
  kSum,    // a piece of the gradient between replicas, from its start until it was seen to be there
  kSave,   // training stands still for a save
  kWrite,  // a checkpoint is written beside the steps
  kPhase,  // what `name` says
  kKernel,  // the kernel `name` of a GPU, or the function `name` of Ops on a CPU
  kDevice,  // from the first kernel to the last that the GPU ran for a host's event, which `name`
            // or `action` names
};

struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  Action action;       // kWait: the one that waits
  int peer = -1;       // of kWait, kSend, kReceive
  int64_t bytes = 0;   // of a message; of an exchange, before any payload limit
  double start = 0.0;  // seconds of SecondsNow(); in gathered traces, of rank 0's clock
  double end = 0.0;
  int64_t step = -1;  // of the run; -1: none
  int name = -1;      // in RankTrace::names; -1: that of the action, or of the kind

  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

// Events in the order in which they ended.
struct RankTrace {
  std::vector<TraceEvent> events;
  std::vector<std::string> names;  // without line ends

  // Returns the index of `name`, which is added where it is new.
  int NameIndex(std::string_view name);
};

// An event that is under way: it is added to a trace when it ends. Builds for CUDA show it to
// profilers as an NVTX range too, also without a trace.
class TraceSpan {
 public:
  TraceSpan() = default;  // nothing
  // Begins `event` now. `trace`, which may be null, outlives this.
  TraceSpan(RankTrace* trace, const TraceEvent& event);
  // Begins an event of this kind and name now.
  TraceSpan(RankTrace* trace, TraceKind kind, const char* name);
  TraceSpan(TraceSpan&& other) noexcept { *this = std::move(other); }
  TraceSpan& operator=(TraceSpan&& other) noexcept;
  ~TraceSpan() { End(); }

  // Ends it now; later calls do nothing.
  void End();

 private:
  RankTrace* trace_ = nullptr;
  TraceEvent event_;
  uint64_t range_ = 0;  // of NVTX; 0: none
};

struct TraceFigures {
  double makespan = 0.0;               // seconds from the first start to the schedule's last end
  double step = 0.0;                   // to the last end of all
  double bubble = 0.0;                 // 1 - computing / (ranks * makespan)
  double waiting = 0.0;                // share of ranks * makespan spent in kWait
  double exposed_communication = 0.0;  // the part of `waiting` for data that were made already
};

// Sums up the traces. They are of all ranks of one or several replicas of a pipeline of `stages`
// ranks (0: of one), rank = replica * stages + stage, on one clock.
TraceFigures Measure(std::span<const RankTrace> traces, int stages = 0);

std::string EventName(const TraceEvent& event, const RankTrace& trace);

// Returns JSON in the Trace Event Format, a process for each rank (docs/design/tracing.md). Times
// are microseconds from the first start of any rank.
std::string ChromeTrace(std::span<const RankTrace> traces);

// Collective, blocking. Returns everybody's trace, in rank order, with times moved to rank 0's
// clock (ClockOffsets): on rank 0, where others get empty ones, or on all ranks.
absl::StatusOr<std::vector<RankTrace>> GatherTraces(Communicator& comm, const RankTrace& mine);
absl::StatusOr<std::vector<RankTrace>> AllGatherTraces(Communicator& comm, const RankTrace& mine);

}  // namespace deepnet
