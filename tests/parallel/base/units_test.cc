#include "parallel/base/units.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(ByteText, HasTheLargestUnitOfWhichThereIsOne) {
  EXPECT_EQ(ByteText(0), "0 B");
  EXPECT_EQ(ByteText(1023), "1023 B");
  EXPECT_EQ(ByteText(1024), "1.0 KiB");
  EXPECT_EQ(ByteText(1536), "1.5 KiB");
  EXPECT_EQ(ByteText(1048524), "1023.9 KiB");
  EXPECT_EQ(ByteText(1048525), "1.0 MiB");  // never "1024.0 KiB"
  EXPECT_EQ(ByteText((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(ByteText(int64_t{64} << 30), "64.0 GiB");
  EXPECT_EQ(ByteText(int64_t{1} << 52), "4096.0 TiB");
}

}  // namespace
}  // namespace deepnet
