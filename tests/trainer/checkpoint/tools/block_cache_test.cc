#include "trainer/checkpoint/tools/block_cache.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"
#include "trainer/checkpoint/block_reader.h"

namespace deepnet {
namespace {

using deepnet::testing::ManifestOf;
using deepnet::testing::MemoryFileSystem;
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
    const ShardFile& description = manifest_.files(file);
    BlockReader reader(fs_, JoinPath(kFolder, description.file()), description,
                       manifest_.block_bytes());
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

}  // namespace
}  // namespace deepnet
