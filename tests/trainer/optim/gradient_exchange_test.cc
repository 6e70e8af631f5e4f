#include "trainer/optim/gradient_exchange.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/trainer/optim/sharded_job.h"

namespace deepnet {
namespace {

TEST(AddParts, TheTestGradientsTellOneOrderFromAnother) {
  const auto ops = MakeJobOps(/*native=*/true);
  const Inventory model = SixLayers(/*tied=*/true);
  const auto sum = [&](std::vector<int> order, GradientSum how) {
    std::vector<at::Tensor> parts;
    for (const int r : order) {
      parts.push_back(JobGradient(model.layers[1], model.parameters[2], 1, r));
    }
    AddParts(*ops, parts, 0, how);
    return parts[0];
  };
  const at::Tensor tree = sum({0, 1, 2, 3, 4, 5, 6, 7}, STRICT);
  EXPECT_FALSE(at::equal(tree, sum({0, 1, 2, 3, 4, 5, 6, 7}, FAST)));
  EXPECT_FALSE(at::equal(tree, sum({0, 2, 1, 3, 4, 5, 6, 7}, STRICT)));
  EXPECT_TRUE(at::equal(tree, sum({1, 0, 3, 2, 5, 4, 7, 6}, STRICT))) << "addition commutes";
}

TEST(AddParts, EndsAtHomeWhereverThatIs) {
  const auto ops = MakeJobOps(/*native=*/true);
  const Inventory model = SixLayers(/*tied=*/true);
  for (const GradientSum order : {STRICT, FAST}) {
    for (int count = 1; count <= 8; ++count) {
      at::Tensor first;
      for (int home = 0; home < count; ++home) {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < count; ++r) {
          parts.push_back(JobGradient(model.layers[1], model.parameters[2], 1, r));
        }
        AddParts(*ops, parts, home, order);
        if (home == 0) first = parts[0];
        EXPECT_TRUE(at::equal(parts[home], first)) << count << " " << home;
      }
    }
  }
}

}  // namespace
}  // namespace deepnet
