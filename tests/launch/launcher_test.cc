#include "launch/launcher.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Set = std::map<std::string, std::string>;

GetEnvFn EnvironmentOf(const Set& variables) {
  return [&](const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  };
}

absl::StatusOr<Launch> Find(const Set& variables, bool has_mpi = true) {
  return FindLaunch(EnvironmentOf(variables), has_mpi);
}

absl::StatusOr<std::string> FindSecret(const Set& variables) {
  return FindJobSecret(EnvironmentOf(variables));
}

// As torchrun 2.11 --no-python sets them.
const Set& Torchrun() {
  static const Set variables = {{"RANK", "3"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "h1"},
                                {"MASTER_PORT", "29511"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  return variables;
}

const Set& Slurm() {
  static const Set variables = {
      {"SLURM_JOB_ID", "4242"},      {"SLURM_STEP_ID", "1"},
      {"SLURM_PROCID", "2"},         {"SLURM_NTASKS", "8"},
      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NODELIST", "n[07-09,12]"}};
  return variables;
}

Set With(Set variables, const Set& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

template <typename T>
void ExpectRefused(const absl::StatusOr<T>& found, const std::string& text) {
  EXPECT_EQ(GetExitCode(found.status()), ExitCode::kPreflight) << found.status();
  EXPECT_THAT(std::string(found.status().message()), HasSubstr(text));
}

TEST(Launcher, AProcessThatNobodyStartedIsAlone) {
  EXPECT_EQ(Find({})->by, Launch::By::kNobody);
  EXPECT_EQ(Find({{"WORLD_SIZE", "1"}, {"RANK", "0"}})->by, Launch::By::kNobody);
}

TEST(Launcher, TorchrunsVariablesAreTaken) {
  const auto launch = Find(Torchrun());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->by, Launch::By::kVariables);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->Place(), "h1:29511 (MASTER_ADDR, MASTER_PORT)");
  EXPECT_TRUE(launch->agent_store);
  EXPECT_EQ(launch->prefix, "2");
}

TEST(Launcher, ThePortHasTorchsDefault) {
  EXPECT_EQ(Find({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})->port, 29500);
}

TEST(Launcher, AnInitMethodSaysWhereTheRanksMeet) {
  const auto tcp = Find(With(Torchrun(), {{"INIT_METHOD", "tcp://h7:1234"}}));
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  EXPECT_EQ(tcp->host, "h7");
  EXPECT_EQ(tcp->port, 1234);
  EXPECT_EQ(Find(With(Torchrun(), {{"INIT_METHOD", "tcp://h7:65535"}}))->port, 65535);
  const auto file = Find(With(Slurm(), {{"INIT_METHOD", "file:///shared/meet"}}));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Place(), "file /shared/meet (INIT_METHOD)");
  EXPECT_EQ(Find(With(Torchrun(), {{"INIT_METHOD", "env://"}}))->host, "h1");
}

TEST(Launcher, AStepOfSlurmMeetsOnItsFirstHost) {
  const auto launch = Find(Slurm());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->by, Launch::By::kVariables);
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->size, 4) << "of the step, not of the job";
  EXPECT_EQ(launch->host, "n07");
  EXPECT_EQ(launch->port, 15000 + 4242 + 97);
  EXPECT_EQ(Find(With(Slurm(), {{"SLURM_JOB_ID", "40000"}, {"SLURM_STEP_ID", "3"}}))->port,
            15000 + (40000 + 3 * 97) % 15000);
  EXPECT_EQ(Find(With(Slurm(), {{"MASTER_ADDR", "n08"}, {"MASTER_PORT", "17"}}))->Place(),
            "n08:17 (MASTER_ADDR, MASTER_PORT)");
}

TEST(Launcher, AJobScriptOfSlurmIsNotAStep) {
  Set variables = Slurm();
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(Find(variables)->by, Launch::By::kNobody);
  const Set one_task = With(Slurm(), {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(Find(one_task)->by, Launch::By::kNobody);
}

TEST(Launcher, MpiComesFirstThenTorchrunThenSlurm) {
  const Set all = With(Slurm(), Torchrun());
  for (const char* of_mpi : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    EXPECT_EQ(Find(With(all, {{of_mpi, "2"}}))->by, Launch::By::kMpi) << of_mpi;
    EXPECT_EQ(Find(With(all, {{of_mpi, "2"}}))->said_by, "MPI's launcher");
  }
  EXPECT_EQ(Find(all)->said_by, "torchrun's variables");
  EXPECT_EQ(Find(Slurm())->said_by, "Slurm's variables");
}

TEST(Launcher, WithoutMpiSrunWithPmixIsSlurm) {
  const auto launch = Find(With(Slurm(), {{"PMIX_RANK", "2"}}), /*has_mpi=*/false);
  EXPECT_EQ(launch->said_by, "Slurm's variables");
}

TEST(Launcher, WithoutMpiSeveralRanksOfMpirunAreRefused) {
  ExpectRefused(Find({{"OMPI_COMM_WORLD_SIZE", "2"}}, /*has_mpi=*/false),
                "mpirun started 2 ranks of a program that was built without MPI");
}

TEST(Launcher, WrongOrMissingVariablesAreNamed) {
  const Set two = {{"WORLD_SIZE", "2"}};
  ExpectRefused(Find(two), "WORLD_SIZE is 2, but RANK is not set");
  ExpectRefused(Find(With(two, {{"RANK", "2"}})), "RANK is \"2\": must be a number from 0 to 1");
  ExpectRefused(Find(With(two, {{"RANK", "0"}})), "not MASTER_ADDR, the host of rank 0");
  ExpectRefused(Find({{"WORLD_SIZE", "two"}}), "WORLD_SIZE is \"two\"");
  ExpectRefused(Find(With(Torchrun(), {{"MASTER_PORT", "70000"}})), "MASTER_PORT is \"70000\"");
  for (const char* method : {"h1:29500", "tcp://h1", "tcp://:17", "tcp://h1:x", "tcp://h1:0",
                             "tcp://h1:65536", "file://"}) {
    ExpectRefused(Find(With(Torchrun(), {{"INIT_METHOD", method}})), "INIT_METHOD is \"");
  }
}

TEST(Launcher, TheFirstHostOfSlurmsListsIsFound) {
  EXPECT_EQ(FirstHost("n1"), "n1");
  EXPECT_EQ(FirstHost("n1,n2"), "n1");
  EXPECT_EQ(FirstHost("n[07-09,12],m3"), "n07");
  EXPECT_EQ(FirstHost("rack[2,4]-n[1-3].site"), "rack2-n1.site");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(JobSecret, IsTheVariableOrElseAFileThatTheFirstJobMakes) {
  const fs::path home = fs::path(::testing::TempDir()) / "home_of_a_job_secret";
  fs::remove_all(home);
  fs::create_directory(home);
  const absl::StatusOr<std::string> made = FindSecret({{"HOME", home}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->size(), 64);
  EXPECT_EQ(*FindSecret({{"HOME", home}}), *made);
  EXPECT_EQ(*FindSecret({{"HOME", home}, {"DEEPNET_JOB_SECRET", "of sixteen bytes"}}),
            "of sixteen bytes");
  const fs::path folder = home / ".config/deepnet";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  EXPECT_EQ(fs::status(folder / "job_secret").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  const absl::StatusOr<std::string> other = FindSecret({{"XDG_CONFIG_HOME", home}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(*other, *made);
}

// Ranks of one host begin together.
TEST(JobSecret, IsOneForAllThatAskForItFirst) {
  const fs::path home =
      fs::path(::testing::TempDir()) / absl::StrCat("home_of_many_who_ask_", getpid());
  for (int round = 0; round < 20; ++round) {
    fs::remove_all(home);
    std::array<std::string, 8> secrets;
    std::latch begin(std::ssize(secrets));
    std::vector<std::thread> threads;
    for (std::string& secret : secrets) {
      threads.emplace_back([&] {
        begin.arrive_and_wait();
        const absl::StatusOr<std::string> found = FindSecret({{"HOME", home}});
        secret = found.ok() ? *found : std::string(found.status().message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(secrets, Each(AllOf(SizeIs(64), secrets[0])));
  }
}

TEST(JobSecret, IsRefusedWhereOthersMayKnowOrGuessIt) {
  const fs::path home = fs::path(::testing::TempDir()) / "home_of_a_bad_job_secret";
  fs::remove_all(home);
  fs::create_directories(home / "deepnet");
  const Set in_file = {{"XDG_CONFIG_HOME", home}};
  const fs::path file = home / "deepnet/job_secret";
  ExpectRefused(FindSecret({}), "DEEPNET_JOB_SECRET: is not set, nor is HOME");
  ExpectRefused(FindSecret({{"DEEPNET_JOB_SECRET", "fifteen bytes.."}}),
                "DEEPNET_JOB_SECRET: is under 16 bytes");
  ExpectRefused(FindSecret({{"HOME", "/dev/null"}}), "/dev/null/.config/deepnet/job_secret: Not a");
  std::ofstream(file) << "fifteen bytes..";
  ExpectRefused(FindSecret(in_file), "must be your own file that nobody else can read");
  fs::permissions(file, fs::perms::owner_read | fs::perms::group_read);
  ExpectRefused(FindSecret(in_file), "must be your own file that nobody else can read");
  fs::permissions(file, fs::perms::owner_read);
  ExpectRefused(FindSecret(in_file), "has under 16 bytes");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  std::ofstream(file) << "of sixteen bytes\n";
  EXPECT_EQ(*FindSecret(in_file), "of sixteen bytes");
  fs::resize_file(file, 0);
  ExpectRefused(FindSecret(in_file), "has under 16 bytes");
  fs::rename(file, home / "elsewhere");
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  ExpectRefused(FindSecret(in_file), "must be your own file that nobody else can read");
  fs::remove(file);
  fs::create_symlink(home / "elsewhere", file);
  ExpectRefused(FindSecret(in_file), "Too many levels of symbolic links");
}

}  // namespace
}  // namespace deepnet
