#include "launch/defaults.h"

#include <algorithm>

namespace deepnet {
namespace {

constexpr int64_t kInstrumentSteps = 100;  // at these a record costs 0.5 % of small steps

// Fills fields whose 0 means "not set"; a field that may be 0 is `optional` in the proto.
template <typename Message, typename Value>
void Fill(Message& message, Value (Message::*get)() const, void (Message::*set)(Value),
          Value value) {
  if ((message.*get)() == Value{}) (message.*set)(value);
}

void FillModel(ModelSpec& model) {
  Fill(model, &ModelSpec::max_positions, &ModelSpec::set_max_positions, 1024);
  Fill(model, &ModelSpec::layer_norm_epsilon, &ModelSpec::set_layer_norm_epsilon, 1e-5);
}

void FillData(Architecture architecture, DataSpec& data) {
  if (architecture == ENCODER_ONLY) {
    Fill(data, &DataSpec::mlm_probability, &DataSpec::set_mlm_probability, 0.15);
  }
  Fill(data, &DataSpec::global_microbatches, &DataSpec::set_global_microbatches, 1);
  Fill(data, &DataSpec::max_sentence_tokens, &DataSpec::set_max_sentence_tokens, 250);
  if (data.temperature().empty()) data.add_temperature()->set_temperature(1.0);
  MicrobatchSpec& microbatch = *data.mutable_microbatch();
  const int target_tokens = microbatch.max_target_tokens();
  Fill(microbatch, &MicrobatchSpec::max_sentences, &MicrobatchSpec::set_max_sentences,
       std::max(target_tokens > 0 ? 1 : 0, target_tokens / 4));
}

void FillOptim(OptimSpec& optim) {
  if (!optim.has_initial_learning_rate()) optim.set_initial_learning_rate(1e-7);
  if (!optim.has_warmup_steps()) optim.set_warmup_steps(4000);
  if (!optim.has_beta1()) optim.set_beta1(0.9);
  if (!optim.has_beta2()) optim.set_beta2(0.98);
  if (!optim.has_label_smoothing()) optim.set_label_smoothing(0.1);
  Fill(optim, &OptimSpec::epsilon, &OptimSpec::set_epsilon, 1e-8);
}

void FillTrain(TrainSpec& train) {
  using Spec = TrainSpec;
  Fill<Spec, int64_t>(train, &Spec::checkpoint_every_steps, &Spec::set_checkpoint_every_steps,
                      1000);
  Fill<Spec, int64_t>(train, &Spec::validate_every_steps, &Spec::set_validate_every_steps, 1000);
  Fill(train, &Spec::validate_sentences, &Spec::set_validate_sentences, 200);
  Fill(train, &Spec::keep_checkpoints, &Spec::set_keep_checkpoints, 3);
  Fill<Spec, int64_t>(train, &Spec::log_every_steps, &Spec::set_log_every_steps, 10);
}

void FillDecode(DecodeSpec& decode) {
  if (!decode.has_length_penalty()) decode.set_length_penalty(1.0);
  Fill(decode, &DecodeSpec::beam_size, &DecodeSpec::set_beam_size, 5);
  Fill(decode, &DecodeSpec::max_tokens, &DecodeSpec::set_max_tokens, 200);
  Fill(decode, &DecodeSpec::batch_tokens, &DecodeSpec::set_batch_tokens, 2000);
  Fill(decode, &DecodeSpec::nbest, &DecodeSpec::set_nbest, 1);
}

void FillPrepare(PrepareSpec& prepare) {
  for (TextFiles& text : *prepare.mutable_text()) {
    if (text.split().empty()) text.set_split("train");
  }
  for (LanguageTable& table : *prepare.mutable_table()) {
    if (table.pivot_language().empty()) table.set_pivot_language("en");
    Fill(table, &LanguageTable::dev_percent, &LanguageTable::set_dev_percent, 5);
    Fill(table, &LanguageTable::test_percent, &LanguageTable::set_test_percent, 5);
  }
  Fill(prepare, &PrepareSpec::threads, &PrepareSpec::set_threads, 2);
  CleaningSpec& cleaning = *prepare.mutable_cleaning();
  Fill(cleaning, &CleaningSpec::max_sentence_tokens, &CleaningSpec::set_max_sentence_tokens, 250);
  Fill(cleaning, &CleaningSpec::max_length_ratio, &CleaningSpec::set_max_length_ratio, 3.0);
  TokenizerSpec& tokenizer = *prepare.mutable_tokenizer();
  using Spec = TokenizerSpec;
  Fill(tokenizer, &Spec::vocab_size, &Spec::set_vocab_size, 8000);
  Fill(tokenizer, &Spec::character_coverage, &Spec::set_character_coverage, 1.0);
  Fill<Spec, int64_t>(tokenizer, &Spec::input_sentence_size, &Spec::set_input_sentence_size,
                      1000000);
  Fill(tokenizer, &Spec::sample_temperature, &Spec::set_sample_temperature, 5.0);
  if (tokenizer.type().empty()) tokenizer.set_type("unigram");
}

}  // namespace

RunSpec WithDefaults(RunSpec run) {
  FillModel(*run.mutable_model());
  FillData(run.model().architecture(), *run.mutable_data());
  FillOptim(*run.mutable_optim());
  Fill(*run.mutable_compute(), &ComputeSpec::residual_dtype, &ComputeSpec::set_residual_dtype,
       FLOAT32);
  FillTrain(*run.mutable_train());
  FillDecode(*run.mutable_decode());
  FillPrepare(*run.mutable_prepare());
  if (run.has_instruments() && !run.instruments().has_every_steps()) {
    run.mutable_instruments()->set_every_steps(kInstrumentSteps);
  }
  return run;
}

}  // namespace deepnet
