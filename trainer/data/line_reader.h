// Lines of a text file of any size: plain, gzip or zstandard, told apart by their first bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "trainer/data/content_hash.h"

namespace deepnet {

struct Decompressor;

// Returns the name of the archive or compression that `text`, the first bytes of a file, begins;
// empty: none that is known. LineReader reads gzip and zstd.
std::string_view ForeignFormat(std::string_view text);

// Memory: two buffers of 1 MiB and one line of at most kMaxLineBytes; of a zstandard file also the
// window that its writer chose, at most 128 MiB, as the program zstd allows.
class LineReader {
 public:
  static constexpr int kMaxZstdWindowLog = 27;
  static constexpr size_t kMaxLineBytes = 1 << 16;  // the rest of a longer line is skipped
  // Text that is longer, and than kMaxUnpackRatio times its compressed form, is made to fill disks:
  // that of languages is 3 to 10 times as long.
  static constexpr int64_t kAlwaysUnpackedBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxUnpackRatio = 500;

  // Fails if the file cannot be read or is a folder.
  static absl::StatusOr<std::unique_ptr<LineReader>> Open(const std::string& path);

  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end ("\n" or "\r\n") and UTF-8's byte order mark, valid until the
  // next call. False: no more lines. Fails naming the file if it cannot be read, is UTF-16, or its
  // compressed form is damaged, cut or a bomb.
  absl::StatusOr<bool> Next(std::string_view* line);

  // Calls `visit` with each of the lines that are left.
  absl::Status ForEach(absl::FunctionRef<void(std::string_view line)> visit);

  // Goes on reading behind line `line_number`, where `text_offset` is what text_offset() was. A
  // compressed file is decompressed up to there. file_hash() then says nothing.
  absl::Status SkipTo(int64_t line_number, int64_t text_offset);

  int64_t line_number() const { return line_number_; }  // of the last line, from 1
  bool line_was_cut() const { return line_was_cut_; }   // the last line was longer than the limit
  const std::string& path() const { return path_; }
  bool compressed() const { return decompressor_ != nullptr; }

  // Returns the byte of the text, decompressed, at which the next line begins.
  int64_t text_offset() const { return text_offset_ + static_cast<int64_t>(text_begin_); }

  // Returns the hash of the bytes on disk, once Next() returned false.
  uint64_t file_hash() const { return hasher_.Digest(); }

 private:
  LineReader(std::string path, int file);
  absl::Status Fill();        // at least one more byte of text, or ended_
  absl::Status ReadRaw();     // raw_ = the next bytes of the file
  absl::Status Decompress();  // of raw_, to the end of text_
  absl::Status Failure(std::string_view what) const;

  const std::string path_;
  const int file_;
  std::unique_ptr<Decompressor> decompressor_;  // null: plain text
  std::unique_ptr<char[]> raw_buffer_;
  std::string_view raw_;  // bytes of raw_buffer_ not yet decompressed
  bool raw_ended_ = false;
  int64_t raw_bytes_ = 0;   // read so far
  bool held_back_ = false;  // the decompressor has more to say about what it consumed
  bool started_ = false;    // the first text was looked at for UTF-16
  std::string text_;
  int64_t text_offset_ = 0;  // of text_ in the whole text
  size_t text_begin_ = 0;    // first byte of text_ not yet given out
  bool ended_ = false;       // text_ holds all that is left
  std::string line_;         // a line that was cut
  int64_t line_number_ = 0;
  bool line_was_cut_ = false;
  ContentHasher hasher_;
};

}  // namespace deepnet
