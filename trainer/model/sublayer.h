// Parts that all sub-layers use: linear layers and caches.
//
// A sub-layer owns no tensors of a microbatch. Its Saved holds the state that forward keeps for
// backward; a Workspace, which all layers of a stage and stack share, holds the rest. MakeSaved
// takes the Workspace whose buffers replace the outputs of products that are not kept
// (trainer/model/describe.h); null: everything is kept.
//
// Every Backward is its Forward read upwards: gradient of the branch from the residual connection,
// through the last product to the first, the weight gradients on the way, and on to the stream.
//
// Letters: R rows, D width.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/deferred_weights.h"
#include "trainer/model/parameters.h"
#include "trainer/model/residual.h"

namespace deepnet {

// One or several matrices with equal input, adjacent in the parameters, as one product.
class LinearLayer {
 public:
  // `names`: of the parameters, without ".weight" and ".bias".
  LinearLayer(const BuildContext& build, const std::vector<std::string>& names);

  void Forward(const PassContext& pass, const at::Tensor& x, bool relu, const at::Tensor& y) const {
    pass.ops->Linear({.rows = pass.rows->count,
                      .x_RI = x,
                      .weight_OI = weight_,
                      .bias_O = bias_,
                      .relu = relu,
                      .y_RO = y});
  }
  void BackwardInput(const PassContext& pass, const at::Tensor& dy, const at::Tensor& relu_output,
                     bool accumulate, const at::Tensor& dx) const {
    pass.ops->LinearBackwardInput({.rows = pass.rows->count,
                                   .dy_RO = dy,
                                   .weight_OI = weight_,
                                   .relu_output_RI = relu_output,
                                   .accumulate = accumulate,
                                   .dx_RI = dx});
  }
  // Deferred if the pass says so. `one_input`: see DeferredWeights::Add.
  void BackwardWeight(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x,
                      bool one_input = false) const {
    AddGradients(pass, dy, x, dbias_, one_input);
  }

  // Splits BackwardWeight: the first part masks `dy` by the output of a ReLU that stands behind
  // this layer and adds to the bias, the second one is the rest. Only where CanSplit.
  bool CanSplit(const PassContext& pass) const {
    return dbias_.defined() && pass.ops->HasReluBackwardWithBias();
  }
  void BackwardReluAndBias(const PassContext& pass, const at::Tensor& relu_output,
                           const at::Tensor& dy) const {
    pass.ops->ReluBackwardWithBias(pass.rows->count, relu_output, dy, dbias_);
  }
  void BackwardMatrix(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x) const {
    AddGradients(pass, dy, x, at::Tensor(), /*one_input=*/false);
  }

 private:
  void AddGradients(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& dbias, bool one_input) const;

  const Weight* weight_;
  at::Tensor bias_, dweight_, dbias_;  // biases undefined where the model has none
};

// Keys and values of one attention for incremental decoding: rows are appended, lists name them.
struct KeyValueCache {
  at::Tensor keys_ND, values_ND;  // operand
};

// The cached rows that each hypothesis attends to; see DecodeAttentionArgs.
struct CacheIndex {
  const int32_t* index = nullptr;
  int64_t stride = 0;
  const int32_t* lengths = nullptr;
};

// A cache as the attention of one decoding step reads it.
struct StepCache {
  KeyValueCache rows;
  CacheIndex index;
  int64_t first_row = 0;  // self-attention: where the rows of this step go
};

}  // namespace deepnet
