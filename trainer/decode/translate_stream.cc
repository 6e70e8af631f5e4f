#include "trainer/decode/translate_stream.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/status_macros.h"

namespace deepnet {

absl::StatusOr<TranslateStreamReport> TranslateStream(LineChunkReader& in, Translator& translator,
                                                      const TranslateStreamOptions& options,
                                                      std::ostream& out) {
  const bool numbered = translator.options().search.nbest > 1;
  TranslateStreamReport report;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, in.ReadChunk(options.chunk_lines));
    if (lines.empty()) return report;
    ASSIGN_OR_RETURN(const std::vector<Translation> translations,
                     translator.Translate(lines, report.num_lines));
    for (const Translation& translation : translations) {
      ++report.num_lines;
      report.num_tokens += translation.best.front().num_tokens;
      report.num_cut_sources += translation.source_cut ? 1 : 0;
      for (const TranslatedText& text : translation.best) {
        if (numbered) out << report.num_lines << '\t';
        if (options.scores) out << absl::StrFormat("%.6f\t", text.score);
        out << text.text << '\n';
      }
    }
    out.flush();
    if (!out) return absl::UnavailableError("cannot write translations: output is closed or full");
  }
}

}  // namespace deepnet
