#include "launch/validate_data.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "trainer/kernels/native/attention.h"

namespace deepnet {
namespace {

// Tokens that a packed sentence has besides its pieces.
int SourceExtra() { return 2; }  // tag and </s>
int TargetExtra(const DataSpec& data, Architecture architecture) {
  if (architecture == ENCODER_ONLY) return SourceExtra();  // whose source is what has labels
  return data.tags() == M2M ? 2 : 1;
}

void CheckMicrobatch(const DataSpec& data, Architecture architecture, Mistakes* mistakes) {
  const MicrobatchSpec& microbatch = data.microbatch();
  if (!mistakes->Require(microbatch.target_tokens() >= 1, "data.microbatch.target_tokens",
                         microbatch.target_tokens(), "required, at least 1")) {
    return;
  }
  mistakes->Require(microbatch.sentences() >= 1, "data.microbatch.sentences",
                    microbatch.sentences(), "must be at least 1");
  const auto holds = [&](const char* name, int capacity, int extra) {
    mistakes->Require(
        capacity >= data.max_tokens() + extra, absl::StrCat("data.microbatch.", name), capacity,
        absl::StrCat("must hold the longest sentence: data.max_tokens (", data.max_tokens(),
                     ") and ", extra, " more; raise it, or lower data.max_tokens"));
  };
  if (architecture != ENCODER_DECODER) {
    mistakes->Require(
        microbatch.source_tokens() == 0, "data.microbatch.source_tokens",
        microbatch.source_tokens(),
        absl::StrCat("must be 0 with model.architecture: ", Architecture_Name(architecture),
                     ", whose one stack has target_tokens"));
  } else if (microbatch.source_tokens() != 0) {  // 0: chosen from the corpus, large enough
    holds("source_tokens", microbatch.source_tokens(), SourceExtra());
  }
  holds("target_tokens", microbatch.target_tokens(), TargetExtra(data, architecture));
}

void CheckTemperature(const DataSpec& data, Mistakes* mistakes) {
  int64_t previous = -1;
  for (int i = 0; i < data.temperature_size(); ++i) {
    const TemperaturePoint& point = data.temperature(i);
    const std::string name = absl::StrCat("data.temperature[", i, "].");
    const bool first = i == 0;
    mistakes->Require(first ? point.from_step() == 0 : point.from_step() > previous,
                      name + "from_step", point.from_step(),
                      first ? "the first point must say 0" : "must be above the point before");
    mistakes->Require(point.temperature() >= 1, name + "temperature", point.temperature(),
                      "must be at least 1");
    previous = point.from_step();
  }
}

void CheckDirections(const DataSpec& data, Mistakes* mistakes) {
  std::set<std::string> seen;
  for (int i = 0; i < data.directions_size(); ++i) {
    const std::string& direction = data.directions(i);
    const std::string name = absl::StrCat("data.directions[", i, "]");
    const std::vector<std::string> sides = absl::StrSplit(direction, '-');
    const bool good = sides.size() == 2 && IsLanguage(sides[0]) && IsLanguage(sides[1]);
    mistakes->Require(good, name, direction, "must be two language tags, as in 'de-en'");
    if (good) {
      mistakes->Require(sides[0] != sides[1], name, direction, "must be two different languages");
    }
    mistakes->Require(seen.insert(direction).second, name, direction, "is listed twice");
  }
}

void CheckMaskedShare(const RunSpec& run, Mistakes* mistakes) {
  const double share = run.data().masked_share();
  if (run.model().architecture() == ENCODER_ONLY) {
    mistakes->Require(share > 0 && share < 1, "data.masked_share", share,
                      "must be above 0 and below 1");
  } else {
    mistakes->Require(share == 0, "data.masked_share", share,
                      "only with model.architecture: ENCODER_ONLY");
  }
}

}  // namespace

void CheckData(const RunSpec& run, Mistakes* mistakes) {
  const DataSpec& data = run.data();
  CheckTemperature(data, mistakes);
  CheckMaskedShare(run, mistakes);
  if (mistakes->Require(data.max_tokens() >= 1, "data.max_tokens", data.max_tokens(),
                        "must be at least 1")) {
    CheckMicrobatch(data, run.model().architecture(), mistakes);
    const int longest = data.max_tokens() + 2;
    mistakes->Require(run.model().max_positions() < 1 || run.model().max_positions() >= longest,
                      "model.max_positions", run.model().max_positions(),
                      absl::StrCat("must be at least data.max_tokens + 2 (", longest, ")"));
    const int64_t most = native::kMaxAttentionKeys - SourceExtra();
    mistakes->Require(
        run.model().attention_dropout() <= 0 || data.max_tokens() <= most, "data.max_tokens",
        data.max_tokens(),
        absl::StrCat("must be at most ", most, " with model.attention_dropout: its random numbers ",
                     "know ", native::kMaxAttentionKeys, " keys"));
  }
  mistakes->Require(data.microbatches_per_step() >= 1, "data.microbatches_per_step",
                    data.microbatches_per_step(), "must be at least 1");
  CheckDirections(data, mistakes);
}

}  // namespace deepnet
