#include "trainer/telemetry/run_trace.h"

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
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

}  // namespace
}  // namespace deepnet
