#include "parallel/exec/trace.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

// A clock comparison over threads is right to half a round trip, which a busy host can stretch.
constexpr double kClockSeconds = 1.0;

constexpr Action kF0{Op::kForward, 0, 0}, kF1{Op::kForward, 1, 0};
constexpr Action kB0{Op::kBackward, 0, 0}, kB1{Op::kBackward, 1, 0};

TraceEvent Compute(Action action, double start, double end) {
  return {.kind = TraceKind::kCompute, .action = action, .start = start, .end = end};
}

TraceEvent Wait(Action action, int peer, double start, double end) {
  return {.kind = TraceKind::kWait, .action = action, .peer = peer, .start = start, .end = end};
}

// Two ranks: F0 takes 2, the message 1, F1 and B1 3 together, the message back 0.5, B0 3.5.
std::vector<RankTrace> TwoRanks() {
  return {{{Compute(kF0, 10, 12), Wait(kB0, 1, 12, 16.5), Compute(kB0, 16.5, 20)}},
          {{Wait(kF1, 0, 10, 13),
            Compute(kF1, 13, 14),
            Compute(kB1, 14, 16),
            {TraceKind::kSend, {Op::kSendBackward, 1, 0}, 0, 4096, 16, 16.5}}}};
}

TEST(Measure, CountsIdleTimeAndWhatOfItWasCommunication) {
  const TraceFigures figures = Measure(TwoRanks());
  EXPECT_DOUBLE_EQ(figures.makespan, 10.0);
  EXPECT_DOUBLE_EQ(figures.bubble, 1.0 - 8.5 / 20.0);
  EXPECT_DOUBLE_EQ(figures.waiting, 7.5 / 20.0);
  EXPECT_DOUBLE_EQ(figures.exposed_communication, 1.5 / 20.0);
}

TEST(Measure, WaitingForASendIsCommunicationFromBeginningToEnd) {
  std::vector<RankTrace> traces = {{{Compute(kF0, 0, 1), Wait({Op::kSendForward, 0, 0}, 1, 1, 2)}}};
  EXPECT_DOUBLE_EQ(Measure(traces).exposed_communication, 0.5);
}

// Nor is a wait communication before it begins, or until weights' gradients are made.
TEST(Measure, WaitingForWhatIsMadeAlreadyIsCommunication) {
  const Action wanted{Op::kBackwardInput, 0, 0}, input{Op::kBackwardInput, 1, 0};
  const Action weight{Op::kBackwardWeight, 1, 0};
  const std::vector<RankTrace> traces = {
      {{Compute(kF0, 0, 1), Wait(wanted, 1, 6, 8)}},
      {{Wait(kF1, 0, 3, 4), Compute(input, 4, 5), Compute(weight, 5, 7), Compute(kF1, 7, 8)}}};
  EXPECT_DOUBLE_EQ(Measure(traces).exposed_communication, (1.0 + 2.0) / 16.0);
}

TEST(Measure, ExchangesBelongToTheStepAndNotToThePipeline) {
  std::vector<RankTrace> traces = TwoRanks();
  traces[1].events.push_back({.kind = TraceKind::kGather, .bytes = 8, .start = 20, .end = 23});
  const TraceFigures figures = Measure(traces);
  EXPECT_DOUBLE_EQ(figures.makespan, 10.0);
  EXPECT_DOUBLE_EQ(figures.step, 13.0);
  EXPECT_DOUBLE_EQ(figures.waiting, 7.5 / 20.0);
  EXPECT_NE(ChromeTrace(traces).find("\"gather\""), std::string::npos);
  EXPECT_NE(ChromeTrace(traces).find("\"bytes\": 8}"), std::string::npos) << ChromeTrace(traces);
}

// The second replica is 100 s late: what it waits for is what its own chunks make.
TEST(Measure, ReplicasWaitForTheirOwnChunks) {
  std::vector<RankTrace> traces = TwoRanks();
  for (RankTrace trace : TwoRanks()) {
    for (TraceEvent& event : trace.events) {
      event.start += 100;
      event.end += 100;
    }
    traces.push_back(trace);
  }
  const TraceFigures figures = Measure(traces, /*stages=*/2);
  EXPECT_DOUBLE_EQ(figures.makespan, 110.0);
  EXPECT_DOUBLE_EQ(figures.step, 110.0);
  EXPECT_DOUBLE_EQ(figures.exposed_communication, 2 * 1.5 / 440.0);
}

TEST(Measure, NothingTakesNoTime) { EXPECT_EQ(Measure({}).makespan, 0.0); }

TEST(ChromeTrace, IsJsonWithAProcessForEachRankAndAPairForEachMessage) {
  google::protobuf::Struct json;
  const std::string text = ChromeTrace(TwoRanks());
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &json).ok()) << text;
  std::multiset<std::string> phases;
  const auto& events = json.fields().at("traceEvents").list_value().values();
  for (const auto& event : events) {
    phases.insert(event.struct_value().fields().at("ph").string_value());
  }
  EXPECT_EQ(phases.count("M"), 8);  // name and place of each rank, names of its two lines
  EXPECT_EQ(phases.count("X"), 6);
  EXPECT_EQ(phases.count("b"), 1);
  EXPECT_EQ(phases.count("e"), 1);
  const auto& first = events[4].struct_value().fields();
  EXPECT_EQ(first.at("name").string_value(), "0F0");
  EXPECT_EQ(first.at("ts").number_value(), 0);
  EXPECT_EQ(first.at("dur").number_value(), 2e6);
  EXPECT_NE(text.find("\"peer\": 0"), std::string::npos);
}

TEST(ChromeTrace, BeginsWithTheFirstStartOfAnyRankAndNamesStepZero) {
  const std::string text = ChromeTrace(std::vector<RankTrace>{
      {{Compute(kF0, 7, 8)}}, {{{.kind = TraceKind::kStep, .start = 5, .end = 6, .step = 0}}}});
  EXPECT_NE(text.find("\"args\": {\"step\": 0}, \"ts\": 0.000"), std::string::npos) << text;
  EXPECT_NE(text.find("\"ts\": 2000000.000"), std::string::npos) << text;
}

TEST(EventName, SaysWhichWayAMessageGoes) {
  const auto name = [](TraceKind kind, Op op) {
    return EventName({.kind = kind, .action = {op, 0, 0}}, {});
  };
  EXPECT_EQ(name(TraceKind::kSend, Op::kSendForward), "send forward");
  EXPECT_EQ(name(TraceKind::kSend, Op::kSendBackward), "send backward");
  EXPECT_EQ(name(TraceKind::kReceive, Op::kReceiveForward), "receive forward");
  EXPECT_EQ(name(TraceKind::kReceive, Op::kReceiveBackward), "receive backward");
}

TEST(EventName, IsThatOfTheEventElseOfItsActionOrItsKind) {
  const RankTrace trace{.events = {}, .names = {"first", "second"}};
  const auto name = [&](const TraceEvent& event) { return EventName(event, trace); };
  EXPECT_EQ(name({.kind = TraceKind::kPhase, .name = 1}), "second");
  EXPECT_EQ(name(Compute(kB1, 0, 1)), "1B0");
  EXPECT_EQ(name(Wait(kF1, 3, 0, 1)), "1F0 waits for rank 3");
  EXPECT_EQ(name({.kind = TraceKind::kStep, .step = 12}), "step 12");
  const char* const kinds[] = {"reduce", "tied", "norm", "update", "gather"};
  for (int i = 0; i < 5; ++i) {
    const auto kind = static_cast<TraceKind>(static_cast<int>(TraceKind::kReduce) + i);
    EXPECT_EQ(name({.kind = kind}), kinds[i]);
  }
}

// A kernel of a rank with a GPU is on the GPU's line; bars are numbered over all ranks.
TEST(ChromeTrace, HasEachKindOnItsLineWithWhatIsKnownOfIt) {
  std::vector<RankTrace> traces(2);
  traces[0].events = {{.kind = TraceKind::kStep, .start = 5, .end = 6, .step = 4},
                      {.kind = TraceKind::kSum, .bytes = 9, .start = 5.25, .end = 5.5},
                      {.kind = TraceKind::kWrite, .start = 5, .end = 5.000001},
                      Wait(kB0, 1, 5.5, 5.75)};
  traces[1].names = {"gemm", "forward"};
  traces[1].events = {{.kind = TraceKind::kKernel, .start = 5, .end = 5.125, .name = 0},
                      {.kind = TraceKind::kDevice, .start = 5, .end = 5.25, .name = 1},
                      {TraceKind::kSend, {Op::kSendBackward, 1, 2}, 0, 4096, 5.5, 7.0}};
  EXPECT_EQ(ChromeTrace(traces),
            R"({"displayTimeUnit": "ms", "traceEvents": [)"
            "\n"
            R"({"name": "process_name", "pid": 0, "tid": 0, "ph": "M", )"
            R"("args": {"name": "rank 0"}},)"
            "\n"
            R"({"name": "process_sort_index", "pid": 0, "tid": 0, "ph": "M", )"
            R"("args": {"sort_index": 0}},)"
            "\n"
            R"({"name": "thread_name", "pid": 0, "tid": 0, "ph": "M", )"
            R"("args": {"name": "work"}},)"
            "\n"
            R"({"name": "thread_name", "pid": 0, "tid": 1, "ph": "M", )"
            R"("args": {"name": "waiting"}},)"
            "\n"
            R"({"name": "thread_name", "pid": 0, "tid": 3, "ph": "M", )"
            R"("args": {"name": "checkpoint"}},)"
            "\n"
            R"({"name": "step 4", "pid": 0, "tid": 0, "cat": "step", "args": {"step": 4}, )"
            R"("ts": 0.000, "ph": "X", "dur": 1000000.000},)"
            "\n"
            R"({"name": "write", "pid": 0, "tid": 3, "cat": "write", "args": {}, "ts": 0.000, )"
            R"("ph": "X", "dur": 1.000},)"
            "\n"
            R"({"name": "sum", "pid": 0, "tid": 0, "cat": "sum", "id2": {"local": "0"}, )"
            R"("args": {"bytes": 9}, "ts": 250000.000, "ph": "b"},)"
            "\n"
            R"({"name": "sum", "pid": 0, "tid": 0, "cat": "sum", "id2": {"local": "0"}, )"
            R"("ph": "e", "ts": 500000.000},)"
            "\n"
            R"({"name": "0B0 waits for rank 1", "pid": 0, "tid": 1, "cat": "wait", )"
            R"("args": {"action": "0B0", "chunk": 0, "microbatch": 0, "peer": 1}, )"
            R"("ts": 500000.000, "ph": "X", "dur": 250000.000},)"
            "\n"
            R"({"name": "process_name", "pid": 1, "tid": 0, "ph": "M", )"
            R"("args": {"name": "rank 1"}},)"
            "\n"
            R"({"name": "process_sort_index", "pid": 1, "tid": 0, "ph": "M", )"
            R"("args": {"sort_index": 1}},)"
            "\n"
            R"({"name": "thread_name", "pid": 1, "tid": 2, "ph": "M", "args": {"name": "GPU"}},)"
            "\n"
            R"({"name": "forward", "pid": 1, "tid": 2, "cat": "device", "args": {}, )"
            R"("ts": 0.000, "ph": "X", "dur": 250000.000},)"
            "\n"
            R"({"name": "gemm", "pid": 1, "tid": 2, "cat": "kernel", "args": {}, "ts": 0.000, )"
            R"("ph": "X", "dur": 125000.000},)"
            "\n"
            R"({"name": "send backward", "pid": 1, "tid": 0, "cat": "send", )"
            R"("id2": {"local": "1"}, "args": {"action": "1SB2", "chunk": 1, "microbatch": 2, )"
            R"("peer": 0, "bytes": 4096}, "ts": 500000.000, "ph": "b"},)"
            "\n"
            R"({"name": "send backward", "pid": 1, "tid": 0, "cat": "send", )"
            R"("id2": {"local": "1"}, "ph": "e", "ts": 2000000.000})"
            "\n"
            "]}\n");
}

// Both ends are rounded alike, so a kernel that ends with its action does so in the file; one that
// also begins with it still stands behind it, where it ends earlier, too.
TEST(ChromeTrace, NamesKernelsAndPutsThemBehindWhatTheyLieIn) {
  RankTrace trace;
  for (int i = 0; i < 100; ++i) {
    const double start = 100 + i, end = start + 1e-7 * (i + 1) + 4.5e-10;
    trace.events.push_back({.kind = TraceKind::kKernel,
                            .start = i < 50 ? start + 1.06e-8 : start,
                            .end = i < 75 ? end : end - 1e-9 * (i + 1),
                            .step = 7,
                            .name = trace.NameIndex(i % 2 == 0 ? "Linear" : "Embed")});
    trace.events.push_back(Compute(kF0, start, end));
  }
  EXPECT_EQ(trace.names, (std::vector<std::string>{"Linear", "Embed"}));
  google::protobuf::Struct json;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(ChromeTrace(std::vector{trace}), &json).ok());
  const auto& events = json.fields().at("traceEvents").list_value().values();
  ASSERT_EQ(events.size(), 3 + 200);
  for (int i = 0; i < 100; ++i) {
    const auto& action = events[3 + 2 * i].struct_value().fields();
    const auto& kernel = events[4 + 2 * i].struct_value().fields();
    EXPECT_EQ(action.at("name").string_value(), "0F0");
    EXPECT_EQ(kernel.at("name").string_value(), i % 2 == 0 ? "Linear" : "Embed");
    EXPECT_EQ(kernel.at("args").struct_value().fields().at("step").number_value(), 7);
    const auto end = [](const auto& event) {
      return std::llround(1e3 * (event.at("ts").number_value() + event.at("dur").number_value()));
    };
    EXPECT_LE(end(kernel), end(action));
  }
}

TEST(TraceSpan, IsAddedOnceWhenItEndsWhereverItWasMovedTo) {
  RankTrace trace;
  TraceSpan kept;
  {
    TraceSpan outer(&trace, {.kind = TraceKind::kStep, .step = 3});
    TraceSpan inner(&trace, {.kind = TraceKind::kUpdate});
    TraceSpan moved(&trace, {.kind = TraceKind::kSum});
    kept = std::move(moved);
    inner.End();
    inner.End();
  }
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].kind, TraceKind::kUpdate);
  EXPECT_EQ(trace.events[1].kind, TraceKind::kStep);
  EXPECT_LE(trace.events[1].start, trace.events[0].start);
  EXPECT_LE(trace.events[0].end, trace.events[1].end);
  kept.End();
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[2].kind, TraceKind::kSum);
  kept = TraceSpan(&trace, {.kind = TraceKind::kData});
  kept = TraceSpan();  // another takes its place
  ASSERT_EQ(trace.events.size(), 4u);
  EXPECT_EQ(trace.events[3].kind, TraceKind::kData);
  const TraceSpan nowhere(nullptr, {});
}

// Rank r has r + 1 events and r names.
void ExpectAll(const std::vector<RankTrace>& all, double now) {
  ASSERT_EQ(all.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(all[rank].events.size(), static_cast<size_t>(rank + 1));
    EXPECT_EQ(all[rank].events.back().action, (Action{Op::kForward, rank, rank}));
    const TraceEvent& last = all[rank].events.back();
    EXPECT_NEAR(last.start, now, kClockSeconds);
    EXPECT_NEAR(last.end - last.start, 1.0, 1e-9);
    EXPECT_EQ(all[rank].names.size(), static_cast<size_t>(rank));
  }
}

TEST(GatherTraces, BringsEverybodysEventsToRank0OrToEveryRankOnOneClock) {
  const auto statuses = RunRanks(3, [](Communicator& comm) {
    const double now = SecondsNow();
    RankTrace mine;
    for (int i = 0; i <= comm.rank(); ++i) {
      mine.events.push_back(Compute({Op::kForward, comm.rank(), i}, now, now + 1));
    }
    if (comm.rank() > 0) mine.NameIndex("of rank 1 and 2");
    if (comm.rank() > 1) mine.NameIndex("of rank 2");
    ASSIGN_OR_RETURN(const auto everywhere, AllGatherTraces(comm, mine));
    ExpectAll(everywhere, now);
    ASSIGN_OR_RETURN(const auto gathered, GatherTraces(comm, mine));
    if (comm.rank() == 0) {
      ExpectAll(gathered, now);
    } else {
      for (const RankTrace& trace : gathered) EXPECT_TRUE(trace.events.empty());
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

}  // namespace
}  // namespace deepnet
