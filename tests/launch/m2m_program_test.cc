// An M2M-100 folder as users go on with it: imported, `evaluate`, `translate` and `score` take it
// like any checkpoint and say the same of the same sentences; `train` begins with its weights.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "proto/report.pb.h"
#include "tests/parity/training_runs.h"
#include "tests/support/child_process.h"
#include "tests/trainer/interop/m2m_folder.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::M2mFolder;
using deepnet::testing::ReadSteps;
using deepnet::testing::RunChild;
using deepnet::testing::StepFigures;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

// `score` prints four places.
constexpr double kPrinted = 1e-4;

constexpr char kCorpus[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
data { folder: "corpus" }
prepare { text { tsv_file: "train.tsv" source_language: "de" target_language: "en" }
          text { tsv_file: "test.tsv" source_language: "de" target_language: "en" split: "test" }
          tokenizer { vocab_size: 40 } }
)";

// The folder's model, on the corpus's own vocabulary.
constexpr char kTuned[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
folder: "tuned" seed: 3
model { encoder_layers: 2 decoder_layers: 1 d_model: 8 ffn_dim: 12 num_heads: 2 residual: PRE_LN
        max_positions: 16 }
data { folder: "corpus" tags: M2M max_sentence_tokens: 14
       microbatch { max_source_tokens: 200 max_target_tokens: 200 max_sentences: 16 } }
optim { learning_rate: 5e-2 warmup_steps: 1 }
compute { device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }
train { steps: 30 validate_every_steps: -1 validate_sentences: 1 log_every_steps: 1 }
decode { max_tokens: 14 }
)";

// Pairs that the folder's sixteen positions hold.
std::vector<std::string> Sentences(const std::string& last) {
  std::vector<std::string> sentences;
  for (const char* first : {"water", "winter", "window", "wonder", "under", "thunder"}) {
    for (const char* middle : {"and", "or", "with"}) {
      sentences.push_back(absl::StrCat(first, " ", middle, " ", last));
    }
  }
  return sentences;
}

class M2mProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_m2m_", getpid());
    fs::create_directories(root_);
    const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
    M2mFolder folder(*files, root_ / "m2m");
    WritePairs("train", Sentences("wind"), Sentences("dinner"));
    WritePairs("test", Sentences("water"), Sentences("winter"));
    std::ofstream(root_ / "corpus.textproto") << kCorpus;
    Run("prepare --config corpus.textproto --root .");
    Run("checkpoint import m2m --output imported");
  }
  void TearDown() override { fs::remove_all(root_); }

  void WritePairs(const std::string& name, const std::vector<std::string>& de,
                  const std::vector<std::string>& en) const {
    for (size_t i = 0; i < de.size(); ++i) {
      std::ofstream(root_ / (name + ".tsv"), std::ios::app) << de[i] << "\t" << en[i] << "\n";
      std::ofstream(root_ / (name + ".de"), std::ios::app) << de[i] << "\n";
      std::ofstream(root_ / (name + ".en"), std::ios::app) << en[i] << "\n";
    }
  }

  // A line of a shell in the folder, or in one below it; both outputs of the program are in files.
  int Shell(const std::string& arguments, std::string* errors,
            const std::string& below = ".") const {
    const ChildOutcome outcome = RunChild(
        {"bash", "-c",
         absl::StrCat("cd '", (root_ / below).string(), "' && ", DEEPNET_PROGRAM, " ", arguments,
                      " > '", (root_ / "out").string(), "' 2> '", (root_ / "err").string(), "'")});
    *errors = Read("err");
    return outcome.code;
  }
  // Returns what the program printed; it has to succeed.
  std::string Run(const std::string& arguments) const {
    std::string errors;
    EXPECT_EQ(Shell(arguments, &errors), 0) << arguments << "\n" << errors;
    return Read("out");
  }

  std::string Read(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(root_ / file).rdbuf();
    return text.str();
  }

  fs::path root_;
};

TEST_F(M2mProgramTest, EvaluateSaysWhatTranslateAndScoreSay) {
  const std::string json =
      Run("evaluate --checkpoint imported --data corpus --split test --output said --json");
  EvalRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &record).ok()) << json;
  ASSERT_EQ(record.directions_size(), 2);
  for (const DirectionScore& direction : record.directions()) {
    SCOPED_TRACE(direction.direction());
    const std::string from = direction.direction().substr(0, 2),
                      to = direction.direction().substr(3);
    EXPECT_EQ(direction.sentences(), 18);
    const std::string languages =
        absl::StrCat(" --checkpoint imported --from ", from, " --to ", to, " ");

    const std::string hypotheses = Run(absl::StrCat("translate", languages, "< test.", from));
    EXPECT_EQ(hypotheses, Read(absl::StrCat("said/", direction.direction(), ".hyp")));
    EXPECT_THAT(hypotheses, Not(HasSubstr("__")));  // no tags

    Run(absl::StrCat("score", languages, "test.", from, " test.", to));
    const std::string summary = Read("err");
    const size_t at = summary.find("log-probability ");
    double log_probability = 0.0, nats = 0.0;
    ASSERT_NE(at, summary.npos) << summary;
    ASSERT_EQ(sscanf(&summary[at], "log-probability %lf, %lf nats", &log_probability, &nats), 2);
    EXPECT_NEAR(direction.nll(), nats, kPrinted);
  }
}

TEST_F(M2mProgramTest, TheSentenceAndTheTagsOfBothLanguagesDecide) {
  const auto translate = [&](const std::string& from, const std::string& to) {
    return Run(absl::StrCat("translate --checkpoint imported --from ", from, " --to ", to,
                            " --scores < test.de"));
  };
  const std::string german_to_english = translate("de", "en");
  EXPECT_NE(german_to_english, translate("de", "fr"));
  EXPECT_NE(german_to_english, translate("fr", "en"));
  EXPECT_EQ(german_to_english, translate("de", "en"));
  // The sentences decide, too: each has a score of its own.
  std::set<std::string> different;
  std::istringstream lines(german_to_english);
  for (std::string line; std::getline(lines, line);) different.insert(line);
  EXPECT_EQ(different.size(), 18u) << german_to_english;
}

TEST_F(M2mProgramTest, TrainsOnFromTheFolderAndWhatComesOutTranslatesAndEvaluates) {
  std::ofstream(root_ / "tuned.textproto") << kTuned;
  std::string log;
  fs::create_directory(root_ / "elsewhere");  // from where --root leads to everything
  const std::string train = "train --config tuned.textproto --root .. --init-from m2m";
  ASSERT_EQ(Shell(train, &log, "elsewhere"), 0) << log;
  int known = 0, drawn = 0;
  const size_t at = log.find("weights of ");
  ASSERT_NE(at, log.npos) << log;
  ASSERT_EQ(sscanf(log.c_str() + log.find(": ", at),
                   ": %d rows of the vocabulary are known there, %d are new", &known, &drawn),
            2)
      << log;
  EXPECT_GT(known, 4 + 2);  // specials and tags
  EXPECT_TRUE(fs::exists(root_ / "tuned.imported/latest"));
  EXPECT_EQ(Shell(train, &log, "elsewhere"), 0) << log;  // goes on, where nothing is left to do
  const std::string other = (root_ / "other").string();
  EXPECT_EQ(
      Shell(absl::StrCat(train, " --set train.steps=1 --set folder=", other), &log, "elsewhere"), 0)
      << log;
  EXPECT_TRUE(fs::exists(other + ".imported/latest"));
  const std::vector<StepFigures> steps = ReadSteps(root_ / "tuned/metrics.jsonl");
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_LT(std::get<1>(steps.back()), std::get<1>(steps.front()));
  EXPECT_NE(Run("translate --checkpoint tuned --from de --to en < test.de"), "");
  EXPECT_THAT(Run("evaluate --checkpoint tuned --split test --json"), HasSubstr("de-en"));
}

TEST_F(M2mProgramTest, EvaluateAsksForTheCorpusThatAnImportDoesNotName) {
  std::string errors;
  EXPECT_EQ(Shell("evaluate --checkpoint imported", &errors), 2);
  EXPECT_THAT(errors, HasSubstr("--data: required; the checkpoint names no corpus"));
}

}  // namespace
}  // namespace deepnet
