#include "launch/defaults.h"

#include <algorithm>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/messages.h"

namespace deepnet {
namespace {

// A field whose 0 means something is `optional` in the proto, so that merging keeps it.
constexpr char kDefaults[] = R"(
  model { max_positions: 1024 layer_norm_epsilon: 1e-5 }
  data { microbatch {} global_microbatches: 1 max_sentence_tokens: 250 }
  optim {
    initial_learning_rate: 1e-7 warmup_steps: 4000 beta1: 0.9 beta2: 0.98 epsilon: 1e-8
    label_smoothing: 0.1
  }
  compute { residual_dtype: FLOAT32 }
  train {
    checkpoint_every_steps: 1000 validate_every_steps: 1000 validate_sentences: 200
    keep_checkpoints: 3 log_every_steps: 10 tensorboard: true sample_translations: 3
  }
  decode { beam_size: 5 length_penalty: 1 max_tokens: 200 nbest: 1 }
  prepare {
    cleaning { max_sentence_tokens: 250 max_length_ratio: 3 }
    tokenizer {
      vocab_size: 8000 character_coverage: 1 input_sentence_size: 1000000 type: "unigram"
      sample_temperature: 5
    }
    threads: 2
  })";
constexpr char kTextDefaults[] = R"(split: "train")";
constexpr char kTableDefaults[] = R"(pivot_language: "en" dev_percent: 5 test_percent: 5)";
constexpr char kSpikeDefaults[] = R"(
  window_steps: 128 steps_before: 10 steps_after: 10 max_roll_backs: 10)";
constexpr int64_t kInstrumentSteps = 100;  // at these a record costs 0.5 % of small steps

// Gives the fields of `message` that are not set the values in `defaults`, a textproto.
template <typename Message>
void Fill(const char* defaults, Message* message) {
  Message filled;
  DEEPNET_CHECK(ParseTextProto(defaults, &filled));
  filled.MergeFrom(*message);
  *message = std::move(filled);
}

}  // namespace

RunSpec WithDefaults(RunSpec run) {
  Fill(kDefaults, &run);
  for (TextFiles& text : *run.mutable_prepare()->mutable_text()) Fill(kTextDefaults, &text);
  for (LanguageTable& table : *run.mutable_prepare()->mutable_table()) Fill(kTableDefaults, &table);
  if (run.train().spike().deviations() > 0)
    Fill(kSpikeDefaults, run.mutable_train()->mutable_spike());
  OptimSpec& optim = *run.mutable_optim();
  if (optim.schedule() == WSD && optim.wsd_decay_steps() == 0) {
    optim.set_wsd_decay_steps(std::max<int64_t>(1, optim.decay_steps() / 10));
  }
  DataSpec& data = *run.mutable_data();
  if (run.model().architecture() == ENCODER_ONLY && data.mlm_probability() == 0) {
    data.set_mlm_probability(0.15);
  }
  if (data.subword_alpha() > 0 && data.subword_nbest() == 0) data.set_subword_nbest(64);
  if (data.temperature().empty()) data.add_temperature()->set_temperature(1.0);
  MicrobatchSpec& microbatch = *data.mutable_microbatch();
  if (const int tokens = microbatch.max_target_tokens(); tokens > 0) {
    const int pairs = microbatch.max_sentences();  // each has a target token at least
    microbatch.set_max_sentences(pairs == 0 ? std::max(1, tokens / 4) : std::min(pairs, tokens));
  }
  if (run.has_instruments() && !run.instruments().has_every_steps()) {
    run.mutable_instruments()->set_every_steps(kInstrumentSteps);
  }
  return run;
}

}  // namespace deepnet
