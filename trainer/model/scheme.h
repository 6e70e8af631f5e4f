// A residual scheme as a value: what each sub-layer does to its stack's stream, and how large its
// matrices start. What differs between the values of `Residual` is here, but for DLCL's
// LayerHistory; parameters, memory and arithmetic follow from it (describe.h, residual.h).
//
// A sub-layer is a branch f, whose last matrix is W, between parts that a scheme may have or not:
//
//   f(x)  = W N_inner(g(N_input(x) c - b))
//   x    <- N_end(alpha omega * x + a s N_output(f(x)) + e)
//
//   g      attention, or the first matrix and its activation
//
//   c      a constant, input_scale; b a trained number (shifts)
//   alpha  a constant; 0: there is no residual
//   omega  a trained vector; s a trained number, of the sub-layer or of its whole layer
//   e      what entered the layer, at its last sub-layer only (layer_input)
//   a      min(1, t / ramp_steps) in the pass after t steps: 0 in the first one
//
// A stack may have a second stream r, which branches also join and nothing reads before the stack's
// end (second_stream): r <- r + f(x), r_0 = x_0.
//
// Formulas with their sources, and what deviates from released code: docs/design/residuals.md.
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/model/architecture.h"

namespace deepnet {

// The owner of the trained number s of a branch.
enum class BranchScale { kNone, kOfSublayer, kOfLayer };

struct SublayerScheme {
  bool input_norm = false;
  bool inner_norm = false;
  bool output_norm = false;
  bool end_norm = false;
  double input_scale = 1.0;
  double alpha = 1.0;
  double stream_scale = 0.0;  // omega at first; 0: there is none
  BranchScale branch_scale = BranchScale::kNone;
  double initial_branch_scale = 1.0;
  bool head_scale = false;   // a trained factor for each head of an attention, before W
  bool shifts = false;       // b; in a feed-forward block also after its first matrix and before W
  bool layer_input = false;  // e
  int64_t ramp_steps = 0;    // of a; 0: there is none
  bool second_stream = false;

  // State for the backward pass besides that of the norms: the stream as it entered, where neither
  // a norm before the branch nor one after the sum gives it back; the branch before s.
  bool KeepsStream() const { return stream_scale != 0 || (!input_norm && !end_norm); }
  bool KeepsBranch() const { return branch_scale != BranchScale::kNone; }
  double RampAt(int64_t step) const;  // a
  int NumNorms() const { return int{input_norm} + int{output_norm} + int{end_norm}; }
  // Returns the float32 numbers that all this state takes for `rows` rows; `inside`: features that
  // the last matrix reads.
  int64_t KeptFloats(const ModelSpec& model, int64_t rows, int64_t inside) const;

  friend bool operator==(const SublayerScheme&, const SublayerScheme&) = default;
};

// DEEPNORM (DeepNet, section 2): x <- LN(alpha * x + f(x)), with the matrices of f that are linear
// in the output started beta times smaller. N encoder and M decoder layers:
//
//              alpha                   beta
//   encoder    0.81 (N^4 M)^(1/16)     0.87 (N^4 M)^(-1/16)
//   decoder    (3 M)^(1/4)             (12 M)^(-1/4)
//   alone      (2 L)^(1/4)             (8 L)^(-1/4)       one stack of L layers, either of them
//
// 0.81 and 0.87 are used as the paper prints them (exactly 27^(-1/16) and 27^(1/16) / sqrt 2). With
// `adam` the constants balance updates whose size does not depend on the gradient's: alpha =
// k^(1/2) and beta = k^(-1/2) in a stack of k sub-layers (2N, 3M; alone 2L).
struct DepthScaling {
  double encoder_alpha = 1.0;  // on the residual stream of every encoder sub-layer
  double encoder_beta = 1.0;   // gain of Xavier's deviation, encoder
  double decoder_alpha = 1.0;  // as above, decoder (both attentions and the feed-forward block)
  double decoder_beta = 1.0;

  friend bool operator==(const DepthScaling&, const DepthScaling&) = default;
};

// Returns the constants by these formulas, except those that `model.deepnorm()` sets; 1 for a stack
// that the model does not have, and with other schemes. The stacks that it has must have layers
// (launch/validate refuses less). 100 encoder and 100 decoder layers have {3.4157, 0.2063, 4.1618,
// 0.1699}.
DepthScaling MakeDepthScaling(const ModelSpec& model);

// The step after a stack's last layer.
enum class StackEnd {
  kNothing,
  kNorm,         // a normalisation
  kScaledShift,  // x <- s (x - b), trained numbers; in a decoder s is left out
  kSecondNorm,   // x <- x + N(second stream)
};

SublayerScheme MakeSublayerScheme(const ModelSpec& model, const SublayerPlace& place);
StackEnd EndOf(const ModelSpec& model);
bool ReadsLayerInput(const ModelSpec& model);  // some sub-layer has layer_input
bool KeepsHistory(const ModelSpec& model);     // DLCL: trainer/model/layer_stack.h
bool HasSecondStream(const ModelSpec& model);  // some sub-layer has second_stream
bool InOnePiece(const ModelSpec& model);       // one of the two: no pipeline can cut a stack
bool HasEmbeddingNorm(const ModelSpec& model);
bool HasBiases(const ModelSpec& model);      // of linear layers
bool HasNormBiases(const ModelSpec& model);  // RMSNorm has none

// Returns the epsilon of RESIDUAL_DUAL's norm at the end of a stack, 1e-7 / s^2: the stream is kept
// as r / s, whose norm with this epsilon is that of r with 1e-7.
double SecondNormEpsilon(const ModelSpec& model);

// Returns the float32 numbers that a norm keeps: normalised rows, and a deviation for each row or,
// with BATCH_NORM, for each feature.
int64_t NormStateFloats(const ModelSpec& model, int64_t rows, int64_t features);
int64_t StackEndFloats(const ModelSpec& model, int64_t rows);  // likewise, of a stack's end

// Returns OK if a row's result does not depend on the other rows of its microbatch, which
// translation, scoring and export need; otherwise an error that names the field, with
// ExitCode::kCheckpoint.
absl::Status CheckRowsAreIndependent(const ModelSpec& model);

// Returns the factor on Xavier's normal deviation sqrt(2 / (in + out)) for a matrix of `role`
// (query, key, value, attention output, feed-forward) in that sub-layer; `last`: it is W. 0: the
// matrix starts at 0.
double InitialGain(const ModelSpec& model, const SublayerPlace& place, Role role, bool last);
// Returns the factor on the deviation width^(-1/2) of an embedding matrix; `stack`: of its first
// use.
double EmbeddingGain(const ModelSpec& model, int stack);

// The smallest and the greatest of a number over a stack's sub-layers.
struct ValueRange {
  double least = 0.0, greatest = 0.0;

  friend bool operator==(const ValueRange&, const ValueRange&) = default;
};

// A stack as its scheme makes it, for people to read. All 0 for a stack that the model does not
// have.
struct StackScaling {
  ValueRange alpha;      // on the stream where a branch joins it: alpha, times omega at first
  ValueRange beta;       // gain of values, attention outputs and feed-forward matrices
  ValueRange query_key;  // gain of queries and keys

  friend bool operator==(const StackScaling&, const StackScaling&) = default;
};

// Gains are factors on Xavier's deviation sqrt(2 / (in + out)).
StackScaling MakeStackScaling(const ModelSpec& model, int stack);

// An untied output matrix starts at 0.
bool OutputStartsAtZero(const ModelSpec& model);

// "encoder." or "decoder.", and what a scheme adds to a stack.
std::string StackName(int stack);
std::string LayerPrefix(int stack, int layer);  // "encoder.layers.3."
// The matrix that a layer of kind `use` reads: source embedding, target embedding or output.
std::string EmbeddingName(const ModelSpec& model, LayerKind use);
inline constexpr char kFinalNorm[] = "layer_norm";
inline constexpr char kFinalScale[] = "final_scale";
inline constexpr char kFinalShift[] = "final_shift";
inline constexpr char kEmbeddingNorm[] = "layernorm_embedding";
inline constexpr char kHistoryWeight[] = "history_weight";  // of a layer, and of a stack's output
inline constexpr char kHistoryNorm[] = "history_layer_norm";

// The names of a sub-layer's parts begin with its block: "encoder.layers.3.self_attn",
// "...encoder_attn" or, for the feed-forward block as in the names of fairseq, "...final".
std::string BlockName(const SublayerPlace& place);
inline constexpr char kNorm[] = "_layer_norm";  // before the branch, or else after the sum
inline constexpr char kOutputNorm[] = "_output_layer_norm";
inline constexpr char kInnerNorm[] = "_inner_layer_norm";
inline constexpr char kStreamScale[] = "_stream_scale";
inline constexpr char kHeadScale[] = "_head_scale";
inline constexpr char kInputShift[] = "_input_shift";
inline constexpr char kMiddleShift[] = "_middle_shift";  // after the first matrix
inline constexpr char kInnerShift[] = "_inner_shift";    // before the last
std::string EndNormName(const SublayerPlace& place, const SublayerScheme& scheme);
std::string BranchScaleName(const SublayerPlace& place, const SublayerScheme& scheme);

}  // namespace deepnet
