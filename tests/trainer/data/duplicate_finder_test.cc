#include "trainer/data/duplicate_finder.h"

#include <filesystem>
#include <random>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/data/temp_folder.h"

namespace deepnet {
namespace {

using testing::TempFolder;

bool Bit(const std::vector<uint64_t>& bits, int64_t line) {
  return (bits[line / 64] >> (line % 64) & 1) != 0;
}

TEST(DuplicateFinder, AgreesWithASetInMemoryAndOnDisk) {
  const TempFolder folder;
  for (const int64_t memory_records : {100000, 1000, 7}) {
    std::mt19937_64 random(3);
    DuplicateFinder finder(folder.path(), memory_records);
    std::unordered_set<uint64_t> seen;
    std::vector<bool> expected;
    const int64_t num_lines = memory_records == 7 ? 500 : 20000;
    for (int64_t line = 0; line < num_lines; ++line) {
      const bool skipped = random() % 10 == 0;
      const uint64_t hash = (random() % 5000) * 0x9E3779B97F4A7C15ULL;
      expected.push_back(!skipped && !seen.insert(hash).second);
      ASSERT_TRUE(skipped || finder.Add(line, hash).ok());
    }
    const auto bits = finder.Finish();
    ASSERT_TRUE(bits.ok()) << bits.status();
    for (size_t line = 0; line < bits->size() * 64; ++line) {
      EXPECT_EQ(Bit(*bits, static_cast<int64_t>(line)), line < expected.size() && expected[line])
          << line;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(DuplicateFinder, SaysThatItsFolderIsMissing) {
  DuplicateFinder finder("/nowhere/at/all", 1);
  ASSERT_TRUE(finder.Add(0, 1).ok());
  EXPECT_FALSE(finder.Add(1, 2).ok());
}

}  // namespace
}  // namespace deepnet
