#include "parallel/base/logging.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/ioctl.h>

namespace deepnet {
namespace {

// A Logger at 12:00:00 whose clock stands where the test puts it.
struct Fixture {
  std::ostringstream out;
  double now = 100.0;

  LoggerOptions Options(bool terminal) {
    return {.stream = &out,
            .terminal = terminal,
            .redraw_seconds = 1.0,
            .plain_seconds = 10.0,
            .seconds = [this] { return now; },
            .time_of_day = [] { return std::string("12:00:00"); }};
  }
};

TEST(Logger, EveryLineOfAMessageCarriesTimeAndRank) {
  Fixture f;
  LoggerOptions options = f.Options(false);
  options.rank = 3;
  options.num_ranks = 8;
  Logger log(options);
  log.Info("one\ntwo");
  log.Warning("three");
  EXPECT_EQ(f.out.str(), "12:00:00 [3/8] one\n12:00:00 [3/8] two\n12:00:00 [3/8] warning: three\n");
}

TEST(Logger, ASingleRankIsNotNamed) {
  Fixture f;
  Logger(f.Options(false)).Info("hello");
  EXPECT_EQ(f.out.str(), "12:00:00 hello\n");
}

TEST(Logger, ProgressInAFileIsAPlainLineNowAndThen) {
  Fixture f;
  Logger log(f.Options(false));
  log.Show({.label = "train", .fraction = 0.25, .figures = "loss 4.31", .seconds_left = 340});
  f.now += 9;
  log.Show({.label = "train", .fraction = 0.5});  // too early
  f.now += 1;
  log.Show({.label = "train", .fraction = 0.75});
  log.Show({.label = "train", .fraction = 1.0});  // the end is always said
  EXPECT_EQ(f.out.str(),
            "12:00:00 train  25%  loss 4.31  5:40 left\n"
            "12:00:00 train  75%\n"
            "12:00:00 train 100%\n");
}

TEST(Logger, ANewLabelIsShownAtOnceAndAfterItsEndTheOldOneToo) {
  for (const bool terminal : {false, true}) {
    Fixture f;
    Logger log(f.Options(terminal));
    log.Show({.label = "a"});
    log.Show({.label = "a"});
    log.Show({.label = "b"});
    log.Show({.label = "a"});
    log.EndProgress();
    log.Show({.label = "a"});
    EXPECT_EQ(f.out.str(), terminal ? "a\r\x1b[Kb\r\x1b[Ka\na"
                                    : "12:00:00 a\n12:00:00 b\n12:00:00 a\n12:00:00 a\n");
  }
}

TEST(Logger, OfWarningsOnlySaysNothingElse) {
  Fixture f;
  LoggerOptions options = f.Options(true);
  options.warnings_only = true;
  Logger log(options);
  log.Info("one");
  log.Show({.label = "a", .fraction = 1.0});
  log.Warning("two");
  log.EndProgress();
  EXPECT_EQ(f.out.str(), "12:00:00 warning: two\n");
}

TEST(Logger, ProgressOnATerminalIsRedrawnInPlace) {
  Fixture f;
  Logger log(f.Options(true));
  log.Show({.label = "a", .fraction = 0.5});
  f.now += 1;
  log.Show({.label = "a", .fraction = 0.75});
  log.EndProgress();
  EXPECT_EQ(f.out.str(),
            "a [################----------------]  50%\r\x1b[K"
            "a [########################--------]  75%\n");
}

TEST(Logger, AMessageStandsAboveTheLiveLine) {
  Fixture f;
  Logger log(f.Options(true));
  log.Show({.label = "a"});
  log.Info("saved");
  EXPECT_EQ(f.out.str(), "a\r\x1b[K12:00:00 saved\na");
}

TEST(Logger, ANarrowTerminalLosesTheBarThenFiguresAndTheTimeLeftLast) {
  const auto shown_on = [](int columns) {
    Fixture f;
    LoggerOptions options = f.Options(true);
    options.columns = columns;
    Logger(options).Show(
        {.label = "train", .fraction = 0.5, .figures = "loss 4", .seconds_left = 5});
    std::string line = f.out.str();
    line.pop_back();  // the end of the progress
    return line;
  };
  EXPECT_EQ(shown_on(67), "train [################----------------]  50%  loss 4  0:05 left");
  EXPECT_EQ(shown_on(65), shown_on(67));
  EXPECT_EQ(shown_on(64), shown_on(60));
  EXPECT_EQ(shown_on(60), "train  50%  loss 4  0:05 left");
  EXPECT_EQ(shown_on(28), "train  50%  loss  0:05 left");
  EXPECT_EQ(shown_on(10), "train  50");
}

TEST(Logger, NoNameMovesTheCursorOrSetsATitle) {
  Fixture f;
  Logger log(f.Options(true));
  log.Info("run\t\x1b]0;TITLE\a\x1b[2J 中\nnext");
  log.Show({.label = "a\nb\x1b[2J", .figures = "\xc2\x9b"});
  log.EndProgress();
  EXPECT_EQ(f.out.str(),
            "12:00:00 run\t\uFFFD]0;TITLE\uFFFD\uFFFD[2J 中\n12:00:00 next\n"
            "a\uFFFDb\uFFFD[2J  \uFFFD\n");
}

TEST(LogText, ProgressIsAtMostAllAndShowsNothingThatIsUnknown) {
  EXPECT_EQ(ProgressText({.label = "a", .seconds_left = 0}, /*bar=*/true), "a  0:00 left");
  EXPECT_EQ(ProgressText({.label = "a", .fraction = 0}, /*bar=*/false), "a   0%");
  EXPECT_EQ(ProgressText({.label = "a", .fraction = 1.5}, /*bar=*/true),
            "a [################################] 100%");
}

TEST(LogText, TheTimeOfDayIsTheLocalClocks) {
  const auto clock = [] {
    const std::time_t now = std::time(nullptr);
    std::array<char, 9> text = {};
    std::strftime(text.data(), text.size(), "%H:%M:%S", std::localtime(&now));
    return std::string(text.data());
  };
  std::string before, shown;
  do {
    before = clock();
    shown = LocalTimeOfDay();
  } while (before != clock());  // a second has begun meanwhile
  EXPECT_EQ(shown, before);
}

TEST(StderrOptions, AreThoseOfTheTerminalIfItIsOne) {
  const int kept = dup(STDERR_FILENO), terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
  const int inner = open(ptsname(terminal), O_RDWR | O_NOCTTY), null = open("/dev/null", O_WRONLY);
  const auto options_of = [&](int fd) {
    dup2(fd, STDERR_FILENO);
    const LoggerOptions options = StderrOptions();
    dup2(kept, STDERR_FILENO);
    return std::pair(options.terminal, options.columns);
  };
  EXPECT_EQ(options_of(null), std::pair(false, 100));
  EXPECT_EQ(options_of(inner), std::pair(true, 100));  // whose size nobody knows
  const winsize size = {.ws_row = 5, .ws_col = 57, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(inner, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(options_of(inner), std::pair(true, 57));
  for (const int fd : {kept, terminal, inner, null}) close(fd);
}

TEST(LogText, NumbersAndTimesReadEasily) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(-123), "-123");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-1000), "-1,000");
  EXPECT_EQ(ClockText(4.6), "0:05");
  EXPECT_EQ(ClockText(59.5), "1:00");
  EXPECT_EQ(ClockText(3599), "59:59");
  EXPECT_EQ(ClockText(3600), "1:00:00");
  EXPECT_EQ(ClockText(7265), "2:01:05");
}

}  // namespace
}  // namespace deepnet
