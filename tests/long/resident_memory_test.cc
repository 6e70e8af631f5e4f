// 500 + 500 layers of width 64 with FULL recomputation under mpirun, on as many ranks as the job
// has: what becomes resident in each rank's process, beside its plan. Prints the rows of
// docs/benchmarks/memory_2026-11-21.md.
//
// Resident is the kernel's count, the most since the process began, less what it has when idle: its
// libraries, its part in the job and what both need once steps are taken (code that is read when it
// is first used, MPI's connections), for which a model of 8 + 8 layers takes its steps first. The
// last column is against the bare process, before all that.
#include "tests/support/resident_memory.h"

#include <malloc.h>

#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/host.h"
#include "tests/mpi/mpi_main.h"
#include "tests/trainer/memory_rig.h"

namespace deepnet {
namespace {

using testing::ResidentBytes;

using testing::MeasureRank;
using testing::PlanRun;
using testing::RankBytes;
using testing::ThousandLayers;

constexpr double kTolerance = 0.10;  // of planned bytes
constexpr double kMiB = 1 << 20;

struct Row {
  double planned, tensors, idle, resident, bare;  // bytes; resident: beyond idle
};

// One row for each rank, on rank 0.
void Print(const Row& mine, Communicator& world) {
  constexpr size_t kColumns = sizeof(Row) / sizeof(double);
  std::vector<Row> rows(world.size());
  rows[world.rank()] = mine;
  ASSERT_TRUE(world.AllReduceSum({&rows[0].planned, kColumns * rows.size()}).ok());
  if (world.rank() != 0) return;
  std::printf(
      "| p | rank | planned | tensors and kernels | resident, idle | more | difference | "
      "than bare |\n");
  for (int rank = 0; rank < world.size(); ++rank) {
    const Row& row = rows[rank];
    std::printf("| %d | %d | %.1f | %.1f | %.1f | %.1f | %+.1f %% | %+.1f %% |\n", world.size(),
                rank, row.planned / kMiB, row.tensors / kMiB, row.idle / kMiB, row.resident / kMiB,
                100 * (row.resident / row.planned - 1),
                100 * ((row.resident + row.idle - row.bare) / row.planned - 1));
  }
}

void ResidentIsPlanned(Communicator& world) {
  const int64_t bare = ResidentBytes();
  RunSpec shallow = ThousandLayers(world.size(), 8);
  shallow.mutable_model()->set_encoder_layers(8);
  shallow.mutable_model()->set_decoder_layers(8);
  ASSERT_TRUE(MeasureRank(PlanRun(shallow), world).ok());
  malloc_trim(0);  // what the shallow model had is not the idle process's
  const int64_t idle = ResidentBytes();

  const auto bytes = MeasureRank(PlanRun(ThousandLayers(world.size(), 8)), world);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const Row row{.planned = static_cast<double>(bytes->planned.total()),
                .tensors = static_cast<double>(bytes->measured),
                .idle = static_cast<double>(idle),
                .resident = static_cast<double>(PeakResidentBytes() - idle),
                .bare = static_cast<double>(bare)};
  Print(row, world);
  EXPECT_NEAR(row.resident / row.planned, 1.0, kTolerance) << bytes->ToText();
}

}  // namespace

void AddMpiTests(Communicator& world) {
  AddMpiTest("Memory", "ResidentInAProcessIsThePlanOfItsRank",
             [&world] { ResidentIsPlanned(world); });
}

}  // namespace deepnet
