// Helpers of tests that train: a small corpus, a look at the log while it is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include <gtest/gtest.h>

namespace deepnet::testing {

// Tables of translated sentences, relative to the repository's root: a few lines in few languages,
// and the one that comes with the program.
inline constexpr char kFewSentences[] = "tests/trainer/data/testdata/udhr.tsv";
inline constexpr char kAllLanguages[] = "launch/corpora/udhr.tsv";

// Prepares `languages` of `table` into root/folder, with a tokenizer of `pieces` pieces.
absl::Status MakeCorpus(const std::filesystem::path& root, const std::string& folder,
                        const std::vector<std::string>& languages, int pieces,
                        const std::string& table = kFewSentences);

// A suite whose tests train on one corpus of two languages, which is made once, as "corpus" in a
// folder of this process.
class CorpusTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  static inline std::filesystem::path root_;
};

// Calls `action` once, as soon as `text` has been written, in the writer's thread.
class ActingBuffer : public std::stringbuf {
 public:
  ActingBuffer(std::string text, std::function<void()> action);

 protected:
  std::streamsize xsputn(const char* bytes, std::streamsize count) override;

 private:
  const std::string text_;
  std::function<void()> action_;
};

// Step, loss, nll and gradient norm of a training step in a metrics.jsonl.
using StepFigures = std::tuple<int64_t, double, double, double>;
std::vector<StepFigures> ReadSteps(const std::filesystem::path& metrics);

// "weights 0123456789abcdef", the hash that a run ends its log with; "none" where it did not.
std::string WeightsLine(const std::string& log);

}  // namespace deepnet::testing
