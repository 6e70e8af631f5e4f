#include "parallel/exec/trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#ifdef DEEPNET_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include "parallel/base/clock.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/links.h"

namespace deepnet {
namespace {

// The lines of a rank. On a line, events lie inside of each other or apart; what may overlap is a
// bar of its own.
enum Line { kWork, kWaiting, kGpu, kCheckpoint, kNumLines, kBar = kNumLines };

constexpr const char* kLineNames[kNumLines] = {"work", "waiting", "GPU", "checkpoint"};

struct KindOf {
  const char* name;
  Line line;
};

// [TraceKind]
constexpr KindOf kKinds[] = {
    {"compute", kWork}, {"wait", kWaiting},     {"send", kBar},   {"receive", kBar},
    {"reduce", kWork},  {"tied", kWork},        {"norm", kWork},  {"update", kWork},
    {"gather", kWork},  {"step", kWork},        {"data", kWork},  {"sum", kBar},
    {"save", kWork},    {"write", kCheckpoint}, {"phase", kWork}, {"kernel", kWork},
    {"device", kGpu},
};

const KindOf& KindOfEvent(const TraceEvent& event) {
  return kKinds[static_cast<size_t>(event.kind)];
}

// Returns true for the kinds that are not of the schedule.
bool IsExchange(TraceKind kind) { return kind >= TraceKind::kReduce; }

// When each forward and each gradient of inputs was made: by (forward?, chunk, microbatch).
using Made = std::map<std::tuple<bool, int, int>, double>;

Made WhenMade(std::span<const RankTrace> traces) {
  Made made;
  for (const RankTrace& trace : traces) {
    for (const TraceEvent& event : trace.events) {
      if (event.kind != TraceKind::kCompute || event.action.op == Op::kBackwardWeight) continue;
      made[{event.action.op == Op::kForward, event.action.chunk, event.action.microbatch}] =
          event.end;
    }
  }
  return made;
}

// Seconds of a wait that passed after the neighbouring chunk had made what it is for. Waiting for a
// send to be gone is communication from beginning to end.
double Exposed(const TraceEvent& wait, const Made& made) {
  if (IsTransfer(wait.action.op)) return wait.end - wait.start;
  const bool forward = wait.action.op == Op::kForward;
  const auto found =
      made.find({forward, wait.action.chunk + (forward ? -1 : 1), wait.action.microbatch});
  if (found == made.end()) return 0.0;
  return std::max(0.0, wait.end - std::max(wait.start, found->second));
}

double FirstStart(std::span<const RankTrace> traces) {
  double first = std::numeric_limits<double>::infinity();
  for (const RankTrace& trace : traces) {
    for (const TraceEvent& event : trace.events) first = std::min(first, event.start);
  }
  return first;
}

// Returns what a viewer shows of an event that is clicked on.
JsonObject ArgumentsOf(const TraceEvent& event) {
  JsonObject arguments;
  if (event.step >= 0) arguments.Add("step", event.step);
  if (!IsExchange(event.kind)) {
    arguments.Add("action", ToText(event.action))
        .Add("chunk", event.action.chunk)
        .Add("microbatch", event.action.microbatch);
  }
  if (event.peer >= 0) arguments.Add("peer", event.peer);
  if (event.bytes > 0) arguments.Add("bytes", event.bytes);
  return arguments;
}

// Writes the traces of ranks in the Trace Event Format. There may be millions of events: each is
// text as soon as it is made.
class ChromeWriter {
 public:
  explicit ChromeWriter(double origin) : origin_(origin) {}

  // Adds events of a process for the rank, behind its name and those of its lines that have events.
  void Add(int rank, const RankTrace& trace) {
    const bool has_gpu = absl::c_any_of(
        trace.events, [](const TraceEvent& event) { return event.kind == TraceKind::kDevice; });
    const auto line_of = [&](const TraceEvent& event) {
      return has_gpu && event.kind == TraceKind::kKernel ? kGpu : KindOfEvent(event).line;
    };
    const auto name = [&](const char* what, int line, const JsonObject& args) {
      Append(Head(what, rank, line).Add("ph", "M").Add("args", args));
    };
    name("process_name", 0, JsonObject().Add("name", absl::StrCat("rank ", rank)));
    name("process_sort_index", 0, JsonObject().Add("sort_index", rank));
    for (int line = 0; line < kNumLines; ++line) {
      const auto on_line = [&](const TraceEvent& event) { return line_of(event) == line; };
      if (absl::c_none_of(trace.events, on_line)) continue;
      name("thread_name", line, JsonObject().Add("name", kLineNames[line]));
    }
    // An event stands before those that lie inside of it.
    std::vector<TraceEvent> sorted = trace.events;
    absl::c_stable_sort(sorted, [](const TraceEvent& a, const TraceEvent& b) {
      if (a.start != b.start) return a.start < b.start;
      if (a.end != b.end) return a.end > b.end;
      return a.kind != TraceKind::kKernel && b.kind == TraceKind::kKernel;
    });
    for (const TraceEvent& event : sorted) {
      const Line line = line_of(event);
      AddEvent(event, line == kBar, Head(EventName(event, trace), rank, line % kBar));
    }
  }

  std::string Json() const {
    return absl::StrCat("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", events_, "\n]}\n");
  }

 private:
  static JsonObject Head(const std::string& name, int process, int thread) {
    return JsonObject().Add("name", name).Add("pid", process).Add("tid", thread);
  }

  // Adds a complete event on its line, or as a bar a pair of begin and end with an identity of its
  // own. Both ends are rounded to nanoseconds, so that what lies inside stays inside.
  void AddEvent(const TraceEvent& event, bool is_bar, JsonObject object) {
    const auto nanoseconds = [&](double seconds) {
      return std::llround(1e9 * (seconds - origin_));
    };
    const auto text = [](int64_t time) {
      return absl::StrFormat("%d.%03d", time / 1000, time % 1000);
    };
    const int64_t start = nanoseconds(event.start), end = nanoseconds(event.end);
    object.Add("cat", KindOfEvent(event).name);
    if (is_bar) object.Add("id2", JsonObject().Add("local", absl::StrCat(num_bars_++)));
    JsonObject first = object;
    first.Add("args", ArgumentsOf(event)).AddJson("ts", text(start));
    if (!is_bar) return Append(first.Add("ph", "X").AddJson("dur", text(end - start)));
    Append(first.Add("ph", "b"));
    Append(object.Add("ph", "e").AddJson("ts", text(end)));
  }

  void Append(const JsonObject& event) {
    absl::StrAppend(&events_, events_.empty() ? "\n" : ",\n", JsonOf(event));
  }

  const double origin_;
  int64_t num_bars_ = 0;
  std::string events_;
};

// Shows a range to profilers from now on; returns its number. A build without NVTX has none, 0.
#ifdef DEEPNET_NVTX
uint64_t StartRange(const char* name) { return nvtxRangeStartA(name); }
uint64_t StartRange(const RankTrace* trace, const TraceEvent& event) {
  const RankTrace none;
  return StartRange(EventName(event, trace != nullptr ? *trace : none).c_str());
}
void EndRange(uint64_t range) {
  if (range != 0) nvtxRangeEnd(range);
}
#else
uint64_t StartRange(const char*) { return 0; }
uint64_t StartRange(const RankTrace*, const TraceEvent&) { return 0; }
void EndRange(uint64_t) {}
#endif

// Returns the traces that `gather` brings here, with times moved to rank 0's clock.
absl::StatusOr<std::vector<RankTrace>> GatherBy(decltype(GatherText)& gather, Communicator& comm,
                                                const RankTrace& mine) {
  ASSIGN_OR_RETURN(const std::vector<double> offsets, ClockOffsets(comm));
  // All ranks run the same binary, so an event's bytes are its own wire form.
  static_assert(std::is_trivially_copyable_v<TraceEvent>);
  const std::string_view bytes(reinterpret_cast<const char*>(mine.events.data()),
                               mine.events.size() * sizeof(TraceEvent));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, gather(comm, bytes));
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   gather(comm, absl::StrJoin(mine.names, "\n")));
  std::vector<RankTrace> traces(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    traces[rank].events.resize(all[rank].size() / sizeof(TraceEvent));
    if (!all[rank].empty()) {
      std::memcpy(traces[rank].events.data(), all[rank].data(), all[rank].size());
    }
    traces[rank].names = absl::StrSplit(names[rank], '\n', absl::SkipEmpty());
    for (TraceEvent& event : traces[rank].events) {
      event.start -= offsets[rank];
      event.end -= offsets[rank];
    }
  }
  return traces;
}

}  // namespace

// Messages of one way share their name, so that viewers draw them together.
std::string EventName(const TraceEvent& event, const RankTrace& trace) {
  if (event.name >= 0) return trace.names[event.name];
  switch (event.kind) {
    case TraceKind::kWait:
      return absl::StrCat(ToText(event.action), " waits for rank ", event.peer);
    case TraceKind::kSend:
      return event.action.op == Op::kSendForward ? "send forward" : "send backward";
    case TraceKind::kReceive:
      return event.action.op == Op::kReceiveForward ? "receive forward" : "receive backward";
    case TraceKind::kStep:
      return absl::StrCat("step ", event.step);
    default:
      return IsExchange(event.kind) ? KindOfEvent(event).name : ToText(event.action);
  }
}

int RankTrace::NameIndex(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  const auto index = static_cast<int>(found - names.begin());
  if (found == names.end()) names.emplace_back(name);
  return index;
}

TraceSpan::TraceSpan(RankTrace* trace, const TraceEvent& event)
    : trace_(trace), event_(event), range_(StartRange(trace, event)) {
  if (trace_ != nullptr) event_.start = SecondsNow();
}

TraceSpan::TraceSpan(RankTrace* trace, TraceKind kind, const char* name)
    : trace_(trace), event_({.kind = kind}), range_(StartRange(name)) {
  if (trace_ == nullptr) return;
  event_.name = trace_->NameIndex(name);
  event_.start = SecondsNow();
}

TraceSpan& TraceSpan::operator=(TraceSpan&& other) noexcept {
  End();
  trace_ = std::exchange(other.trace_, nullptr);
  event_ = other.event_;
  range_ = std::exchange(other.range_, 0);
  return *this;
}

void TraceSpan::End() {
  EndRange(std::exchange(range_, 0));
  if (trace_ == nullptr) return;
  event_.end = SecondsNow();
  std::exchange(trace_, nullptr)->events.push_back(event_);
}

TraceFigures Measure(std::span<const RankTrace> traces, int stages) {
  const size_t ranks = stages > 0 ? static_cast<size_t>(stages) : traces.size();
  double last = 0.0, computed = 0.0, computing = 0.0, waiting = 0.0, exposed = 0.0;
  for (size_t first = 0; first < traces.size(); first += ranks) {
    const std::span<const RankTrace> replica = traces.subspan(first, ranks);
    const Made made = WhenMade(replica);
    for (const RankTrace& trace : replica) {
      for (const TraceEvent& event : trace.events) {
        last = std::max(last, event.end);
        if (IsExchange(event.kind)) continue;
        computed = std::max(computed, event.end);
        if (event.kind == TraceKind::kCompute) computing += event.end - event.start;
        if (event.kind != TraceKind::kWait) continue;
        waiting += event.end - event.start;
        exposed += Exposed(event, made);
      }
    }
  }
  const double start = FirstStart(traces);
  TraceFigures figures{.makespan = std::max(0.0, computed - start),
                       .step = std::max(0.0, last - start)};
  const double available = figures.makespan * static_cast<double>(traces.size());
  if (available <= 0.0) return figures;
  figures.bubble = 1.0 - computing / available;
  figures.waiting = waiting / available;
  figures.exposed_communication = exposed / available;
  return figures;
}

std::string ChromeTrace(std::span<const RankTrace> traces) {
  ChromeWriter writer(FirstStart(traces));
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    writer.Add(static_cast<int>(rank), traces[rank]);
  }
  return writer.Json();
}

absl::StatusOr<std::vector<RankTrace>> GatherTraces(Communicator& comm, const RankTrace& mine) {
  return GatherBy(GatherText, comm, mine);
}

absl::StatusOr<std::vector<RankTrace>> AllGatherTraces(Communicator& comm, const RankTrace& mine) {
  return GatherBy(AllGatherText, comm, mine);
}

}  // namespace deepnet
