#include "trainer/data/line_reader.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/trainer/data/temp_folder.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempFolder;

// Lines of a file; on failure the status stands in *status.
std::vector<std::string> ReadAll(const std::string& path, absl::Status* status = nullptr) {
  std::vector<std::string> lines;
  auto reader = LineReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::string_view line;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&line);
    if (status != nullptr) *status = more.status();
    EXPECT_TRUE(more.ok() || status != nullptr) << more.status();
    if (!more.ok() || !*more) return lines;
    lines.emplace_back(line);
  }
}

std::string Gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST(LineReader, AFileThatUnpacksToHundredsOfTimesItsSizeIsRefused) {
  const TempFolder folder;
  std::string text;
  while (std::ssize(text) <= LineReader::kAlwaysUnpackedBytes) text.append(60000, 'a').append("\n");
  for (const std::string& packed : {Gzip(text), Zstd(text)}) {
    absl::Status status;
    EXPECT_THAT(ReadAll(folder.Write("bomb", packed), &status).size(), Gt(1000u));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bomb: unpacks to more than 500 times"));
  }
  EXPECT_EQ(ReadAll(folder.Write("plain", text)).size(), text.size() / 60001);
  std::mt19937 random(1);  // a line of 300 unlike bytes: some 200 times its size
  std::string denser;
  while (std::ssize(denser) <= LineReader::kAlwaysUnpackedBytes) {
    for (int i = 0; i < 300; ++i) denser += static_cast<char>('a' + random() % 26);
    denser.append(59700, 'a').append("\n");
  }
  EXPECT_EQ(ReadAll(folder.Write("denser", Zstd(denser))).size(), denser.size() / 60001);
  text.resize(LineReader::kAlwaysUnpackedBytes);
  EXPECT_EQ(ReadAll(folder.Write("short", Gzip(text))).size(), text.size() / 60001 + 1);
}

TEST(LineReader, SplitsAtNewlinesAndForgivesCarriageReturnsAndAMissingLastEnd) {
  const TempFolder folder;
  EXPECT_THAT(ReadAll(folder.Write("a", "one\r\ntwo\n\nlast")),
              ElementsAre("one", "two", "", "last"));
  EXPECT_THAT(ReadAll(folder.Write("b", "one\n")), ElementsAre("one"));
  EXPECT_THAT(ReadAll(folder.Write("c", "")), IsEmpty());
  EXPECT_THAT(ReadAll(folder.Write("d", "\n")), ElementsAre(""));
}

TEST(LineReader, TakesTheMarkAtTheBeginningOffAndEndsNoLineAtOtherCharacters) {
  const TempFolder folder;
  const std::string text = "\ufeffone\u2028\u0085\rtwo\n\ufeffthree\n";
  const auto lines = ElementsAre("one\u2028\u0085\rtwo", "\ufeffthree");
  EXPECT_THAT(ReadAll(folder.Write("a", text)), lines);
  EXPECT_THAT(ReadAll(folder.Write("a.gz", Gzip(text))), lines);
  auto reader = LineReader::Open(folder.Path("a"));
  ASSERT_TRUE(reader.ok() && (*reader)->SkipTo(0, 0).ok());
  std::string_view line;
  ASSERT_TRUE((*reader)->Next(&line).ok());
  EXPECT_EQ(line.substr(0, 3), "one");
}

TEST(LineReader, ReadsCompressedTextOfSeveralMembers) {
  const TempFolder folder;
  EXPECT_THAT(ReadAll(folder.Write("a.gz", Gzip("one\ntw") + Gzip("o\n"))),
              ElementsAre("one", "two"));
  EXPECT_THAT(ReadAll(folder.Write("a.zst", Zstd("one\ntw") + Zstd("o\n"))),
              ElementsAre("one", "two"));
}

TEST(LineReader, GivesAllOfTextThatIsMuchLongerThanItsCompressedForm) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "the same line again and again\n";
  EXPECT_EQ(ReadAll(folder.Write("a.gz", Gzip(text))).size(), 200000u);
  EXPECT_EQ(ReadAll(folder.Write("a.zst", Zstd(text))).size(), 200000u);
  EXPECT_EQ(ReadAll(folder.Write("a", text)).size(), 200000u);
}

TEST(LineReader, GoesOnAtTheLineItIsToldTo) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, "line number ", i + 1, "\r\n");
  for (const std::string& bytes : {text, Gzip(text), Zstd(text)}) {
    const std::string path = folder.Write("a", bytes);
    for (const int lines : {0, 1, 77777, 99999, 100000}) {
      auto reader = LineReader::Open(path);
      ASSERT_TRUE(reader.ok());
      std::string_view line;
      for (int i = 0; i < lines; ++i) ASSERT_TRUE((*reader)->Next(&line).value());
      const int64_t offset = (*reader)->text_offset();
      auto other = LineReader::Open(path);
      for (int i = 0; i < std::min(lines, 5); ++i) ASSERT_TRUE((*other)->Next(&line).value());
      ASSERT_TRUE((*other)->SkipTo(lines, offset).ok());
      EXPECT_EQ((*other)->text_offset(), offset);
      ASSERT_EQ((*other)->Next(&line).value(), lines < 100000);
      if (lines == 100000) continue;
      EXPECT_EQ(line, absl::StrCat("line number ", lines + 1));
      EXPECT_EQ((*other)->line_number(), lines + 1);
    }
    EXPECT_FALSE((*LineReader::Open(path))->SkipTo(1, 10 * std::ssize(text)).ok() && bytes != text);
    if (bytes != text) continue;
    auto again = LineReader::Open(path);  // from its end to its beginning
    ASSERT_TRUE(again.ok() && (*again)->ForEach([](std::string_view) {}).ok());
    ASSERT_TRUE((*again)->SkipTo(0, 0).ok());
    int lines = 0;
    ASSERT_TRUE((*again)->ForEach([&](std::string_view) { ++lines; }).ok());
    EXPECT_EQ(lines, 100000);
  }
}

TEST(LineReader, RefusesCutAndDamagedStreams) {
  const TempFolder folder;
  const std::string text = "one\ntwo\nthree\n";
  for (const std::string& packed : {Gzip(text), Zstd(text)}) {
    absl::Status status;
    ReadAll(folder.Write("cut", packed.substr(0, packed.size() - 5)), &status);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cut: the"));
  }
  std::string damaged = Gzip(text);
  damaged[12] = static_cast<char>(damaged[12] ^ 0x55);
  damaged[13] = static_cast<char>(damaged[13] ^ 0x55);
  absl::Status status;
  ReadAll(folder.Write("bad", damaged), &status);
  EXPECT_FALSE(status.ok());
}

TEST(LineReader, RefusesAZstandardWindowOfMoreMemoryThanItSays) {
  const TempFolder folder;
  // A frame's header: no options, a window of 128 MiB (0x88) or 144 MiB, a last block of no bytes.
  for (const auto& [window, error] :
       {std::pair('\x88', ""), std::pair('\x89', "--long=27 at most")}) {
    const std::string frame = {'\x28', '\xb5', '\x2f', '\xfd', '\0', window, '\1', '\0', '\0'};
    absl::Status status;
    ReadAll(folder.Write("a.zst", frame), &status);
    EXPECT_EQ(status.ok(), std::string(error).empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
  }
}

TEST(LineReader, CutsALineBeyondTheLimitAndFindsTheNext) {
  const TempFolder folder;
  const std::string path = folder.Write("a", absl::StrCat(std::string(300000, 'x'), "\nnext\n"));
  auto reader = LineReader::Open(path);
  ASSERT_TRUE(reader.ok());
  std::string_view line;
  ASSERT_TRUE((*reader)->Next(&line).value());
  EXPECT_EQ(line.size(), LineReader::kMaxLineBytes);
  EXPECT_TRUE((*reader)->line_was_cut());
  ASSERT_TRUE((*reader)->Next(&line).value());
  EXPECT_EQ(line, "next");
  EXPECT_FALSE((*reader)->line_was_cut());
  EXPECT_EQ((*reader)->line_number(), 2);
}

// A line may end before or behind the end of what one call reads.
TEST(LineReader, CutsALineAtTheLimitAlone) {
  const TempFolder folder;
  for (const size_t size : {size_t{1 << 16}, size_t{1 << 16} + 1, size_t{1 << 18} + 5,
                            size_t{1 << 20} + 5, size_t{3 << 20}}) {
    const std::string text = absl::StrCat("first\nb", std::string(size - 1, 'x'), "\r\nnext\nlast");
    for (const std::string& bytes : {text, Gzip(text), Zstd(text)}) {
      auto reader = LineReader::Open(folder.Write("a", bytes));
      ASSERT_TRUE(reader.ok());
      std::vector<std::string> lines;
      std::vector<bool> cut;
      for (std::string_view line; (*reader)->Next(&line).value();) {
        lines.emplace_back(line);
        cut.push_back((*reader)->line_was_cut());
      }
      const std::string front = "b" + std::string((1 << 16) - 1, 'x');
      EXPECT_TRUE(lines == std::vector<std::string>({"first", front, "next", "last"})) << size;
      // The '\r' counts.
      EXPECT_THAT(cut, ElementsAre(false, true, false, false)) << size;
    }
    const std::string last = folder.Write("last", text.substr(0, text.size() - 11) + "xx");
    EXPECT_EQ(ReadAll(last).size(), 2u) << size;
  }
  auto reader = LineReader::Open(folder.Write("a", std::string(1 << 16, 'x') + "\nnext"));
  std::string_view line;
  ASSERT_TRUE((*reader)->Next(&line).value());
  EXPECT_EQ(line.size(), LineReader::kMaxLineBytes);
  EXPECT_FALSE((*reader)->line_was_cut());
}

// A pipe gives less than is asked for.
TEST(LineReader, ReadsAllThatComesThroughAPipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  std::string text;
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  std::thread writer([&] { std::ofstream(folder.Path("pipe"), std::ios::binary) << text; });
  const std::vector<std::string> lines = ReadAll(folder.Path("pipe"));
  writer.join();
  ASSERT_EQ(lines.size(), 50000u);
  for (int i = 0; i < 50000; ++i) ASSERT_EQ(lines[i], absl::StrCat("line ", i));
}

// The last block is consumed before there is room for all of its text.
TEST(LineReader, GivesTheTextThatTheDecompressorHoldsBack) {
  const TempFolder folder;
  std::string text;
  while (text.size() < 1000 + (2 << 17)) absl::StrAppend(&text, "line ", text.size(), "\n");
  text.resize(1000 + (2 << 17));
  text.back() = 'x';
  std::string packed(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
  ZSTD_inBuffer first = {text.data(), 1000, 0}, rest = {text.data(), text.size(), 1000};
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &first, ZSTD_e_flush), 0u);
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &rest, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  packed.resize(out.pos);
  std::string read;
  for (const std::string& line : ReadAll(folder.Write("a.zst", packed))) read += line + "\n";
  EXPECT_TRUE(read == text + "\n");
}

TEST(LineReader, RefusesUtf16ByName) {
  const TempFolder folder;
  for (const std::string& text :
       {std::string("\xff\xfeh\0i\0\n\0", 8), std::string("\xfe\xff\0h\0i\0\n", 8)}) {
    for (const std::string& bytes : {text, Gzip(text), Zstd(text)}) {
      absl::Status status;
      EXPECT_THAT(ReadAll(folder.Write("t", bytes), &status), IsEmpty());
      EXPECT_THAT(std::string(status.message()), HasSubstr("t: UTF-16, convert it to UTF-8"));
    }
  }
}

TEST(LineReader, NamesArchivesAndCompressionsThatItDoesNotRead) {
  const TempFolder folder;
  const std::string tar = std::string(256, 'n') + std::string("\0ustar", 6);
  const std::string rest = " and more\n";
  for (const auto& [bytes, words] : std::vector<std::pair<std::string, std::string>>{
           {"BZh91AY&SY" + rest,
            "t: bzip2, which is not read: plain text is, and gzip and zstd of it"},
           {"\xfd\x37zXZ" + rest, "t: xz, which"},
           {"PK\x03\x04" + rest, "t: zip, which"},
           {"PAR1\x15" + rest, "t: Parquet, which"},
           {tar + rest, "t: tar, which"},
           {Gzip(tar + rest), "t: its text is tar, which"},
           {Zstd(Gzip(rest)), "t: its text is gzip, which"}}) {
    absl::Status status;
    EXPECT_THAT(ReadAll(folder.Write("t", bytes), &status), IsEmpty());
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  absl::Status status;
  EXPECT_EQ(ReadAll(folder.Write("t", "PK is a text\nBZh\n"), &status).size(), 2u) << status;
  const std::string mustard = std::string(256, 'n') + "mustard\n";
  EXPECT_EQ(ReadAll(folder.Write("t", mustard), &status).size(), 1u) << status;
}

TEST(LineReader, NamesAFolderInPlaceOfAFile) {
  const TempFolder folder;
  EXPECT_EQ(std::string(LineReader::Open(folder.path()).status().message()),
            folder.path() + " is a folder, not a file");
}

TEST(LineReader, NamesAFileThatIsNotThere) {
  const auto reader = LineReader::Open("/nowhere/at/all");
  EXPECT_EQ(reader.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace deepnet
