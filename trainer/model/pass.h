// The values that a pass hands through a model: the residual stream, the microbatch's identity, the
// activations at the boundaries of chunks, and the observers of layers and sub-layers.
//
// Letters: R rows, S source rows, T target rows, D width, F inner width.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/scheme.h"

namespace deepnet {

class DeferredWeights;
class SublayerProbe;

// The rows of one stack in residual type and, for products, in operand type. Both are one tensor
// where the types are equal.
struct ResidualStream {
  at::Tensor value_RD;
  at::Tensor operand_RD;

  bool one_tensor() const { return operand_RD.is_same(value_RD); }
  // Undefined where both are one tensor.
  at::Tensor own_operand_RD() const { return one_tensor() ? at::Tensor() : operand_RD; }
};

// Makes a stream of zeros, with a tensor of its own for operands only where the types differ.
ResidualStream MakeResidualStream(const Ops& ops, int64_t capacity, int64_t width);

// Returns whether products read the residual type.
inline bool SameTypes(const Ops& ops) {
  return ops.OperandOptions().dtype() == ops.ResidualOptions().dtype();
}

// Returns room for the bits of dropout's decisions on [rows, features].
at::Tensor MakeMask(const Ops& ops, int64_t rows, int64_t features);

// Returns the first `rows` rows of x.
inline at::Tensor FirstRows(int64_t rows, const at::Tensor& x) { return x.narrow(0, 0, rows); }

// Buffers that a stack's sub-layers on a rank use in turn, but for layer_input_RD and second_RD.
struct Workspace {
  // `recompute`: the highest level of the layers that use it.
  Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity, Recompute recompute = NONE);

  at::Tensor input_RD;     // operand: a branch's input
  at::Tensor branch_RD;    // residual: a branch's output
  at::Tensor dbranch_RD;   // operand
  at::Tensor dcontext_RD;  // operand
  at::Tensor dqkv_R3D;     // operand
  at::Tensor dinput_RD;    // residual: gradient of a pre-norm branch's input
  at::Tensor dinner_RF;    // operand
  // B2T: what entered the layer, and in the backward pass the gradient that goes back there
  // (residual). Undefined with other schemes.
  at::Tensor layer_input_RD;
  at::Tensor second_RD;  // residual; see PassContext; undefined without a second stream

  // Outputs of products that no layer keeps, recomputed in the backward pass. Undefined where every
  // layer keeps its own.
  at::Tensor qkv_R3D;        // operand; at SELECTIVE_GEMM
  at::Tensor inner_RF;       // operand; at SELECTIVE_FFN and SELECTIVE_GEMM
  at::Tensor pre_RF;         // operand; likewise, with GELU
  at::Tensor inner_mask_RF;  // bits of activation dropout; likewise, where there is any
};

// The encoder's output as a decoder layer sees it, and the sum of its gradients: a left fold over
// decoder layers M..1.
struct EncoderOutput {
  const PackedRows* rows = nullptr;
  at::Tensor value_RD;        // operand
  at::Tensor gradient_RD;     // residual; += in the backward pass
  Workspace* work = nullptr;  // of these rows; used by the backward pass
};

// Called with a layer's position in the chain of the whole model, after the pass has added
// everything that it adds to that layer's gradients. A backward pass calls it for each of its
// layers, from the last to the first.
using LayerDone = std::function<void(int layer)>;
// Called by a forward pass before it begins with a layer.
using LayerBegins = std::function<void(int layer)>;

// One microbatch of one step, as every chunk sees it.
struct MicrobatchPass {
  MicrobatchRows rows;
  uint64_t seed = 0;      // with step: keys of dropout
  int64_t step = 0;       // steps taken before this pass
  bool training = false;  // dropout on, state kept, gradients wanted
  // Backward: weight gradients of layers are recorded here instead of computed; null: computed.
  DeferredWeights* deferred = nullptr;
  const LayerBegins* layer_begins = nullptr;  // forward: called for each layer; may be null
  const LayerDone* layer_done = nullptr;      // backward: likewise
  SublayerProbe* probe = nullptr;             // forward: told about each sub-layer; may be null
};

// The arguments of a pass that all parts of a layer share. It points to things that outlive it.
struct PassContext {
  Ops* ops = nullptr;
  const PackedRows* rows = nullptr;               // of this stack
  const EncoderOutput* encoder_output = nullptr;  // read by cross-attention only
  const MicrobatchPass* microbatch = nullptr;
  Workspace* work = nullptr;  // of this stack's rows
  // RESIDUAL_DUAL: the second stream, and in the backward pass its gradient, which every layer of
  // the stack reads and none changes (residual). Undefined with other schemes, and where layers are
  // recomputed.
  at::Tensor second_RD;

  bool keep() const { return microbatch->training; }
};

// y += x, of the pass's rows.
void AddRows(const PassContext& pass, const at::Tensor& y_RD, const at::Tensor& x_RD);

// Copies the values to the operand tensor, unless both are one tensor.
void FillOperand(const PassContext& pass, const ResidualStream& stream);

// Uploads the rows of `microbatch`, which must outlive the result; at their capacity in training
// where the device repeats passes.
MicrobatchPass MakePass(Ops& ops, const Microbatch& microbatch, uint64_t seed, int64_t step,
                        bool training);

// Returns the rows of a packed side in host memory; `side` and `pairs` must outlive them.
PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences);

// The tensors of one microbatch that pass from chunk to chunk: values forward, gradients backward.
struct BoundaryActivations {
  at::Tensor source_RD;          // residual
  at::Tensor encoder_output_RD;  // values: operand; gradients: residual
  at::Tensor target_RD;          // residual
};

// The boundary activations that cross one boundary between layers.
struct BoundarySet {
  bool source = false;
  bool encoder_output = false;
  bool target = false;

  friend bool operator==(const BoundarySet&, const BoundarySet&) = default;
};

// Returns what crosses the boundary before layer `position` of the chain; nothing at its ends.
BoundarySet BoundaryBefore(const Inventory& whole, int position);

// One sub-layer while it runs. Tensors hold pass.rows->count real rows and are gone or overwritten
// when the call returns.
struct SublayerView {
  SublayerPlace place;
  const SublayerScheme* scheme = nullptr;
  at::Tensor stream_RD;  // residual: as it entered; in AtLeave after omega, before alpha and e
  at::Tensor input_RD;   // operand: what the branch reads; undefined in AtLeave
  at::Tensor branch_RD;  // residual: as it joins, after dropout; undefined in AtEnter
  at::Tensor sum_RD;     // residual: what the norm after the sum reads; undefined without one
  double seconds = 0.0;  // time spent to make this view
};

// Sees what sub-layers do to their stream while a forward pass runs. Changes nothing, unless it
// changes parameters itself, as the measurement of Admin's profile does.
class SublayerProbe {
 public:
  virtual ~SublayerProbe() = default;
  virtual void AtEnter(const PassContext& pass, const SublayerView& view) = 0;
  virtual void AtLeave(const PassContext& pass, const SublayerView& view) = 0;
};

}  // namespace deepnet
