// The run of the tiny model, of whose steps tests make up the figures.
#pragma once

#include "proto/run.pb.h"
#include "tests/support/tiny_model.h"

namespace deepnet::testing {

inline RunSpec TinyRun() {
  RunSpec run;
  *run.mutable_model() = TinySpec();
  *run.mutable_data()->mutable_microbatch() = TinyCapacity();
  run.mutable_data()->set_global_microbatches(1);
  run.mutable_optim()->set_virtual_replicas(1);
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_matmul(NATIVE);
  run.mutable_compute()->set_threads_per_rank(1);
  run.mutable_train()->set_keep_checkpoints(100);
  return run;
}

}  // namespace deepnet::testing
