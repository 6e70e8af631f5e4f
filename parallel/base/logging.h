// Lines for people, one Logger a rank. Results for programs go elsewhere (stdout, metrics.jsonl).
//
// On a terminal a live line with a bar stays below the last message and is redrawn in place; in a
// file or a pipe the same figures are plain lines.
//
// Example, on rank 3 of 8:
//   log.Info("resumed at step 1,200");           // 12:03:07 [3/8] resumed at step 1,200
//   log.Show({.label = "train", .fraction = 0.25, .figures = "loss 4.31", .seconds_left = 340});
//   // On a terminal: train [########------------------------]  25%  loss 4.31  5:40 left
//   // In a file:     12:03:07 [3/8] train  25%  loss 4.31  5:40 left
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "parallel/base/clock.h"

namespace deepnet {

// How far a long piece of work has come.
struct Progress {
  std::string label = {};      // "train", "prepare: cleaning"
  double fraction = -1.0;      // 0 to 1; negative: unknown, no bar
  std::string figures = {};    // what else there is to say
  double seconds_left = -1.0;  // negative: unknown, not shown
};

std::string LocalTimeOfDay();  // "12:03:07"

struct LoggerOptions {
  int rank = 0;
  int num_ranks = 1;                             // 1: lines carry no rank
  bool warnings_only = false;                    // Info and Show say nothing
  std::ostream* stream = &std::cerr;             // borrowed
  bool terminal = false;                         // whether the stream can redraw its last line
  int columns = 100;                             // of the terminal; a longer live line is cut off
  double redraw_seconds = 0.1;                   // the live line changes at most this often
  double plain_seconds = 0.0;                    // elsewhere: a line of progress at most this often
  std::function<double()> seconds = SecondsNow;  // a clock that only runs forward
  std::function<std::string()> time_of_day = LocalTimeOfDay;
};

// All methods may be called from several threads.
class Logger {
 public:
  explicit Logger(LoggerOptions options = {});
  ~Logger();  // as EndProgress()

  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // Writes one message; every line of it gets the time and the rank. Here and below control
  // characters are shown as ShownLines (utf8.h) shows them.
  void Info(std::string_view message) {
    if (!options_.warnings_only) Say("", message);
  }
  void Warning(std::string_view message) { Say("warning: ", message); }

  // Shows the state now; too frequent calls are dropped. A new label or a fraction of 1 is never
  // dropped.
  void Show(const Progress& progress);

  // Ends the live line, so that what follows starts on a new one.
  void EndProgress();

 private:
  void Say(std::string_view prefix, std::string_view message);
  void WriteLines(std::string_view prefix, std::string_view message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseLiveLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LoggerOptions options_;
  std::ostream& stream_;  // written with mutex_ held
  absl::Mutex mutex_;
  std::string live_line_ ABSL_GUARDED_BY(mutex_);    // what stands there now; empty: none
  std::string shown_label_ ABSL_GUARDED_BY(mutex_);  // of the last progress that was shown
  double shown_at_ ABSL_GUARDED_BY(mutex_) = 0.0;    // seconds of the clock
};

// Returns options for stderr as it is now: terminal or not, and how wide.
LoggerOptions StderrOptions();

// "25%  loss 4.31  5:40 left", with a bar after the label if `bar`.
std::string ProgressText(const Progress& progress, bool bar);

// 1234567 -> "1,234,567".
std::string WithCommas(int64_t value);

// 5 -> "0:05", 340 -> "5:40", 7265 -> "2:01:05".
std::string ClockText(double seconds);

}  // namespace deepnet
