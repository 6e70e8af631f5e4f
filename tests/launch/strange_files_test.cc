// Files that somebody else has made, or changes under the program, end it with the exit code that
// says what is wrong, within the time and memory of a small file; nothing is written elsewhere.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/support/child_process.h"
#include "tests/support/running_job.h"
#include "tests/support/seal_blocks.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::ChildOutcome;
using ::testing::HasSubstr;
using testing::RunChild;
using testing::RunningJob;
using testing::TempFolder;

constexpr int kBadConfig = 2, kPreflight = 3, kData = 4, kCheckpoint = 5,
              kDoesNotFit = 6;  // exit codes
constexpr char kConfig[] = "tests/launch/golden_run.textproto";
constexpr char kOnOne[] =
    "--set parallel.pipeline_parallel_size=1 --set parallel.schedule= --set parallel.placement= "
    "--set parallel.virtual_pipeline_size= --set parallel.recompute= ";  // rank

// A copy of the golden run.
class StrangeFilesTest : public ::testing::Test {
 protected:
  StrangeFilesTest() {
    for (const char* part : {"run", "corpus"}) {
      fs::copy(fs::path("tests/golden/run-v1") / part, folder_.Path(part),
               fs::copy_options::recursive);
    }
    folder_.Write("source", "Everyone has the right to work.\n");
  }

  ChildOutcome Run(std::vector<std::string> words) const {
    words.insert(words.begin(), DEEPNET_PROGRAM);
    words.insert(words.end(), {"--root", folder_.path()});
    return RunChild(words);
  }

  // `command` with streams in a shell's words, in the folder itself.
  ChildOutcome RunInShell(const std::string& command) const {
    return RunChild({"bash", "-c", absl::StrCat("cd \"$1\"; exec \"$0\" ", command),
                     fs::absolute(DEEPNET_PROGRAM), folder_.path()});
  }

  ChildOutcome Translate(const std::string& streams = "<source") const {
    return RunInShell("translate --checkpoint run --from en --to de " + streams);
  }

  std::string TrainCommand(const std::string& settings, const std::string& root = "") const {
    return absl::StrCat(DEEPNET_PROGRAM, " train --config ", fs::absolute(kConfig).string(),
                        " --log-seconds 0 --root ", folder_.Path(root), " ", settings);
  }

  const TempFolder folder_;
};

TEST_F(StrangeFilesTest, ALanguageThatLeadsOutsideIsRefusedAndNothingIsWritten) {
  const std::string manifest = folder_.Read("corpus/manifest.textproto");
  folder_.Write("corpus/manifest.textproto",
                absl::StrReplaceAll(manifest, {{"\"fr\"", "\"../../EVIL\""}}));
  fs::create_directories(folder_.Path("a/b"));
  const ChildOutcome outcome =
      Run({"evaluate", "--checkpoint", "run", "--data", "corpus", "--output", "a/b/out"});
  EXPECT_EQ(outcome.code, kData);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("corpus/manifest.textproto: "), HasSubstr("\"../../EVIL\"")));
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    EXPECT_FALSE(absl::StrContains(entry.path().string(), "EVIL")) << entry.path();
  }

  folder_.Write("run/languages.txt", "de\nen\n../../EVIL\n");
  const ChildOutcome translated = Translate();
  EXPECT_EQ(translated.code, kCheckpoint);
  EXPECT_THAT(translated.output,
              AllOf(HasSubstr("run/languages.txt: "), HasSubstr("\"../../EVIL\"")));
}

TEST_F(StrangeFilesTest, AnInputThatCannotBeReadIsNotTakenForItsEnd) {
  constexpr char kScore[] = "score --checkpoint run --from en --to de ";
  for (const auto& [command, words] : std::vector<std::pair<std::string, std::string>>{
           {"translate --checkpoint run --from en --to de <run",
            "standard input, after line 0: cannot be read: Is a directory"},
           {"translate --checkpoint run --from en --to de <&-",
            "standard input, after line 0: cannot be read: Bad file descriptor"},
           {"translate --checkpoint run --from en --to de --prefixes run <source",
            "run, after line 0: cannot be read: Is a directory"},
           {absl::StrCat(kScore, "<run"), "standard input, after line 0: cannot be read: Is a"},
           {absl::StrCat(kScore, "source run"), "run, after line 0: cannot be read: Is a"},
           {absl::StrCat(kScore, "source none"), "none: cannot be read: No such file"},
           {"prepare --tsv - --from de --to en --set data.folder=new <run",
            "--tsv -: standard input: cannot be read: Is a directory"}}) {
    const ChildOutcome outcome = RunInShell(command);
    EXPECT_EQ(outcome.code, kData) << command;
    EXPECT_THAT(outcome.output, HasSubstr(words)) << command;
  }
}

TEST_F(StrangeFilesTest, ATimeLimitThatIsOverIsRefused) {
  const ChildOutcome outcome =
      RunChild({"bash", "-c", absl::StrCat("SLURM_JOB_END_TIME=1000000000 ", TrainCommand(""))});
  EXPECT_EQ(outcome.code, kPreflight);
  EXPECT_THAT(outcome.output, HasSubstr("SLURM_JOB_END_TIME: the time limit of the job is over"));
}

// A folder may have any name; what is written of it is UTF-8.
TEST_F(StrangeFilesTest, NamesThatAreNotUtf8AreCarriedOrRefusedBeforeAnythingIsDone) {
  const std::string root = folder_.Path("l\xe4ufe");
  fs::create_directories(root);
  for (const char* part : {"run", "corpus"}) {
    fs::create_directory_symlink(folder_.Path(part), fs::path(root) / part);
  }
  const ChildOutcome json = RunChild({DEEPNET_PROGRAM, "evaluate", "--root", root, "--checkpoint",
                                      "run", "--data", "corpus", "--sentences", "1", "--json"});
  EXPECT_EQ(json.code, 0) << json.output;
  EXPECT_THAT(json.output, HasSubstr("l\\\\xe4ufe/run/step-"));
  const ChildOutcome mean = RunChild({DEEPNET_PROGRAM, "checkpoint", "average", "--root", root,
                                      "--last", "1", "--output", "m\xe4n", "run"});
  EXPECT_EQ(mean.code, 0) << mean.output;
  const ChildOutcome shown = RunChild(
      {DEEPNET_PROGRAM, "checkpoint", "inspect", "--json", folder_.Path("l\xe4ufe/m\xe4n")});
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("l\\\\xe4ufe"));

  const ChildOutcome refused = RunInShell(absl::StrCat(
      "train --config ", fs::absolute(kConfig).string(), " --set folder=l\xe4ufe/new"));
  EXPECT_EQ(refused.code, kBadConfig);
  EXPECT_THAT(refused.output, HasSubstr("error: folder: 'l\\xe4ufe/new': must be UTF-8"));
  EXPECT_FALSE(fs::exists(folder_.Path("l\xe4ufe/new")));
}

TEST_F(StrangeFilesTest, ResultsThatCannotBeWrittenAreAnError) {
  ASSERT_EQ(Translate("<source").code, 0);
  for (const char* streams : {"<source >/dev/full", "<source >&-"}) {
    const ChildOutcome outcome = Translate(streams);
    EXPECT_EQ(outcome.code, kData) << streams;
    EXPECT_THAT(outcome.output, HasSubstr("standard output: cannot be written: ")) << streams;
  }
  for (const char* command : {"evaluate --checkpoint run --data corpus --sentences 1",
                              "evaluate --checkpoint run --data corpus --sentences 1 --json"}) {
    EXPECT_EQ(RunInShell(absl::StrCat(command, " >/dev/full")).code, kData) << command;
  }
}

TEST_F(StrangeFilesTest, FilesOfAnySizeCostNoMoreThanSmallOnes) {
  const ChildOutcome plain = Translate();
  ASSERT_EQ(plain.code, 0) << plain.output;
  for (const char* name : {"run/tokenizer.model", "run/languages.txt", "run/lock"}) {
    const std::string before = fs::exists(folder_.Path(name)) ? folder_.Read(name) : "";
    folder_.WriteHuge(name);
    const ChildOutcome outcome = absl::EndsWith(name, "lock")
                                     ? Run({"checkpoint", "prune", "--keep", "1", "run"})
                                     : Translate();
    EXPECT_EQ(outcome.code, kCheckpoint) << name << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(name));
    EXPECT_LT(outcome.peak_bytes, plain.peak_bytes + (int64_t{256} << 20)) << name;
    fs::remove(folder_.Path(name));
    if (!before.empty()) folder_.Write(name, before);
  }
  std::string deep = "model ";
  for (int i = 0; i < 20'000; ++i) deep += "{x ";
  folder_.Write("deep.textproto", deep);
  const ChildOutcome described = Run({"describe", "--config", folder_.Path("deep.textproto")});
  EXPECT_EQ(described.code, 2);
  EXPECT_THAT(described.output, HasSubstr("deep.textproto:1: Message is too deep"));
}

TEST_F(StrangeFilesTest, ThreadsThatTheSystemDoesNotGiveAreNamed) {
  const ChildOutcome outcome = RunChild(
      {"bash", "-c",
       absl::StrCat(
           "ulimit -v 3500000; exec ",
           TrainCommand("--set parallel.pipeline_parallel_size=1 --set parallel.schedule= "
                        "--set parallel.placement= --set parallel.virtual_pipeline_size= "
                        "--set parallel.recompute= --set compute.threads_per_rank=1000"))});
  EXPECT_EQ(outcome.code, kDoesNotFit) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("compute.threads_per_rank: "), HasSubstr(" of 1000 threads run")));
}

// Says who reads the corpus that goes bad: a process alone, two ranks, or the second of two with
// copies of their own.
enum class Readers { kAlone, kBothRanks, kSecondRank };

class BadCorpusTest : public StrangeFilesTest, public ::testing::WithParamInterface<Readers> {
 protected:
  BadCorpusTest() {
    if (GetParam() != Readers::kSecondRank) return;
    bad_root_ = "second/";
    fs::create_directories(folder_.Path("second"));
    fs::copy(folder_.Path("corpus"), folder_.Path("second/corpus"));
    for (const char* run : {"run", "new"}) {
      fs::create_directory_symlink(folder_.Path(run), folder_.Path(absl::StrCat("second/", run)));
    }
  }

  std::string Train(const std::string& settings) const {
    if (GetParam() == Readers::kAlone) return TrainCommand(kOnOne + settings);
    const std::string command = TrainCommand(settings);
    if (GetParam() == Readers::kBothRanks) return "tests/mpi/mpirun.sh 2 " + command;
    return absl::StrCat("tests/mpi/mpirun.sh 1 ", command, " : -n 1 ",
                        TrainCommand(settings, bad_root_));
  }

  std::string bad_root_;
};

// Whoever shortens a corpus in use has its pages taken from under the program.
TEST_P(BadCorpusTest, ThatBecameShorterEndsTrainingWithTheNameOfTheFileAfterASave) {
  const auto train = [&](int64_t steps) {
    return Train(absl::StrCat("--set train.steps=", steps, " --set train.log_every_steps=1 ",
                              "--set train.validate_every_steps=-1 ",
                              "--set train.checkpoint_every_steps=1000000"));
  };
  RunningJob job(train(1'000'000));
  ASSERT_TRUE(job.ReadUntil("train", 3)) << job.output();
  const std::string corpus = bad_root_ + "corpus/";
  fs::create_directories(folder_.Path("kept"));
  for (const char* name : {"train.de-en.pairs", "train.en-fr.pairs"}) {
    fs::copy(folder_.Path(corpus + name), folder_.Path("kept"));
    fs::resize_file(folder_.Path(corpus + name), 0);
  }
  EXPECT_EQ(job.End(), kData) << job.output();
  EXPECT_THAT(job.output(),
              AllOf(HasSubstr(".pairs: it became shorter"), ::testing::Not(HasSubstr("is lost"))));

  const auto files = MakePosixFileSystem();
  const auto latest = FindLatest(*files, folder_.Path("run"));
  ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
  const int64_t saved = (*latest)->manifest.step();
  EXPECT_GT(saved, 30);
  EXPECT_GE(saved, job.last_step());

  fs::copy(folder_.Path("kept"), folder_.Path(corpus),
           fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  RunningJob again(train(saved + 2));
  EXPECT_EQ(again.End(), 0) << again.output();
  EXPECT_THAT(again.output(), HasSubstr(absl::StrCat("continuing at step ", saved)));
}

// A byte of a shard, and one of its ids.
TEST_P(BadCorpusTest, IsNotTrainedOnWhereItIsDamaged) {
  const std::string command =
      Train("--set folder=new --set train.steps=3 --set train.validate_every_steps=-1 ");
  const std::string name = bad_root_ + "corpus/train.de-en.pairs", shard = folder_.Read(name);
  std::string bad = shard;
  bad[5000] ^= 8;
  folder_.Write(name, bad);
  RunningJob flipped(command);
  EXPECT_EQ(flipped.End(), kData) << flipped.output();
  EXPECT_THAT(flipped.output(), HasSubstr("train.de-en.pairs: damaged: bytes 4096 to "));

  if (GetParam() == Readers::kSecondRank) return;  // sealed, it is another corpus than the first's
  for (size_t i = 4096; i < 6096; ++i) bad[i] = '\x7f';
  testing::SealBlocks(bad);
  folder_.Write(name, bad);
  RunningJob impossible(command);
  EXPECT_EQ(impossible.End(), kData) << impossible.output();
  EXPECT_THAT(impossible.output(), AllOf(HasSubstr("train.de-en.pairs: damaged: pair "),
                                         HasSubstr("has token 32639, the vocabulary is of ")));
}

INSTANTIATE_TEST_SUITE_P(Readers, BadCorpusTest,
                         ::testing::Values(Readers::kAlone, Readers::kBothRanks,
                                           Readers::kSecondRank));

}  // namespace
}  // namespace deepnet
