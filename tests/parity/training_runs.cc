#include "tests/parity/training_runs.h"

#include <string_view>
#include <utility>

#include "launch/defaults.h"
#include "trainer/data/prepare.h"

namespace deepnet::testing {

absl::Status MakeCorpus(const std::filesystem::path& root, const std::string& folder,
                        const std::vector<std::string>& languages, int pieces,
                        const std::string& table) {
  RunSpec run;
  LanguageTable& asked = *run.mutable_prepare()->add_table();
  asked.set_file(std::filesystem::absolute(table).string());
  for (const std::string& language : languages) asked.add_languages(language);
  run.mutable_prepare()->set_output_folder(folder);
  run.mutable_prepare()->mutable_tokenizer()->set_pieces(pieces);
  return Prepare(WithDefaults(run).prepare(), root.string(), [](std::string_view) {}).status();
}

ActingBuffer::ActingBuffer(std::string text, std::function<void()> action)
    : text_(std::move(text)), action_(std::move(action)) {}

std::streamsize ActingBuffer::xsputn(const char* bytes, std::streamsize count) {
  const std::streamsize written = std::stringbuf::xsputn(bytes, count);
  if (action_ && str().find(text_) != std::string::npos) std::exchange(action_, nullptr)();
  return written;
}

std::string WeightsLine(const std::string& log) {
  const size_t at = log.rfind("weights ");
  return at == log.npos ? "none" : log.substr(at, log.find('\n', at) - at);
}

}  // namespace deepnet::testing
