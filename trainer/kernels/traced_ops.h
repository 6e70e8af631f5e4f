// Operations that tell when they ran: what a trace shows of kernels, and what benchmarks time.
//
// Example:
//   const std::unique_ptr<TracedOps> ops = Traced(*std::move(made));
//   ops->StartTrace();
//   chunk.Forward(...);
//   for (const TimedKernel& k : ops->StopTrace()) Print(k.name, k.end - k.start);
#pragma once

#include <memory>
#include <vector>

#include "trainer/kernels/kernel_times.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

class TracedOps : public Ops {
 public:
  // Begins to note kernels. Waits for a device.
  virtual void StartTrace() = 0;
  // Ends that, waits for a device, and returns the kernels since StartTrace in order.
  virtual std::vector<TimedKernel> StopTrace() = 0;

 protected:
  using Ops::Ops;
};

// Returns `ops` with a trace. Results have the same bits.
std::unique_ptr<TracedOps> Traced(std::unique_ptr<Ops> ops);

}  // namespace deepnet
