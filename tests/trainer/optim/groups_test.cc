#include "trainer/optim/groups.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

// A letter for the node of each rank.
int PerNode(const std::string& letters, int stages) {
  std::vector<std::string> nodes;
  for (const char letter : letters) nodes.emplace_back(1, letter);
  return ReplicasPerNode(nodes, stages);
}

TEST(ReplicasPerNode, CountsEquallyManyAdjacentReplicas) {
  EXPECT_EQ(PerNode("aabb", 1), 2);
  EXPECT_EQ(PerNode("aaabbb", 1), 3);
  EXPECT_EQ(PerNode("aabbccdd", 1), 2);
  EXPECT_EQ(PerNode("aaaabbbb", 2), 2);      // two stages of two replicas on a node
  EXPECT_EQ(PerNode("abababcdcdcd", 2), 3);  // a node has three replicas of one stage
}

TEST(ReplicasPerNode, IsZeroWhereOneLevelIsBetter) {
  EXPECT_EQ(PerNode("a", 1), 0);
  EXPECT_EQ(PerNode("aaaa", 1), 0);      // one node
  EXPECT_EQ(PerNode("abcd", 1), 0);      // one replica each
  EXPECT_EQ(PerNode("aabbccdd", 2), 0);  // a pipeline on each
  EXPECT_EQ(PerNode("abcdabcd", 4), 0);  // all replicas of a stage on one
}

TEST(ReplicasPerNode, IsZeroWhereNodesDiffer) {
  EXPECT_EQ(PerNode("aaabb", 1), 0);
  EXPECT_EQ(PerNode("aabbb", 1), 0);
  EXPECT_EQ(PerNode("aabbbb", 1), 0);
  EXPECT_EQ(PerNode("abab", 1), 0);          // not adjacent
  EXPECT_EQ(PerNode("aabbaa", 1), 0);        // a node that comes again
  EXPECT_EQ(PerNode("acacadbdbdbd", 2), 0);  // another number on another stage
}

}  // namespace
}  // namespace deepnet
