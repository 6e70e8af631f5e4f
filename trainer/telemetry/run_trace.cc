#include "trainer/telemetry/run_trace.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/traced_ops.h"

namespace deepnet {
namespace {

// Returns true for what the host does with the device, one after the other.
bool LaunchesKernels(TraceKind kind) {
  return kind == TraceKind::kCompute || kind == TraceKind::kReduce || kind == TraceKind::kTied ||
         kind == TraceKind::kNorm || kind == TraceKind::kUpdate;
}

// Returns the events of these kinds in the order in which they began.
template <typename Wanted>
std::vector<TraceEvent> InOrder(const RankTrace& trace, Wanted wanted) {
  std::vector<TraceEvent> events;
  std::ranges::copy_if(trace.events, std::back_inserter(events), wanted, &TraceEvent::kind);
  std::ranges::sort(events, {}, &TraceEvent::start);
  return events;
}

// Finds the event around a moment. Events are in order and apart; moments never go back.
class Around {
 public:
  explicit Around(std::span<const TraceEvent> events) : events_(events) {}

  const TraceEvent* At(double time) {
    while (next_ < events_.size() && events_[next_].end < time) ++next_;
    return next_ < events_.size() && events_[next_].start <= time ? &events_[next_] : nullptr;
  }

 private:
  std::span<const TraceEvent> events_;
  size_t next_ = 0;
};

}  // namespace

void RunTrace::Begin(int64_t step, TracedOps* ops) {
  NumberEvents();
  const bool traced = steps_.from > 0 && step >= steps_.from && step <= steps_.to;
  step_ = traced ? step : -1;
  if (!traced) return;
  last_step_ = step;
  if (first_step_ >= 0) return;
  first_step_ = step;
  ops->StartTrace();
}

void RunTrace::NumberEvents() {
  for (; numbered_ < trace_.events.size(); ++numbered_) trace_.events[numbered_].step = step_;
}

// A GPU runs kernels later than the host asks for them: what it does for an event of the host
// becomes an event of the device.
void RunTrace::AddKernels(TracedOps& ops) {
  const std::vector<TraceEvent> steps =
      InOrder(trace_, [](TraceKind kind) { return kind == TraceKind::kStep; });
  const std::vector<TraceEvent> hosts = InOrder(trace_, LaunchesKernels);
  Around step(steps), host(hosts);
  const TraceEvent* before = nullptr;  // what the last kernel was for
  TraceEvent device;
  const auto end_device = [&] {
    if (before != nullptr && ops.session().stream() != nullptr) trace_.events.push_back(device);
  };
  for (const TimedKernel& kernel : ops.StopTrace()) {
    const TraceEvent* const in = step.At(kernel.asked);
    const TraceEvent* const now = host.At(kernel.asked);
    if (now != before) {
      end_device();
      if (now != nullptr) {
        device = *now;
        device.kind = TraceKind::kDevice;
        device.name = trace_.NameIndex(EventName(*now, trace_));
        device.start = kernel.start;
      }
      before = now;
    }
    device.end = kernel.end;
    trace_.events.push_back({.kind = TraceKind::kKernel,
                             .start = kernel.start,
                             .end = kernel.end,
                             .step = in != nullptr ? in->step : -1,
                             .name = trace_.NameIndex(kernel.name)});
  }
  end_device();
}

absl::StatusOr<std::string> RunTrace::Take(Communicator& world, TracedOps& ops) {
  NumberEvents();
  step_ = -1;
  AddKernels(ops);
  ASSIGN_OR_RETURN(const std::vector<RankTrace> traces, GatherTraces(world, trace_));
  trace_ = {};
  return world.rank() == 0 ? ChromeTrace(traces) : "";
}

absl::Status RunTrace::Write(Communicator& world, TracedOps& ops, FileSystem& fs,
                             const std::string& folder, Logger& log) {
  ASSIGN_OR_RETURN(const std::string json, Take(world, ops));
  if (world.rank() != 0) return absl::OkStatus();
  const std::string path =
      JoinPath(folder, absl::StrFormat("trace-%d-%d.json", first_step_, last_step_));
  const absl::Status written = ReplaceFile(fs, path, json);
  if (!written.ok()) {
    log.Warning(std::string(written.message()));
  } else {
    log.Info(absl::StrCat("trace in ", path, ", for ui.perfetto.dev or chrome://tracing: ",
                          WithCommas(static_cast<int64_t>(json.size())), " bytes"));
  }
  return absl::OkStatus();
}

void RunTrace::AddSave(const SaveRecord& record) {
  if (current() == nullptr) return;
  const double now = SecondsNow();
  const double first = trace_.events.empty() ? now : trace_.events.front().start;
  trace_.events.push_back({.kind = TraceKind::kWrite,
                           .bytes = record.bytes(),
                           .start = std::max(first, now - record.seconds()),
                           .end = now});
}

}  // namespace deepnet
