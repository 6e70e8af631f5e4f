// Raw bytes are read by the mebibyte and handed to the decompressor, text is cut at '\n'. Two
// subtleties: the decompressor may hold text back when its output is full, so it is asked again
// before the file is; and a line is looked for only in the bytes that are new.
#include "trainer/data/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/data/decompressor.h"

namespace deepnet {
namespace {

constexpr size_t kRawBytes = 1 << 20;

}  // namespace

LineReader::LineReader(std::string path, int file)
    : path_(std::move(path)), file_(file), raw_buffer_(kRawBytes, '\0') {}

LineReader::~LineReader() { close(file_); }

absl::Status LineReader::Failure(std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path_, ": ", std::string(what), " after line ", line_number_));
}

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  auto reader = std::unique_ptr<LineReader>(new LineReader(path, file));
  RETURN_IF_ERROR(reader->ReadRaw());
  reader->decompressor_ = MakeDecompressor(reader->raw_);
  return reader;
}

absl::Status LineReader::ReadRaw() {
  size_t size = 0;
  while (size < kRawBytes) {
    const ssize_t count = read(file_, raw_buffer_.data() + size, kRawBytes - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failure(strerror(errno));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  raw_ = std::string_view(raw_buffer_).substr(0, size);
  raw_ended_ = size == 0;
  file_bytes_ += static_cast<int64_t>(size);
  hasher_.Update(raw_);
  return absl::OkStatus();
}

absl::Status LineReader::Fill() {
  text_.erase(0, text_begin_);
  text_begin_ = 0;
  const size_t old_size = text_.size();
  while (text_.size() == old_size && !ended_) {
    if (raw_.empty() && !raw_ended_ && !held_back_) RETURN_IF_ERROR(ReadRaw());
    const absl::StatusOr<bool> more = decompressor_->Decompress(&raw_, &text_);
    if (!more.ok()) return Failure(std::string(more.status().message()));
    held_back_ = *more;
    ended_ = raw_.empty() && raw_ended_ && !held_back_;
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
  *line = found;
  return true;
}

}  // namespace deepnet
