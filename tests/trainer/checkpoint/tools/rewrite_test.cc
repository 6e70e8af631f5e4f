#include "trainer/checkpoint/tools/rewrite.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

using deepnet::testing::ExpectHoldsSample;
using deepnet::testing::FaultFileSystem;
using deepnet::testing::FilesBelow;
using deepnet::testing::ManifestOf;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::MutableViews;
using deepnet::testing::SampleManifest;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSpreadSample;
using deepnet::testing::Views;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Weights whose sums need rounding: of all magnitudes and both signs.
void SaveRandom(FileSystem& fs, int64_t step) {
  std::mt19937 random(static_cast<unsigned>(step));
  std::uniform_real_distribution<float> fraction(-1.0f, 1.0f);
  std::vector<SampleTensor> tensors = SampleTensors(step);
  for (SampleTensor& tensor : tensors) {
    for (float& element : tensor.data) {
      element = std::ldexp(fraction(random), static_cast<int>(random() % 40) - 20);
    }
  }
  Manifest manifest = SampleManifest(step);
  manifest.add_best()->set_metric("bleu");
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(tensors)).ok());
}

std::vector<SampleTensor> ReadWeights(FileSystem& fs, const std::string& folder) {
  std::vector<SampleTensor> tensors = SampleTensors(0);
  tensors.resize(3);
  const absl::Status status =
      ReadTensors(fs, folder, ManifestOf(fs, folder), MutableViews(tensors));
  EXPECT_TRUE(status.ok()) << status;
  return tensors;
}

// The slow twin, which adds up an element at a time.
float PlainMean(const std::vector<std::vector<SampleTensor>>& all, size_t tensor, size_t element) {
  double sum = 0.0;
  for (const auto& tensors : all) sum += static_cast<double>(tensors[tensor].data[element]);
  return static_cast<float>(sum / static_cast<double>(all.size()));
}

class Average : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30}) SaveRandom(fs_, step);
  }

  std::vector<std::string> folders_ = {"run/step-00000010", "run/step-00000020",
                                       "run/step-00000030"};
  MemoryFileSystem fs_;
};

TEST_F(Average, HasTheBitsOfTheSlowTwin) {
  const auto folder = AverageCheckpoints(fs_, folders_, "mean", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*folder, "mean/step-00000030");
  std::vector<std::vector<SampleTensor>> all;
  for (const std::string& source : folders_) all.push_back(ReadWeights(fs_, source));
  const std::vector<SampleTensor> mean = ReadWeights(fs_, *folder);
  for (size_t t = 0; t < mean.size(); ++t) {
    for (size_t i = 0; i < mean[t].data.size(); ++i) {
      EXPECT_EQ(mean[t].data[i], PlainMean(all, t, i)) << mean[t].name << " " << i;
    }
  }
}

TEST_F(Average, DoesNotDependOnTheOrderOfItsArguments) {
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
  std::reverse(folders_.begin(), folders_.end());
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "reversed", {}).ok());
  for (const char* file : {"manifest.pb", "tensors-00000-of-00001.bin"}) {
    EXPECT_EQ(*ReadWholeFile(fs_, JoinPath("mean/step-00000030", file), 1 << 20),
              *ReadWholeFile(fs_, JoinPath("reversed/step-00000030", file), 1 << 20));
  }
}

TEST_F(Average, OfOneCheckpointIsItsWeights) {
  const auto folder = AverageCheckpoints(fs_, std::span(&folders_[1], 1), "mean", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<SampleTensor> mean = ReadWeights(fs_, *folder);
  for (size_t t = 0; t < mean.size(); ++t) {
    EXPECT_EQ(mean[t].data, ReadWeights(fs_, folders_[1])[t].data);
  }
}

TEST_F(Average, SaysWhatItWasMadeOfAndHasNoMomentsAndNoScores) {
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
  const Manifest manifest = ManifestOf(fs_, "mean/step-00000030");
  ASSERT_EQ(manifest.averaged_size(), 3);
  EXPECT_EQ(manifest.averaged(0).folder(), folders_[0]);
  EXPECT_EQ(manifest.averaged(0).step(), 10);
  EXPECT_EQ(manifest.averaged(0).manifest_crc32c(), ManifestOf(fs_, folders_[0]).manifest_crc32c());
  EXPECT_EQ(manifest.best_size(), 0);
  EXPECT_EQ(manifest.data().step(), 30);
  EXPECT_EQ(manifest.files(0).extents_size(), 3);
  for (const TensorExtent& extent : manifest.files(0).extents()) {
    EXPECT_THAT(extent.name(), StartsWith("weight/"));
  }
}

TEST_F(Average, TakesCheckpointsInTheOrderOfTheirStepsNotOfTheirFolders) {
  ASSERT_TRUE(SaveCheckpoint(fs_, "a", SampleManifest(40), Views(SampleTensors(40))).ok());
  folders_.push_back("a/step-00000040");
  ASSERT_EQ(AverageCheckpoints(fs_, folders_, "mean", {}).value_or(""), "mean/step-00000040");
  EXPECT_EQ(ManifestOf(fs_, "mean/step-00000040").averaged(3).folder(), folders_.back());
}

TEST_F(Average, RefusesOtherModelsAndVocabulariesWithBothValues) {
  Manifest other = SampleManifest(40);
  other.set_inventory_hash("fedcba");
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", other, Views(SampleTensors(40))).ok());
  folders_.push_back("run/step-00000040");
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("different names or shapes of weights: '0123456789abcdef' and 'fedcba'"));

  other.set_tokenizer_hash("abc");  // and so another number of rows
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", other, Views(SampleTensors(40))).ok());
  EXPECT_THAT(std::string(AverageCheckpoints(fs_, folders_, "mean", {}).status().message()),
              HasSubstr("have different vocabularies: "));
}

TEST_F(Average, OfAnAverageIsMadeOfItAlone) {
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
  const std::vector<std::string> mean = {"mean/step-00000030"};
  ASSERT_TRUE(AverageCheckpoints(fs_, mean, "again", {}).ok());
  const Manifest manifest = ManifestOf(fs_, "again/step-00000030");
  ASSERT_EQ(manifest.averaged_size(), 1);
  EXPECT_EQ(manifest.averaged(0).folder(), mean[0]);
  EXPECT_FALSE(manifest.averaged(0).ema());
}

TEST_F(Average, OfTheAveragesThatTrainingKeptHasTheirValues) {
  const std::vector<float> weight = {1.0f, 2.0f}, average = {0.5f, 0.25f};
  const std::vector<NamedTensor> tensors = {{"weight/x", {2}, weight}, {"ema/x", {2}, average}};
  ASSERT_TRUE(SaveCheckpoint(fs_, "ema", SampleManifest(10), tensors).ok());
  const std::vector<std::string> source = {"ema/step-00000010"};
  const auto folder = AverageCheckpoints(fs_, source, "mean", {}, kEmaPrefix);
  ASSERT_TRUE(folder.ok()) << folder.status();
  std::vector<SampleTensor> read = {{"weight/x", {2}, {0.0f, 0.0f}}};
  ASSERT_TRUE(ReadTensors(fs_, *folder, ManifestOf(fs_, *folder), MutableViews(read)).ok());
  EXPECT_EQ(read[0].data, average);
  EXPECT_TRUE(ManifestOf(fs_, *folder).averaged(0).ema());
  EXPECT_EQ(std::string(AverageCheckpoints(fs_, folders_, "no", {}, kEmaPrefix).status().message()),
            "'run/step-00000010' holds no 'ema/encoder.layers.0.fc1.weight': optim.ema_decay was "
            "off in that run");
}

TEST_F(Average, RefusesWhatHasOtherWeightsOrNoneAndAFolderThatIsNotEmpty) {
  const auto refusal = [&](const std::string& output) {
    return std::string(AverageCheckpoints(fs_, folders_, output, {}).status().message());
  };
  EXPECT_EQ(refusal("run").substr(0, 22), "'run' is not empty, it");
  const std::vector<float> one = {1.0f};
  std::vector<SampleTensor> tensors = SampleTensors(40);
  tensors.push_back({"weight/more", {1}, one});
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", SampleManifest(40), Views(tensors)).ok());
  folders_ = {"run/step-00000030", "run/step-00000040"};
  EXPECT_EQ(refusal("mean"),
            "'run/step-00000030' and 'run/step-00000040' have different numbers of weights: '3' "
            "and '4'");
  tensors = {{"moment1/x", {1}, one}};
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", SampleManifest(40), Views(tensors)).ok());
  folders_ = {"run/step-00000040"};
  EXPECT_EQ(refusal("mean"), "'run/step-00000040' holds no weights");
  ToolOptions little;
  little.memory_bytes = int64_t{12} << 20;
  folders_ = {"run/step-00000030"};
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", little).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(status.message()), HasSubstr("averaging 1 checkpoints, a block of"));
  EXPECT_FALSE(*Exists(fs_, "mean"));
}

TEST_F(Average, CopiesWhatTranslatingNeedsBesideLostAndFound) {
  ASSERT_TRUE(ReplaceFile(fs_, "run/tokenizer.model", "pieces").ok());
  ASSERT_TRUE(fs_.MakeFolder("mean/lost+found").ok());
  int64_t last = 0;
  ToolOptions options;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 100);
    last = done;
  };
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", options).ok());
  EXPECT_EQ(last, 100);
  EXPECT_EQ(*ReadWholeFile(fs_, "mean/tokenizer.model", 100), "pieces");
}

TEST_F(Average, RefusesATensorOfAnotherShape) {
  std::vector<SampleTensor> tensors = SampleTensors(40);
  tensors[0].shape = {5, 3};
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", SampleManifest(40), Views(tensors)).ok());
  folders_.push_back("run/step-00000040");
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("of another shape"));
}

TEST_F(Average, RefusesOneGivenTwice) {
  folders_.push_back(folders_.front());
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are the same checkpoint"));
}

TEST_F(Average, OfTwoRunsAtOneStepIsTaken) {
  Manifest other = SampleManifest(10);
  other.set_source_tokens(1);
  ASSERT_TRUE(SaveCheckpoint(fs_, "other", other, Views(SampleTensors(10))).ok());
  folders_.push_back("other/step-00000010");
  const auto folder = AverageCheckpoints(fs_, folders_, "mean", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(ManifestOf(fs_, *folder).averaged_size(), 4);
}

TEST_F(Average, OfDamageIsAnErrorAndLeavesNoCheckpoint) {
  fs_.FlipBit("run/step-00000020/tensors-00000-of-00001.bin", 17, 3);
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()), HasSubstr("run/step-00000020"));
  EXPECT_FALSE(FindLatest(fs_, "mean")->has_value());
}

TEST_F(Average, DamageOfMomentsDoesNotMatter) {
  fs_.FlipBit("run/step-00000020/tensors-00000-of-00001.bin", 290, 3);
  EXPECT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
}

constexpr int64_t kElements = 75;
constexpr char kSource[] = "run/step-00000003";

// The slow twin: what each file should hold, cut out of tensors that are all in memory and written
// by the writer that training uses.
void CutPlainly(FileSystem& fs, const std::string& run_folder, int num_files) {
  const std::vector<SampleTensor> tensors = SampleTensors(3);
  Manifest manifest = SampleManifest(3);
  ASSERT_TRUE(BeginCheckpoint(fs, run_folder, 3).ok());
  for (int file = 0; file < num_files; ++file) {
    const int64_t begin = kElements * file / num_files;
    const int64_t end = kElements * (file + 1) / num_files;
    std::vector<NamedTensor> parts;
    int64_t tensor_begin = 0;
    for (const SampleTensor& tensor : tensors) {
      const int64_t size = static_cast<int64_t>(tensor.data.size());
      const int64_t from = std::max(begin - tensor_begin, int64_t{0});
      const int64_t to = std::min(end - tensor_begin, size);
      if (from < to) {
        parts.push_back({tensor.name, tensor.shape,
                         std::span<const float>(tensor.data)
                             .subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
                         from});
      }
      tensor_begin += size;
    }
    const auto written = WriteShard(fs, run_folder, 3, {file, num_files, 32}, parts);
    ASSERT_TRUE(written.ok()) << written.status();
    *manifest.add_files() = *written;
  }
  ASSERT_TRUE(CommitCheckpoint(fs, run_folder, std::move(manifest)).ok());
}

void ExpectSameFiles(FileSystem& fs, const std::string& a, const std::string& b) {
  const std::vector<std::string> files = FilesBelow(fs, a);
  ASSERT_EQ(files.size(), FilesBelow(fs, b).size());
  for (const std::string& file : files) {
    const std::string other = b + file.substr(a.size());
    EXPECT_EQ(*ReadWholeFile(fs, file, 1 << 24), *ReadWholeFile(fs, other, 1 << 24)) << file;
  }
}

TEST(Reshard, WritesByteForByteWhatTheSlowTwinWritesForEveryNumberOfFiles) {
  for (int files = 1; files <= kElements; ++files) {
    MemoryFileSystem fs;
    ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 1).ok());
    const auto folder = ReshardCheckpoint(fs, kSource, files, "copy", {});
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ(*folder, "copy/step-00000003");
    CutPlainly(fs, "plain", files);
    ExpectSameFiles(fs, "copy", "plain");
  }
}

// A turn is of 1.75 MiB, so that three ranks take two rounds, and two have nothing to do in the
// second.
TEST(AverageInTurns, OfRanksIsThatOfOneProcess) {
  MemoryFileSystem fs;
  constexpr int kLong = 1400000;
  std::vector<SampleTensor> tensors = {{"weight/a", {3}, {1.0f, 2.0f, 3.0f}},
                                       {"weight/b", {kLong}, std::vector<float>(kLong)},
                                       {"moment1/b", {1}, {1.0f}},
                                       {"weight/c", {5}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f}}};
  std::vector<std::string> folders;
  std::vector<float> mean(kLong);
  for (const int64_t step : {10, 20}) {
    for (size_t i = 0; i < kLong; ++i) {
      tensors[1].data[i] = static_cast<float>(i) + (step == 10 ? 0.0f : 3.0f);
      mean[i] = static_cast<float>(i) + 1.5f;
    }
    Manifest manifest = SampleManifest(step);
    manifest.set_block_bytes(1 << 16);
    ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(tensors)).ok());
    folders.push_back(JoinPath("run", CheckpointName(step)));
  }
  ASSERT_TRUE(AverageCheckpoints(fs, folders, "alone", {}).ok());
  std::vector<SampleTensor> read = {tensors[1]};
  ASSERT_TRUE(ReadTensors(fs, "alone/step-00000020", ManifestOf(fs, "alone/step-00000020"),
                          MutableViews(read))
                  .ok());
  EXPECT_TRUE(read[0].data == mean);
  for (const int ranks : {2, 3}) {
    const std::string output = ranks == 2 ? "two" : "three";
    const absl::Status status = FirstError(RunRanks(ranks, [&](Communicator& world) {
      ToolOptions options;
      options.world = &world;
      options.memory_bytes = int64_t{14} << 20;
      int64_t last = 0;
      options.progress = [&](int64_t done, int64_t total) {
        EXPECT_GT(done, last);
        EXPECT_EQ(total, 4 * (kLong + 8));
        last = done;
      };
      const auto folder = AverageCheckpoints(fs, folders, output, options);
      EXPECT_EQ(last, world.rank() == 0 ? 4 * (kLong + 8) : 0);
      EXPECT_EQ(folder.value_or(""), output + "/step-00000020");
      return folder.status();
    }));
    ASSERT_TRUE(status.ok()) << status;
    ExpectSameFiles(fs, output, "alone");
  }
  // Enough for one process, which makes no turns.
  ToolOptions options;
  options.memory_bytes = int64_t{27} << 19;
  EXPECT_TRUE(AverageCheckpoints(fs, folders, "little", options).ok());
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) {
    ToolOptions shared = options;
    shared.world = &world;
    return AverageCheckpoints(fs, folders, "less", shared).status();
  }));
  EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
}

TEST(Reshard, ByRanksIsThatOfOneProcess) {
  for (const int files : {1, 2, 5, 7}) {
    MemoryFileSystem fs;
    ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
    ASSERT_TRUE(ReplaceFile(fs, "run/languages.txt", "en\nde\n").ok());
    ASSERT_TRUE(ReshardCheckpoint(fs, kSource, files, "alone", {}).ok());
    for (const int ranks : {2, 3}) {
      const std::string output = ranks == 2 ? "two" : "three";
      const absl::Status status = FirstError(RunRanks(ranks, [&](Communicator& world) {
        ToolOptions options;
        options.world = &world;
        int64_t last = 0, all = 0;
        options.progress = [&](int64_t done, int64_t total) {
          last = done;
          all = total;
        };
        const auto folder = ReshardCheckpoint(fs, kSource, files, output, options);
        EXPECT_EQ(last, all);
        EXPECT_LE(all, 4 * (kElements / ranks + kElements / files + 1));
        return folder.status();
      }));
      ASSERT_TRUE(status.ok()) << status;
      ExpectSameFiles(fs, output, "alone");
    }
  }
}

// A file system's error is never passed over, and nothing is taken for a checkpoint before it is
// durable.
TEST(Reshard, FailsWhereAnyChangeOfFilesDoes) {
  MemoryFileSystem good;
  FaultFileSystem recorded(good);
  ASSERT_TRUE(SaveSpreadSample(good, "run", 3, 2).ok());
  ASSERT_TRUE(ReshardCheckpoint(recorded, kSource, 3, "copy", {}).ok());
  const std::vector<std::string> changes = recorded.changes();
  const auto manifest = std::ranges::find_if(changes, [](const std::string& change) {
    return change.find("create") == 0 && change.find("manifest.pb") != change.npos;
  });
  for (const char* kind : {"sync ", "close "}) {
    for (int file = 0; file < 3; ++file) {
      const std::string change =
          absl::StrCat(kind, "copy/step-00000003.deepnet-unfinished/", TensorFileName(file, 3));
      EXPECT_NE(std::find(changes.begin(), manifest, change), manifest) << change;
    }
  }
  for (const std::string& change : changes) {
    SCOPED_TRACE(change);
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    ASSERT_TRUE(SaveSpreadSample(memory, "run", 3, 2).ok());
    fs.FailChange(change, absl::DataLossError("EIO"));
    const absl::Status status = ReshardCheckpoint(fs, kSource, 3, "copy", {}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("EIO"));
    const auto found = FindLatest(memory, "copy");
    if (found.ok() && found->has_value()) ExpectHoldsSample(memory, (*found)->folder, 3);
    EXPECT_FALSE(*Exists(memory, "copy/step-00000003.deepnet-unfinished"));
  }
}

TEST(Reshard, OfAnyNumberOfFilesKeepsTheTensorsAndTheRestOfTheManifest) {
  for (const int from : {1, 2, 3, 7}) {
    for (const int to : {1, 2, 5, 8}) {
      MemoryFileSystem fs;
      ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, from).ok());
      ASSERT_TRUE(ReshardCheckpoint(fs, kSource, to, "copy", {}).ok());
      ExpectHoldsSample(fs, "copy/step-00000003", 3);
      Manifest before = ManifestOf(fs, kSource), after = ManifestOf(fs, "copy/step-00000003");
      EXPECT_EQ(after.files_size(), to);
      for (const ShardFile& file : after.files()) {
        EXPECT_LE(file.bytes(), 4 * (kElements / to + 1));
        EXPECT_GE(file.bytes(), 4 * (kElements / to));
      }
      for (Manifest* manifest : {&before, &after}) {
        manifest->clear_files();
        manifest->clear_manifest_crc32c();
      }
      EXPECT_EQ(before.SerializeAsString(), after.SerializeAsString());
    }
  }
}

TEST(Reshard, ProgressGrowsToAllBytes) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
  int64_t calls = 0, last = 0;
  ToolOptions options;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 4 * kElements);
    last = done;
    ++calls;
  };
  ASSERT_TRUE(ReshardCheckpoint(fs, kSource, 3, "copy", options).ok());
  EXPECT_EQ(last, 4 * kElements);
  EXPECT_GT(calls, 3);
}

TEST(Reshard, OfTheGoldenCheckpointIsReadable) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const std::string output = JoinPath(::testing::TempDir(), "reshard-golden");
  fs->DeleteTree(output).IgnoreError();
  const auto folder =
      ReshardCheckpoint(*fs, "tests/golden/checkpoint-v1/step-00000003", 4, output, {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  ExpectHoldsSample(*fs, *folder, 3);
  ASSERT_TRUE(fs->DeleteTree(output).ok());
}

TEST(Reshard, CopiesWhatTranslatingNeeds) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
  ASSERT_TRUE(ReplaceFile(fs, "run/tokenizer.model", "pieces").ok());
  ASSERT_TRUE(ReplaceFile(fs, "run/languages.txt", "en\nde\n").ok());
  ASSERT_TRUE(ReplaceFile(fs, "run/metrics.jsonl", "{}\n").ok());
  ASSERT_TRUE(ReshardCheckpoint(fs, kSource, 1, "copy", {}).ok());
  EXPECT_THAT(*fs.List("copy"),
              ElementsAre("languages.txt", "latest", "step-00000003", "tokenizer.model"));
  EXPECT_EQ(*ReadWholeFile(fs, "copy/tokenizer.model", 100), "pieces");
}

TEST(Reshard, RefusesAFolderThatHoldsSomething) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
  const absl::Status own = ReshardCheckpoint(fs, kSource, 1, "run", {}).status();
  EXPECT_EQ(GetExitCode(own), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(own.message()), HasSubstr("'run' is not empty"));
  EXPECT_EQ(ManifestOf(fs, kSource).files_size(), 2);
}

TEST(Reshard, NumbersOfFilesThatCannotBeAreRefused) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
  for (const int files : {0, static_cast<int>(kElements) + 1}) {
    const absl::Status status = ReshardCheckpoint(fs, kSource, files, "copy", {}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be from 1 to 75"));
  }
}

TEST(Reshard, OfDamageIsAnErrorAndLeavesNoCheckpoint) {
  for (int64_t offset = 0; offset < 100; offset += 7) {
    MemoryFileSystem fs;
    ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 3).ok());
    fs.FlipBit(JoinPath(kSource, "tensors-00001-of-00003.bin"), offset % 90, 4);
    const absl::Status status = ReshardCheckpoint(fs, kSource, 2, "copy", {}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensors-00001-of-00003.bin' is damaged"));
    EXPECT_THAT(FilesBelow(fs, "copy"), IsEmpty());
  }
}

TEST(Reshard, StoppedAtAnyCallLeavesAWholeCheckpointOrNoneAndCanBeRunAgain) {
  int64_t calls = 0;
  {
    MemoryFileSystem fs;
    ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
    const int64_t before = fs.num_changing_calls();
    ASSERT_TRUE(ReshardCheckpoint(fs, kSource, 3, "copy", {}).ok());
    calls = fs.num_changing_calls() - before;
  }
  for (int64_t stop = 0; stop < calls; ++stop) {
    MemoryFileSystem fs;
    ASSERT_TRUE(SaveSpreadSample(fs, "run", 3, 2).ok());
    fs.StopAfter(stop);
    EXPECT_FALSE(ReshardCheckpoint(fs, kSource, 3, "copy", {}).ok()) << stop;
    fs.Crash(deepnet::testing::CrashKind::kLoseSome, static_cast<uint64_t>(stop));
    const auto found = FindLatest(fs, "copy");
    ASSERT_TRUE(found.ok()) << found.status();
    if (found->has_value()) {
      ExpectHoldsSample(fs, (*found)->folder, 3);
    } else {
      const auto again = ReshardCheckpoint(fs, kSource, 3, "copy", {});
      ASSERT_TRUE(again.ok()) << stop << ": " << again.status();
      ExpectHoldsSample(fs, *again, 3);
    }
  }
}

}  // namespace
}  // namespace deepnet
