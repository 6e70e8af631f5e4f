#include "trainer/data/content_hash.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(ContentHash, IsFrozen) {
  // Corpora on disk carry these values: they must never change.
  EXPECT_EQ(HashBytes(""), 0xD06BE9B1271E0688ULL);
  EXPECT_EQ(HashBytes("a"), 0xC177A00CFD42AC96ULL);
  EXPECT_EQ(HashBytes("All human beings are born free"), 0xEA9E5C661743B8DCULL);
  EXPECT_EQ(HashBytes("a", 7), 0x3E4D3C12B539E4FAULL);
}

TEST(ContentHash, OfAStreamDoesNotDependOnHowItIsCut) {
  std::string bytes;
  for (unsigned i = 0; i < 300000; ++i) bytes += static_cast<char>(i * i >> 3);
  ContentHasher whole;
  whole.Update(bytes);
  for (const size_t piece : {1000u, 65535u, 65536u, 70001u}) {
    ContentHasher cut;
    for (size_t i = 0; i < bytes.size(); i += piece) {
      cut.Update(std::string_view(bytes).substr(i, piece));
    }
    EXPECT_EQ(cut.Digest(), whole.Digest()) << piece;
  }
}

TEST(ContentHash, TellsSimilarTextsApart) {
  std::set<uint64_t> hashes;
  for (int i = 0; i < 100000; ++i) hashes.insert(HashBytes("sentence " + std::to_string(i)));
  for (int zeros = 0; zeros < 40; ++zeros) hashes.insert(HashBytes(std::string(zeros, '\0')));
  EXPECT_EQ(hashes.size(), 100040u);
}

}  // namespace
}  // namespace deepnet
