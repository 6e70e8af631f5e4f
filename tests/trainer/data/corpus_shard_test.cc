#include "trainer/data/corpus_shard.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "parallel/base/crc32c.h"
#include "tests/support/seal_blocks.h"
#include "tests/trainer/data/temp_folder.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;

std::vector<int32_t> Sentence(int length, int32_t first) {
  std::vector<int32_t> ids;
  for (int i = 0; i < length; ++i) ids.push_back(first + i * 7 % 1000);
  return ids;
}

// Pair i has 1 + i % 5 and 2 + i % 3 tokens.
void WriteShard(const std::string& path, int num_pairs, int32_t vocabulary_size,
                bool finish = true) {
  auto writer = ShardWriter::Create(path, vocabulary_size);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < num_pairs; ++i) {
    ASSERT_TRUE((*writer)
                    ->Add(Sentence(1 + i % 5, vocabulary_size - 1001), Sentence(2 + i % 3, i % 100))
                    .ok());
  }
  ASSERT_TRUE(!finish || (*writer)->Finish().ok());
}

TEST(Shard, GivesBackWhatWasWrittenWithNarrowAndWideIds) {
  const TempFolder folder;
  for (const int32_t vocabulary_size : {8000, 65536, 250000}) {
    WriteShard(folder.Path("s"), 1000, vocabulary_size);
    const auto shard = Shard::Open(folder.Path("s"));
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_TRUE(shard->CheckContent().ok());
    ASSERT_EQ(shard->num_pairs(), 1000);
    for (int i = 0; i < 1000; ++i) {
      EXPECT_EQ(shard->First(i), Sentence(1 + i % 5, vocabulary_size - 1001));
      EXPECT_EQ(shard->Second(i), Sentence(2 + i % 3, i % 100));
    }
  }
}

TEST(Shard, TakesTwoBytesForAnIdWhereTheyAreEnough) {
  const TempFolder folder;
  WriteShard(folder.Path("narrow"), 100000, 65536);
  WriteShard(folder.Path("wide"), 100000, 65537);
  const auto narrow = Shard::Open(folder.Path("narrow"));
  ASSERT_TRUE(narrow.ok());
  double num_tokens = 0.0;
  for (const LengthRow& row : narrow->lengths()) {
    num_tokens += static_cast<double>(row.first_tokens + row.second_tokens);
  }
  const auto size = [&](const char* name) {
    return static_cast<int64_t>(std::filesystem::file_size(folder.Path(name)));
  };
  EXPECT_NEAR(static_cast<double>(size("wide") - size("narrow")), 2.0 * num_tokens, 100.0);
}

TEST(Shard, KeepsSumsOfLengthsByTheLongerSide) {
  const TempFolder folder;
  auto writer = ShardWriter::Create(folder.Path("s"), 8000);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Add(Sentence(3, 5), Sentence(5, 5)).ok());
  ASSERT_TRUE((*writer)->Add(Sentence(5, 5), Sentence(1, 5)).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto shard = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(shard.ok());
  ASSERT_EQ(shard->lengths().size(), 6u);
  const LengthRow& row = shard->lengths()[5];
  EXPECT_EQ(row.num_pairs, 2u);
  EXPECT_EQ(row.first_tokens, 8u);
  EXPECT_EQ(row.second_tokens, 6u);
  EXPECT_EQ(row.first_squares, 34u);
  EXPECT_EQ(row.second_squares, 26u);
  EXPECT_EQ(shard->lengths()[4].num_pairs, 0u);
}

TEST(Shard, MayBeEmpty) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 0, 8000);
  const auto shard = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->num_pairs(), 0);
  EXPECT_TRUE(shard->CheckContent().ok());
}

TEST(Shard, SaysWhyItCannotBeWritten) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.Path("a"));
  std::filesystem::create_directories(folder.Path("b.index"));
  for (const char* name : {"a", "b", "none/c"}) {
    const absl::Status status = ShardWriter::Create(folder.Path(name), 8000).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("cannot write " + folder.Path(name) + ": "));
  }
}

TEST(Shard, IsNoneUntilFinished) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 5000, 8000, /*finish=*/false);
  EXPECT_FALSE(Shard::Open(folder.Path("s")).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.Path("s.index")));
}

TEST(MappedFile, ThatBecomesShorterReadsAsZerosFromThereAndSaysSo) {
  SurviveLostPages();
  SurviveLostPages();
  const TempFolder folder;
  const size_t page = static_cast<size_t>(getpagesize());
  const std::string text(10 * page, 'x');
  const auto other = MappedFile::Open(folder.Write("other", text));
  const auto file = MappedFile::Open(folder.Write("file", text));
  ASSERT_TRUE(other.ok() && file.ok());
  std::filesystem::resize_file(folder.Path("file"), 3 * page);
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      EXPECT_EQ(file->bytes().substr(0, 3 * page), std::string(3 * page, 'x'));
      EXPECT_EQ(file->bytes().substr(5 * page), std::string(5 * page, '\0'));
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(absl::IsDataLoss(file->Intact()));
  EXPECT_THAT(std::string(file->Intact().message()), HasSubstr(folder.Path("file")));
  EXPECT_EQ(other->bytes(), text);
  EXPECT_TRUE(other->Intact().ok());

  // Whoever takes the place of one that was lost is not lost.
  { const auto copy = *file; }
  const std::string whole = folder.Write("whole", text);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(MappedFile::Open(whole)->Intact().ok());
}

// Returns true if the handler of before has ended the process: by the signal, or, a sanitizer's,
// by a report and a code.
bool EndedBySigbus(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0;
}

TEST(MappedFileDeathTest, OtherFaultsGoToTheHandlerBefore) {
  SurviveLostPages();
  EXPECT_EXIT(raise(SIGBUS), EndedBySigbus, "");
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(7); });
        SurviveLostPages();
        raise(SIGBUS);
      },
      ::testing::ExitedWithCode(7), "");
  const TempFolder folder;
  const std::string path = folder.Write("file", std::string(4096, 'x'));
  const int file = open(path.c_str(), O_RDONLY);
  // Where a file was that is mapped no more.
  void* const former = const_cast<char*>(MappedFile::Open(path)->bytes().data());
  const auto* const bytes = static_cast<const volatile char*>(
      mmap(former, 4096, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0));
  ASSERT_TRUE(bytes == former);
  std::filesystem::resize_file(path, 0);
  EXPECT_EXIT(static_cast<void>(bytes[0]), EndedBySigbus, "");
  close(file);
}

TEST(HashFile, HashesAllBytesOrNamesTheFile) {
  const TempFolder folder;
  const std::string bytes(3'000'001, 'x');
  ContentHasher hasher;
  hasher.Update(bytes);
  EXPECT_EQ(*HashFile(folder.Write("f", bytes)), hasher.Digest());
  EXPECT_EQ(*HashFile(folder.Write("empty", "")), ContentHasher().Digest());
  for (const std::string& path : {folder.Path("none"), folder.path()}) {
    EXPECT_THAT(std::string(HashFile(path).status().message()), HasSubstr(path));
  }
}

TEST(Shard, ThatBecomesShorterIsNamedByWhoReadsAllOfIt) {
  SurviveLostPages();
  const TempFolder folder;
  WriteShard(folder.Path("s"), 1000, 8000);
  const auto shard = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(shard.ok() && shard->Intact().ok());
  std::filesystem::resize_file(folder.Path("s"), 0);
  EXPECT_THAT(std::string(shard->CheckContent().message()),
              HasSubstr(folder.Path("s") + ": it became shorter"));
  EXPECT_EQ(shard->First(999).size(), 0u);
}

TEST(Shard, NamesADamagedBlockHeaderSizeOrVersion) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 200000, 8000);
  const std::string good = folder.Read("s");
  ASSERT_GT(good.size(), 2u << 20);

  std::string bad = good;
  bad[kShardDataOffset + kShardBlockBytes + 17] ^= 1;
  folder.Write("block", bad);
  const auto block = Shard::Open(folder.Path("block"));
  ASSERT_TRUE(block.ok());
  EXPECT_THAT(std::string(block->CheckContent().message()),
              HasSubstr("block: damaged: bytes 1052672 to 2101248 do not match their checksum"));

  bad = good;
  bad[20] ^= 1;
  folder.Write("header", bad);
  EXPECT_THAT(std::string(Shard::Open(folder.Path("header")).status().message()),
              HasSubstr("header: the header is damaged"));

  folder.Write("short", std::string_view(good).substr(0, good.size() - 4));
  EXPECT_THAT(std::string(Shard::Open(folder.Path("short")).status().message()),
              HasSubstr("should be"));

  bad = good;
  bad[8] = 9;
  folder.Write("version", bad);
  EXPECT_THAT(std::string(Shard::Open(folder.Path("version")).status().message()),
              HasSubstr("version 9"));
}

// By somebody who means harm: the header's checksum is right.
TEST(Shard, AHeaderThatNamesPartsOutsideOfTheFileIsRefused) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 100, 8000);
  const std::string good = folder.Read("s");
  const auto message = [&](auto change) {
    ShardHeader header = {};
    std::memcpy(&header, good.data(), sizeof(header));
    change(header);
    header.header_crc =
        Crc32c({reinterpret_cast<const char*>(&header), offsetof(ShardHeader, header_crc)});
    std::string bytes = good;
    std::memcpy(bytes.data(), &header, sizeof(header));
    folder.Write("s", bytes);
    return std::string(Shard::Open(folder.Path("s")).status().message());
  };
  EXPECT_EQ(message([](ShardHeader&) {}), "");
  const std::string refused = folder.Path("s") + ": its header names parts outside of the file";
  EXPECT_EQ(message([](ShardHeader& h) { h.token_bytes = 3; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.tokens_offset -= 8; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.index_offset -= 8; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.index_offset += 4; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.lengths_offset -= 8; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.lengths_offset = h.checksums_offset + 8; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.num_tokens = -1; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.num_pairs = int64_t{1} << 60; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.num_pairs += 1; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.num_length_rows += 1; }), refused);
  EXPECT_EQ(message([](ShardHeader& h) { h.num_length_rows -= 1; }), "");  // a gap is none
  EXPECT_THAT(message([](ShardHeader& h) { h.checksums_offset = kShardDataOffset - 8; }),
              HasSubstr(": cut: "));
  EXPECT_THAT(message([](ShardHeader& h) { h.checksums_offset = int64_t{1} << 60; }),
              HasSubstr(": cut: "));
  EXPECT_THAT(message([](ShardHeader& h) { h.checksums_offset += 4; }), HasSubstr("should be "));
}

// Four threads, each of which begins with another pair.
TEST(Shard, ADamagedBlockIsFoundByWhoReadsInItFirstAndOthersAreGood) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 200000, 8000);
  const std::string good = folder.Read("s");
  ShardHeader header = {};
  std::memcpy(&header, good.data(), sizeof(header));
  std::string bad = good;
  bad[kShardDataOffset + kShardBlockBytes + 17] ^= 1;
  folder.Write("s", bad);
  const auto shard = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->First(0), Sentence(1, 8000 - 1001));
  EXPECT_TRUE(shard->Intact().ok());
  std::vector<std::thread> readers;
  for (int64_t reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      for (int64_t i = 0; i < 200000; ++i) {
        const int64_t pair = (i + reader * 50000) % 200000;
        const int64_t first = shard->entry(pair).first_token * 2, last = first + 2;
        const bool inside = first >= kShardBlockBytes && last < 2 * kShardBlockBytes;
        const bool before = last < kShardBlockBytes - 20;
        if (inside || before) {
          EXPECT_EQ(shard->First(pair).size() > 0, before) << pair;
        }
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(absl::IsDataLoss(shard->Intact()));
  const Shard copy = *shard;
  EXPECT_THAT(std::string(copy.Intact().message()),
              HasSubstr("s: damaged: bytes 1052672 to 2101248 do not match their checksum"));

  // The first one that is read is named.
  bad[kShardDataOffset] ^= 1;
  folder.Write("s", bad);
  const auto twice = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(twice.ok()) << twice.status();
  for (const int64_t pair : {150000, 0}) EXPECT_EQ(twice->First(pair).size(), 0u);
  EXPECT_EQ(twice->Intact(), shard->Intact());

  for (const int64_t offset : {header.index_offset + 3, header.lengths_offset + 1}) {
    bad = good;
    bad[static_cast<size_t>(offset)] ^= 4;
    folder.Write("s", bad);
    const auto other = Shard::Open(folder.Path("s"));
    ASSERT_TRUE(other.ok()) << other.status();
    const bool empty = other->entry(0).num_first == 0 || other->lengths().empty();
    EXPECT_TRUE(empty && absl::IsDataLoss(other->Intact())) << offset;
  }
}

TEST(Shard, ASentenceOfTwoBlocksNeedsBoth) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 400000, 8000);
  const std::string good = folder.Read("s");
  int num_found = 0;
  for (int64_t block = 1; block < 4; ++block) {
    std::string bad = good;
    bad[static_cast<size_t>(kShardDataOffset + (block + 1) * kShardBlockBytes - 1)] ^= 1;
    folder.Write("s", bad);
    const auto shard = Shard::Open(folder.Path("s"));
    ASSERT_TRUE(shard.ok()) << shard.status();
    for (int64_t pair = 0; pair < shard->num_pairs(); ++pair) {
      const ShardEntry entry = shard->entry(pair);
      const int64_t seam = block * kShardBlockBytes / 2, first = entry.first_token;
      if (first >= seam || first + entry.num_first <= seam) continue;
      EXPECT_EQ(shard->First(pair).size(), 0u) << pair;
      ++num_found;
    }
  }
  EXPECT_GT(num_found, 0);
}

// Every single byte counts: what is not checked when the file is opened is by who reads all.
TEST(Shard, NoByteOfItCanChangeUnseen) {
  const TempFolder folder;
  WriteShard(folder.Path("s"), 40, 8000);
  const std::string good = folder.Read("s");
  for (size_t i = 0; i < good.size(); i += i < kShardDataOffset - 16 && i > 96 ? 97 : 1) {
    std::string bad = good;
    bad[i] ^= 0x10;
    folder.Write("s", bad);
    const auto shard = Shard::Open(folder.Path("s"));
    const absl::Status status = shard.ok() ? shard->CheckContent() : shard.status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << i << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder.Path("s"))) << i;
  }
}

// By a writer that has another vocabulary, or by somebody who means harm.
TEST(Shard, BothSentencesOfAPairAreLookedThrough) {
  const TempFolder folder;
  auto writer = ShardWriter::Create(folder.Path("s"), 8000);
  ASSERT_TRUE((*writer)->Add(Sentence(2, 5), Sentence(2, 6000)).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT(std::string(Shard::Open(folder.Path("s"), 5000)->CheckContent().message()),
              HasSubstr("pair 0 has token 6000"));
}

TEST(Shard, IdsOutsideOfTheVocabularyAndPairsOutsideOfTheTokensEndNothing) {
  const TempFolder folder;
  for (const int32_t vocabulary_size : {65536, 100000}) {
    WriteShard(folder.Path("s"), 100, vocabulary_size);
    const auto shard = Shard::Open(folder.Path("s"), 5000);
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_EQ(shard->Second(7), Sentence(3, 7));
    EXPECT_TRUE(shard->Intact().ok());
    EXPECT_EQ(shard->First(7).size(), 0u);
    EXPECT_THAT(std::string(shard->Intact().message()),
                AllOf(HasSubstr("s: damaged: pair 7 has token "), HasSubstr("is of 5000")));
    const int32_t largest = Shard::Open(folder.Path("s"))->First(7).back();
    EXPECT_EQ(Shard::Open(folder.Path("s"), largest)->First(7).size(), 0u);
    EXPECT_EQ(Shard::Open(folder.Path("s"), largest + 1)->First(7).size(), 3u);
    const auto whole = Shard::Open(folder.Path("s"), 5000);
    EXPECT_THAT(std::string(whole->CheckContent().message()), HasSubstr("pair 0 has token "));
  }
  std::string bytes = folder.Read("s");
  ShardHeader header = {};
  std::memcpy(&header, bytes.data(), sizeof(header));
  const ShardEntry outside = {header.num_tokens - 1, 2, 0};
  std::memcpy(bytes.data() + header.index_offset, &outside, sizeof(outside));
  testing::SealBlocks(bytes);
  folder.Write("s", bytes);
  const auto shard = Shard::Open(folder.Path("s"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->First(0).size() + shard->Second(0).size(), 0u);
  EXPECT_THAT(std::string(shard->Intact().message()),
              HasSubstr("s: damaged: pair 0 lies outside of the tokens"));
}

}  // namespace
}  // namespace deepnet
