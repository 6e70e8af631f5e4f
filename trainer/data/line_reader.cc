// Raw bytes are read by the mebibyte and handed to the decompressor, text is cut at '\n'. Two
// subtleties: the decompressor may hold text back when its output is full, so it is asked again
// before the file is; and a line is looked for only in the bytes that are new.
#include "trainer/data/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"

namespace deepnet {
namespace {

constexpr size_t kRawBytes = 1 << 20;     // of a file, read by one call
constexpr size_t kOutputBytes = 1 << 18;  // text produced by one call

}  // namespace

// Turns the bytes of a file into the bytes of its text. The library behind it consumes bytes and
// may hold text of them back when its output is full.
struct Decompressor {
  explicit Decompressor(const char* stream_name) : name(stream_name) {}
  virtual ~Decompressor() = default;

  // Consumes from the front of *input and returns the bytes of text that it put to `output`.
  virtual size_t Step(std::string_view* input) = 0;

  const char* const name;
  // Has room for kOutputBytes. It is not cleared: a file of many small members would clear it for
  // each.
  const std::unique_ptr<char[]> output = std::make_unique_for_overwrite<char[]>(kOutputBytes);
  bool open = true;    // a member or frame has begun and not ended
  std::string damage;  // why no more can be read, after "the gzip stream"; empty: it can
};

namespace {

struct Gzip : public Decompressor {
  Gzip() : Decompressor("gzip") { DEEPNET_CHECK(inflateInit2(&stream, 15 + 16) == Z_OK) << "zlib"; }
  ~Gzip() override { inflateEnd(&stream); }

  size_t Step(std::string_view* input) override {
    if (!open) inflateReset(&stream);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
    stream.avail_in = static_cast<uInt>(input->size());
    stream.next_out = reinterpret_cast<Bytef*>(output.get());
    stream.avail_out = kOutputBytes;
    const int result = inflate(&stream, Z_NO_FLUSH);
    input->remove_prefix(input->size() - stream.avail_in);
    open = result != Z_STREAM_END;
    if (open && result != Z_OK && result != Z_BUF_ERROR) damage = "is damaged";
    return kOutputBytes - stream.avail_out;
  }

  z_stream stream = {};
};

struct Zstandard : public Decompressor {
  Zstandard() : Decompressor("zstd"), stream(ZSTD_createDStream()) {
    DEEPNET_CHECK(stream != nullptr) << "zstd";
    ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, LineReader::kMaxZstdWindowLog);
  }
  ~Zstandard() override { ZSTD_freeDStream(stream); }

  size_t Step(std::string_view* input) override {
    ZSTD_inBuffer in = {input->data(), input->size(), 0};
    ZSTD_outBuffer out = {output.get(), kOutputBytes, 0};
    const size_t result = ZSTD_decompressStream(stream, &out, &in);
    input->remove_prefix(in.pos);
    open = result != 0;
    constexpr int kLog = LineReader::kMaxZstdWindowLog;
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
      damage = absl::StrCat("needs more memory than a window of ", 1 << (kLog - 20),
                            " MiB: compress it with --long=", kLog, " at most");
    } else if (ZSTD_isError(result) != 0) {
      damage = "is damaged";
    }
    return out.pos;
  }

  ZSTD_DStream* const stream;
};

}  // namespace

std::string_view ForeignFormat(std::string_view text) {
  struct Format {
    size_t offset;
    std::string_view mark, name;
  };
  static constexpr Format kFormats[] = {{0, "\x1f\x8b", "gzip"},
                                        {0, "\x28\xb5\x2f\xfd", "zstd"},
                                        {4, "1AY&SY", "bzip2"},
                                        {0, "\xfd\x37zXZ", "xz"},
                                        {0, "PK\x03\x04", "zip"},
                                        {0, "7z\xbc\xaf", "7-Zip"},
                                        {0, "\x04\"M\x18", "lz4"},
                                        {0, "Rar!\x1a\x07", "RAR"},
                                        {0, "LZIP\x01", "lzip"},
                                        {0, "PAR1\x15", "Parquet"},
                                        {256, std::string_view("\0ustar", 6), "tar"}};
  for (const Format& format : kFormats) {
    if (text.substr(std::min(format.offset, text.size())).starts_with(format.mark)) {
      return format.name;
    }
  }
  return "";
}

LineReader::LineReader(std::string path, int file)
    : path_(std::move(path)),
      file_(file),
      raw_buffer_(std::make_unique_for_overwrite<char[]>(kRawBytes)) {}

LineReader::~LineReader() { close(file_); }

absl::Status LineReader::Failure(std::string_view what) const {
  return DataLoss(path_, ": ", std::string(what), " after line ", line_number_);
}

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return NotFound(path, ": ", strerror(errno));
  auto reader = std::unique_ptr<LineReader>(new LineReader(path, file));
  struct stat status = {};
  if (fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
    return InvalidArgument(path, " is a folder, not a file");
  }
  RETURN_IF_ERROR(reader->ReadRaw());
  const std::string_view format = ForeignFormat(reader->raw_);
  if (format == "gzip") reader->decompressor_ = std::make_unique<Gzip>();
  if (format == "zstd") reader->decompressor_ = std::make_unique<Zstandard>();
  return reader;
}

absl::Status LineReader::ReadRaw() {
  size_t size = 0;
  while (size < kRawBytes) {
    const ssize_t count = read(file_, raw_buffer_.get() + size, kRawBytes - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failure(strerror(errno));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  raw_ = std::string_view(raw_buffer_.get(), size);
  raw_ended_ = size == 0;
  raw_bytes_ += static_cast<int64_t>(size);
  hasher_.Update(raw_);
  return absl::OkStatus();
}

absl::Status LineReader::SkipTo(int64_t line_number, int64_t text_offset) {
  if (!compressed()) {
    if (lseek(file_, text_offset, SEEK_SET) < 0) return Failure(strerror(errno));
    raw_ = {};
    text_.clear();
    text_begin_ = 0;
    text_offset_ = text_offset;
    started_ = started_ || text_offset > 0;
    ended_ = raw_ended_ = false;
  }
  const auto end = [this] { return text_offset_ + static_cast<int64_t>(text_.size()); };
  while (end() < text_offset && !ended_) {
    text_begin_ = text_.size();
    RETURN_IF_ERROR(Fill());
  }
  if (end() < text_offset) return Failure("the text ends before it did when it was read first");
  text_begin_ = static_cast<size_t>(text_offset - text_offset_);
  line_number_ = line_number;
  return absl::OkStatus();
}

absl::Status LineReader::Decompress() {
  const auto failure = [this](std::string_view what) {
    return Failure(absl::StrCat("the ", decompressor_->name, " stream ", std::string(what)));
  };
  if (raw_.empty() && !held_back_) {  // the file ends
    return decompressor_->open ? failure("is cut short") : absl::OkStatus();
  }
  const size_t made = decompressor_->Step(&raw_);
  text_.append(decompressor_->output.get(), made);
  if (!decompressor_->damage.empty()) return failure(decompressor_->damage);
  held_back_ = decompressor_->open && made == kOutputBytes;
  const int64_t unpacked = text_offset_ + static_cast<int64_t>(text_.size());
  if (unpacked <= std::max(kAlwaysUnpackedBytes, kMaxUnpackRatio * raw_bytes_)) {
    return absl::OkStatus();
  }
  return Failure(absl::StrCat("unpacks to more than ", kMaxUnpackRatio, " times its size"));
}

absl::Status LineReader::Fill() {
  text_.erase(0, text_begin_);
  text_offset_ += static_cast<int64_t>(text_begin_);
  text_begin_ = 0;
  const size_t old_size = text_.size();
  while (text_.size() == old_size && !ended_) {
    if (raw_.empty() && !raw_ended_ && !held_back_) RETURN_IF_ERROR(ReadRaw());
    if (compressed()) {
      RETURN_IF_ERROR(Decompress());
    } else {
      text_.append(raw_);
      raw_ = {};
    }
    ended_ = raw_.empty() && raw_ended_ && !held_back_;
  }
  if (std::exchange(started_, true)) return absl::OkStatus();
  if (HasUtf16Mark(text_)) {
    return InvalidArgument(path_, ": UTF-16, convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (const std::string format(ForeignFormat(text_)); !format.empty()) {
    return InvalidArgument(path_, compressed() ? ": its text is " : ": ", format,
                           ", which is not read: plain text is, and gzip and zstd of it");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LineReader::Next(std::string_view* line) {
  line_was_cut_ = false;
  size_t searched = 0;  // bytes from text_begin_ on that hold no line end
  size_t end;
  for (;;) {
    end = text_.find('\n', text_begin_ + searched);
    if (end != std::string::npos) break;
    searched = text_.size() - text_begin_;
    if (searched > kMaxLineBytes) {  // keep the front, forget the rest up to the line's end
      if (!line_was_cut_) line_.assign(text_, text_begin_, kMaxLineBytes);
      line_was_cut_ = true;
      text_begin_ = text_.size();
      searched = 0;
    }
    if (ended_) break;
    RETURN_IF_ERROR(Fill());
  }
  const bool last = end == std::string::npos;
  if (last && text_begin_ == text_.size() && !line_was_cut_) return false;
  if (last) end = text_.size();
  ++line_number_;
  std::string_view found = std::string_view(text_).substr(text_begin_, end - text_begin_);
  text_begin_ = last ? end : end + 1;
  if (!line_was_cut_ && found.size() > kMaxLineBytes) {
    line_.assign(found.substr(0, kMaxLineBytes));
    line_was_cut_ = true;
  }
  if (line_was_cut_) found = line_;
  if (!found.empty() && found.back() == '\r') found.remove_suffix(1);
  if (line_number_ == 1) found = WithoutMark(found);
  *line = found;
  return true;
}

absl::Status LineReader::ForEach(absl::FunctionRef<void(std::string_view line)> visit) {
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, Next(&line));
    if (!more) return absl::OkStatus();
    visit(line);
  }
}

}  // namespace deepnet
