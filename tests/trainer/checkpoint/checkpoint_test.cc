#include "trainer/checkpoint/checkpoint.h"

#include <unistd.h>

#include <filesystem>
#include <numeric>
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
  EXPECT_EQ(Text(status),
            "reading checkpoint 'run/step-00000003': 'weight/other' is not stored there");
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  missing.push_back({"weight/another", {1}, {0.0f}});
  status = ReadTensors(fs, "run/step-00000003", manifest, MutableViews(missing));
  EXPECT_EQ(Text(status),
            "reading checkpoint 'run/step-00000003': 'weight/another' (and others) is not stored "
            "there");

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

// Pieces are of 1 MiB, so these blocks end inside the third one.
TEST(Checkpoint, BlocksThatAreNoMultipleOfAPieceHoldTheirChecksums) {
  MemoryFileSystem fs;
  constexpr int64_t kBlock = (int64_t{5} << 19) + 4;
  std::vector<SampleTensor> saved = {{"weight/a", {3}, {1.0f, 2.0f, 3.0f}},
                                     {"weight/b", {1 << 20}, std::vector<float>(1 << 20)},
                                     {"weight/c", {1 << 19}, std::vector<float>(1 << 19)}};
  for (size_t t = 1; t < saved.size(); ++t) {
    std::iota(saved[t].data.begin(), saved[t].data.end(), static_cast<float>(t));
  }
  Manifest manifest = SampleManifest(1);
  manifest.set_block_bytes(kBlock);
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(saved)).ok());
  std::string bytes;
  for (const SampleTensor& tensor : saved) {
    bytes.append(reinterpret_cast<const char*>(tensor.data.data()), 4 * tensor.data.size());
  }
  const Manifest read = *ReadManifest(fs, "run/step-00000001");
  EXPECT_EQ(*ReadWholeFile(fs, "run/step-00000001/tensors-00000-of-00001.bin", 1 << 30), bytes);
  std::vector<uint32_t> checksums;
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    checksums.push_back(Crc32c(std::string_view(bytes).substr(at, kBlock)));
  }
  EXPECT_THAT(read.files(0).block_crc32c(), ElementsAreArray(checksums));
  EXPECT_EQ(read.files(0).bytes(), static_cast<int64_t>(bytes.size()));
  std::vector<SampleTensor> loaded = saved;
  for (SampleTensor& tensor : loaded) tensor.data.assign(tensor.data.size(), 0.0f);
  const absl::Status status = ReadTensors(fs, "run/step-00000001", read, MutableViews(loaded));
  ASSERT_TRUE(status.ok()) << status;
  for (size_t t = 0; t < saved.size(); ++t) EXPECT_TRUE(loaded[t].data == saved[t].data) << t;
  EXPECT_TRUE(VerifyTensors(fs, "run/step-00000001", read).ok());
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
  // What is not asked for may be lost.
  ASSERT_TRUE(fs.Delete(TensorFileName(0, 2)).ok());
  std::vector<float> second(2);
  const MutableNamedTensor part[] = {{"weight/x", {4}, second, /*first_element=*/2}};
  EXPECT_TRUE(ReadTensors(fs, ".", manifest, part).ok());
  EXPECT_THAT(second, ElementsAre(1.5f, 1.75f));
}

TEST(Checkpoint, PartsThatCannotBeEndTheProgramWithTheirName) {
  MemoryFileSystem fs;
  std::vector<float> data(4);
  const auto write = [&](const std::vector<NamedTensor>& tensors) {
    (void)WriteShard(fs, "run", 1, {}, tensors);
  };
  const NamedTensor whole = {"weight/x", {4}, data};
  EXPECT_DEATH(write({{"weight/x", {5}, data, 2}}), "weight/x: elements 2 to 6 of 5");
  EXPECT_DEATH(write({{"weight/x", {5}, data, -1}}), "weight/x: elements -1 to 3 of 5");
  EXPECT_DEATH(write({{"weight/x", {4}, {}}}), "weight/x has no elements");
  EXPECT_DEATH(write({whole, whole}), "weight/x is given twice");
  ASSERT_TRUE(SaveSample(fs, "run", 3).ok());
  const Manifest manifest = *ReadManifest(fs, "run/step-00000003");
  const std::string name = "weight/encoder.layers.0.fc1.bias";
  const MutableNamedTensor beyond[] = {{name, {3}, data}};
  EXPECT_DEATH((void)ReadTensors(fs, "run/step-00000003", manifest, beyond),
               "fc1.bias: elements 0 to 4 of 3");
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
  // Into the tensor before, by one element: its bytes would be read as those of two.
  EXPECT_THAT(refusal([](ShardFile& f) { f.mutable_extents(1)->set_offset(56); }),
              HasSubstr("fc1.bias' does not fit"));
  EXPECT_THAT(refusal([](ShardFile& f) { f.mutable_extents(1)->set_num_elements(0); }),
              HasSubstr("fc1.bias' does not fit"));
  EXPECT_THAT(refusal([](ShardFile& f) { f.mutable_block_crc32c()->RemoveLast(); }),
              HasSubstr("tensors-00000-of-00001.bin has 300 bytes but 9 checksums"));
}

TEST(Manifest, WhosePartsAreNoWholeOrWhoseFilesAreListedTwiceIsRefused) {
  Manifest good = SampleManifest(1);
  good.set_format_version(1);
  for (int part = 0; part < 2; ++part) {
    ShardFile* file = good.add_files();
    file->set_file(TensorFileName(part, 2));
    file->set_bytes(8);
    file->add_block_crc32c(0);
    TensorExtent* extent = file->add_extents();
    extent->set_name("weight/x");
    extent->add_shape(2);
    extent->add_shape(2);
    extent->set_first_element(2 * part);
    extent->set_num_elements(2);
  }
  EXPECT_TRUE(ParseManifest(SerializeManifest(good)).ok());
  const auto refusal = [&good](auto change) {
    Manifest bad = good;
    change(bad);
    return Text(ParseManifest(SerializeManifest(bad)).status());
  };
  const std::string no_whole = "the parts of 'weight/x' do not make a whole";
  const auto second = [](Manifest& m) { return m.mutable_files(1)->mutable_extents(0); };
  EXPECT_EQ(refusal([&](Manifest& m) { second(m)->set_first_element(1); }), no_whole);
  EXPECT_EQ(refusal([&](Manifest& m) { second(m)->set_num_elements(1); }), no_whole);
  EXPECT_EQ(refusal([&](Manifest& m) {
              second(m)->clear_shape();
              second(m)->add_shape(4);
            }),
            no_whole);
  EXPECT_EQ(refusal([&](Manifest& m) { second(m)->set_first_element(0); }),
            "'weight/x' is stored twice");
  EXPECT_EQ(refusal([&](Manifest& m) { m.mutable_files(1)->set_file(m.files(0).file()); }),
            "tensors-00000-of-00002.bin is listed twice");
  for (const int64_t bytes : {int64_t{-1}, int64_t{0}, kMaxBlockBytes + 1}) {
    EXPECT_EQ(refusal([&](Manifest& m) { m.set_block_bytes(bytes); }),
              absl::StrCat("block_bytes is ", bytes));
  }
  EXPECT_EQ(refusal([](Manifest& m) { m.set_block_bytes(kMaxBlockBytes); }), "");
}

TEST(Manifest, OfTooFewBytesOrAnotherMessageIsRefused) {
  const std::string nothing = SerializeManifest({});
  ASSERT_EQ(nothing.size(), 6u);
  EXPECT_EQ(Text(ParseManifest(nothing.substr(1)).status()), "it has only 5 bytes");
  EXPECT_EQ(Text(ParseManifest(nothing).status()), "format_version is 0; this program reads 1");
  std::string bytes = "no message";
  const uint32_t checksum = Crc32c(bytes);
  bytes += nothing.substr(0, 2);
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(checksum >> shift);
  EXPECT_EQ(Text(ParseManifest(bytes).status()), "it is no Manifest");
}

TEST(CheckpointSteps, AreInTheOrderOfNumbersNotOfNames) {
  const std::vector<std::string> names = {"latest", "step-00000007.deepnet-unfinished",
                                          "step-100000000", "step-99999999"};
  EXPECT_THAT(CheckpointSteps(names), ElementsAre(99999999, 100000000));
}

TEST(VocabularyFile, OfSomebodyElseIsNotReplaced) {
  MemoryFileSystem fs;
  ASSERT_TRUE(WriteVocabularyFile(fs, "run", "languages.txt", "de\nen\n").ok());
  ASSERT_TRUE(WriteVocabularyFile(fs, "run", "languages.txt", "de\nen\n").ok());  // the same
  for (const char* other : {"de\nfr\n", "de\n", "de\nen\nfr\n"}) {
    const absl::Status status = WriteVocabularyFile(fs, "run", "languages.txt", other);
    EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
    EXPECT_EQ(Text(status),
              "'run/languages.txt' is there, is another one and would be replaced; name another "
              "folder");
    EXPECT_EQ(*ReadWholeFile(fs, "run/languages.txt", 100), "de\nen\n");
  }
  ASSERT_TRUE(ReplaceFile(fs, "run/metrics.jsonl", "").ok());  // a run's own folder
  ASSERT_TRUE(WriteVocabularyFile(fs, "run", "languages.txt", "de\nfr\n").ok());
  EXPECT_EQ(*ReadWholeFile(fs, "run/languages.txt", 100), "de\nfr\n");
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

TEST(FindLatest, OfAFolderThatCannotBeListedIsAnErrorAndNoNewRun) {
  MemoryFileSystem fs;
  EXPECT_FALSE(FindLatest(fs, "run").value().has_value());
  ASSERT_TRUE(ReplaceFile(fs, "run", "a file").ok());
  const absl::Status status = FindLatest(fs, "run").status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
}

TEST(RemoveUnfinished, DeletesWhatSavesLeftAndNothingOfOthers) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("run/step-00000001.deepnet-unfinished").ok());
  ASSERT_TRUE(fs.MakeFolder("home").ok());
  ASSERT_TRUE(ReplaceFile(fs, "home/thesis", "years of work").ok());
  fs.MakeLink("home", "run/step-00000002.deepnet-unfinished");
  const std::vector<std::string> others = {"notes.deepnet-unfinished", "step-00000003.old",
                                           "step-00000003.tmp", "step-00000004.deepnet-replaced",
                                           "step-notes.tmp"};
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
  EXPECT_EQ(CheckpointPath(fs, "/"), "/");
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
