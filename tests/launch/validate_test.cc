#include "launch/validate.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// A RunSpec without a mistake, changed by --set, with defaults.
RunSpec Spec(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {
      "folder=runs/a",
      "model=encoder_layers: 2 decoder_layers: 2 d_model: 64 ffn_dim: 128 num_heads: 4 "
      "residual: DEEPNORM vocabulary_size: 1000",
      "data=folder: 'corpus' microbatch { max_target_tokens: 500 } global_microbatches: 4",
      "optim.learning_rate=1e-3", "prepare.opus100_folder=raw"};
  all.insert(all.end(), sets.begin(), sets.end());
  const auto run = ReadRunSpec({.sets = all}, RunSpec());
  EXPECT_TRUE(run.ok()) << run.status();
  return WithDefaults(run.value_or(RunSpec()));
}

std::string TrainError(const std::vector<std::string>& sets) {
  const absl::Status status = ValidateForTrain(Spec(sets));
  EXPECT_EQ(GetExitCode(status), status.ok() ? ExitCode::kDone : ExitCode::kBadConfig);
  return std::string(status.message());
}

std::string PrepareError(const std::vector<std::string>& sets) {
  return std::string(ValidateForPrepare(Spec(sets)).message());
}

// A change and the line that must come of it, alone.
struct Case {
  std::vector<std::string> sets;
  std::string line;
};

TEST(Validate, ARightRunPassesAllThree) {
  EXPECT_EQ(ValidateForTrain(Spec({})), absl::OkStatus());
  EXPECT_EQ(ValidateForPlan(Spec({})), absl::OkStatus());
  EXPECT_EQ(ValidateForPrepare(Spec({})), absl::OkStatus());
}

TEST(Validate, AModelOfOneStackIsRightWithoutTheOther) {
  EXPECT_EQ(ValidateForTrain(Spec({"model.architecture=DECODER_ONLY", "model.encoder_layers=0"})),
            absl::OkStatus());
  const RunSpec masked = Spec({"model.architecture=ENCODER_ONLY", "model.decoder_layers=0"});
  EXPECT_EQ(ValidateForTrain(masked), absl::OkStatus());
  EXPECT_EQ(masked.data().mlm_probability(), 0.15);
}

TEST(Validate, EveryModelRuleNamesItsField) {
  const std::vector<Case> cases = {
      {{"model.encoder_layers=0"}, "model.encoder_layers: 0: must be at least 1"},
      {{"model.decoder_layers=-3"}, "model.decoder_layers: -3: must be at least 1"},
      {{"model.architecture=DECODER_ONLY"},
       "model.encoder_layers: 2: with model.architecture: DECODER_ONLY: must be 0"},
      {{"model.architecture=ENCODER_ONLY"},
       "model.decoder_layers: 2: with model.architecture: ENCODER_ONLY: must be 0"},
      {{"model.architecture=ENCODER_ONLY", "model.encoder_layers=0", "model.decoder_layers=0"},
       "model.encoder_layers: 0: must be at least 1"},
      {{"model.architecture=ENCODER_ONLY", "model.decoder_layers=0",
        "model.deepnorm=decoder_alpha: 2"},
       "model.deepnorm.decoder_alpha: 2: with model.architecture: ENCODER_ONLY: must be 0"},
      {{"model.architecture=DECODER_ONLY", "model.encoder_layers=0",
        "data.microbatch.max_source_tokens=500"},
       "data.microbatch.max_source_tokens: 500: must be 0 with model.architecture: DECODER_ONLY, "
       "whose "
       "one stack has max_target_tokens"},
      {{"data.mlm_probability=0.2"},
       "data.mlm_probability: 0.2: only with model.architecture: ENCODER_ONLY"},
      {{"model.architecture=ENCODER_ONLY", "model.decoder_layers=0", "data.mlm_probability=1"},
       "data.mlm_probability: 1: must be above 0 and below 1"},
      {{"model.d_model=0"}, "model.d_model: 0: must be at least 1"},
      {{"model.d_model=65", "model.num_heads=5"},
       "model.d_model: 65: must be even and at least 4 with positions: SINUSOIDAL"},
      {{"model.positions=LEARNED", "model.d_model=3", "model.num_heads=3"},
       "model.d_model: 3: must be at least 4"},
      {{"model.d_model=1024", "model.num_heads=1024", "model.attention_dropout=0.1"},
       "model.num_heads: 1024: must be at most 512 with model.attention_dropout"},
      {{"model.ffn_dim=0"}, "model.ffn_dim: 0: must be at least 1"},
      {{"model.num_heads=0"}, "model.num_heads: 0: must be at least 1"},
      {{"model.num_heads=7"}, "model.num_heads: 7: must divide model.d_model (64)"},
      {{"model.residual="},
       "model.residual: RESIDUAL_UNSPECIFIED: required: one of DEEPNORM, POST_LN, PRE_LN, "
       "POST_LN_INIT, DS_INIT, ADMIN, REZERO, R_FIXUP, T_FIXUP, NORMFORMER, SUB_LN, RESIDUAL_ONLY, "
       "NORM_ONLY, NEITHER, B2T, MIX_LN, LAYERNORM_SCALING, PERI_LN, KEEL, DLCL, "
       "RESIDUAL_DUAL, BRANCH_NORM"},
      {{"model.residual=99"}, "model.residual: 99: is no value of Residual"},
      {{"model.scheme=ds_exponent: 0.25"},
       "model.scheme.ds_exponent: DEEPNORM: only with model.residual: DS_INIT"},
      {{"model.residual=MIX_LN", "model.scheme=mix_ln_fraction: 2"},
       "model.scheme.mix_ln_fraction: 2: must be from 0 to 1; 0 stands for 0.25"},
      {{"model.residual=ADMIN", "model.scheme=admin_omega: 1"},
       "model.scheme.admin_omega: 1: must have a number for each of the 10 sub-layers, or none"},
      {{"model.scheme=branch_norm_steps: 100"},
       "model.scheme.branch_norm_steps: DEEPNORM: only with model.residual: BRANCH_NORM"},
      {{"model.residual=RESIDUAL_DUAL", "model.scheme=residual_dual_scale: -1"},
       "model.scheme.residual_dual_scale: -1: must be above 0, or 0 for 1"},
      {{"model.residual=POST_LN", "model.deepnorm=encoder_alpha: 2"},
       "model.deepnorm: POST_LN: only with model.residual: DEEPNORM"},
      {{"model.deepnorm=decoder_beta: -1"},
       "model.deepnorm.decoder_beta: -1: must be above 0, or 0 for the formula"},
      {{"model.vocabulary_size=4"},
       "model.vocabulary_size: 4: must be above 4 (the special ids), or 0: taken from the corpus"},
      {{"model.max_positions=251", "decode.max_tokens=200"},
       "model.max_positions: 251: must be at least data.max_sentence_tokens + 2 (252)"},
      {{"model.dropout=1"}, "model.dropout: 1: must be at least 0 and below 1"},
      {{"model.attention_dropout=-0.1"},
       "model.attention_dropout: -0.1: must be at least 0 and below 1"},
      {{"model.activation_dropout=2"},
       "model.activation_dropout: 2: must be at least 0 and below 1"},
      {{"model.layer_norm_epsilon=-1"}, "model.layer_norm_epsilon: -1: must be above 0"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
}

TEST(Validate, LimitsOfAttentionDropoutHoldOnlyWhereWeightsAreDropped) {
  const std::vector<std::string> large = {
      "model.d_model=4096", "model.num_heads=1024", "data.max_sentence_tokens=5000",
      "model.max_positions=8192", "data.microbatch.max_target_tokens=8192"};
  EXPECT_EQ(TrainError(large), "");
  EXPECT_EQ(TrainError({"data.max_sentence_tokens=4094", "data.microbatch.max_target_tokens=8192",
                        "model.max_positions=8192", "model.attention_dropout=0.1"}),
            "");
}

TEST(Validate, WhatIsRightBesideARuleThatItDoesNotBreakPasses) {
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"data.directions=de-en", "data.weights=direction: 'de-en' weight: 2"},
           {"compute.device=cuda", "compute.dtype=FLOAT16", "optim.fp16_init_scale=2"},
           {"optim.schedule=COSINE", "optim.warmup_steps=100", "optim.decay_steps=101"}}) {
    EXPECT_EQ(TrainError(sets), "") << sets[0];
  }
}

TEST(Validate, EdgesOfRulesAreNamed) {
  const std::vector<Case> cases = {
      {{"optim.schedule=COSINE", "optim.warmup_steps=100", "optim.decay_steps=100"},
       "optim.decay_steps: 100: COSINE needs it, above optim.warmup_steps (100)"},
      {{"compute.dtype=FLOAT32", "optim.fp16_init_scale=2"},
       "optim.fp16_init_scale: 2: only with compute.dtype: FLOAT16"},
      {{"optim.ema_decay=1"}, "optim.ema_decay: 1: must be at least 0 and below 1"},
      {{"model.num_heads=0", "compute.device=cuda"}, "model.num_heads: 0: must be at least 1"},
      {{"train.keep_every_steps=-1"}, "train.keep_every_steps: -1: must be above 0, or 0: off"},
      {{"train.exit_after_minutes=-1"},
       "train.exit_after_minutes: -1: must be above 0, or 0: until the batch system ends the job"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
  EXPECT_EQ(
      PrepareError({"prepare.text=source_language: 'de' target_language: 'en' target_file: 't'"}),
      "prepare.text[0].source_file: '': required, or tsv_file instead of source_file and "
      "target_file");
  EXPECT_THAT(PrepareError({"prepare.text=tsv_file: 't'"}),
              ::testing::Not(HasSubstr("must differ from")));
}

TEST(Validate, ANumberThatIsNoneIsNamed) {
  EXPECT_THAT(TrainError({"optim.learning_rate=nan"}),
              HasSubstr("optim.learning_rate: nan: must be finite"));
  EXPECT_THAT(TrainError({"data.temperature=temperature: inf"}),
              HasSubstr("data.temperature[0].temperature: inf: must be finite"));
}

TEST(Validate, ATextThatIsNotUtf8IsShownEscaped) {
  EXPECT_EQ(TrainError({"folder=l\xe4ufe"}), "folder: 'l\\xe4ufe': must be UTF-8");
  EXPECT_EQ(TrainError({"name='\\344'"}), "name: '\\xe4': must be UTF-8");
  EXPECT_THAT(TrainError({"data.directions=\xe4-en"}),
              HasSubstr("data.directions[0]: '\\xe4-en': must be UTF-8"));
  EXPECT_EQ(PrepareError({"data.folder=\xe4"}), "data.folder: '\\xe4': must be UTF-8");
  EXPECT_EQ(PrepareError({"prepare.text=source_language: 'de' target_language: 'en' tsv_file: "
                          "'t\xe4xt'"}),
            "prepare.text[0].tsv_file: 't\\xe4xt': must be UTF-8");
}

TEST(Validate, EveryDataRuleNamesItsField) {
  const std::vector<Case> cases = {
      {{"data.folder="}, "data.folder: '': required: what `deepnet prepare` wrote"},
      {{"data.microbatch="}, "data.microbatch.max_target_tokens: 0: required, at least 1"},
      {{"data.microbatch.max_target_tokens=250", "data.microbatch.max_source_tokens=500"},
       "data.microbatch.max_target_tokens: 250: must hold the longest sentence: "
       "data.max_sentence_tokens (250) "
       "and 1 more; raise it, or lower data.max_sentence_tokens"},
      {{"data.tags=M2M", "data.max_sentence_tokens=499", "data.microbatch.max_source_tokens=501"},
       "data.microbatch.max_target_tokens: 500: must hold the longest sentence: "
       "data.max_sentence_tokens (499) "
       "and 2 more; raise it, or lower data.max_sentence_tokens"},
      {{"data.microbatch.max_source_tokens=251"},
       "data.microbatch.max_source_tokens: 251: must hold the longest sentence: "
       "data.max_sentence_tokens (250) "
       "and 2 more; raise it, or lower data.max_sentence_tokens"},
      {{"data.microbatch.max_sentences=-1"},
       "data.microbatch.max_sentences: -1: must be at least 1"},
      {{"data.global_microbatches=-2"}, "data.global_microbatches: -2: must be at least 1"},
      {{"data.max_sentence_tokens=-1"}, "data.max_sentence_tokens: -1: must be at least 1"},
      {{"data.max_sentence_tokens=4095", "data.microbatch.max_target_tokens=8192",
        "model.max_positions=8192", "model.attention_dropout=0.1"},
       "data.max_sentence_tokens: 4095: must be at most 4094 with model.attention_dropout: its "
       "random "
       "numbers know 4096 keys"},
      {{"data.temperature={from_step: 5 temperature: 2}"},
       "data.temperature[0].from_step: 5: the first point must say 0"},
      {{"data.temperature=[{temperature: 2}, {temperature: 3}]"},
       "data.temperature[1].from_step: 0: must be above the point before"},
      {{"data.temperature=[{temperature: 1}, {from_step: 7 temperature: 2}, "
        "{from_step: 6 temperature: 2}]"},
       "data.temperature[2].from_step: 6: must be above the point before"},
      {{"data.temperature={temperature: 0.5}"},
       "data.temperature[0].temperature: 0.5: must be at least 1"},
      {{"data.directions=deen"},
       "data.directions[0]: 'deen': must be two language tags, as in 'de-en', '*-en', 'de-en.bt'"},
      {{"data.directions=d*-en"},
       "data.directions[0]: 'd*-en': must be two language tags, as in 'de-en', '*-en', 'de-en.bt'"},
      {{"data.weights={direction: 'de-en.' weight: 1}"},
       "data.weights[0].direction: 'de-en.': must be two language tags, as in 'de-en', '*-en', "
       "'de-en.bt'"},
      {{"data.weights={direction: '*-*.bt'}"}, "data.weights[0].weight: 0: must be above 0"},
      {{"data.subword_alpha=-1"}, "data.subword_alpha: -1: must be above 0, or 0: off"},
      {{"data.subword_nbest=8"}, "data.subword_nbest: 8: only with data.subword_alpha"},
      {{"data.subword_alpha=0.1", "data.subword_nbest=1"},
       "data.subword_nbest: 1: must be from 2 to 1024"},
      {{"data.directions=de-de"}, "data.directions[0]: 'de-de': must be two different languages"},
      {{"data.directions=de-en,de-en"}, "data.directions[1]: 'de-en': is listed twice"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
}

TEST(Validate, EveryOptimRuleNamesItsField) {
  const std::vector<Case> cases = {
      {{"optim.learning_rate=0"}, "optim.learning_rate: 0: required, above 0"},
      {{"optim.initial_learning_rate=1"},
       "optim.initial_learning_rate: 1: must be from 0 to optim.learning_rate (0.001)"},
      {{"optim.warmup_steps=-1"}, "optim.warmup_steps: -1: must be at least 0"},
      {{"optim.warmup_steps=0"},
       "optim.warmup_steps: 0: INVERSE_SQRT decays from the warm-up on: must be at least 1"},
      {{"optim.decay_steps=9"}, "optim.decay_steps: 9: only with schedule: COSINE or WSD"},
      {{"optim.final_learning_rate=1e-4"},
       "optim.final_learning_rate: 0.0001: only with schedule: COSINE or WSD"},
      {{"optim.schedule=COSINE", "optim.decay_steps=9000", "optim.wsd_decay_steps=9"},
       "optim.wsd_decay_steps: 9: only with schedule: WSD"},
      {{"optim.schedule=WSD"},
       "optim.decay_steps: 0: WSD needs it, above optim.warmup_steps (4000)"},
      {{"optim.schedule=WSD", "optim.decay_steps=9000", "optim.wsd_decay_steps=5001"},
       "optim.wsd_decay_steps: 5001: must be from 1 to optim.decay_steps less optim.warmup_steps "
       "(5000): the decay begins behind the warm-up"},
      {{"optim.schedule=WSD", "optim.decay_steps=9000", "optim.final_learning_rate=2"},
       "optim.final_learning_rate: 2: must be from 0 to optim.learning_rate"},
      {{"optim.schedule=COSINE"},
       "optim.decay_steps: 0: COSINE needs it, above optim.warmup_steps (4000)"},
      {{"optim.schedule=COSINE", "optim.decay_steps=9000", "optim.final_learning_rate=2"},
       "optim.final_learning_rate: 2: must be from 0 to optim.learning_rate"},
      {{"optim.reference_batch_tokens=-1"},
       "optim.reference_batch_tokens: -1: must be above 0, or 0: rates are as they are given"},
      {{"optim.rate_scaling=SQUARE_ROOT"},
       "optim.rate_scaling: SQUARE_ROOT: only with optim.reference_batch_tokens"},
      {{"optim.schedule=COSINE", "optim.decay_steps=9000", "optim.reference_batch_tokens=8000"},
       "optim.decay_steps: 9000: COSINE needs it, above optim.warmup_steps (16000 for "
       "this batch)"},
      {{"optim.beta1=1"}, "optim.beta1: 1: must be at least 0 and below 1"},
      {{"optim.beta2=-1"}, "optim.beta2: -1: must be at least 0 and below 1"},
      {{"optim.epsilon=-1"}, "optim.epsilon: -1: must be above 0"},
      {{"optim.weight_decay=-1"}, "optim.weight_decay: -1: must be at least 0"},
      {{"optim.clip_norm=-1"}, "optim.clip_norm: -1: must be above 0, or 0: off"},
      {{"optim.label_smoothing=1"}, "optim.label_smoothing: 1: must be at least 0 and below 1"},
      {{"optim.fp16_scale_window=-1"},
       "optim.fp16_scale_window: -1: must be above 0, or 0: the default"},
      {{"optim.min_loss_scale=1", "compute.dtype=BFLOAT16"},
       "optim.min_loss_scale: 1: only with compute.dtype: FLOAT16"},
      {{"optim.virtual_replicas=3"}, "optim.virtual_replicas: 3: must be a power of two"},
      {{"optim.virtual_replicas=8"},
       "optim.virtual_replicas: 8: must divide data.global_microbatches (4)"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
  EXPECT_EQ(TrainError({"optim.schedule=CONSTANT", "optim.warmup_steps=0"}), "");
  EXPECT_EQ(TrainError({"optim.schedule=WSD", "optim.decay_steps=9000"}), "");
  EXPECT_EQ(Spec({"optim.schedule=WSD", "optim.decay_steps=9000"}).optim().wsd_decay_steps(), 900);
}

TEST(Validate, EveryComputeAndLayoutRuleNamesItsField) {
  const std::vector<Case> cases = {
      {{"compute.device=tpu"}, "compute.device: 'tpu': must be 'auto', 'cpu' or 'cuda'"},
      {{"compute.residual_dtype=BFLOAT16"},
       "compute.residual_dtype: BFLOAT16: only FLOAT32: at 500-500 a branch starts at 0.0028 of "
       "the stream and bfloat16 rounds at 0.0039, so it would vanish"},
      {{"compute.device=cuda", "compute.matmul=NATIVE"},
       "compute.matmul: NATIVE: only with compute.device: 'cpu'; allowed here: LIBRARY"},
      {{"compute.device=cpu", "compute.dtype=FLOAT16"},
       "compute.dtype: FLOAT16: only with compute.device: 'cuda'; allowed here: BFLOAT16, FLOAT32"},
      {{"compute.device=cpu", "compute.attention=FLASH"},
       "compute.attention: FLASH: only with compute.device: 'cuda'"},
      {{"compute.device=cuda", "compute.attention=FLASH", "compute.dtype=FLOAT32"},
       "compute.attention: FLASH: it needs operands of 16 bits, and compute.dtype is FLOAT32"},
      {{"compute.device=cuda", "compute.attention=FLASH", "model.attention_dropout=0.1"},
       "compute.attention: FLASH: it is not used to drop attention weights, and "
       "model.attention_dropout is 0.1"},
      {{"compute.device=cuda", "compute.attention=FLASH", "model.d_model=24", "model.num_heads=2"},
       "compute.attention: FLASH: it needs heads of a multiple of 8 features up to 256, and "
       "model.d_model / model.num_heads is 12"},
      {{"compute.device=cpu", "compute.cuda_graphs=true"},
       "compute.cuda_graphs: true: only with compute.device: 'cuda'"},
      {{"compute.device=cuda", "compute.cuda_graphs=true", "model.norm=BATCH_NORM"},
       "compute.cuda_graphs: true: not with model.norm: BATCH_NORM, whose statistics would count "
       "padding"},
      {{"compute.device=cuda", "compute.cuda_graphs=true", "instruments.every_steps=10"},
       "compute.cuda_graphs: true: not with instruments, which look into passes"},
      {{"compute.device=cuda", "model.d_model=1028"},
       "model.num_heads: 4: heads of 257 features: with compute.device: 'cuda' model.d_model / "
       "model.num_heads must be at most 256"},
      {{"compute.threads_per_rank=-1"},
       "compute.threads_per_rank: -1: must be at least 1, or 0: left to the program"},
      {{"cluster.nodes=-1"}, "cluster.nodes: -1: must be at least 1, or 0: those of the job"},
      {{"cluster.devices_per_node=-1"},
       "cluster.devices_per_node: -1: must be at least 1, or 0: those of the job"},
      {{"cluster.device_memory_gib=-1"},
       "cluster.device_memory_gib: -1: must be above 0, or 0: what the host has"},
      {{"parallel.pipeline_parallel_size=-1"},
       "parallel.pipeline_parallel_size: -1: must be at least 1, or 0: left to the planner"},
      {{"parallel.data_parallel_size=-1"},
       "parallel.data_parallel_size: -1: must be at least 1, or 0: left to the planner"},
      {{"cluster.nodes=4", "parallel.pipeline_parallel_size=2", "parallel.data_parallel_size=1"},
       "parallel.pipeline_parallel_size: 2: times parallel.data_parallel_size (1) must be 4, all "
       "ranks of the cluster"},
      {{"parallel.pipeline_parallel_size=5"},
       "parallel.pipeline_parallel_size: 5: must be at most the number of layers (4)"},
      {{"cluster.nodes=5", "parallel.data_parallel_size=5"},
       "parallel.data_parallel_size: 5: must be at most data.global_microbatches (4): each "
       "replica computes at least one"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
  EXPECT_EQ(
      TrainError({"cluster.nodes=3", "parallel.data_parallel_size=3", "optim.virtual_replicas=2"}),
      "");
}

TEST(Validate, EveryTrainDecodeAndInstrumentsRuleNamesItsField) {
  const std::vector<Case> cases = {
      {{"folder="}, "folder: '': required: where checkpoints and logs go"},
      {{"train.steps=-1"}, "train.steps: -1: must be at least 1, or 0: no limit"},
      {{"train.max_train_minutes=-1"},
       "train.max_train_minutes: -1: must be above 0, or 0: no limit"},
      {{"train.checkpoint_every_steps=-1"}, "train.checkpoint_every_steps: -1: must be at least 1"},
      {{"train.validate_every_steps=-2"},
       "train.validate_every_steps: -2: must be at least 1, or -1: only at the end"},
      {{"train.sample_translations=-1"}, "train.sample_translations: -1: must be at least 0"},
      {{"train.prometheus_file=run.txt"},
       "train.prometheus_file: 'run.txt': must end in .prom, as node_exporter wants it"},
      {{"train.validate_sentences=-1"}, "train.validate_sentences: -1: must be at least 1"},
      {{"train.keep_checkpoints=-1"}, "train.keep_checkpoints: -1: must be at least 1"},
      {{"train.log_every_steps=-1"}, "train.log_every_steps: -1: must be at least 1"},
      {{"train.spike.action=ROLL_BACK"},
       "train.spike.deviations: 0: required with train.spike.action: ROLL_BACK"},
      {{"train.spike.deviations=6", "train.spike.window_steps=3"},
       "train.spike.window_steps: 3: must be at least 4"},
      {{"train.spike.deviations=6", "train.spike.steps_before=-1"},
       "train.spike.steps_before: -1: must be at least 0"},
      {{"train.spike.deviations=6", "train.spike.steps_after=-1"},
       "train.spike.steps_after: -1: must be at least 0"},
      {{"train.spike.deviations=6", "train.spike.max_roll_backs=-1"},
       "train.spike.max_roll_backs: -1: must be at least 0"},
      {{"train.checkpoint_every_minutes=-1"},
       "train.checkpoint_every_minutes: -1: must be above 0, or 0: off"},
      {{"train.validate_every_minutes=-1"},
       "train.validate_every_minutes: -1: must be above 0, or 0: off"},
      {{"train.patience=-1"}, "train.patience: -1: must be at least 1, or 0: off"},
      {{"train.checkpoint_every_tokens=-1"},
       "train.checkpoint_every_tokens: -1: must be at least 1, or 0: off"},
      {{"train.validate_every_tokens=-1"},
       "train.validate_every_tokens: -1: must be at least 1, or 0: off"},
      {{"train.checkpoint_every_epochs=-1"},
       "train.checkpoint_every_epochs: -1: must be above 0, or 0: off"},
      {{"train.validate_every_epochs=-1"},
       "train.validate_every_epochs: -1: must be above 0, or 0: off"},
      {{"decode.beam_size=-1"}, "decode.beam_size: -1: must be at least 1"},
      {{"decode.length_penalty=-1"}, "decode.length_penalty: -1: must be at least 0"},
      {{"decode.max_tokens=-1"}, "decode.max_tokens: -1: must be at least 1"},
      {{"decode.max_tokens=1023"},
       "decode.max_tokens: 1023: must be at most model.max_positions (1024) less 2"},
      {{"decode.max_ratio=-1"}, "decode.max_ratio: -1: must be above 0, or 0: off"},
      {{"decode.batch_tokens=-1"},
       "decode.batch_tokens: -1: must be at least 1, or 0: as the device likes"},
      {{"decode.nbest=6"}, "decode.nbest: 6: must be at most decode.beam_size (5)"},
      {{"decode.sampling_temperature=-1"},
       "decode.sampling_temperature: -1: must be above 0, or 0: search"},
      {{"decode.sampling_top_k=-1"}, "decode.sampling_top_k: -1: must be at least 1, or 0: all"},
      {{"decode.sampling_top_p=1.5"},
       "decode.sampling_top_p: 1.5: must be above 0 and at most 1, or 0: all"},
      {{"decode.sampling_epsilon=1"}, "decode.sampling_epsilon: 1: must be at least 0 and below 1"},
      {{"instruments.every_steps=-1"},
       "instruments.every_steps: -1: must be at least 1, or 0: off"},
      {{"instruments.every_steps=0", "instruments.model_update=true"},
       "instruments.every_steps: 0: must be at least 1 with instruments.model_update"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
  EXPECT_EQ(TrainError({"decode.sampling_temperature=1", "decode.nbest=6"}), "");  // no beam
}

TEST(Validate, EveryPrepareRuleNamesItsField) {
  const std::string text = "prepare.text={source_language: 'de' target_language: 'en' ";
  const std::vector<Case> cases = {
      {{"prepare.opus100_folder="},
       "prepare.opus100_folder: '': required, or prepare.text or prepare.table: there is nothing "
       "to read"},
      {{"prepare.opus100_folder=", text + "tsv_file: 'a'}", "prepare.languages=de"},
       "prepare.languages: 'de': only with prepare.opus100_folder"},
      {{"prepare.languages=d-e"},
       "prepare.languages[0]: 'd-e': must be a tag of letters, digits and '_'"},
      {{"prepare.text={source_language: 'de' target_language: 'de' tsv_file: 'a'}"},
       "prepare.text[0].target_language: 'de': must differ from source_language"},
      {{"prepare.text={target_language: 'de' tsv_file: 'a'}"},
       "prepare.text[0].source_language: '': must be a tag of letters, digits and '_'"},
      {{text + "source_file: 'a'}"},
       "prepare.text[0].target_file: '': required, or tsv_file instead of source_file and "
       "target_file"},
      {{text + "source_file: 'a' target_file: 'b' tsv_file: 'c'}"},
       "prepare.text[0].tsv_file: 'c': not together with source_file and target_file"},
      {{text + "tsv_file: 'c' score_file: 'd'}"},
       "prepare.text[0].score_file: 'd': not with tsv_file, which has a column for it"},
      {{text + "tsv_file: 'c' split: 'valid'}"},
       "prepare.text[0].split: 'valid': must be 'train', 'dev' or 'test'"},
      {{text + "tsv_file: 'c' split: 'dev' tag: 'bt'}"},
       "prepare.text[0].tag: 'bt': only with split: 'train'"},
      {{text + "tsv_file: 'c' tag: 'b-t'}"},
       "prepare.text[0].tag: 'b-t': must be a tag of letters, digits and '_'"},
      {{"prepare.table={dev_percent: -1}"}, "prepare.table[0].file: '': required"},
      {{"prepare.table={file: 'a' pivot_language: 'e-n'}"},
       "prepare.table[0].pivot_language: 'e-n': must be a tag of letters, digits and '_'"},
      {{"prepare.table={file: 'a' languages: ''}"},
       "prepare.table[0].languages[0]: '': must be a tag of letters, digits and '_'"},
      {{"prepare.table={file: 'a' test_percent: 60}"},
       "prepare.table[0].test_percent: 60: must be from 1 to 50, or -1: none"},
      {{"prepare.threads=-1"}, "prepare.threads: -1: must be at least 1"},
      {{"prepare.tokenizer.sample_temperature=0.5"},
       "prepare.tokenizer.sample_temperature: 0.5: must be at least 1"},
      {{"prepare.cleaning.max_sentence_tokens=-1"},
       "prepare.cleaning.max_sentence_tokens: -1: must be at least 1"},
      {{"prepare.cleaning.max_length_ratio=0.5"},
       "prepare.cleaning.max_length_ratio: 0.5: must be at least 1"},
      {{"prepare.tokenizer.vocab_size=4"},
       "prepare.tokenizer.vocab_size: 4: must be above 4 (the special ids)"},
      {{"prepare.tokenizer.character_coverage=2"},
       "prepare.tokenizer.character_coverage: 2: must be at least 0.98 and at most 1"},
      {{"prepare.tokenizer.character_coverage=0.95"},
       "prepare.tokenizer.character_coverage: 0.95: must be at least 0.98 and at most 1"},
      {{"prepare.tokenizer.input_sentence_size=-1"},
       "prepare.tokenizer.input_sentence_size: -1: must be at least 1"},
      {{"prepare.tokenizer.type=word"},
       "prepare.tokenizer.type: 'word': must be 'unigram' or 'bpe'"},
      {{"data.folder="}, "data.folder: '': required: where the corpus goes"}};
  for (const Case& c : cases) EXPECT_EQ(PrepareError(c.sets), c.line);
  EXPECT_EQ(
      PrepareError({"prepare.tokenizer.model_file=a.model", "prepare.tokenizer.vocab_size=1"}), "");
}

TEST(Validate, WhatCostsMemoryHasABound) {
  const std::vector<Case> cases = {
      {{"model.encoder_layers=20001"}, "model.encoder_layers: 20001: must be at most 20000"},
      {{"model.decoder_layers=2000000000"},
       "model.decoder_layers: 2000000000: must be at most 20000"},
      {{"model.d_model=262148"}, "model.d_model: 262148: must be at most 262144"},
      {{"model.ffn_dim=1048577"}, "model.ffn_dim: 1048577: must be at most 1048576"},
      {{"model.d_model=32768", "model.num_heads=32768"},
       "model.num_heads: 32768: must be at most 16384"},
      {{"model.vocabulary_size=10000001"},
       "model.vocabulary_size: 10000001: must be at most 10000000"},
      {{"model.max_positions=1048577"}, "model.max_positions: 1048577: must be at most 1048576"},
      {{"data.microbatch.max_source_tokens=16777217"},
       "data.microbatch.max_source_tokens: 16777217: must be at most 16777216"},
      {{"data.microbatch.max_target_tokens=16777217"},
       "data.microbatch.max_target_tokens: 16777217: must be at most 16777216"},
      {{"data.max_sentence_tokens=16777217"},
       "data.max_sentence_tokens: 16777217: must be at most 16777216"},
      {{"cluster.nodes=65537", "cluster.devices_per_node=2"},
       "cluster.nodes: 65537: times cluster.devices_per_node (2) must be at most 131072 ranks"},
      {{"data.global_microbatches=2000000000"},
       "data.global_microbatches: 2000000000: must be at most 100000"},
      {{"data.microbatch.max_target_tokens=67109", "data.global_microbatches=4001"},
       "data.global_microbatches: 4001: times the 67109 tokens of data.microbatch must be at most "
       "268435456: a rank holds the step's tokens"},
      {{"compute.threads_per_rank=1025"}, "compute.threads_per_rank: 1025: must be at most 1024"},
      {{"train.spike={deviations: 6 window_steps: 1025}"},
       "train.spike.window_steps: 1025: must be at most 1024"},
      {{"decode.beam_size=1001"}, "decode.beam_size: 1001: must be at most 1000"},
      {{"decode.sampling_temperature=1", "decode.nbest=1001"},
       "decode.nbest: 1001: must be at most 1000"},
      {{"decode.batch_tokens=1048577"}, "decode.batch_tokens: 1048577: must be at most 1048576"}};
  for (const Case& c : cases) EXPECT_EQ(TrainError(c.sets), c.line);
  EXPECT_EQ(PrepareError({"prepare.threads=1025"}), "prepare.threads: 1025: must be at most 1024");
  EXPECT_EQ(PrepareError({"prepare.tokenizer.vocab_size=1000001"}),
            "prepare.tokenizer.vocab_size: 1000001: must be at most 1000000");
  EXPECT_EQ(TrainError({"model.encoder_layers=20000", "model.decoder_layers=20000"}), "");
}

// Sums and products of them would overflow.
TEST(Validate, WholeNumbersAreBoundedBeforeAnythingIsComputedOfThem) {
  for (const char* field :
       {"data.max_sentence_tokens", "model.encoder_layers", "decode.max_tokens", "cluster.nodes",
        "parallel.recompute_segment", "train.spike.steps_before", "train.patience"}) {
    const std::string name(field);
    EXPECT_EQ(TrainError({name + "=2147483647"}),
              name + ": 2147483647: must be from -2000000000 to 2000000000");
  }
  for (const char* field : {"train.steps", "optim.warmup_steps", "train.checkpoint_every_tokens"}) {
    const std::string name(field);
    EXPECT_EQ(TrainError({name + "=9223372036854775807"}),
              name + ": 9223372036854775807: must be from -9007199254740992 to 9007199254740992");
    EXPECT_EQ(TrainError({name + "=-9223372036854775808"}),
              name + ": -9223372036854775808: must be from -9007199254740992 to 9007199254740992");
  }
  EXPECT_EQ(PrepareError({"prepare.tokenizer.input_sentence_size=9223372036854775807"}),
            "prepare.tokenizer.input_sentence_size: 9223372036854775807: must be from "
            "-9007199254740992 to 9007199254740992");
  EXPECT_EQ(TrainError({"seed=18446744073709551615"}), "");
}

TEST(Validate, AllMistakesAreListedAtOnceInTheOrderOfTheFields) {
  EXPECT_EQ(
      TrainError({"folder=", "model.num_heads=7", "data.max_sentence_tokens=-1",
                  "optim.learning_rate=0", "compute.residual_dtype=BFLOAT16", "train.steps=-5"}),
      "folder: '': required: where checkpoints and logs go\n"
      "model.num_heads: 7: must divide model.d_model (64)\n"
      "data.max_sentence_tokens: -1: must be at least 1\n"
      "optim.learning_rate: 0: required, above 0\n"
      "compute.residual_dtype: BFLOAT16: only FLOAT32: at 500-500 a branch starts at 0.0028 "
      "of the stream and bfloat16 rounds at 0.0039, so it would vanish\n"
      "train.steps: -5: must be at least 1, or 0: no limit");
}

TEST(Validate, APlanNeedsNoFoldersButAVocabulary) {
  EXPECT_EQ(ValidateForPlan(Spec({"folder=", "data.folder=", "optim="})), absl::OkStatus());
  EXPECT_EQ(ValidateForPlan(Spec({"model.vocabulary_size="})).message(),
            "model.vocabulary_size: 0: required here, above 4 (the special ids)");
  EXPECT_EQ(ValidateForTrain(Spec({"model.vocabulary_size="})), absl::OkStatus());
}

}  // namespace
}  // namespace deepnet
