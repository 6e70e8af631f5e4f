// docs/design/pass.md lists the operations of a pass in their order.
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "tests/support/whole_pass.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/traced_ops.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

// Indented lines begin with one operation or several, two spaces before what they do.
std::vector<std::string> OperationsOfThePage() {
  std::ifstream page("docs/design/pass.md");
  std::vector<std::string> operations;
  std::string line, operation;
  while (std::getline(page, line)) {
    if (!line.starts_with("    ")) continue;
    std::istringstream words(line.substr(4, line.find("  ", 4) - 4));
    while (words >> operation) operations.push_back(operation);
  }
  return operations;
}

TEST(PassPage, ListsTheOperationsOfAPassInOrder) {
  ModelSpec spec = testing::WithResidual(testing::TinySpec(), DEEPNORM);
  spec.set_encoder_layers(1);
  spec.set_decoder_layers(1);
  spec.set_dropout(0.1);
  const std::unique_ptr<TracedOps> ops = Traced(MakeAtenOps(at::kFloat, at::kFloat));
  Transformer model(spec, testing::TinyCapacity(), *ops, /*trainable=*/true);
  model.parameters().Initialize(5);
  model.Refresh();
  const auto kept = model.MakeActivations(/*shared=*/false);
  const Microbatch mb = testing::TinyMicrobatch(spec, 3);
  ops->StartTrace();
  testing::Forward(model, mb, 1, 2, /*training=*/true, {}, *kept);
  testing::Backward(model, mb, 1, 2, *kept);
  std::vector<std::string> called;
  for (const TimedKernel& kernel : ops->StopTrace()) called.push_back(kernel.name);
  EXPECT_EQ(called, OperationsOfThePage());
}

}  // namespace
}  // namespace deepnet
