// The contract of parallel/comm/communicator.h as tests, written once and run on every backend.
//
// A case is what each rank of a group of at least 2 does; all ranks run the same case at the same
// time. Expectations fail on the rank that sees the fault.
#pragma once

#include <span>

#include "parallel/comm/communicator.h"

namespace deepnet {

struct ContractCase {
  const char* name;
  void (*run)(Communicator& comm);
};

std::span<const ContractCase> ContractCases();

// Everything that a rank of `comm` can do with device memory.
inline Communicator::Connections AllLinks(const Communicator& comm, const Buffer& scratch) {
  Communicator::Connections links{
      .all_to_all = true, .all_gather = true, .reduce_scatter = true, .scratch = scratch};
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer != comm.rank()) links.to.push_back(peer);
  }
  links.from = links.to;
  return links;
}

}  // namespace deepnet
