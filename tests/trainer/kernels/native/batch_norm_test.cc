#include "trainer/kernels/native/batch_norm.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/norm_rig.h"

namespace deepnet::native {
namespace {

using testing::NormCase;
using testing::NormRig;

class BatchNorm : public ::testing::TestWithParam<NormCase> {
 protected:
  NormRig rig_{GetParam(),
               {.over_columns = true,
                .gives_sum = false,
                .alpha = 1.5f,
                .rounding = 2e-5,  // of sums over rows
                .forward = BatchNormForward,
                .backward = BatchNormBackward}};
};

TEST_P(BatchNorm, ForwardIsTheDefinitionWithAndWithoutStates) {
  rig_.ExpectForwardIsTheDefinition();
}

TEST_P(BatchNorm, BackwardIsTheSlopeOfTheForward) { rig_.ExpectBackwardIsTheSlopeOfTheForward(); }

// More columns than one block has, more rows than one block has, and few of both.
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNorm,
                         ::testing::Values(NormCase{2, 3, Element::kFloat32, 0.0},
                                           NormCase{7, 5, Element::kFloat32, 0.3},
                                           NormCase{9, 70, Element::kBfloat16, 0.1},
                                           NormCase{40, 6, Element::kBfloat16, 0.0}));

}  // namespace
}  // namespace deepnet::native
