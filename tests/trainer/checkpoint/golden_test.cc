// tests/golden/checkpoint-v1 is what format version 1 looks like on disk, for good: it must be
// readable, and saving the same must give the same bytes, as long as kFormatVersion is 1.
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

using deepnet::testing::ExpectHoldsSample;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;
using ::testing::ElementsAre;

constexpr char kGolden[] = "tests/golden/checkpoint-v1";

TEST(GoldenCheckpoint, IsFoundAndReadable) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const auto found = FindLatest(*fs, kGolden);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->has_value());
  EXPECT_THAT((*found)->notes, ElementsAre());
  EXPECT_EQ((*found)->manifest.inventory_hash(), "0123456789abcdef");
  ExpectHoldsSample(*fs, (*found)->folder, 3);
}

TEST(GoldenCheckpoint, IsWrittenTheSameWayToday) {
  MemoryFileSystem today;
  ASSERT_TRUE(SaveSample(today, "run", 3).ok());
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  ASSERT_THAT(*today.List("run"), ElementsAre("latest", "step-00000003"));
  for (const char* file :
       {"latest", "step-00000003/manifest.pb", "step-00000003/tensors-00000-of-00001.bin"}) {
    const auto golden = ReadWholeFile(*fs, JoinPath(kGolden, file), 1 << 20);
    ASSERT_TRUE(golden.ok()) << golden.status();
    EXPECT_EQ(*ReadWholeFile(today, JoinPath("run", file), 1 << 20), *golden) << file;
  }
}

}  // namespace
}  // namespace deepnet
