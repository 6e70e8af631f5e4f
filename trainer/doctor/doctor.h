// Examines the ranks of a job and the ways between them before anything is trained: what each may
// use, how fast it is, whether its arithmetic and its messages are right, and whether all of them
// together compute what one rank computes. docs/design/doctor.md says what is compared with what.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/comm/communicator.h"
#include "proto/doctor.pb.h"
#include "proto/run.pb.h"
#include "trainer/doctor/host_check.h"

namespace deepnet {

// Seconds of the host's calendar clock, since 1970.
double WallClockSeconds();

struct DoctorOptions {
  Communicator* world = nullptr;  // all ranks of the job, with a way between their GPUs
  // The run to prepare for, with defaults; compute.device is decided. With `has_run`, its layout
  // and folder are used; else only its compute.
  RunSpec run;
  bool has_run = false;
  std::string root = ".";          // what relative paths of the run start from
  std::string version, mpi, nccl;  // of the program and its libraries
  FolderAccess folder;
  std::function<double()> clock = WallClockSeconds;
  absl::Duration limit = absl::Seconds(10);  // of one message, DoctorLimit of the job
  std::function<void()> beat = [] {};        // called while a rank computes alone
};

// Returns how long doctor waits for one message in a job of so many ranks: 10 s, and longer where
// each has more than a thousand others to connect to.
absl::Duration DoctorLimit(int ranks);

// Collective; every rank gets the same report. Ranks of different builds, or with different runs,
// are not examined further: they might wait for each other for ever. Nothing of a GPU's memory is
// kept afterwards. A message that does not come ends the job with an error
// that names both ranks (parallel/comm/links.h).
absl::StatusOr<DoctorReport> RunDoctor(const DoctorOptions& options);

}  // namespace deepnet
