#include "trainer/decode/batch_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/units.h"
#include "trainer/decode/search.h"

namespace deepnet {
namespace {

constexpr int kCpuTokens = 2000, kGpuTokens = 16000;
constexpr int kCpuRows = 512, kGpuRows = 4096;
constexpr int kLeastTokens = 500;

}  // namespace

int BatchTokens(const DecodeSpec& decode, bool on_gpu) {
  if (decode.batch_tokens() != 0) return decode.batch_tokens();
  return on_gpu ? kGpuTokens : kCpuTokens;
}

MicrobatchSpec DecodeCapacity(const ModelSpec& model, const DecodeSpec& decode, bool on_gpu) {
  const int tokens = std::min(BatchTokens(decode, on_gpu), kMaxBatchTokens);
  MicrobatchSpec capacity;
  if (model.architecture() == ENCODER_DECODER) {
    // On a CPU a batch is one pass, however large.
    const int most = on_gpu ? std::min(tokens, kGpuTokens) : tokens;
    capacity.set_max_source_tokens(std::max(model.max_positions(), most));
  }
  capacity.set_max_target_tokens(std::max(model.max_positions(), on_gpu ? kGpuRows : kCpuRows));
  capacity.set_max_sentences(std::max(capacity.max_source_tokens(), capacity.max_target_tokens()));
  return capacity;
}

absl::StatusOr<BatchLimits> FitBatches(const DecodeSpec& decode, std::span<const ModelSpec> models,
                                       int64_t operand_bytes, int64_t free_bytes) {
  int64_t position_bytes = 0;  // of keys and values of all layers
  for (const ModelSpec& model : models) {
    position_bytes += int64_t{2} * model.d_model() * model.decoder_layers() * operand_bytes;
  }
  const ModelSpec& model = models.front();
  int64_t steps = kFirstCacheSteps;
  // A tag and </s> are fed, too.
  while (steps < std::min(decode.max_tokens() + 2, model.max_positions())) steps *= 2;
  const int rows = decode.sampling_temperature() > 0 ? decode.nbest() : decode.beam_size();
  const int64_t probability_arrays = models.size() > 1 ? 2 : 1;
  const int64_t sentence_bytes =
      rows * (steps * position_bytes +
              probability_arrays * model.vocabulary_size() * static_cast<int64_t>(sizeof(float)));
  const int64_t usable = free_bytes / 10 * 9;
  BatchLimits limits{.batch_tokens = BatchTokens(decode, /*on_gpu=*/true)};
  // A sentence that is longer is a batch by itself.
  const auto source_bytes = [&] {
    return std::max(limits.batch_tokens, model.max_positions()) * position_bytes;
  };
  const bool open = decode.batch_tokens() == 0;
  while (open && limits.batch_tokens > kLeastTokens && 4 * source_bytes() > usable) {
    limits.batch_tokens /= 2;
  }
  if (source_bytes() + sentence_bytes > usable) {
    const bool by_tokens = !open && decode.batch_tokens() > model.max_positions();
    const std::string what = by_tokens
                                 ? absl::StrCat("decode.batch_tokens: ", limits.batch_tokens)
                                 : absl::StrCat("decode.beam_size ", rows, ", decode.max_tokens ",
                                                decode.max_tokens(), ": one sentence");
    return DoesNotFitError(
        absl::StrFormat("%s: keys, values and log-probabilities take up to %.2f GiB, but the GPU "
                        "has room for %.2f GiB",
                        what, static_cast<double>(source_bytes() + sentence_bytes) / kGib,
                        static_cast<double>(usable) / kGib));
  }
  limits.max_sentences = (usable - source_bytes()) / sentence_bytes;
  return limits;
}

}  // namespace deepnet
