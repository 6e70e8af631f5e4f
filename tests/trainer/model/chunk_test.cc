// A chunk's description of itself, against its layers. tests/trainer/pipeline_stage_test.cc
// shows that chunks compute what the whole model computes.
#include "trainer/model/chunk.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

using testing::TinyCapacity;
using testing::TinySpec;

TEST(BoundaryBefore, CarriesWhatTheLayerBehindReads) {
  const Inventory whole = Describe(TinySpec(), TinyCapacity());
  const BoundarySet nothing, source{.source = true}, memory{.encoder_output = true};
  const BoundarySet both{.encoder_output = true, .target = true}, target{.target = true};
  // Embedding, two encoder layers, embedding, three decoder layers, output; and behind it.
  const std::vector<BoundarySet> expected = {nothing, source, source, memory, both,
                                             both,    both,   target, nothing};
  ASSERT_EQ(expected.size(), whole.layers.size() + 1);
  for (size_t l = 0; l < expected.size(); ++l) {
    EXPECT_EQ(BoundaryBefore(whole, static_cast<int>(l)), expected[l]) << l;
  }
}

TEST(Chunk, KnowsItsPlaceInTheChain) {
  const ModelSpec spec = TinySpec();
  const Inventory whole = Describe(spec, TinyCapacity());
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  const int layers = static_cast<int>(whole.layers.size());
  for (int first = 0; first < layers; ++first) {
    for (int end = first + 1; end <= layers; ++end) {
      SCOPED_TRACE(std::to_string(first) + " .. " + std::to_string(end));
      const Transformer part(spec, TinyCapacity(), *ops, /*trainable=*/true,
                             {{.layers = {first, end}}});
      const Chunk& chunk = part.chunks()[0];
      int source = 0, target = 0, encoder = 0, decoder = 0, output = 0;
      bool ends_encoder = false, ends_decoder = false;
      for (int l = first; l < end; ++l) {
        const Layer& layer = whole.layers[l];
        source += layer.kind == LayerKind::kSourceEmbedding || layer.kind == LayerKind::kEncoder;
        target += layer.kind != LayerKind::kSourceEmbedding && layer.kind != LayerKind::kEncoder;
        encoder += layer.kind == LayerKind::kEncoder;
        decoder += layer.kind == LayerKind::kDecoder;
        output += layer.kind == LayerKind::kOutput;
        ends_encoder |= layer.name == "encoder.layers.1";
        ends_decoder |= layer.name == "decoder.layers.2";
      }
      EXPECT_EQ(chunk.has_source(), source > 0);
      EXPECT_EQ(chunk.has_target(), target > 0);
      EXPECT_EQ(chunk.has_output(), output > 0);
      EXPECT_EQ(chunk.ends_encoder(), ends_encoder);
      EXPECT_EQ(chunk.ends_decoder(), ends_decoder);
      EXPECT_EQ(chunk.encoder().size(), encoder);
      EXPECT_EQ(chunk.decoder().size(), decoder);
      EXPECT_EQ(chunk.inputs(), BoundaryBefore(whole, first));
      EXPECT_EQ(chunk.outputs(), BoundaryBefore(whole, end));
    }
  }
}

// A part holds its own layers' weights, gradients and moments, and no others'.
TEST(Chunk, TakesTheMemoryOfItsLayersOnly) {
  const ModelSpec spec = TinySpec();
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  const Inventory whole = Describe(spec, TinyCapacity());
  for (int l = 0; l < static_cast<int>(whole.layers.size()); ++l) {
    const Transformer part(spec, TinyCapacity(), *ops, /*trainable=*/true,
                           {{.layers = {l, l + 1}}});
    int64_t elements = 0;
    for (const int p : whole.layers[l].parameters) elements += whole.parameters[p].NumElements();
    EXPECT_EQ(part.parameters().weights().numel(), elements);
    EXPECT_EQ(part.parameters().gradient().numel(), elements);
    EXPECT_EQ(part.parameters().moment1().numel(), elements);
  }
}

}  // namespace
}  // namespace deepnet
