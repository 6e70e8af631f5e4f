#include "trainer/telemetry/run_trace.h"

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/run_ranks.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/traced_ops.h"

namespace deepnet {
namespace {

// A kernel between two steps, as of a validation, belongs to neither.
TEST(RunTrace, AKernelHasTheStepThatItLiesInOrNone) {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  const std::unique_ptr<TracedOps> ops = Traced(MakeNativeOps(compute));
  const at::Tensor x = at::ones({8});
  RunTrace trace({3, 4});
  for (const int64_t step : {3, 4}) {
    trace.Begin(step, ops.get());
    ops->Scale(8, x, 1.0);
    const TraceSpan span(trace.current(), {.kind = TraceKind::kStep});
    ops->Scale(8, x, 1.0);
  }
  SelfCommunicator alone;
  const auto json = trace.Take(alone, *ops);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto kernels = [&](const std::string& arguments) {
    const std::string text = "\"cat\": \"kernel\", \"args\": {" + arguments + "},";
    int count = 0;
    for (size_t at = json->find(text); at != json->npos; at = json->find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(kernels(""), 2) << *json;
  EXPECT_EQ(kernels("\"step\": 3"), 1) << *json;
  EXPECT_EQ(kernels("\"step\": 4"), 1) << *json;
}

// A save that began before the first traced step is shown from there on.
TEST(RunTrace, ASaveBeginsWithTheTraceAtTheEarliest) {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  const std::unique_ptr<TracedOps> ops = Traced(MakeNativeOps(compute));
  RunTrace trace({3, 3});
  trace.Begin(3, ops.get());
  { const TraceSpan span(trace.current(), {.kind = TraceKind::kStep}); }
  SaveRecord record;
  record.set_seconds(1e6);
  record.set_bytes(5);
  trace.AddSave(record);
  SelfCommunicator alone;
  const auto json = trace.Take(alone, *ops);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_NE(json->find("\"cat\": \"step\", \"args\": {\"step\": 3}, \"ts\": 0.000"), json->npos)
      << *json;
}

TEST(RunTrace, RankZeroWritesTheTracedStepsAndAFailureIsAWarning) {
  testing::MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  for (const bool fails : {false, true}) {
    if (fails) fs.StopAfter(0);
    std::vector<std::string> logs(2);
    const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) -> absl::Status {
      std::ostringstream text;
      Logger log({.stream = &text, .time_of_day = [] { return "T"; }});
      ComputeSpec compute;
      compute.set_dtype(FLOAT32);
      compute.set_threads_per_rank(1);
      const std::unique_ptr<TracedOps> ops = Traced(MakeNativeOps(compute));
      RunTrace trace({3, 4});
      for (int64_t step = 2; step <= 5; ++step) {
        trace.Begin(step, ops.get());
        EXPECT_EQ(trace.current() != nullptr, step == 3 || step == 4);
        EXPECT_EQ(trace.Due(step), step == 4);
        EXPECT_EQ(trace.Due(step, /*last=*/true), step == 3 || step == 4);
        SaveRecord record;
        record.set_bytes(1000 + step);
        if (world.rank() == 0) trace.AddSave(record);
        if (step == 4) {
          RETURN_IF_ERROR(trace.Write(world, *ops, fs, "run", log));
          EXPECT_EQ(trace.current(), nullptr);
        }
      }
      logs[world.rank()] = text.str();
      return absl::OkStatus();
    }));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(logs[1], "");
    if (fails) {
      EXPECT_EQ(logs[0], "T warning: cannot write 'run/trace-3-4.json': the world has stopped\n");
      continue;
    }
    const auto json = ReadWholeFile(fs, "run/trace-3-4.json", 1 << 20);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(logs[0], "T trace in run/trace-3-4.json, for ui.perfetto.dev or chrome://tracing: " +
                           WithCommas(static_cast<int64_t>(json->size())) + " bytes\n");
    for (int step = 2; step <= 5; ++step) {
      const std::string bytes = "\"bytes\": " + std::to_string(1000 + step);
      EXPECT_EQ(json->find(bytes) != json->npos, step == 3 || step == 4) << bytes << *json;
    }
  }
}

}  // namespace
}  // namespace deepnet
