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

}  // namespace deepnet
