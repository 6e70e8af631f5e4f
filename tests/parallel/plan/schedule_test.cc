#include "parallel/plan/schedule.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleText, PrintsAndParsesBack) {
  const Schedule schedule = *MakeNamedSchedule("1f1b", {.num_ranks = 3, .num_microbatches = 11});
  const absl::StatusOr<Schedule> parsed = ParseSchedule(ToText(schedule));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, schedule);
  EXPECT_EQ(ToText(*MakeNamedSchedule("1f1b", {.num_ranks = 2, .num_microbatches = 3})),
            "rank 0: 0F0 0F1 0B0 0F2 0B1 0B2\n"
            "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2\n");
}

TEST(Schedule, AMicrobatchIsAliveUntilItsWeightGradients) {
  EXPECT_EQ(PeakAlive(*ParseSchedule("rank 0: 0F0 0I0 0F1 0I1 0W0 0W1"), 0), 2);
  EXPECT_EQ(PeakAlive(*ParseSchedule("rank 0: 0F0 0B0 0F1 0B1"), 0), 1);
}

TEST(ScheduleText, TransfersHaveTwoLetters) {
  const std::string text =
      "rank 0: 0F0 0SF0 0RB0 0B0\n"
      "rank 1: 1RF0 1F0 1B0 1SB0\n";
  const absl::StatusOr<Schedule> parsed = ParseSchedule(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->actions[1][0], (Action{Op::kReceiveForward, 1, 0}));
  EXPECT_EQ(ToText(*parsed), text);
}

TEST(ScheduleText, IgnoresCommentsAndEmptyLines) {
  const absl::StatusOr<Schedule> parsed =
      ParseSchedule("# by hand\n\n  rank 0:  0F0\t0B0  # done\r\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, *MakeNamedSchedule("single_stage", {.num_microbatches = 1}));
}

TEST(ScheduleText, NamesTheLineAndTheWord) {
  const auto message = [](const std::string& text) {
    return std::string(ParseSchedule(text).status().message());
  };
  EXPECT_THAT(message("rank 0: 0F0\nrank 2: 0B0"), HasSubstr("line 2: expected 'rank 1:'"));
  for (const std::string word :
       {"0X0", "F0", "0F", "0F0x", "-1F0", "0F99999999999", "0", "0S0", "0FS0", "0SFF0"}) {
    EXPECT_THAT(message("\nrank 0: 0F0 " + word), HasSubstr("line 2: '" + word + "' is not"));
  }
}

}  // namespace
}  // namespace deepnet
