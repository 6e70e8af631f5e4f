#include "parallel/plan/dealing.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(Dealing, GivesEveryMicrobatchToOneReplicaAndTheFirstOnesMore) {
  for (int microbatches = 1; microbatches <= 12; ++microbatches) {
    for (int replicas = 1; replicas <= microbatches; ++replicas) {
      int reached = 0, before = microbatches;
      for (int r = 0; r < replicas; ++r) {
        const MicrobatchRange range = MicrobatchesOf(microbatches, replicas, r);
        EXPECT_EQ(range.first, reached);
        EXPECT_LE(range.Count(), before);
        EXPECT_GE(range.Count(), microbatches / replicas);
        reached = range.end;
        before = range.Count();
      }
      EXPECT_EQ(reached, microbatches);
      EXPECT_LE(MicrobatchesOf(microbatches, replicas, 0).Count() - before, 1);
    }
  }
}

TEST(Dealing, ARankHasItsShareOfVirtualReplicasOrIsOne) {
  EXPECT_EQ(LocalVirtualReplicas(8, 1), 8);
  EXPECT_EQ(LocalVirtualReplicas(8, 4), 2);
  EXPECT_EQ(LocalVirtualReplicas(8, 3), 1);
  EXPECT_EQ(LocalVirtualReplicas(2, 4), 1);
  EXPECT_EQ(LocalVirtualReplicas(0, 2), 1);  // left open
}

TEST(Dealing, VirtualReplicasLeftOpenShareMicrobatchesEvenly) {
  EXPECT_EQ(DefaultVirtualReplicas(8, 4), 4);
  EXPECT_EQ(DefaultVirtualReplicas(6, 3), 3);
  EXPECT_EQ(DefaultVirtualReplicas(8, 3), 2);
  EXPECT_EQ(DefaultVirtualReplicas(10, 4), 2);
  EXPECT_EQ(DefaultVirtualReplicas(7, 5), 1);
}

}  // namespace
}  // namespace deepnet
