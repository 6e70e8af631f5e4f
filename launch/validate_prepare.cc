#include "launch/validate_prepare.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace deepnet {
namespace {

void CheckText(const TextFiles& text, const std::string& name, Mistakes* mistakes) {
  const bool languages =
      mistakes->Require(IsLanguage(text.source_language()), name + "source_language",
                        text.source_language(), kLanguageNeeded) &
      mistakes->Require(IsLanguage(text.target_language()), name + "target_language",
                        text.target_language(), kLanguageNeeded);
  if (languages) {
    mistakes->Require(text.source_language() != text.target_language(), name + "target_language",
                      text.target_language(), "must differ from source_language");
  }
  const bool moses = !text.source_file().empty() || !text.target_file().empty();
  if (!text.tsv_file().empty()) {
    mistakes->Require(!moses, name + "tsv_file", text.tsv_file(),
                      "not together with source_file and target_file");
    mistakes->Require(text.score_file().empty(), name + "score_file", text.score_file(),
                      "not with tsv_file, which has a column for it");
  } else {
    const char* needed = "required, or tsv_file instead of source_file and target_file";
    mistakes->Require(!text.source_file().empty(), name + "source_file", text.source_file(),
                      needed);
    mistakes->Require(!text.target_file().empty(), name + "target_file", text.target_file(),
                      needed);
  }
  mistakes->Require(text.split() == "train" || text.split() == "dev" || text.split() == "test",
                    name + "split", text.split(), "must be 'train', 'dev' or 'test'");
}

void CheckTable(const LanguageTable& table, const std::string& name, Mistakes* mistakes) {
  mistakes->Require(!table.file().empty(), name + "file", table.file(), "required");
  mistakes->Require(IsLanguage(table.pivot_language()), name + "pivot_language",
                    table.pivot_language(), kLanguageNeeded);
  for (int i = 0; i < table.languages_size(); ++i) {
    mistakes->Require(IsLanguage(table.languages(i)), absl::StrCat(name, "languages[", i, "]"),
                      table.languages(i), kLanguageNeeded);
  }
  const auto percent = [&](const char* field, int value) {
    mistakes->Require(value >= -1 && value <= 50, name + field, value,
                      "must be from 1 to 50, or -1: none");
  };
  percent("dev_percent", table.dev_percent());
  percent("test_percent", table.test_percent());
}

void CheckTokenizer(const TokenizerSpec& tokenizer, Mistakes* mistakes) {
  if (!tokenizer.model_file().empty()) return;  // nothing is learned
  mistakes->Require(tokenizer.pieces() > 4, "prepare.tokenizer.pieces", tokenizer.pieces(),
                    "must be above 4 (the special ids)");
  mistakes->Require(tokenizer.character_coverage() > 0 && tokenizer.character_coverage() <= 1,
                    "prepare.tokenizer.character_coverage", tokenizer.character_coverage(),
                    "must be above 0 and at most 1");
  mistakes->Require(tokenizer.sample_sentences() >= 1, "prepare.tokenizer.sample_sentences",
                    tokenizer.sample_sentences(), "must be at least 1");
  mistakes->Require(tokenizer.sample_temperature() >= 1, "prepare.tokenizer.sample_temperature",
                    tokenizer.sample_temperature(), "must be at least 1");
  mistakes->Require(tokenizer.type() == "unigram" || tokenizer.type() == "bpe",
                    "prepare.tokenizer.type", tokenizer.type(), "must be 'unigram' or 'bpe'");
}

}  // namespace

void CheckPrepare(const RunSpec& run, Mistakes* mistakes) {
  const PrepareSpec& prepare = run.prepare();
  mistakes->Require(
      !prepare.opus100_folder().empty() || prepare.text_size() > 0 || prepare.table_size() > 0,
      "prepare.opus100_folder", prepare.opus100_folder(),
      "required, or prepare.text or prepare.table: there is nothing to read");
  mistakes->Require(prepare.languages().empty() || !prepare.opus100_folder().empty(),
                    "prepare.languages", absl::StrJoin(prepare.languages(), ","),
                    "only with prepare.opus100_folder");
  for (int i = 0; i < prepare.languages_size(); ++i) {
    mistakes->Require(IsLanguage(prepare.languages(i)), absl::StrCat("prepare.languages[", i, "]"),
                      prepare.languages(i), kLanguageNeeded);
  }
  for (int i = 0; i < prepare.text_size(); ++i) {
    CheckText(prepare.text(i), absl::StrCat("prepare.text[", i, "]."), mistakes);
  }
  for (int i = 0; i < prepare.table_size(); ++i) {
    CheckTable(prepare.table(i), absl::StrCat("prepare.table[", i, "]."), mistakes);
  }
  mistakes->Require(prepare.threads() >= 1, "prepare.threads", prepare.threads(),
                    "must be at least 1");
  mistakes->Require(prepare.cleaning().max_tokens() >= 1, "prepare.cleaning.max_tokens",
                    prepare.cleaning().max_tokens(), "must be at least 1");
  mistakes->Require(prepare.cleaning().max_length_ratio() >= 1, "prepare.cleaning.max_length_ratio",
                    prepare.cleaning().max_length_ratio(), "must be at least 1");
  CheckTokenizer(prepare.tokenizer(), mistakes);
  const std::string& output = prepare.output_folder();
  if (mistakes->Require(!output.empty(), "prepare.output_folder", output,
                        "required, or data.folder")) {
    mistakes->Require(
        run.data().folder().empty() || output == run.data().folder(), "prepare.output_folder",
        output,
        absl::StrCat("must be data.folder ('", run.data().folder(), "') where both are given"));
  }
}

}  // namespace deepnet
