#include "tests/parity/training_runs.h"

#include <unistd.h>

#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include <google/protobuf/util/json_util.h>

#include "launch/defaults.h"
#include "parallel/base/check.h"
#include "proto/report.pb.h"
#include "trainer/data/prepare/prepare.h"

namespace deepnet::testing {

absl::Status MakeCorpus(const std::filesystem::path& root, const std::string& folder,
                        const std::vector<std::string>& languages, int pieces,
                        const std::string& table) {
  RunSpec run;
  LanguageTable& asked = *run.mutable_prepare()->add_table();
  asked.set_file(std::filesystem::absolute(table).string());
  for (const std::string& language : languages) asked.add_languages(language);
  run.mutable_prepare()->mutable_tokenizer()->set_vocab_size(pieces);
  return Prepare(WithDefaults(run).prepare(), folder, root.string(), [](std::string_view) {})
      .status();
}

void CorpusTest::SetUpTestSuite() {
  root_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("deepnet_test_", getpid());
  std::filesystem::create_directories(root_);
  const absl::Status made = MakeCorpus(root_, "corpus", {"de", "fr"}, 300);
  ASSERT_TRUE(made.ok()) << made;
}

ActingBuffer::ActingBuffer(std::string text, std::function<void()> action)
    : text_(std::move(text)), action_(std::move(action)) {}

std::streamsize ActingBuffer::xsputn(const char* bytes, std::streamsize count) {
  const std::streamsize written = std::stringbuf::xsputn(bytes, count);
  if (action_ && str().find(text_) != std::string::npos) std::exchange(action_, nullptr)();
  return written;
}

std::vector<StepFigures> ReadSteps(const std::filesystem::path& metrics) {
  std::ifstream file(metrics);
  std::vector<StepFigures> steps;
  for (std::string line; std::getline(file, line);) {
    StepRecord record;
    if (line.find(R"("kind":"train")") == std::string::npos) continue;
    DEEPNET_CHECK(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
    steps.emplace_back(record.step(), record.loss(), record.nll(), record.gradient_norm());
  }
  return steps;
}

std::string WeightsLine(const std::string& log) {
  const size_t at = log.rfind("weights ");
  return at == log.npos ? "none" : log.substr(at, log.find('\n', at) - at);
}

}  // namespace deepnet::testing
