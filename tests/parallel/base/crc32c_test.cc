#include "parallel/base/crc32c.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

std::string SomeBytes(size_t count) {
  std::string bytes;
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<char>(state >> 24));
  }
  return bytes;
}

TEST(Crc32c, GivesTheValuesOfRfc3720) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<char>(i));
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, TableAndInstructionAgreeAtEveryLengthAndAlignment) {
  const std::string bytes = SomeBytes(300);
  for (size_t start = 0; start < 9; ++start) {
    for (size_t count = 0; start + count <= bytes.size(); count += 1 + count / 16) {
      const std::string_view part(bytes.data() + start, count);
      EXPECT_EQ(Crc32c(part), Crc32cByTable(part)) << start << " " << count;
    }
  }
}

TEST(Crc32c, PartsGiveTheChecksumOfTheWhole) {
  const std::string bytes = SomeBytes(100);
  const std::string_view all = bytes;
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(Crc32c(all.substr(cut), Crc32c(all.substr(0, cut))), Crc32c(all));
    EXPECT_EQ(Crc32cByTable(all.substr(cut), Crc32cByTable(all.substr(0, cut))), Crc32c(all));
  }
}

}  // namespace
}  // namespace deepnet
