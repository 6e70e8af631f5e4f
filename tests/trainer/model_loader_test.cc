#include "trainer/model_loader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

using testing::CrashKind;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;

constexpr int64_t kLimit = 1 << 20;

void Write(FileSystem& fs, const std::string& path, const std::string& contents) {
  ASSERT_TRUE(ReplaceFile(fs, path, contents).ok());
}

std::string Read(FileSystem& fs, const std::string& path) {
  const auto contents = ReadWholeFile(fs, path, kLimit);
  return contents.ok() ? *contents : "(none)";
}

// A corpus with a tokenizer, and a run folder that holds an older one.
class SaveVocabularyTest : public ::testing::Test {
 protected:
  void Begin(MemoryFileSystem& fs) const {
    ASSERT_TRUE(fs.MakeFolder("corpus").ok());
    Write(fs, "corpus/a.model", old_);
    ASSERT_TRUE(SaveVocabulary(fs, "corpus/a.model", {"de", "en"}, "runs/a").ok());
    Write(fs, "runs/a/metrics.jsonl", "");
    Write(fs, "corpus/a.model", new_);
  }

  const std::string old_ = std::string(3000, 'o'), new_ = std::string(5000, 'n');
};

TEST_F(SaveVocabularyTest, CopiesTheTokenizerAndListsTheLanguages) {
  MemoryFileSystem fs;
  Begin(fs);
  EXPECT_EQ(Read(fs, "runs/a/tokenizer.model"), old_);
  EXPECT_EQ(Read(fs, "runs/a/languages.txt"), "de\nen\n");
  ASSERT_TRUE(SaveVocabulary(fs, "corpus/a.model", {"de", "en", "fr"}, "runs/a").ok());
  EXPECT_EQ(Read(fs, "runs/a/tokenizer.model"), new_);
  EXPECT_EQ(Read(fs, "runs/a/languages.txt"), "de\nen\nfr\n");
}

TEST_F(SaveVocabularyTest, ACrashAtAnyCallLeavesWholeFiles) {
  for (const CrashKind kind :
       {CrashKind::kKeepAll, CrashKind::kLoseUnsynced, CrashKind::kLoseSome}) {
    bool finished = false;
    for (int64_t calls = 0; !finished; ++calls) {
      ASSERT_LT(calls, 100);
      MemoryFileSystem fs;
      Begin(fs);
      fs.StopAfter(calls);
      finished = SaveVocabulary(fs, "corpus/a.model", {"de", "en", "fr"}, "runs/a").ok();
      fs.Crash(kind, /*seed=*/static_cast<uint64_t>(calls));
      const std::string tokenizer = Read(fs, "runs/a/tokenizer.model");
      const std::string languages = Read(fs, "runs/a/languages.txt");
      EXPECT_TRUE(tokenizer == new_ || (!finished && tokenizer == old_)) << calls << tokenizer;
      EXPECT_TRUE(languages == "de\nen\nfr\n" || (!finished && languages == "de\nen\n"))
          << calls << languages;
    }
  }
}

TEST_F(SaveVocabularyTest, ReplacesThatOfARunAndNoOther) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  ASSERT_TRUE(ReplaceFile(fs, "run/tokenizer.model", "somebody's").ok());
  const auto write = [&](const std::string& contents) {
    return WriteVocabularyFile(fs, "run", kRunTokenizerFile, contents);
  };
  EXPECT_TRUE(write("somebody's").ok());
  const absl::Status refused = write("ours");
  EXPECT_EQ(GetExitCode(refused), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'run/tokenizer.model' is there"));
  EXPECT_EQ(*ReadWholeFile(fs, "run/tokenizer.model", 100), "somebody's");
  ASSERT_TRUE(ReplaceFile(fs, "run/metrics.jsonl", "").ok());
  EXPECT_TRUE(write("ours").ok());
  EXPECT_EQ(*ReadWholeFile(fs, "run/tokenizer.model", 100), "ours");
}

TEST_F(SaveVocabularyTest, AMissingTokenizerIsNamedAndNothingIsReplaced) {
  MemoryFileSystem fs;
  Begin(fs);
  const absl::Status status = SaveVocabulary(fs, "corpus/none.model", {"fr"}, "runs/a");
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_NE(status.message().find("corpus/none.model"), std::string::npos) << status;
  EXPECT_EQ(Read(fs, "runs/a/languages.txt"), "de\nen\n");
}

FoundModel Found(const std::string& folder, const std::string& tokenizer, TagStyle tags,
                 Architecture architecture) {
  FoundModel found{.folder = folder};
  found.manifest.set_tokenizer_hash(tokenizer);
  found.manifest.mutable_run()->mutable_data()->set_tags(tags);
  found.manifest.mutable_run()->mutable_model()->set_architecture(architecture);
  return found;
}

TEST(LoadEnsemble, NamesTheTwoCheckpointsThatDoNotGoTogether) {
  const FoundModel first = Found("a/step-1", "1234", M2M, ENCODER_DECODER);
  const auto message = [&](const FoundModel& other) {
    const absl::Status status = LoadEnsemble(std::vector{first, first, other}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    return std::string(status.message());
  };
  EXPECT_EQ(message(Found("b", "1235", M2M, ENCODER_DECODER)),
            "a/step-1 and b have different vocabularies and cannot be an ensemble");
  EXPECT_EQ(message(Found("b", "1234", NO_TAGS, ENCODER_DECODER)),
            "a/step-1 and b have different data.tags and cannot be an ensemble");
  EXPECT_EQ(message(Found("b", "1234", M2M, DECODER_ONLY)),
            "a/step-1 and b have different architectures and cannot be an ensemble");
}

}  // namespace
}  // namespace deepnet
