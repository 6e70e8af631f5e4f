// `deepnet prepare` as ranks under mpirun: the corpus of one process, also after it was killed.
//
// Environment: DEEPNET_ROUNDS, how often a job is killed (default 20).
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/clock.h"
#include "tests/support/running_job.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus_manifest.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::RunningJob;
using testing::TempFolder;
using testing::TextPairs;

constexpr int kLanguages = 6;

int Rounds() {
  const char* const text = std::getenv("DEEPNET_ROUNDS");
  return text != nullptr ? std::atoi(text) : 20;
}

// English with kLanguages others: German with a word in front that is another one in each.
void WriteTexts(const TempFolder& folder, int rounds) {
  const TextPairs german = testing::UdhrPairs()["de"];
  for (int language = 0; language < kLanguages; ++language) {
    const std::string tag = absl::StrCat("x", language);
    TextPairs pairs;
    for (int i = 0; i < rounds; ++i) {
      for (const auto& [english, other] : german) {
        pairs.emplace_back(absl::StrCat("part ", i, " ", english),
                           absl::StrCat(tag, " ", i, " ", other));
      }
    }
    testing::WritePairs(folder, absl::StrCat("opus/en-", tag, "/opus.en-", tag, "-train"), "en",
                        tag, pairs);
    testing::WritePairs(folder, absl::StrCat("opus/en-", tag, "/opus.en-", tag, "-test"), "en", tag,
                        {german.begin(), german.begin() + 9});
  }
  folder.Write("run.textproto",
               "# proto-file: proto/run.proto\n# proto-message: deepnet.RunSpec\n"
               "prepare { opus100_folder: 'opus' tokenizer { vocab_size: 400 } }\n");
}

std::string Program(const TempFolder& folder, const std::string& output) {
  return absl::StrCat(DEEPNET_PROGRAM, " prepare --config ", folder.Path("run.textproto"),
                      " --root ", folder.path(), " --set data.folder=", output);
}

std::string OnRanks(int ranks, const std::string& program) {
  return absl::StrCat("env MPIEXEC_TIMEOUT=120 tests/mpi/mpirun.sh ", ranks, " ", program);
}

void ExpectRuns(const std::string& command) {
  RunningJob job(command);
  EXPECT_EQ(job.End(), 0) << job.output();
}

// Returns the content hash of a corpus; reads all that it covers.
std::string Hash(const TempFolder& folder, const std::string& name) {
  const auto manifest = ReadManifest(folder.Path(name));
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.ok() ? ContentHash(*manifest) : "";
}

TEST(PrepareProgram, RanksWriteTheCorpusOfOneProcess) {
  const TempFolder folder;
  WriteTexts(folder, 10);
  ExpectRuns(Program(folder, "one"));
  for (const int ranks : {2, 4}) {
    const std::string name = absl::StrCat("on", ranks);
    ExpectRuns(OnRanks(ranks, Program(folder, name)));
    EXPECT_EQ(Hash(folder, name), Hash(folder, "one"));
    for (const auto& entry : fs::directory_iterator(folder.Path("one"))) {
      if (entry.path().extension() != ".pairs") continue;
      EXPECT_EQ(ReadFile(entry.path()),
                ReadFile(fs::path(folder.Path(name)) / entry.path().filename()));
    }
  }
}

// `train --text`: two files become a run on two ranks, which one process continues.
TEST(PrepareProgram, TrainOnTextPreparesOnRanksTrainsAndResumes) {
  const TempFolder folder;
  testing::WritePairs(folder, "a", "en", "de", testing::UdhrPairs()["de"]);
  const auto train = [&](const std::string& run, int steps) {
    return absl::StrCat(DEEPNET_PROGRAM, " train --root ", folder.path(), " --text a.en a.de",
                        " --set folder=", run, " --set train.steps=", steps,
                        " --set train.validate_every_steps=-1 --set train.validate_sentences=2"
                        " --set decode.max_tokens=5 --set model.encoder_layers=1"
                        " --set model.decoder_layers=1 --set model.d_model=32"
                        " --set model.ffn_dim=64 --set compute.dtype=FLOAT32");
  };
  const auto weights = [](const std::string& command) {
    RunningJob job(command);
    EXPECT_EQ(job.End(), 0) << job.output();
    const size_t at = job.output().rfind("weights ");
    return at == std::string::npos ? "none" : job.output().substr(at, 24);
  };
  const std::string whole = weights(train("alone", 4));
  weights(OnRanks(2, train("ranks", 2)));
  EXPECT_EQ(weights(train("ranks", 4)), whole);
}

TEST(PrepareProgram, AnErrorOfOneRankEndsAllWithItsCodeAndText) {
  const TempFolder folder;
  WriteTexts(folder, 3);
  std::ofstream(folder.Path("opus/en-x3/opus.en-x3-train.x3"), std::ios::app) << "one more\n";
  RunningJob job(OnRanks(4, Program(folder, "out")));
  EXPECT_EQ(job.End(), 4);
  EXPECT_THAT(job.output(), HasSubstr("error: uneven line counts"));
  EXPECT_THAT(job.output(), HasSubstr("opus.en-x3-train.x3 after line 181"));
}

TEST(PrepareProgram, KilledAtRandomMomentsItGoesOnToTheSameCorpus) {
  const TempFolder folder;
  WriteTexts(folder, 30);
  ExpectRuns(Program(folder, "undisturbed"));
  folder.Write("rank.sh", "echo process $$\nexec \"$@\"\n");
  const std::string command =
      OnRanks(2, absl::StrCat("bash ", folder.Path("rank.sh"), " ", Program(folder, "out")));
  const double begin = SecondsNow();
  ExpectRuns(OnRanks(2, Program(folder, "timed")));
  const double seconds = SecondsNow() - begin;
  std::mt19937 random(20);
  for (int round = 0; round < Rounds(); ++round) {
    // Each round begins a new preparation, and kills it once. A moment that came after its end is
    // drawn again from the earlier half.
    for (double latest = seconds;; latest /= 2) {
      fs::remove_all(folder.Path("out"));
      RunningJob job(command);
      ASSERT_TRUE(job.ReadUntil("process ", 2)) << job.output();
      const double moment = std::uniform_real_distribution<>(0.0, latest)(random);
      usleep(static_cast<useconds_t>(1e6 * moment));
      kill(job.ranks()[static_cast<size_t>(round % 2)], SIGKILL);
      if (job.End() != 0) break;
    }
    EXPECT_TRUE(fs::exists(folder.Path("out/manifest.textproto")) ||
                !fs::exists(folder.Path("out")));
    ExpectRuns(OnRanks(2, Program(folder, "out")));
    ASSERT_EQ(Hash(folder, "out"), Hash(folder, "undisturbed")) << round;
    EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")));
  }
}

// Pretend hosts, which need root.
TEST(PrepareProgramHosts, FourHostsWriteTheCorpusOfOneProcess) {
  const TempFolder folder;
  WriteTexts(folder, 10);
  ExpectRuns(Program(folder, "one"));
  ExpectRuns(absl::StrCat("tests/mpi/testhosts.sh with 4 -n 4 ", Program(folder, "out")));
  EXPECT_EQ(Hash(folder, "out"), Hash(folder, "one"));
}

}  // namespace
}  // namespace deepnet
