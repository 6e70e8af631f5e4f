#include <vector>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr auto kSelf = SublayerKind::kSelfAttention;
constexpr auto kCross = SublayerKind::kCrossAttention;
constexpr auto kBlock = SublayerKind::kFeedForward;

ModelSpec Model(Architecture architecture, int encoder_layers, int decoder_layers) {
  ModelSpec model = testing::TinySpec();
  model.set_architecture(architecture);
  model.set_encoder_layers(encoder_layers);
  model.set_decoder_layers(decoder_layers);
  return model;
}

std::vector<SublayerPlace> Order(const ModelSpec& model) {
  std::vector<SublayerPlace> all;
  for (int i = 0; i < NumSublayers(model); ++i) all.push_back(SublayerAt(model, i));
  return all;
}

TEST(SublayerOrder, GoesThroughTheEncoderAndThenThroughThreeSublayersADecoderLayer) {
  EXPECT_EQ(Order(Model(ENCODER_DECODER, 2, 1)), (std::vector<SublayerPlace>{{0, 0, kSelf},
                                                                             {0, 0, kBlock},
                                                                             {0, 1, kSelf},
                                                                             {0, 1, kBlock},
                                                                             {1, 0, kSelf},
                                                                             {1, 0, kCross},
                                                                             {1, 0, kBlock}}));
}

TEST(SublayerOrder, AStackAloneHasTwoSublayersALayer) {
  for (const int stack : {0, 1}) {
    const ModelSpec model = stack == 0 ? Model(ENCODER_ONLY, 2, 0) : Model(DECODER_ONLY, 0, 2);
    EXPECT_EQ(Order(model),
              (std::vector<SublayerPlace>{
                  {stack, 0, kSelf}, {stack, 0, kBlock}, {stack, 1, kSelf}, {stack, 1, kBlock}}));
    EXPECT_EQ(NumSublayers(model, stack), 4);
    EXPECT_EQ(NumSublayers(model, 1 - stack), 0);
  }
}

TEST(SublayerOrder, IndexAndPlaceAreInverse) {
  for (const ModelSpec& model :
       {Model(ENCODER_DECODER, 3, 4), Model(ENCODER_ONLY, 5, 0), Model(DECODER_ONLY, 0, 5)}) {
    const std::vector<SublayerPlace> all = Order(model);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(SublayerIndex(model, all[i]), static_cast<int>(i));
    }
  }
}

}  // namespace
}  // namespace deepnet
