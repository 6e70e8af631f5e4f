#include "trainer/checkpoint/run_lock.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "parallel/base/exit_code.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/thread_limit.h"
#include "trainer/checkpoint/background_task.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;
using ::testing::UnorderedElementsAreArray;

using Lock = absl::StatusOr<std::unique_ptr<RunLock>>;

RunOwner OwnerOn(const std::string& host) {
  RunOwner owner = MakeRunOwner("77");
  owner.set_host(host);
  return owner;
}

// Somebody on `host` who beats only when told to, and whose waiting does what `wait` says.
Lock Acquire(FileSystem& fs, const std::string& host, std::function<void(absl::Duration)> wait = {},
             OwnerState state = OwnerState::kUnknown) {
  if (!wait) wait = [](absl::Duration) {};
  return RunLock::Acquire(fs, "run", OwnerOn(host),
                          {.beat = absl::InfiniteDuration(),
                           .missed_beats = 3,
                           .wait = std::move(wait),
                           .state_of = [state](const RunOwner&) { return state; }});
}

void ExpectInUse(const Lock& lock, const std::string& by) {
  EXPECT_TRUE(absl::IsAlreadyExists(lock.status())) << lock.status();
  EXPECT_EQ(GetExitCode(lock.status()), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(lock.status().message()), AllOf(HasSubstr("in use"), HasSubstr(by)));
}

TEST(RunLock, IsAFileThatNamesItsOwnerAndGoesWithIt) {
  MemoryFileSystem fs;
  Lock lock = Acquire(fs, "a");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(*ReadWholeFile(fs, "run/lock", 10000),
              AllOf(HasSubstr("host: \"a\""), HasSubstr("job_id: \"77\""), HasSubstr("pid: ")));
  EXPECT_TRUE((*lock)->Beat().ok());
  lock->reset();
  EXPECT_THAT(*fs.List("run"), ElementsAre());
}

TEST(RunLock, IsDurableBeforeItCounts) {
  MemoryFileSystem memory;
  FaultFileSystem fs(memory);
  const RunOwner dead = OwnerOn("a");
  const Lock first = RunLock::Acquire(fs, "run", dead, {.beat = absl::InfiniteDuration()});
  ASSERT_TRUE(first.ok()) << first.status();
  fs.ClearChanges();
  {
    const Lock lock = Acquire(fs, "b", {}, OwnerState::kGone);
    ASSERT_TRUE(lock.ok() && (*lock)->Beat().ok());
  }
  const std::string claim = "run/lock.takeover-" + dead.token();
  EXPECT_THAT(
      fs.changes(),
      ElementsAre("make run", "create run/lock", "create " + claim, "append " + claim,
                  "sync " + claim, "sync run", "rename run/lock " + claim, "delete " + claim,
                  "create run/lock", "append run/lock", "sync run/lock", "sync run",
                  "append run/lock", "sync run/lock", "delete run/lock", "sync run"));
}

// A file system's error is the refusal; nothing stays that would keep the next one waiting.
TEST(RunLock, IsNotHeldWhereOneCallFails) {
  for (const OwnerState before : {OwnerState::kRuns, OwnerState::kGone, OwnerState::kUnknown}) {
    int64_t failures = 0, recovered = 0;
    for (bool ended = false; !ended; ++failures) {
      SCOPED_TRACE(failures);
      MemoryFileSystem memory;
      FaultFileSystem fs(memory);
      Lock dead = absl::UnknownError("none");
      if (before != OwnerState::kRuns) dead = Acquire(fs, "a");
      const int64_t calls = fs.num_calls();
      fs.FailCall(calls + failures, absl::DataLossError("EIO"));
      const Lock lock = Acquire(fs, "b", {}, before);
      ended = fs.num_calls() <= calls + failures;
      recovered += lock.ok() && !ended ? 1 : 0;
      if (lock.ok()) continue;
      EXPECT_FALSE(ended);
      EXPECT_EQ(GetExitCode(lock.status()), ExitCode::kCheckpoint);
      EXPECT_THAT(std::string(lock.status().message()), HasSubstr("EIO"));
      if (before == OwnerState::kRuns && *Exists(memory, "run")) {
        EXPECT_THAT(*memory.List("run"), ElementsAre());
      }
    }
    EXPECT_GT(failures, 4);
    EXPECT_EQ(recovered, before == OwnerState::kRuns ? 0 : 1);  // the last look is repeated
  }
}

TEST(RunLock, OfAFolderWhoseFilesAreLinksIsRefusedByName) {
  for (const char* target : {"home/bashrc", "none"}) {
    MemoryFileSystem fs;
    ASSERT_TRUE(fs.MakeFolder("run").ok() && fs.MakeFolder("home/archive").ok());
    ASSERT_TRUE(ReplaceFile(fs, "home/bashrc", "theirs").ok());
    fs.MakeLink("home/archive", "run/step-00000001");
    EXPECT_TRUE(Acquire(fs, "a").ok());
    fs.MakeLink(target, "run/latest");
    const Lock lock = Acquire(fs, "a");
    EXPECT_EQ(GetExitCode(lock.status()), ExitCode::kBadConfig) << lock.status();
    EXPECT_THAT(std::string(lock.status().message()), HasSubstr("'run/latest' is a symbolic link"));
    EXPECT_THAT(*fs.List("run"), ElementsAre("latest", "step-00000001"));
  }
}

TEST(RunLock, TidiesUpFilesThatWereNeverFinished) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  const std::vector<std::string> others = {".deepnet-mine", ".deepnet-0123456789abcdeg"};
  for (const std::string& name : others) ASSERT_TRUE(ReplaceFile(fs, "run/" + name, "").ok());
  ASSERT_TRUE(ReplaceFile(fs, JoinPath("run", UnusedName()), "half").ok());
  ASSERT_TRUE(Acquire(fs, "a").ok());
  EXPECT_THAT(*fs.List("run"), UnorderedElementsAreArray(others));
}

TEST(RunLock, OfAProcessThatRunsIsRefusedAtOnce) {
  MemoryFileSystem fs;
  const Lock first = Acquire(fs, "a");
  int waits = 0;
  ExpectInUse(Acquire(
                  fs, "a", [&](absl::Duration) { ++waits; }, OwnerState::kRuns),
              "on a (job 77)");
  EXPECT_EQ(waits, 0);
  EXPECT_TRUE((*first)->Check().ok());
}

TEST(RunLock, OfAnotherHostIsRefusedAtItsNextBeat) {
  MemoryFileSystem fs;
  const Lock first = Acquire(fs, "a");
  int waits = 0;
  absl::Status beat_status;
  ExpectInUse(Acquire(fs, "b",
                      [&](absl::Duration) {
                        if (++waits == 3) beat_status = (*first)->Beat();
                      }),
              "on a (job 77)");
  EXPECT_TRUE(beat_status.ok()) << beat_status;
  EXPECT_EQ(waits, 3);
}

TEST(RunLock, OfAnOwnerThatMissesItsBeatsIsTakenOverAndTheSleeperSeesIt) {
  MemoryFileSystem fs;
  const Lock first = Acquire(fs, "a");
  int waits = 0;
  const Lock second = Acquire(fs, "b", [&](absl::Duration) { ++waits; });
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(waits, 3);
  EXPECT_THAT(*fs.List("run"), ElementsAre("lock"));
  const absl::Status lost = (*first)->Beat();
  EXPECT_TRUE(absl::IsAborted(lost)) << lost;
  EXPECT_EQ(GetExitCode(lost), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("on b"));
  EXPECT_TRUE((*second)->Beat().ok());
}

TEST(RunLock, OfAnOwnerThatBeatsRarelyIsWatchedForItsOwnBeats) {
  MemoryFileSystem fs;
  const Lock first = RunLock::Acquire(fs, "run", OwnerOn("a"),
                                      {.beat = absl::Seconds(45), .state_of = [](const RunOwner&) {
                                         return OwnerState::kUnknown;
                                       }});
  std::vector<absl::Duration> waits;
  EXPECT_TRUE(Acquire(fs, "b", [&](absl::Duration beat) { waits.push_back(beat); }).ok());
  EXPECT_THAT(waits, ElementsAre(absl::Seconds(45), absl::Seconds(45), absl::Seconds(45)));
}

TEST(RunLock, OfASleeperIsNotRemovedByIt) {
  MemoryFileSystem fs;
  Lock first = Acquire(fs, "a");
  const Lock second = Acquire(fs, "b");
  first->reset();
  EXPECT_TRUE((*second)->Check().ok());
}

TEST(RunLock, ThatCannotBeReadForAMomentIsKept) {
  MemoryFileSystem memory;
  FaultFileSystem fs(memory);
  const Lock lock = Acquire(fs, "a");
  ASSERT_TRUE(lock.ok()) << lock.status();
  const int64_t calls = fs.num_calls();
  fs.FailCall(calls, absl::DataLossError("EIO"));
  EXPECT_TRUE((*lock)->Check().ok());
  EXPECT_GT(fs.num_calls(), calls);
  EXPECT_TRUE((*lock)->Check().ok());
}

TEST(RunLock, IsTakenOverByOneOfTwoWhoWait) {
  MemoryFileSystem fs;
  const Lock dead = Acquire(fs, "a");
  Lock other = absl::UnknownError("not yet");
  int waits = 0;
  ExpectInUse(Acquire(fs, "b",
                      [&](absl::Duration) {
                        if (++waits == 3) other = Acquire(fs, "c");  // the last moment
                      }),
              "on c (job 77)");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE((*other)->Check().ok());
}

// The other one is done with it between the last look at the dead lock and the taking over.
TEST(RunLock, ThatAnotherHasTakenOverMeanwhileIsLeftToIt) {
  MemoryFileSystem fs;
  const Lock dead = Acquire(fs, "a");
  Lock other = absl::UnknownError("not yet");
  const Lock late = RunLock::Acquire(
      fs, "run", OwnerOn("b"),
      {.beat = absl::InfiniteDuration(),
       .missed_beats = 3,
       .wait = [&](absl::Duration) { EXPECT_TRUE(!other.ok() || (*other)->Beat().ok()); },
       .state_of = [](const RunOwner&) { return OwnerState::kUnknown; },
       .note =
           [&](const std::string& sentence) {
             const bool decided = sentence.find("has missed 3 beats") != sentence.npos;
             if (decided && !other.ok()) other = Acquire(fs, "c");
           }});
  ASSERT_TRUE(other.ok()) << other.status();
  ExpectInUse(late, "on c (job 77)");
  EXPECT_TRUE((*other)->Check().ok());
  EXPECT_THAT(*fs.List("run"), ElementsAre("lock"));
}

TEST(RunLock, OfADeadProcessOfThisHostIsTakenOverAtOnce) {
  MemoryFileSystem fs;
  const Lock dead = Acquire(fs, "a");
  int waits = 0;
  std::vector<std::string> notes;
  const auto note = [&](const std::string& sentence) { notes.push_back(sentence); };
  RunOwner owner = OwnerOn("a");
  owner.set_since("2026-01-02 03:04:05");
  owner.set_pid(12);
  const auto take = [&](OwnerState state) {
    return RunLock::Acquire(fs, "run", owner,
                            {.beat = absl::InfiniteDuration(),
                             .missed_beats = 3,
                             .wait = [&](absl::Duration) { ++waits; },
                             .state_of = [state](const RunOwner&) { return state; },
                             .note = note});
  };
  const Lock next = take(OwnerState::kGone);
  EXPECT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(waits, 0);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("on a (job 77), since 20")));
  notes.clear();
  EXPECT_TRUE(take(OwnerState::kGone).ok());
  EXPECT_THAT(notes, ElementsAre("process 12 on a (job 77), since 2026-01-02 03:04:05 is gone; its "
                                 "lock is taken over"));
  notes.clear();
  const Lock last = take(OwnerState::kGone);
  notes.clear();
  EXPECT_TRUE(take(OwnerState::kUnknown).ok());
  EXPECT_THAT(notes,
              ElementsAre("the run folder is locked by process 12 on a (job 77), since "
                          "2026-01-02 03:04:05; watching for 30s whether that is still alive",
                          "process 12 on a (job 77), since 2026-01-02 03:04:05 has missed 3 "
                          "beats; its lock is taken over"));
}

TEST(RunLock, ThatWasNeverWrittenToTheEndCountsAsDeadAfterTheBeats) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  ASSERT_TRUE((*fs.CreateNew("run/lock"))->Append("token: \"12").ok());
  const Lock lock = Acquire(fs, "b");
  EXPECT_TRUE(lock.ok()) << lock.status();
}

TEST(RunLock, OfAStrangerIsWatchedForAMinuteABeatAtMost) {
  for (const double seconds : {2147483647.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    MemoryFileSystem fs;
    RunOwner stranger = OwnerOn("a");
    stranger.set_beat_seconds(seconds);
    ASSERT_TRUE(fs.MakeFolder("run").ok());
    ASSERT_TRUE((*fs.CreateNew("run/lock"))->Append(stranger.DebugString()).ok());
    absl::Duration waited;
    const Lock lock = Acquire(fs, "b", [&](absl::Duration beat) { waited += beat; });
    EXPECT_TRUE(lock.ok()) << lock.status();
    EXPECT_LE(waited, absl::Minutes(3)) << seconds;
  }
}

// A token becomes a part of the name of the file with which a dead lock is taken over.
TEST(RunLock, OfAStrangerLeadsNowhereElse) {
  RunOwner elsewhere = OwnerOn("a"), large = OwnerOn("a");
  elsewhere.set_token("x/../../outside");
  large.set_host(std::string(1 << 20, 'x'));
  for (const RunOwner& stranger : {elsewhere, large}) {
    MemoryFileSystem fs;
    ASSERT_TRUE(fs.MakeFolder("run/lock.takeover-x").ok());
    ASSERT_TRUE((*fs.CreateNew("run/lock"))->Append(stranger.DebugString()).ok());
    std::vector<std::string> notes;
    const auto lock =
        RunLock::Acquire(fs, "run", OwnerOn("b"),
                         {.beat = absl::InfiniteDuration(),
                          .missed_beats = 3,
                          .wait = [](absl::Duration) {},
                          .note = [&](const std::string& sentence) { notes.push_back(sentence); }});
    EXPECT_TRUE(lock.ok()) << lock.status();
    EXPECT_THAT(notes, Contains(HasSubstr("locked by somebody who has just come")));
    EXPECT_THAT(*fs.List("run"), ElementsAre("lock", "lock.takeover-x"));
  }
}

TEST(RunLock, ACrashAtAnyCallLeavesAFolderThatTheNextOneCanLock) {
  for (const bool dead_before : {false, true}) {
    bool finished = false;
    for (int64_t calls = 0; !finished; ++calls) {
      SCOPED_TRACE(calls);
      MemoryFileSystem fs;
      Lock before = absl::UnknownError("none");
      if (dead_before) before = Acquire(fs, "a");
      fs.StopAfter(calls);
      Lock lock = Acquire(fs, "b");
      finished = lock.ok();
      fs.Crash(testing::CrashKind::kKeepAll);
      if (lock.ok()) continue;
      const Lock next = Acquire(fs, "c");
      // A taking over that was cut short is told from a live one only by a person.
      const std::string text(next.status().message());
      EXPECT_TRUE(next.ok() || text.find("delete '") != text.npos) << text;
    }
  }
}

TEST(RunLock, IsGivenBackWhereThereIsNoThreadForItsBeat) {
  MemoryFileSystem fs;
  {
    const testing::ThreadLimit none(0);
    const Lock lock = RunLock::Acquire(fs, "run", OwnerOn("a"), {});
    EXPECT_EQ(GetExitCode(lock.status()), ExitCode::kDoesNotFit) << lock.status();
  }
  EXPECT_THAT(*fs.List("run"), ElementsAre());
}

TEST(BackgroundTask, WorksInTheForegroundWhereThereIsNoThread) {
  const testing::ThreadLimit none(0);
  BackgroundTask task;
  bool worked = false;
  task.Start([&] {
    worked = true;
    return absl::DataLossError("its own");
  });
  EXPECT_TRUE(worked && task.Done());
  EXPECT_TRUE(absl::IsDataLoss(task.Wait()));
}

TEST(RunLock, BeatsByItself) {
  MemoryFileSystem fs;
  Lock lock = RunLock::Acquire(fs, "run", OwnerOn("a"), {.beat = absl::Milliseconds(1)});
  ASSERT_TRUE(lock.ok());
  const absl::Time patience = absl::Now() + absl::Minutes(1);
  const auto beats = [&] {
    const std::string contents = *ReadWholeFile(fs, "run/lock", 1 << 20);
    return std::ranges::count(contents, '#');
  };
  while (beats() < 3 && absl::Now() < patience) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(beats(), 3);
  lock->reset();  // ends the heartbeat
  EXPECT_THAT(*fs.List("run"), ElementsAre());
}

TEST(StateOfOwner, KnowsThisProcessItsChildrenAndTheirDeath) {
  EXPECT_EQ(StateOfOwner(MakeRunOwner("")), OwnerState::kRuns);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  RunOwner owner = MakeRunOwner("");
  owner.set_pid(child);
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kGone);  // that number was another process's then
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kGone);
}

// No signal may be sent to it.
TEST(StateOfOwner, AProcessOfAnotherUserThatRunsIsSeen) {
  const RunOwner owner = MakeRunOwner("");
  const pid_t child = fork();
  if (child == 0) {
    errno = ESRCH;
    if (getuid() == 0 && setuid(65534) != 0) _exit(2);
    _exit(StateOfOwner(owner) == OwnerState::kRuns ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Its parent has not asked how it ended.
TEST(StateOfOwner, AProcessThatHasEndedIsGoneBeforeItsNumberIs) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = MakeRunOwner("").SerializeAsString();
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  char text[4096];
  const ssize_t bytes = read(ends[0], text, sizeof(text));
  RunOwner owner;
  ASSERT_TRUE(bytes > 0 && owner.ParseFromArray(text, static_cast<int>(bytes)));
  EXPECT_EQ(owner.pid(), child);
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kGone);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ends[0]);
  close(ends[1]);
}

TEST(StateOfOwner, SaysNothingOfOtherHostsStartsAndNamespaces) {
  const RunOwner here = MakeRunOwner("");
  RunOwner owner = here;
  owner.set_host("elsewhere");
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kUnknown);
  owner = here;
  owner.set_boot_id("0");
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kUnknown);
  owner = here;
  owner.set_pid_namespace("pid:[1]");
  EXPECT_EQ(StateOfOwner(owner), OwnerState::kUnknown);
}

}  // namespace
}  // namespace deepnet
