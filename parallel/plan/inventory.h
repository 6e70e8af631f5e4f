// An inventory is all that a planner, a sharder, an initialiser and a checkpoint know of a model:
// its layers in order with their costs, its parameters with name and shape, and what crosses each
// cut. It holds no tensors and names no kind of model: the model's own code reports every figure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/base/product.h"
#include "parallel/plan/partition.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The model's own names for what a parameter and a layer are for; nothing in parallel/ reads them.
enum class Role : int;
enum class LayerKind : int;

struct Parameter {
  std::string name;            // "layers.0.fc1.weight"
  std::vector<int64_t> shape;  // [out, in] or [n]
  Role role = {};
  double initial_std = 0.0;    // deviation of a matrix whose mean is 0; 0: see initial_value
  float initial_value = 0.0f;  // start of gains and biases
  int64_t offset = 0;          // first element in the flat order of the Inventory
  int zero_row = -1;           // this row, which nothing looks up, starts at 0; -1: none

  int64_t NumElements() const;
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

// A level of recomputation for the layers of a rank or of a stack.
struct RecomputeChoice {
  Recompute level = NONE;
  int segment = 1;  // FULL: layers between two kept inputs

  friend bool operator==(const RecomputeChoice&, const RecomputeChoice&) = default;
};

template <typename Value>
using ByRecompute = std::array<Value, Recompute_ARRAYSIZE>;

inline constexpr int64_t kFloatBytes = 4;

// Memory of tensors of a full microbatch, some of which have the type of the products' operands.
struct ActivationBytes {
  int64_t bytes = 0;     // bytes that do not depend on that type: float32 state, masks
  int64_t operands = 0;  // elements of that type
  int64_t copies = 0;    // further elements of that type, where it is narrower than float32
  int64_t widened = 0;   // further float32 elements, where it is narrower than float32

  // Bytes with operands of `operand_bytes` (4 or 2) each.
  int64_t Total(int64_t operand_bytes) const {
    const bool narrow = operand_bytes < kFloatBytes;
    return bytes + (operands + (narrow ? copies : 0)) * operand_bytes +
           (narrow ? widened * kFloatBytes : 0);
  }
  friend bool operator==(const ActivationBytes&, const ActivationBytes&) = default;
};

// The stream of activations, which the layer behind a cut consumes: counted in that layer's
// activations. Boundary tensors of other names are side inputs, which layers only read: a rank
// keeps them once per microbatch. A layer outside of stacks passes its side inputs on.
inline constexpr std::string_view kHidden = "hidden";

// A tensor that a cut before a layer has to carry.
struct BoundaryTensor {
  std::string name;            // kHidden, or that of a side input
  std::vector<int64_t> shape;  // [rows, width] with the microbatch's capacities
  std::string dtype;           // "float32"
  bool needs_gradient = true;
  int stack = 0;  // whose rows it has: tensors of one stack share buffers

  friend bool operator==(const BoundaryTensor&, const BoundaryTensor&) = default;
};

// Matrices that one layer's deferred weight gradients hold from I to W.
struct PendingOperand {
  int64_t rows = 0, columns = 0;
  int count = 1;
  bool shared = false;  // one for all layers of a chunk

  friend bool operator==(const PendingOperand&, const PendingOperand&) = default;
};

// The units of a device that a kernel's operations run on.
enum class ComputeUnit { kTensor, kFloat32 };

// Fills are listed by this name: the host starts them as it does kernels, which they are not.
inline constexpr char kZeroFill[] = "Zero";

// The cost of launches of one kernel that are alike, all of them together.
struct KernelWork {
  std::string name;        // of the launch
  std::string label = {};  // which of the launches of that name, for people
  int launches = 1;
  double flops = 0;  // operations
  double bytes = 0;  // read and written
  ComputeUnit unit = ComputeUnit::kTensor;
  double reaches = 1;  // share that it reaches of what the unit allows; products: see roofline.h
  ProductShape product = {};  // that each launch is; of depth 0: it is none
  double result_bytes = 0;    // of an element of a product's result, read and written
  bool alone = false;         // the launches are never joined with others

  friend bool operator==(const KernelWork&, const KernelWork&) = default;
};

// The kernels that a layer launches for a full microbatch.
struct LayerWork {
  std::vector<KernelWork> forward, backward_input, backward_weight;
  ByRecompute<std::vector<KernelWork>> recompute;  // of `forward`, again

  friend bool operator==(const LayerWork&, const LayerWork&) = default;
};

// One indivisible piece of the chain. Its figures are those of a full microbatch.
struct Layer {
  std::string name;  // "layers.3"
  LayerKind kind = {};
  int index = 0;     // within its stack
  int position = 0;  // within the whole chain; a rank's part of the Inventory keeps it
  // Indices into Inventory::parameters. A tied parameter appears in several layers, none of which
  // is in a stack.
  std::vector<int> parameters;
  double forward_flops = 0.0;          // 2 per multiply-add of every matrix product
  std::vector<BoundaryTensor> inputs;  // what crosses a cut before this layer, in order

  int stack = -1;              // in Inventory::stacks; -1: in none, and never computed again
  bool looks_up = false;       // reads rows of its matrices and multiplies none
  bool computes_loss = false;  // its F computes its gradients too; the last layer of the chain

  // Kept from F to the end of B or I, its input left out. At FULL: what it keeps inside a segment.
  ByRecompute<ActivationBytes> kept = {};
  ByRecompute<double> recompute_flops = {};  // operations of F that the backward pass repeats
  std::vector<PendingOperand> pending;       // both operands of every product
  int64_t constant_bytes = 0;                // tables that are looked up and never learned
  int work = -1;                             // place in Inventory::work; -1: not known
  // Buffers of the loss: of each list the largest is there, of `native_loss` with NATIVE products,
  // of `library_loss` with LIBRARY's, of `device_loss` on a device of its own.
  std::vector<ActivationBytes> native_loss, library_loss, device_loss;

  friend bool operator==(const Layer&, const Layer&) = default;
};

// Layers in a row that are alike, work on rows of one kind and lend each other their buffers. A
// rank uses a stack's rows if it has a layer, itself in a stack, that takes an input of this one.
struct Stack {
  int64_t stream_elements = 0;  // rows x width of the stream
  // In use while a layer runs; once on every rank that uses the stack's rows.
  ActivationBytes workspace;
  // Beside it with NATIVE products: a rank has those of one stack, the largest.
  ActivationBytes kernel_buffers;
  ActivationBytes device_scratch;  // likewise on a device of its own
  // Buffers that an operation of LIBRARY allocates and gives back at once, one entry an operation;
  // the largest counts. In layers of this stack, and in others that take its rows.
  std::vector<ActivationBytes> temporaries, reader_temporaries;
  // Held for recomputation once on a rank. SELECTIVE_FFN and SELECTIVE_GEMM: what a layer's
  // products make again. FULL: the stream through a segment, beside what the segment's layers keep
  // at NONE; only where the rank has layers of the stack.
  ByRecompute<ActivationBytes> recomputed = {};

  friend bool operator==(const Stack&, const Stack&) = default;
};

// All of a model. Parameters are in flat order: that of layers, and within one layer the model's.
struct Inventory {
  std::vector<Parameter> parameters;
  std::vector<Layer> layers;
  // Why no pipeline can cut the chain, naming the field that says so; empty: it can be cut.
  std::string one_piece = {};
  std::vector<Stack> stacks = {};
  int64_t batch_bytes = 0;  // of the numbers that a device reads of one microbatch
  // The kernels of layers of each kind on a device of its own; empty: not known, costs follow from
  // operations alone.
  std::vector<LayerWork> work = {};

  int64_t NumElements() const;  // of all parameters, each tied tensor once
  std::string Hash() const;     // hexadecimal FNV-1a of names and shapes in order

  friend bool operator==(const Inventory&, const Inventory&) = default;
};

// Layers [first, end) of Inventory::layers.
struct LayerSpan {
  int first = 0;
  int end = 0;

  int NumLayers() const { return end - first; }
};

// Returns the layers of `spans`, which ascend and do not overlap, and the parameters that these
// use, each once, in order of first use. Indices and offsets are the part's own; Layer::position
// still counts in `inventory`.
Inventory Select(const Inventory& inventory, std::span<const LayerSpan> spans);

// Returns the elements of the gradient of `layer`, that of each use of a tied tensor.
int64_t GradientElements(const Inventory& inventory, const Layer& layer);
// Returns the product of the sizes.
int64_t ElementsOf(std::span<const int64_t> shape);
int64_t BytesOf(const BoundaryTensor& tensor);             // its dtype is "float32" or "bfloat16"
int64_t BytesOf(std::span<const BoundaryTensor> tensors);  // of all
// Returns the input of `layer` of that name; nullptr: it has none.
const BoundaryTensor* InputNamed(const Layer& layer, std::string_view name);
// Returns the side input of `layer`, which has at most one; nullptr: it has none.
const BoundaryTensor* SideInput(const Layer& layer);

// The tensors of one microbatch that are sent over the cut before one chunk. Shapes are those of
// the microbatch's capacities, so they are constants of a run.
struct StageMessages {
  std::vector<BoundaryTensor> forward;   // values, in the order of Layer::inputs
  std::vector<BoundaryTensor> backward;  // their gradients, float32, in the order of Layer::inputs
};

// Returns, in element c, the messages over the cut before chunk c, whose last layer is
// chunk_ends[c] - 1. Empty for chunk 0 and where both sides are on one rank.
//
// forward: the inputs of the chunk's first layer; a side input, whose type is `operand_type`, only
//   if none of the rank's earlier chunks takes or makes it: it travels once per rank.
// backward: gradients of all inputs that need one. The gradient of a side input is an accumulator,
//   a left fold over its readers, the last layer first: it is sent over every cut between ranks
//   among them and reaches the chunk that made the tensor exactly once.
std::vector<StageMessages> MakeStageMessages(const Inventory& inventory,
                                             std::span<const int> chunk_ends,
                                             const Placement& placement,
                                             std::string_view operand_type = "float32");

}  // namespace deepnet
