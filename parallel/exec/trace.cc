#include "parallel/exec/trace.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

constexpr int kClockTag = 0;
constexpr int kRoundTrips = 8;

// [TraceKind]
constexpr const char* kKindNames[] = {"compute", "wait", "send",   "receive", "reduce",
                                      "tied",    "norm", "update", "gather"};

const char* NameOf(TraceKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

// Returns true for the kinds that follow the schedule.
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

// Computing and waiting never overlap on a rank: complete events. Messages do: a pair of begin and
// end with an identity of their own.
void AppendEvent(const TraceEvent& event, int rank, int64_t id, double origin, std::string& json) {
  const double start = 1e6 * (event.start - origin), end = 1e6 * (event.end - origin);
  if (IsExchange(event.kind)) {
    absl::StrAppendFormat(&json,
                          ",\n{\"name\":\"%s\",\"cat\":\"exchange\",\"pid\":%d,\"tid\":1,"
                          "\"args\":{\"bytes\":%d},\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f}",
                          NameOf(event.kind), rank, event.bytes, start, end - start);
    return;
  }
  const bool message = event.kind == TraceKind::kSend || event.kind == TraceKind::kReceive;
  const std::string name =
      JsonQuoted(event.kind == TraceKind::kWait
                     ? absl::StrCat(ToText(event.action), " waits for rank ", event.peer)
                     : ToText(event.action));
  const std::string head = absl::StrFormat(
      "{\"name\":%s,\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"chunk\":%d,\"microbatch\":%d",
      name, NameOf(event.kind), rank, event.kind == TraceKind::kWait ? 1 : 0, event.action.chunk,
      event.action.microbatch);
  if (!message) {
    absl::StrAppendFormat(&json, ",\n%s},\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f}", head, start,
                          end - start);
    return;
  }
  absl::StrAppendFormat(&json,
                        ",\n%s,\"peer\":%d,\"bytes\":%d},\"id\":%d,\"ph\":\"b\",\"ts\":%.3f}", head,
                        event.peer, event.bytes, id, start);
  absl::StrAppendFormat(&json, ",\n%s},\"id\":%d,\"ph\":\"e\",\"ts\":%.3f}", head, id, end);
}

// One side of a clock comparison: rank 0 asks, the peer answers with its time.
absl::StatusOr<double> AskOffset(Communicator& comm, int peer) {
  double shortest = std::numeric_limits<double>::infinity(), offset = 0.0;
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    double theirs = 0.0, asked = SecondsNow();
    ASSIGN_OR_RETURN(const auto question,
                     comm.Send(Buffer::Of(std::span(&asked, 1)), peer, kClockTag));
    ASSIGN_OR_RETURN(const auto answer,
                     comm.Receive(Buffer::Of(std::span(&theirs, 1)), peer, kClockTag));
    RETURN_IF_ERROR(answer->Wait());
    const double now = SecondsNow();
    RETURN_IF_ERROR(question->Wait());
    if (now - asked >= shortest) continue;
    shortest = now - asked;
    offset = theirs - (asked + now) / 2;
  }
  return offset;
}

absl::Status Answer(Communicator& comm) {
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    double question = 0.0;
    ASSIGN_OR_RETURN(const auto asked,
                     comm.Receive(Buffer::Of(std::span(&question, 1)), 0, kClockTag));
    RETURN_IF_ERROR(asked->Wait());
    double now = SecondsNow();
    ASSIGN_OR_RETURN(const auto answer, comm.Send(Buffer::Of(std::span(&now, 1)), 0, kClockTag));
    RETURN_IF_ERROR(answer->Wait());
  }
  return absl::OkStatus();
}

// Returns how far each rank's clock is ahead of rank 0's; only rank 0's answer is complete, the
// others get it by broadcast.
absl::StatusOr<std::vector<double>> ClockOffsets(Communicator& comm) {
  std::vector<double> offsets(comm.size());
  if (comm.rank() > 0) RETURN_IF_ERROR(Answer(comm));
  for (int peer = 1; comm.rank() == 0 && peer < comm.size(); ++peer) {
    ASSIGN_OR_RETURN(offsets[peer], AskOffset(comm, peer));
  }
  RETURN_IF_ERROR(comm.Broadcast(Buffer::Of(std::span(offsets)), 0));
  return offsets;
}

}  // namespace

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
  const double origin = FirstStart(traces);
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (int rank = 0; rank < static_cast<int>(traces.size()); ++rank) {
    absl::StrAppendFormat(&json,
                          "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,"
                          "\"args\":{\"name\":\"rank %d\"}},\n"
                          "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,"
                          "\"args\":{\"sort_index\":%d}}",
                          rank == 0 ? "" : ",", rank, rank, rank, rank);
  }
  int64_t id = 0;
  for (int rank = 0; rank < static_cast<int>(traces.size()); ++rank) {
    for (const TraceEvent& event : traces[rank].events) {
      AppendEvent(event, rank, id++, origin, json);
    }
  }
  return json + "\n]}\n";
}

absl::StatusOr<std::vector<RankTrace>> GatherTraces(Communicator& comm, const RankTrace& mine) {
  ASSIGN_OR_RETURN(const std::vector<double> offsets, ClockOffsets(comm));
  // All ranks run the same binary, so an event's bytes are its own wire form.
  static_assert(std::is_trivially_copyable_v<TraceEvent>);
  const std::string_view bytes(reinterpret_cast<const char*>(mine.events.data()),
                               mine.events.size() * sizeof(TraceEvent));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherText(comm, bytes));
  std::vector<RankTrace> traces(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    traces[rank].events.resize(all[rank].size() / sizeof(TraceEvent));
    if (!all[rank].empty()) {
      std::memcpy(traces[rank].events.data(), all[rank].data(), all[rank].size());
    }
    for (TraceEvent& event : traces[rank].events) {
      event.start -= offsets[rank];
      event.end -= offsets[rank];
    }
  }
  return traces;
}

}  // namespace deepnet
