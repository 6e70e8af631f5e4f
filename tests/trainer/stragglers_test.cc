#include "trainer/stragglers.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<std::string> kHosts = {"a", "a", "b", "b"};

TEST(FindStragglers, NamesTheRankAndItsHost) {
  const std::vector<double> work(4, 1.0);
  const auto found = FindStragglers(std::vector{0.40, 0.41, 0.40, 0.52}, work, kHosts);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank(), 3);
  EXPECT_EQ(found[0].host(), "b");
  EXPECT_DOUBLE_EQ(found[0].median_seconds(), 0.40);
  EXPECT_THAT(StragglerLine(found[0]),
              HasSubstr("rank 3 on b computes 0.520 s a step, 1.30 times as long"));
  EXPECT_THAT(FindStragglers(std::vector{0.40, 0.41, 0.40, 0.46}, work, kHosts), IsEmpty());
}

TEST(FindStragglers, AnUnequalPartOfTheWorkIsNoFault) {
  const std::vector<double> work = {1.0, 2.0, 2.0, 1.0};
  EXPECT_THAT(FindStragglers(std::vector{0.2, 0.4, 0.4, 0.2}, work, kHosts), IsEmpty());
  const auto found = FindStragglers(std::vector{0.2, 0.4, 0.4, 0.3}, work, kHosts);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank(), 3);
}

TEST(FindStragglers, OfTwoRanksTheSlowerOneOfOneRankNone) {
  const std::vector<double> work(2, 1.0);
  const std::vector<std::string> hosts = {"a", "b"};
  const auto found = FindStragglers(std::vector{0.4, 0.5}, work, hosts);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].host(), "b");
  EXPECT_THAT(FindStragglers(std::vector{0.4}, std::vector{1.0}, std::vector<std::string>{"a"}),
              IsEmpty());
  EXPECT_THAT(FindStragglers(std::vector{0.4, 0.0}, work, hosts), IsEmpty());
}

}  // namespace
}  // namespace deepnet
