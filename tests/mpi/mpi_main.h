// main() of the test programs that run as several ranks, under mpirun or by torchrun's variables
// (deepnet_mpi_test in CMake).
//
// Every rank runs the same tests in the same order. Rank 0 prints as GoogleTest does, the others
// print their failures, each with its rank. A test that failed on one rank fails the program on
// all.
//
// Example, a whole program:
//   void AddMpiTests(Communicator& world) {
//     AddMpiTest("Pipeline", "MatchesOneRank", [&world] { EXPECT_TRUE(Matches(world)); });
//   }
#pragma once

#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Defined by the test program, called once, on every rank: adds its tests.
void AddMpiTests(Communicator& world);

// The work of each rank in one test. All ranks meet at its end; if one does not come in a minute,
// the job ends.
void AddMpiTest(const std::string& suite, const std::string& name, std::function<void()> body);

}  // namespace deepnet
