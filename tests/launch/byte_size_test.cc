#include "launch/byte_size.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::HasSubstr;

TEST(ByteSize, HasUnitsOfBothKinds) {
  EXPECT_EQ(*ParseByteSize("256MiB"), 256 << 20);
  EXPECT_EQ(*ParseByteSize("1.5 GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize(" 64mb "), 64'000'000);
  EXPECT_EQ(*ParseByteSize("2kB"), 2000);
  EXPECT_EQ(*ParseByteSize("7B"), 7);
  EXPECT_EQ(*ParseByteSize("1TiB"), int64_t{1} << 40);
}

TEST(ByteSize, MistakesAreNamed) {
  EXPECT_THAT(std::string(ParseByteSize("256").status().message()),
              HasSubstr("'256': a unit is needed, such as 256MiB"));
  EXPECT_THAT(std::string(ParseByteSize("256M").status().message()),
              HasSubstr("unknown unit 'M'; there are B, KiB, MiB"));
  for (const char* text : {"", "MiB", "-", "x5MiB"}) {
    EXPECT_THAT(std::string(ParseByteSize(text).status().message()),
                HasSubstr("a number and a unit are needed"));
  }
  for (const char* text : {"-1MiB", "0MiB", "0.5B", "99999999TiB"}) {
    EXPECT_THAT(std::string(ParseByteSize(text).status().message()), HasSubstr("from 1 B to"));
  }
}

}  // namespace
}  // namespace deepnet
