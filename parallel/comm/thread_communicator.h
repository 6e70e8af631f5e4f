// Ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Makes the world of `num_ranks` (>= 1) ranks; element r belongs to rank r and may be given to any
// thread. A message is copied once, straight from the sender's memory to the receiver's, by
// whichever of the two comes last, inside its call. Waiting threads sleep. Host memory only.
//
// A rank that stops early (an error, an exception) must call Abort, or its peers wait for ever.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int num_ranks);

}  // namespace deepnet
