#include "parallel/base/logging.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include <sys/ioctl.h>

#include "parallel/base/utf8.h"

namespace deepnet {
namespace {

// Returns the live line in at most `columns` characters: the bar goes first, then the last figures,
// so that the time left stays.
std::string LiveLine(Progress progress, size_t columns) {
  std::string text = ProgressText(progress, /*bar=*/true);
  if (text.size() > columns) text = ProgressText(progress, /*bar=*/false);
  if (text.size() > columns) {
    const size_t cut = std::min(progress.figures.size(), text.size() - columns);
    progress.figures.resize(progress.figures.size() - cut);
    text = ProgressText(progress, /*bar=*/false).substr(0, columns);
  }
  return text;
}

}  // namespace

std::string LocalTimeOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return absl::StrFormat("%02d:%02d:%02d", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

Logger::Logger(LoggerOptions options) : options_(std::move(options)), stream_(*options_.stream) {}

Logger::~Logger() { EndProgress(); }

void Logger::WriteLines(std::string_view prefix, std::string_view message) {
  std::string head = options_.time_of_day() + " ";
  if (options_.num_ranks > 1)
    absl::StrAppend(&head, "[", options_.rank, "/", options_.num_ranks, "] ");
  head += prefix;
  for (const absl::string_view line : absl::StrSplit(ShownLines(message), '\n')) {
    stream_ << head << line << '\n';
  }
}

void Logger::EraseLiveLine() {
  if (!live_line_.empty()) stream_ << "\r\x1b[K";
}

void Logger::Say(std::string_view prefix, std::string_view message) {
  const absl::MutexLock lock(&mutex_);
  EraseLiveLine();
  WriteLines(prefix, message);
  stream_ << live_line_ << std::flush;
}

void Logger::Show(const Progress& progress) {
  if (options_.warnings_only) return;
  const absl::MutexLock lock(&mutex_);
  const double now = options_.seconds();
  const double pause = options_.terminal ? options_.redraw_seconds : options_.plain_seconds;
  const bool must = progress.label != shown_label_ || progress.fraction >= 1.0;
  if (!must && now - shown_at_ < pause) return;
  shown_at_ = now;
  shown_label_ = progress.label;
  if (options_.terminal) {
    EraseLiveLine();
    live_line_ = ShownText(LiveLine(progress, static_cast<size_t>(options_.columns - 1)));
    stream_ << live_line_;
  } else {
    WriteLines("", ProgressText(progress, /*bar=*/false));
  }
  stream_ << std::flush;
}

void Logger::EndProgress() {
  const absl::MutexLock lock(&mutex_);
  if (!live_line_.empty()) stream_ << '\n' << std::flush;
  live_line_.clear();
  shown_label_.clear();
}

LoggerOptions StderrOptions() {
  LoggerOptions options;
  winsize size{};
  options.terminal = isatty(STDERR_FILENO) == 1;
  const bool known = options.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  if (known && size.ws_col > 0) options.columns = size.ws_col;
  return options;
}

std::string ProgressText(const Progress& progress, bool bar) {
  constexpr int kCells = 32;
  std::string text = progress.label;
  if (progress.fraction >= 0.0) {
    const double fraction = std::min(progress.fraction, 1.0);
    const int full = static_cast<int>(fraction * kCells);
    if (bar)
      absl::StrAppend(&text, " [", std::string(full, '#'), std::string(kCells - full, '-'), "]");
    absl::StrAppendFormat(&text, " %3d%%", static_cast<int>(fraction * 100.0));
  }
  if (!progress.figures.empty()) absl::StrAppend(&text, "  ", progress.figures);
  if (progress.seconds_left >= 0.0) {
    absl::StrAppend(&text, "  ", ClockText(progress.seconds_left), " left");
  }
  return text;
}

std::string WithCommas(int64_t value) {
  std::string text = std::to_string(value);
  for (int at = static_cast<int>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    text.insert(at, 1, ',');
  }
  return text;
}

std::string ClockText(double seconds) {
  const int64_t total = std::llround(seconds);
  const int64_t hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  if (hours > 0) return absl::StrFormat("%d:%02d:%02d", hours, minutes, rest);
  return absl::StrFormat("%d:%02d", minutes, rest);
}

}  // namespace deepnet
