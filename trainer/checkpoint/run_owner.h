// Who a process is, so that another one, perhaps on another host, can tell whether it still runs.
#pragma once

#include <string>

#include "proto/checkpoint.pb.h"

namespace deepnet {

// This process, with a token of its own. `job_id`: of the batch system; empty: none.
RunOwner MakeRunOwner(const std::string& job_id);

// What can be said of a process from here.
enum class OwnerState {
  kRuns,
  kGone,
  kUnknown,  // of another host, or of a place where its number means nothing to us
};

// Only a process of this host, since it was started, and of this process's namespace can be looked
// for; a number that another process has got since is told apart by when that one started.
OwnerState StateOfOwner(const RunOwner& owner);

// "process 1234 on node7 (job 88), since 2026-11-21 12:03:07".
std::string NameOwner(const RunOwner& owner);

}  // namespace deepnet
