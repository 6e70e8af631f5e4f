// tests/golden/run-v1 is a run that the first edition of this program has prepared, trained for 30
// steps and saved; tests/golden/export-v1 is what that program exported of it. Both stay as they
// are for good, but for names of fields, which version 0.1.0 settled, and every later program has
// to understand them: figures below are what the first one printed, but for the weights that it
// goes on to: in that edition the row of <pad> did not learn.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/parity/training_runs.h"
#include "tests/support/child_process.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::RunChild;
using deepnet::testing::WeightsLine;
using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kGoldenRun[] = "tests/golden/run-v1";
constexpr char kGoldenExport[] = "tests/golden/export-v1";
constexpr char kConfig[] = "tests/launch/golden_run.textproto";
constexpr char kCheckpoint[] = "run/step-00000030";

class GoldenRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_golden_run_", getpid());
    fs::copy(kGoldenRun, root_, fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(root_); }

  // Returns what the program printed; relative paths are those of the copy.
  std::string Run(std::vector<std::string> words, int ranks = 1) const {
    words.insert(words.begin(), {DEEPNET_PROGRAM});
    if (ranks > 1) words.insert(words.begin(), {"tests/mpi/mpirun.sh", absl::StrCat(ranks)});
    words.insert(words.end(), {"--root", root_});
    const ChildOutcome outcome = RunChild(words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  }

  std::string Train(const std::vector<std::string>& settings, int ranks) const {
    std::vector<std::string> words = {"train", "--config", fs::absolute(kConfig), "--log-seconds",
                                      "0"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return Run(words, ranks);
  }

  fs::path root_;
};

TEST_F(GoldenRunTest, ContinuesToTheSameWeights) {
  const std::string log =
      Train({"parallel.pipeline_parallel_size=1", "parallel.schedule=", "parallel.placement=",
             "parallel.virtual_pipeline_size=", "parallel.recompute="},
            1);
  EXPECT_THAT(log, HasSubstr("continuing at step 30"));
  EXPECT_EQ(WeightsLine(log), "weights dc014a51db33def8");
}

TEST_F(GoldenRunTest, ContinuesToTheSameWeightsOnTheRanksItWasTrainedOn) {
  const std::string log = Train({}, 2);
  EXPECT_THAT(log, HasSubstr("continuing at step 30"));
  EXPECT_EQ(WeightsLine(log), "weights dc014a51db33def8");
}

TEST_F(GoldenRunTest, Translates) {
  std::ofstream(root_ / "source") << "Everyone has the right to work.\n";
  const ChildOutcome outcome =
      RunChild({"bash", "-c",
                "\"$0\" translate --root \"$1\" --checkpoint run --from en --to de "
                "--nbest 2 <\"$1/source\" 2>/dev/null",
                DEEPNET_PROGRAM, root_});
  EXPECT_EQ(outcome.output,
            "1\tEveryone has                 \n"
            "1\tEveryone has                s\n");
}

TEST_F(GoldenRunTest, ToolsReadIt) {
  EXPECT_THAT(Run({"checkpoint", "list", "--verify", "run"}),
              AllOf(HasSubstr("best-bleu 0, best-nll 4.713, latest"), HasSubstr("34,932")));
  EXPECT_THAT(Run({"checkpoint", "verify", "run"}),
              HasSubstr("255 tensors, 187.3 KiB in 2 blocks"));
  EXPECT_THAT(Run({"checkpoint", "inspect", "run"}),
              AllOf(HasSubstr("ff5758acb66f7a75"), HasSubstr("8bb3dbdceb4fe0b4"),
                    HasSubstr("6421e39d44c6a588"), HasSubstr("manifest ")));
}

TEST_F(GoldenRunTest, ItsExportIsImportedAsTheSameWeightsAndRun) {
  Run({"checkpoint", "import", "--output", "imported", fs::absolute(kGoldenExport)});
  const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  auto trained = ReadManifest(*files, root_ / kCheckpoint);
  const auto imported = ReadManifest(*files, root_ / "imported/step-00000030");
  ASSERT_TRUE(trained.ok() && imported.ok()) << trained.status() << imported.status();
  trained->mutable_run()->DiscardUnknownFields();  // where `prepare` wrote: a field that is gone
  EXPECT_TRUE(MessageDifferencer::Equals(imported->run(), trained->run()))
      << imported->run().DebugString();
  EXPECT_EQ(imported->inventory_hash(), trained->inventory_hash());
  EXPECT_EQ(imported->tokenizer_hash(), trained->tokenizer_hash());
  const ChildOutcome compared =
      RunChild({DEEPNET_PROGRAM, "checkpoint", "diff", "--filter", "weight/", "--root", root_,
                kCheckpoint, "imported/step-00000030"});
  EXPECT_EQ(compared.code, 0) << compared.output;
}

TEST_F(GoldenRunTest, AnExportWithNamesOfBeforeTheFirstVersionIsRefused) {
  fs::copy(kGoldenExport, root_ / "export");
  const ChildOutcome outcome =
      RunChild({"bash", "-c",
                "sed -i 's/    \"d_model\"/    \"width\"/' \"$1/export/config.json\" && "
                "\"$0\" checkpoint import --root \"$1\" --output imported export",
                DEEPNET_PROGRAM, root_});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.output, HasSubstr("has names of before version 0.1.0: export it again"));
}

}  // namespace
}  // namespace deepnet
