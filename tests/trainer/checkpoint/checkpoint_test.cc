#include "trainer/checkpoint/checkpoint.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

using deepnet::testing::ExpectHoldsSample;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::MutableViews;
using deepnet::testing::SampleManifest;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSample;
using deepnet::testing::Views;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(Checkpoint, ComesBackAsItWasSaved) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "runs/a", 10).ok());
  EXPECT_THAT(*fs.List("runs/a"), ElementsAre("latest", "step-00000010"));
  ExpectHoldsSample(fs, "runs/a/step-00000010", 10);
  EXPECT_EQ(ReadManifest(fs, "runs/a/step-00000010")->run().name(), "sample");
}

TEST(Checkpoint, ComesBackFromARealDisk) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const std::string run = JoinPath(::testing::TempDir(), absl::StrCat("checkpoint-", getpid()));
  ASSERT_TRUE(SaveSample(*fs, run, 1).ok());
  ASSERT_TRUE(SaveSample(*fs, run, 2).ok());
  ASSERT_TRUE(SaveSample(*fs, run, 2).ok());  // of the same step again
  EXPECT_THAT(*fs->List(run), ElementsAre("latest", "step-00000001", "step-00000002"));
  ExpectHoldsSample(*fs, JoinPath(run, "step-00000001"), 1);
  ExpectHoldsSample(*fs, JoinPath(run, "step-00000002"), 2);
  EXPECT_TRUE(fs->DeleteTree(run).ok());
}

TEST(Checkpoint, PartOfTheTensorsCanBeReadInAnyOrder) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 3).ok());
  const std::vector<SampleTensor> saved = SampleTensors(3);
  std::vector<SampleTensor> wanted = {SampleTensors(0)[8], SampleTensors(0)[1]};
  const Manifest manifest = *ReadManifest(fs, "run/step-00000003");
  const absl::Status status = ReadTensors(fs, "run/step-00000003", manifest, MutableViews(wanted));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(wanted[0].data, saved[8].data);
  EXPECT_EQ(wanted[1].data, saved[1].data);
}

TEST(Checkpoint, TensorThatIsMissingOrOfAnotherShapeIsNamed) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 3).ok());
  const Manifest manifest = *ReadManifest(fs, "run/step-00000003");
  std::vector<SampleTensor> missing = {{"weight/other", {1}, {0.0f}}};
  absl::Status status = ReadTensors(fs, "run/step-00000003", manifest, MutableViews(missing));
  EXPECT_THAT(Text(status), HasSubstr("'weight/other' is not stored there"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);

  std::vector<SampleTensor> reshaped = {SampleTensors(0)[0]};
  reshaped[0].shape = {5, 3};
  status = ReadTensors(fs, "run/step-00000003", manifest, MutableViews(reshaped));
  EXPECT_THAT(Text(status), HasSubstr("fc1.weight' has shape [3, 5], not [5, 3]"));
}

TEST(Checkpoint, BlocksAreSixteenMebibytesUnlessSaidOtherwise) {
  MemoryFileSystem fs;
  Manifest manifest;
  manifest.set_step(1);
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(SampleTensors(1))).ok());
  const Manifest read = *ReadManifest(fs, "run/step-00000001");
  EXPECT_EQ(read.block_bytes(), 16 << 20);
  ASSERT_EQ(read.files_size(), 1);
  EXPECT_EQ(read.files(0).file(), "tensors-00000-of-00001.bin");
  EXPECT_EQ(read.files(0).block_crc32c_size(), 1);
}

TEST(Checkpoint, TensorInPartsOverTwoFilesIsReadWhole) {
  MemoryFileSystem fs;
  Manifest manifest = SampleManifest(1);
  manifest.set_format_version(1);
  for (int part = 0; part < 2; ++part) {
    const float elements[] = {part + 0.5f, part + 0.75f};
    const std::string_view bytes(reinterpret_cast<const char*>(elements), sizeof(elements));
    ShardFile* file = manifest.add_files();
    file->set_file(TensorFileName(part, 2));
    file->set_bytes(8);
    file->add_block_crc32c(Crc32c(bytes));
    TensorExtent* extent = file->add_extents();
    extent->set_name("weight/x");
    extent->add_shape(4);
    extent->set_first_element(2 * part);
    extent->set_num_elements(2);
    ASSERT_TRUE(ReplaceFile(fs, TensorFileName(part, 2), bytes).ok());
  }
  ASSERT_TRUE(ReplaceFile(fs, kManifestFile, SerializeManifest(manifest)).ok());
  std::vector<SampleTensor> tensors = {{"weight/x", {4}, std::vector<float>(4)}};
  const absl::Status status = ReadTensors(fs, ".", *ReadManifest(fs, "."), MutableViews(tensors));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(tensors[0].data, ElementsAre(0.5f, 0.75f, 1.5f, 1.75f));
}

// Three writers share the sample: cuts inside tensors, one writer without anything.
std::vector<std::vector<NamedTensor>> SharesOf(const std::vector<SampleTensor>& tensors) {
  std::vector<std::vector<NamedTensor>> shares(3);
  for (const SampleTensor& tensor : tensors) {
    const std::span<const float> all(tensor.data);
    const size_t cut = all.size() / 3;
    shares[2].push_back({tensor.name, tensor.shape, all.subspan(cut), static_cast<int64_t>(cut)});
    shares[0].push_back({tensor.name, tensor.shape, all.first(cut)});
  }
  return shares;
}

TEST(ShardedCheckpoint, OfSeveralWritersIsReadLikeThatOfOne) {
  MemoryFileSystem fs;
  const std::vector<SampleTensor> tensors = SampleTensors(4);
  const std::vector<std::vector<NamedTensor>> shares = SharesOf(tensors);
  Manifest manifest = SampleManifest(4);
  ASSERT_TRUE(BeginCheckpoint(fs, "run", 4).ok());
  for (int writer = 0; writer < 3; ++writer) {
    const auto file = WriteShard(fs, "run", 4, {writer, 3, manifest.block_bytes()}, shares[writer]);
    ASSERT_TRUE(file.ok()) << file.status();
    *manifest.add_files() = *file;
  }
  EXPECT_FALSE(FindLatest(fs, "run")->has_value());
  ASSERT_TRUE(CommitCheckpoint(fs, "run", manifest).ok());
  ExpectHoldsSample(fs, "run/step-00000004", 4);
  EXPECT_EQ((*FindLatest(fs, "run"))->folder, "run/step-00000004");
}

TEST(ShardedCheckpoint, WithoutOneWritersPartIsRefused) {
  MemoryFileSystem fs;
  const std::vector<SampleTensor> tensors = SampleTensors(4);
  Manifest manifest = SampleManifest(4);
  ASSERT_TRUE(BeginCheckpoint(fs, "run", 4).ok());
  *manifest.add_files() = *WriteShard(fs, "run", 4, {0, 3, 32}, SharesOf(tensors)[0]);
  const absl::Status status = CommitCheckpoint(fs, "run", manifest);
  EXPECT_THAT(Text(status), HasSubstr("do not make a whole"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_FALSE(FindLatest(fs, "run")->has_value());
}

TEST(Checkpoint, AnyPartsOfATensorAreReadAlone) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 3).ok());
  const std::vector<SampleTensor> saved = SampleTensors(3);
  std::vector<float> first(4), second(6);
  const std::vector<MutableNamedTensor> parts = {
      {saved[0].name, saved[0].shape, second, /*first_element=*/8},
      {saved[0].name, saved[0].shape, first, /*first_element=*/1}};
  const Manifest manifest = *ReadManifest(fs, "run/step-00000003");
  const absl::Status status = ReadTensors(fs, "run/step-00000003", manifest, parts);
  ASSERT_TRUE(status.ok()) << status;
  const auto expected = [&](int begin, int end) {
    return std::vector<float>(saved[0].data.begin() + begin, saved[0].data.begin() + end);
  };
  EXPECT_EQ(first, expected(1, 5));
  EXPECT_EQ(second, expected(8, 14));
}

TEST(Manifest, WithAHoleInATensorIsRefused) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 1).ok());
  Manifest manifest = *ReadManifest(fs, "run/step-00000001");
  manifest.mutable_files(0)->mutable_extents(0)->set_num_elements(14);
  EXPECT_THAT(Text(ParseManifest(SerializeManifest(manifest)).status()),
              HasSubstr("fc1.weight' do not make a whole"));
}

TEST(Manifest, ThatReachesOutOfItsFileIsRefused) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 1).ok());
  const Manifest good = *ReadManifest(fs, "run/step-00000001");
  const auto refusal = [&good](auto change) {
    Manifest bad = good;
    change(*bad.mutable_files(0));
    return Text(ParseManifest(SerializeManifest(bad)).status());
  };
  const auto last = [](ShardFile& file) { return file.mutable_extents(file.extents_size() - 1); };
  EXPECT_THAT(refusal([&](ShardFile& f) { last(f)->set_offset(f.bytes() - 4); }),
              HasSubstr("does not fit"));
  EXPECT_THAT(refusal([&](ShardFile& f) { last(f)->set_offset(-4); }), HasSubstr("does not fit"));
  EXPECT_THAT(refusal([&](ShardFile& f) { last(f)->set_first_element(1); }),
              HasSubstr("does not fit"));
  EXPECT_THAT(refusal([&](ShardFile& f) { last(f)->set_shape(0, int64_t{1} << 62); }),
              HasSubstr("do not make a whole"));
  EXPECT_THAT(refusal([](ShardFile& f) { f.set_bytes(int64_t{1} << 62); }), HasSubstr("checksums"));
  EXPECT_THAT(refusal([](ShardFile& f) { f.set_file("../other"); }), HasSubstr("no name"));
}

TEST(Manifest, OfALaterFormatIsRefusedWithBothVersions) {
  Manifest manifest;
  manifest.set_format_version(2);
  EXPECT_THAT(Text(ParseManifest(SerializeManifest(manifest)).status()),
              HasSubstr("format_version is 2; this program reads 1"));
}

TEST(Manifest, WithElementsOfAnotherTypeIsRefusedByName) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 1).ok());
  Manifest manifest = *ReadManifest(fs, "run/step-00000001");
  EXPECT_EQ(manifest.files(0).extents(1).dtype(), TensorExtent::F32);
  manifest.mutable_files(0)->mutable_extents(1)->set_dtype(static_cast<TensorExtent::Type>(3));
  EXPECT_THAT(Text(ParseManifest(SerializeManifest(manifest)).status()),
              HasSubstr("fc1.bias' has elements of type 3; this program reads F32"));
}

TEST(RemoveUnfinished, DeletesWhatSavesLeftAndNothingOfOthers) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run/step-00000001.deepnet-unfinished").ok());
  ASSERT_TRUE(fs.MakeFolder("home").ok());
  ASSERT_TRUE(ReplaceFile(fs, "home/thesis", "years of work").ok());
  fs.MakeLink("home", "run/step-00000002.deepnet-unfinished");
  const std::vector<std::string> others = {"notes.deepnet-unfinished", "step-00000003.old",
                                           "step-00000003.tmp", "step-notes.tmp"};
  for (const std::string& name : others) ASSERT_TRUE(fs.MakeFolder("run/" + name).ok());
  ASSERT_TRUE(RemoveUnfinished(fs, "run").ok());
  EXPECT_THAT(*fs.List("run"), ElementsAreArray(others));
  EXPECT_EQ(*ReadWholeFile(fs, "home/thesis", 100), "years of work");
}

TEST(Checkpoint, IsNotSavedThroughALinkThatAppearsMeanwhile) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run").ok() && fs.MakeFolder("home").ok());
  fs.MakeLink("home", "run/step-00000004.deepnet-unfinished");
  const std::vector<float> values(3, 1.0f);
  const std::vector<NamedTensor> tensors = {{.name = "weight/a", .shape = {3}, .data = values}};
  const absl::Status status = WriteShard(fs, "run", 4, {}, tensors).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a symbolic link"));
  EXPECT_TRUE(fs.List("home")->empty());
}

TEST(CheckpointName, HasAtLeastEightDigitsAndOneSpelling) {
  EXPECT_EQ(CheckpointName(10), "step-00000010");
  EXPECT_EQ(CheckpointName(1234567890), "step-1234567890");
  EXPECT_EQ(StepOfCheckpointName("step-00000010"), 10);
  EXPECT_EQ(StepOfCheckpointName("step-1234567890"), 1234567890);
  for (const char* other :
       {"step-10", "step-00000010.deepnet-unfinished", "step-0000001x", "step-000000010", "step-",
        "step--0000001", "step-+0000001", "latest"}) {
    EXPECT_EQ(StepOfCheckpointName(other), std::nullopt) << other;
  }
}

TEST(Pointer, NamesAStepAndIsReplaced) {
  MemoryFileSystem fs;
  EXPECT_EQ(GetPointer(fs, ".", "best-bleu").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(SetPointer(fs, ".", "best-bleu", 10).ok());
  ASSERT_TRUE(SetPointer(fs, ".", "best-bleu", 20).ok());
  EXPECT_EQ(*GetPointer(fs, ".", "best-bleu"), 20);
  EXPECT_EQ(*ReadWholeFile(fs, "best-bleu", 100), "step-00000020\n");
}

TEST(Pointer, ThatNamesNothingIsAnError) {
  MemoryFileSystem fs;
  ASSERT_TRUE(ReplaceFile(fs, "best-bleu", "step-12\n").ok());
  const absl::Status status = GetPointer(fs, ".", "best-bleu").status();
  EXPECT_THAT(Text(status), HasSubstr("best-bleu': it does not name a checkpoint"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
}

TEST(ResolveCheckpoint, TakesACheckpointAPointerOrARun) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 10).ok());
  ASSERT_TRUE(SaveSample(fs, "run", 20).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-bleu", 10).ok());
  EXPECT_EQ(*ResolveCheckpoint(fs, "run/step-00000010"), "run/step-00000010");
  EXPECT_EQ(*ResolveCheckpoint(fs, "run/best-bleu"), "run/step-00000010");
  EXPECT_EQ(*ResolveCheckpoint(fs, "run/latest"), "run/step-00000020");
  EXPECT_EQ(*ResolveCheckpoint(fs, "run"), "run/step-00000020");
  const absl::Status status = ResolveCheckpoint(fs, "elsewhere").status();
  EXPECT_THAT(Text(status), HasSubstr("'elsewhere': no checkpoint, run folder or pointer: "));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
}

TEST(ResolveCheckpoint, FindsTheRunFolderOfWhateverPathLeadsToACheckpoint) {
  namespace fs = std::filesystem;
  const testing::TempFolder folder;
  const auto files = MakePosixFileSystem();
  const std::string run = folder.Path("run"), step = folder.Path("run/step-00000010");
  ASSERT_TRUE(SaveSample(*files, run, 10).ok());
  ASSERT_TRUE(SetPointer(*files, run, "best-bleu", 10).ok());
  folder.Write("run/languages.txt", "de\nen\n");
  for (const char* end : {"", "/", "//", "/.", "/./", "/././"}) {
    EXPECT_EQ(*ResolveCheckpoint(*files, step + end), step);
    EXPECT_EQ(*ResolveCheckpoint(*files, run + end), step);
  }
  fs::create_directory_symlink(step, folder.Path("best"));
  fs::create_symlink("run/best-bleu", folder.Path("pointer"));
  fs::create_directory_symlink("step-00000010", folder.Path("run/newest"));
  fs::create_directories(folder.Path("run/step-00000010/inner"));
  const std::string real = fs::canonical(step);
  for (const char* path : {"best", "best/", "best/.", "pointer", "run/newest", "run/newest/",
                           "run/step-00000010/inner/.."}) {
    EXPECT_EQ(*ResolveCheckpoint(*files, folder.Path(path)), real) << path;
  }
  fs::create_directory_symlink("run", folder.Path("current"));
  EXPECT_EQ(*ResolveCheckpoint(*files, folder.Path("current")),
            folder.Path("current/step-00000010"));

  // Moved to where there is room: the vocabulary stays beside the link.
  fs::rename(step, folder.Path("moved"));
  fs::create_directory_symlink(folder.Path("moved"), step);
  EXPECT_EQ(*ResolveCheckpoint(*files, step + "/"), step);
}

}  // namespace
}  // namespace deepnet
