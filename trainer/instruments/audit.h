// Compares initial weights with theory: each tensor's mean and standard deviation with those of
// the Inventory (trainer/model/describe.h), and rows that must be zero. DEEPNORM's alpha and gains
// are also compared with the paper's formulas by code of their own (PaperScalingOf), so that
// neither the Inventory nor what it is made from vouches for itself.
//
// All tensors of a group (kind of layer and role), each in units of its own sigma, are one large
// sample, which is what finds a wrong gain of small matrices.
//
// Tolerances. A matrix drawn from N(0, sigma^2): its deviation may be off by kStdTolerance or,
// where that is more, by kSamplingErrors times the sampling error of the n elements looked at, 1 /
// sqrt(2 n); its mean by kSamplingErrors sigma / sqrt(n). A tensor that starts at one value has
// that value in every element looked at. A zero row is zero in all elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/model/architecture.h"
#include "trainer/model/parameters.h"

namespace deepnet {

inline constexpr double kStdTolerance = 0.02;
inline constexpr double kSamplingErrors = 6.0;  // one false alarm in 500 million tensors

// The outcome for a tensor, or for all tensors of a group in units of their sigma.
struct SpreadAudit {
  int64_t elements = 0;    // looked at, without those of a zero row
  double std_ratio = 1.0;  // measured over expected deviation; 1 where nothing is drawn
  double tolerance = 0.0;  // of std_ratio
  double mean = 0.0;       // over the expected deviation; measured mean where nothing is drawn
  std::string fault;       // what is wrong, with both values; empty: as theory wants
};

struct PaperScaling {
  double alpha = 1.0;  // on the residual stream
  double beta = 1.0;   // gain of values, attention outputs and feed-forward matrices
};

// Returns the constants of a stack that `model` (DEEPNORM) has: DeepNet, figure 2, or section 4.3
// for a stack alone; what model.deepnorm asks for instead counts first (docs/design/residuals.md).
PaperScaling PaperScalingOf(const ModelSpec& model, int stack);

struct TensorAudit {
  std::string name;
  Role role = Role::kEmbedding;
  double theory_std = 0.0;  // of the Inventory; 0: every element starts at one value
  double drawn_std = 0.0;   // around the mean; where nothing is drawn: around that value
  SpreadAudit spread;
};

struct AuditGroup {
  LayerKind kind = LayerKind::kEncoder;  // of the layer that uses the tensors first
  Role role = Role::kEmbedding;
  bool drawn = false;  // else: every element starts at one value
  int64_t tensors = 0;
  int64_t elements = 0;  // of all tensors
  // Deviations over sqrt(2 / (in + out)), of embeddings and positions over width^(-1/2); else 0.
  double least_gain = 0.0, greatest_gain = 0.0;
  SpreadAudit all;
  std::string worst_name;  // the tensor farthest from theory for its tolerance
  SpreadAudit worst;
};

struct AuditReport {
  std::vector<TensorAudit> tensors;  // in the order of the Inventory
  std::vector<AuditGroup> groups;
  // "encoder.layers.0.fc1.weight: ...": of tensors, then of groups, then of a stack's alpha.
  std::vector<std::string> faults;
};

// Draws every tensor of `whole` (what Describe made of `model`) with Parameters::Initialize, one at
// a time: as many of its first rows as have `most_elements`, at least those up to a zero row. They
// are the rows that a run of `seed` starts with. Memory is that of one tensor, twice.
AuditReport AuditInitialWeights(const ModelSpec& model, const Inventory& whole, uint64_t seed,
                                int64_t most_elements);

// Compares what a rank holds with the theory of `whole`. Looks at so many elements of each tensor,
// evenly spread, that all take some 20 ms.
AuditReport AuditHeldWeights(const ModelSpec& model, const Inventory& whole,
                             const Parameters& held);

// Returns OK, or ExitCode::kPreflight naming the first faults and how many there are.
absl::Status AuditStatus(const AuditReport& report);

}  // namespace deepnet
