#include "trainer/stragglers.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Figures = std::vector<double>;

TEST(FindStragglers, NamesTheRankWhoseTimeIsBeyondTheRatio) {
  const Figures work(4, 1.0);
  auto found = FindStragglers(Figures{0.40, 0.41, 0.40, 0.52}, work);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank(), 3);
  EXPECT_DOUBLE_EQ(found[0].median_seconds(), 0.40);
  found[0].set_host("b");
  EXPECT_THAT(StragglerLine(found[0]),
              HasSubstr("rank 3 on b computes 0.520 s a step, 1.30 times as long"));
  EXPECT_THAT(FindStragglers(Figures{0.40, 0.41, 0.40, 0.455}, work), IsEmpty());
}

TEST(FindStragglers, AnUnequalPartOfTheWorkIsNoFault) {
  const Figures work = {1.0, 2.0, 2.0, 1.0};
  EXPECT_THAT(FindStragglers(Figures{0.2, 0.4, 0.4, 0.2}, work), IsEmpty());
  const auto found = FindStragglers(Figures{0.2, 0.4, 0.4, 0.3}, work);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank(), 3);
}

TEST(FindStragglers, OfTwoRanksTheSlowerOneOfOneRankNone) {
  const Figures work(2, 1.0);
  const auto found = FindStragglers(Figures{0.4, 0.5}, work);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank(), 1);
  EXPECT_THAT(FindStragglers(Figures{0.4}, Figures{1.0}), IsEmpty());
  EXPECT_THAT(FindStragglers(Figures{0.4, 0.0}, work), IsEmpty()) << "not measured";
}

}  // namespace
}  // namespace deepnet
