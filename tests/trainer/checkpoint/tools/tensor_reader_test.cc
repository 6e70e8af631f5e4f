#include "trainer/checkpoint/tools/tensor_reader.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/fault_file_system.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

using deepnet::testing::FaultFileSystem;
using deepnet::testing::ManifestOf;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSpreadSample;
using ::testing::HasSubstr;

constexpr char kFolder[] = "run/step-00000007";
constexpr int kFiles = 3;

class Blocks : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SaveSpreadSample(fs_, "run", 7, kFiles).ok());
    manifest_ = ManifestOf(fs_, kFolder);
  }

  int64_t NumBlocks(int file) const { return manifest_.files(file).block_crc32c_size(); }

  // The slow twin: the block as it is in the file.
  std::string Plain(int file, int64_t block) {
    BlockReader reader(fs_, kFolder, manifest_.files(file), manifest_.block_bytes());
    std::string bytes(static_cast<size_t>(reader.End(block) - reader.Begin(block)), '\0');
    EXPECT_TRUE(reader.Read(block, bytes).ok());
    return bytes;
  }

  void ExpectGets(BlockCache& cache, int file, int64_t block) {
    const auto bytes = cache.Get(file, block);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, Plain(file, block)) << file << ", " << block;
  }

  MemoryFileSystem fs_;
  Manifest manifest_;
};

TEST_F(Blocks, AreThoseOfTheFilesInAnyOrderWithAnyNumberHeld) {
  for (int held = 1; held <= 8; ++held) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(::testing::Message() << held << " held, ahead " << ahead);
      BlockCache cache(fs_, kFolder, manifest_);
      cache.Hold(held, ahead);
      for (int file = 0; file < kFiles; ++file) {
        for (int64_t block = 0; block < NumBlocks(file); ++block) ExpectGets(cache, file, block);
      }
      std::mt19937 random(static_cast<unsigned>(held));
      for (int i = 0; i < 200; ++i) {
        const int file = static_cast<int>(random() % kFiles);
        ExpectGets(cache, file, random() % NumBlocks(file));
      }
    }
  }
}

TEST_F(Blocks, AreReadOnceWhereTheirFilesAreReadFromBeginningToEnd) {
  for (const int held : {2, 3, 4, 6}) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(::testing::Message() << held << " held, ahead " << ahead);
      const int files = ahead ? std::min(held / 2, kFiles) : std::min(held, kFiles);
      FaultFileSystem counting(fs_);
      int64_t bytes = 0;
      {
        BlockCache cache(counting, kFolder, manifest_);
        cache.Hold(held, ahead);
        int64_t blocks = NumBlocks(0);
        for (int file = 0; file < files; ++file) blocks = std::min(blocks, NumBlocks(file));
        for (int64_t block = 0; block < blocks; ++block) {
          for (int again = 0; again < 2; ++again) {
            for (int file = 0; file < files; ++file) ExpectGets(cache, file, block);
          }
        }
        for (int file = 0; file < files; ++file) {
          for (int64_t block = blocks; block < NumBlocks(file); ++block) {
            ExpectGets(cache, file, block);
          }
          bytes += manifest_.files(file).bytes();
        }
      }
      // What it reads ahead is at most a block of each file that nobody asks for.
      EXPECT_GE(counting.read_bytes(), bytes);
      EXPECT_LE(counting.read_bytes(), bytes + (ahead ? manifest_.block_bytes() * files : 0));
    }
  }
}

TEST_F(Blocks, ThatWereUsedLastStay) {
  FaultFileSystem counting(fs_);
  BlockCache cache(counting, kFolder, manifest_);
  cache.Hold(2, /*ahead=*/false);
  for (const int64_t block : {2, 1, 2, 0, 2}) ExpectGets(cache, 0, block);
  EXPECT_EQ(counting.read_bytes(), 3 * manifest_.block_bytes());
}

// A rank may hold nothing that others do not.
TEST_F(Blocks, AFileWithoutAnyIsPassedOver) {
  const Manifest whole = manifest_;
  ASSERT_TRUE(ReplaceFile(fs_, JoinPath(kFolder, "empty"), "").ok());
  manifest_.mutable_files()->DeleteSubrange(1, kFiles - 1);
  manifest_.add_files()->set_file("empty");
  for (int file = 1; file < kFiles; ++file) *manifest_.add_files() = whole.files(file);
  BlockCache cache(fs_, kFolder, manifest_);
  cache.Hold(3, /*ahead=*/true);
  for (int file = 0; file < kFiles + 1; ++file) {
    for (int64_t block = 0; block < NumBlocks(file); ++block) ExpectGets(cache, file, block);
  }
}

TEST_F(Blocks, ThatAreDamagedAreNamedWhenTheyAreAskedForAndNotBefore) {
  for (const bool ahead : {false, true}) {
    BlockCache cache(fs_, kFolder, manifest_);
    cache.Hold(2, ahead);
    fs_.FlipBit(JoinPath(kFolder, manifest_.files(0).file()), manifest_.block_bytes() + 3, 5);
    ExpectGets(cache, 0, 0);
    for (int again = 0; again < 2; ++again) {
      const absl::Status status = cache.Get(0, 1).status();
      EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
      EXPECT_THAT(std::string(status.message()), HasSubstr("damaged in block 1 (bytes 32 to 63)"));
    }
    ExpectGets(cache, 0, 2);
    fs_.FlipBit(JoinPath(kFolder, manifest_.files(0).file()), manifest_.block_bytes() + 3, 5);
    ExpectGets(cache, 0, 1);
  }
}

std::unique_ptr<TensorReader> OpenSample(FileSystem& fs, int num_writers, int first = 0) {
  EXPECT_TRUE(SaveSpreadSample(fs, "run", 7, num_writers, first).ok());
  auto reader = TensorReader::Open(fs, kFolder, {});
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

TEST(TensorReader, ReadsEveryRunOfEveryTensorFromAnyFiles) {
  for (const auto& [writers, first] :
       {std::pair(1, 0), std::pair(2, 0), std::pair(3, 0), std::pair(3, 2), std::pair(5, 1)}) {
    MemoryFileSystem fs;
    const std::unique_ptr<TensorReader> reader = OpenSample(fs, writers, first);
    for (const SampleTensor& expected : SampleTensors(7)) {
      const StoredTensor* const stored = reader->Find(expected.name);
      ASSERT_NE(stored, nullptr);
      EXPECT_EQ(stored->shape, expected.shape);
      const size_t size = expected.data.size();
      ASSERT_EQ(stored->num_elements, static_cast<int64_t>(size));
      for (size_t begin = 0; begin < size; ++begin) {
        for (size_t end = begin; end <= size; ++end) {
          std::vector<float> elements(end - begin);
          ASSERT_TRUE(reader->Read(*stored, static_cast<int64_t>(begin), elements).ok());
          EXPECT_EQ(elements,
                    std::vector<float>(expected.data.begin() + begin, expected.data.begin() + end));
        }
      }
    }
  }
}

TEST(TensorReader, HasTheTensorsInTheOrderOfTheirFiles) {
  MemoryFileSystem fs;
  const std::unique_ptr<TensorReader> reader = OpenSample(fs, 2);
  const std::vector<SampleTensor> expected = SampleTensors(7);
  ASSERT_EQ(reader->tensors().size(), expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_EQ(reader->tensors()[t].name, expected[t].name);
    EXPECT_EQ(reader->tensors()[t].parts.size(), 2u);
  }
  EXPECT_EQ(reader->Find("weight/of.somebody.else"), nullptr);
}

TEST(TensorReader, NeverHandsOutDamagedBytes) {
  MemoryFileSystem fs;
  const std::unique_ptr<TensorReader> reader = OpenSample(fs, 1);
  fs.FlipBit(JoinPath(kFolder, "tensors-00000-of-00001.bin"), 40, 2);
  std::vector<float> elements(1);
  const StoredTensor& tensor = reader->tensors().front();
  EXPECT_TRUE(reader->Read(tensor, 0, elements).ok());  // block 0 is good
  for (int again = 0; again < 2; ++again) {
    const absl::Status status = reader->Read(tensor, 8, elements);
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr("damaged in block 1 (bytes 32 to 63)"));
  }
}

TEST(TensorReader, RefusesFilesOfAnotherSizeAtOnce) {
  MemoryFileSystem fs;
  (void)OpenSample(fs, 2);
  ASSERT_TRUE(fs.Delete(JoinPath(kFolder, "tensors-00001-of-00002.bin")).ok());
  EXPECT_EQ(GetExitCode(TensorReader::Open(fs, kFolder, {}).status()), ExitCode::kCheckpoint);
}

TEST(TensorReader, TooLittleMemoryIsRefusedWithWhatIsNeeded) {
  MemoryFileSystem fs;
  const std::unique_ptr<TensorReader> reader = OpenSample(fs, 1);
  TensorReader* const readers[] = {reader.get()};
  const int64_t needed = kToolFixedBytes + 1000 + 10 * reader->manifest_bytes() + 32;
  EXPECT_TRUE(ShareMemory(readers, 10, 1000, {.memory_bytes = needed}, "reading").ok());
  const absl::Status status =
      ShareMemory(readers, 10, 1000, {.memory_bytes = needed - 1}, "reading");
  EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("reading, a block of 32 B at a time, takes"));
  const int64_t to_open = kToolFixedBytes + kReadManifestFactor * reader->manifest_bytes();
  EXPECT_TRUE(TensorReader::Open(fs, kFolder, {.memory_bytes = to_open}).ok());
  const absl::Status too_little =
      TensorReader::Open(fs, kFolder, {.memory_bytes = to_open - 1}).status();
  EXPECT_EQ(GetExitCode(too_little), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(too_little.message()),
              HasSubstr("the manifest of 'run/step-00000007' takes 8"));
}

TEST(TensorReader, ReadsEachBlockOnceWhereMemoryIsEnough) {
  MemoryFileSystem memory;
  (void)OpenSample(memory, 3);
  FaultFileSystem fs(memory);
  for (const bool enough : {true, false}) {
    const auto reader = TensorReader::Open(fs, kFolder, {});
    ASSERT_TRUE(reader.ok()) << reader.status();
    TensorReader* const readers[] = {reader->get()};
    const int64_t least = kToolFixedBytes + 10 * (*reader)->manifest_bytes();
    const int64_t blocks = (enough ? 6 : 1) * (*reader)->block_bytes();
    ASSERT_TRUE(ShareMemory(readers, 10, 0, {.memory_bytes = least + blocks}, "reading").ok());
    const int64_t before = fs.read_bytes();
    for (const SampleTensor& expected : SampleTensors(7)) {
      std::vector<float> elements(expected.data.size());
      ASSERT_TRUE((*reader)->Read(*(*reader)->Find(expected.name), 0, elements).ok());
      EXPECT_EQ(elements, expected.data);
    }
    EXPECT_EQ(fs.read_bytes() - before == 300, enough);
  }
}

}  // namespace
}  // namespace deepnet
