#include "trainer/eval/evaluate_share.h"

#include <cstring>

#include "absl/strings/str_split.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// Two int64, the doubles as they are, then a line for each hypothesis. Ranks of a job run the same
// binary.
std::string Pack(const SentenceScores& scores) {
  const int64_t head[] = {scores.num_tokens, static_cast<int64_t>(scores.log_probabilities.size())};
  const size_t doubles = scores.log_probabilities.size() * sizeof(double);
  std::string bytes(sizeof(head) + doubles, '\0');
  std::memcpy(bytes.data(), head, sizeof(head));
  if (doubles > 0) {
    std::memcpy(bytes.data() + sizeof(head), scores.log_probabilities.data(), doubles);
  }
  for (const std::string& hypothesis : scores.hypotheses) bytes += hypothesis + "\n";
  return bytes;
}

void Append(std::string_view bytes, SentenceScores& scores) {
  int64_t head[2];
  std::memcpy(head, bytes.data(), sizeof(head));
  bytes.remove_prefix(sizeof(head));
  scores.num_tokens += head[0];
  const size_t before = scores.log_probabilities.size(), count = static_cast<size_t>(head[1]);
  scores.log_probabilities.resize(before + count);
  if (count > 0) {
    std::memcpy(&scores.log_probabilities[before], bytes.data(), count * sizeof(double));
  }
  bytes.remove_prefix(count * sizeof(double));
  if (bytes.empty()) return;
  bytes.remove_suffix(1);  // the last line's end
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(bytes.data(), bytes.size()), '\n')) {
    scores.hypotheses.emplace_back(line);
  }
}

}  // namespace

SentenceRange RangeOf(const EvaluateShare& share, size_t num_sentences) {
  const size_t part = static_cast<size_t>(share.part), parts = static_cast<size_t>(share.num_parts);
  return {num_sentences * part / parts, num_sentences * (part + 1) / parts};
}

absl::StatusOr<SentenceScores> Gather(const EvaluateShare& share,
                                      const absl::StatusOr<SentenceScores>& mine) {
  if (share.num_parts == 1) return mine;
  ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                   share.gather(mine.ok() ? absl::StatusOr<std::string>(Pack(*mine))
                                          : absl::StatusOr<std::string>(mine.status())));
  SentenceScores all;
  for (const std::string& part : parts) Append(part, all);
  return all;
}

}  // namespace deepnet
