#include "parallel/base/process_memory.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/resident_memory.h"

namespace deepnet {
namespace {

using testing::ResidentBytes;

constexpr int64_t kBlock = 64 << 20;
// Bytes that the rest of the process may give back or take meanwhile; the kernel's counters lag
// too.
constexpr int64_t kSlack = 8 << 20;

TEST(ProcessMemory, CountsMemoryThatIsWritten) {
  const int64_t before = ResidentBytes();
  const std::vector<char> block(kBlock, 1);
  EXPECT_GT(before, 0);
  EXPECT_GE(ResidentBytes(), before + kBlock - kSlack) << static_cast<int>(block[kBlock / 2]);
}

TEST(ProcessMemory, ThePeakStaysWhenMemoryIsGivenBack) {
  const int64_t before = ResidentBytes();
  { const std::vector<char> block(kBlock, 1); }
  EXPECT_GE(PeakResidentBytes(), before + kBlock - kSlack);
  EXPECT_GE(PeakResidentBytes(), ResidentBytes() - kSlack);
}

}  // namespace
}  // namespace deepnet
