#include "trainer/decode/batch_limits.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

ModelSpec Model(int layers) {
  ModelSpec model;
  model.set_architecture(ENCODER_DECODER);
  model.set_encoder_layers(layers);
  model.set_decoder_layers(layers);
  model.set_d_model(512);
  model.set_vocabulary_size(8000);
  model.set_max_positions(1024);
  return model;
}

DecodeSpec Decode(int batch_tokens = 0) {
  DecodeSpec decode;
  decode.set_beam_size(5);
  decode.set_max_tokens(200);
  decode.set_batch_tokens(batch_tokens);
  return decode;
}

constexpr int64_t kGibibyte = int64_t{1} << 30;
// The bytes of a position's keys and values in 6 layers, and of a sentence: 256 positions and a row
// of log-probabilities for each of 5 hypotheses.
constexpr int64_t kPosition = 2 * 512 * 6 * 2;
constexpr int64_t kSentence = 5 * (256 * kPosition + 8000 * 4);

TEST(BatchTokens, OpenOnesAreTheDevices) {
  EXPECT_EQ(BatchTokens(Decode(), /*on_gpu=*/false), 2000);
  EXPECT_EQ(BatchTokens(Decode(), /*on_gpu=*/true), 16000);
  EXPECT_EQ(BatchTokens(Decode(700), /*on_gpu=*/true), 700);
}

TEST(DecodeCapacity, IsThatOfAPassAndHasRoomForTheLongestSentence) {
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(), false).max_source_tokens(), 2000);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(), false).max_target_tokens(), 1024);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(100), true).max_source_tokens(), 1024);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(1000000), true).max_source_tokens(), 16000);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(), true).max_target_tokens(), 4096);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(), false).max_sentences(), 2000);
  EXPECT_EQ(DecodeCapacity(Model(6), Decode(100), true).max_sentences(), 4096);
  ModelSpec one_stack = Model(6);
  one_stack.set_architecture(DECODER_ONLY);
  EXPECT_EQ(DecodeCapacity(one_stack, Decode(), true).max_source_tokens(), 0);
}

TEST(FitBatches, TakesAsManySentencesAsThereIsRoomFor) {
  const ModelSpec model = Model(6);
  const auto limits = FitBatches(Decode(), {&model, 1}, 2, 10 * kGibibyte);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->batch_tokens, 16000);
  EXPECT_EQ(limits->max_sentences, (10 * kGibibyte / 10 * 9 - 16000 * kPosition) / kSentence);
  DecodeSpec sampled = Decode();
  sampled.set_sampling_temperature(1);
  sampled.set_nbest(1);
  EXPECT_GT(FitBatches(sampled, {&model, 1}, 2, 10 * kGibibyte)->max_sentences,
            4 * limits->max_sentences);
  DecodeSpec longest = Decode();
  longest.set_max_tokens(254);  // with tag and </s> all that a cache of 256 steps has room for
  EXPECT_EQ(FitBatches(longest, {&model, 1}, 2, 10 * kGibibyte)->max_sentences,
            limits->max_sentences);
  longest.set_max_tokens(255);
  EXPECT_LT(FitBatches(longest, {&model, 1}, 2, 10 * kGibibyte)->max_sentences,
            limits->max_sentences * 3 / 5);
  const ModelSpec two[] = {model, model};
  // Positions are those of both; log-probabilities are the average's and one model's.
  EXPECT_EQ(FitBatches(Decode(), two, 2, 10 * kGibibyte)->max_sentences,
            (10 * kGibibyte / 10 * 9 - 16000 * 2 * kPosition) / (2 * kSentence));
}

TEST(FitBatches, OpenTokensShrinkWhereKeysOfSourcesWouldTakeMostOfTheRoom) {
  const ModelSpec deep = Model(500);
  EXPECT_EQ(FitBatches(Decode(), {&deep, 1}, 2, 100 * kGibibyte)->batch_tokens, 16000);
  EXPECT_EQ(FitBatches(Decode(), {&deep, 1}, 2, 20 * kGibibyte)->batch_tokens, 4000);
  EXPECT_EQ(FitBatches(Decode(9000), {&deep, 1}, 2, 20 * kGibibyte)->batch_tokens, 9000);
}

TEST(FitBatches, ASettingThatDoesNotFitIsNamed) {
  const ModelSpec model = Model(6);
  const auto tokens = FitBatches(Decode(100000000), {&model, 1}, 2, 10 * kGibibyte);
  EXPECT_EQ(GetExitCode(tokens.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(tokens.status().message()),
              HasSubstr("decode.batch_tokens: 100000000: keys, values and log-probabilities take "
                        "up to 1144.42 GiB, but the GPU has room for 9.00 GiB"));
  for (const int batch_tokens : {0, 1000, 1024}) {  // the longest source has as many
    const auto sentence = FitBatches(Decode(batch_tokens), {&model, 1}, 2, kSentence);
    EXPECT_EQ(GetExitCode(sentence.status()), ExitCode::kDoesNotFit);
    EXPECT_THAT(std::string(sentence.status().message()),
                HasSubstr("decode.beam_size 5, decode.max_tokens 200: one sentence"));
  }
}

}  // namespace
}  // namespace deepnet
