// Do weights start as theory wants? Each tensor's mean and standard deviation beside those of the
// Inventory (trainer/model/describe.h), and rows that must be zero: audit_spread.h says how far
// they may be off. Of DEEPNORM also alpha and the gains beside the paper's formulas, which are
// computed from the numbers of layers by code of their own (audit_formulas.h), so that neither the
// Inventory nor what it is made from vouches for itself.
//
// All tensors of a group (kind of layer and role), each in units of its own sigma, are one large
// sample, which is what finds a wrong gain of small matrices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/model/parameters.h"
#include "trainer/probe/audit_spread.h"

namespace deepnet {

struct TensorAudit {
  std::string name;
  Role role = Role::kEmbedding;
  double theory_std = 0.0;  // of the Inventory; 0: every element starts at one value
  double drawn_std =
      0.0;  // around the mean; where nothing is drawn root mean square off that value
  SpreadAudit spread;
};

struct AuditGroup {
  LayerKind kind = LayerKind::kEncoder;  // of the layer that uses the tensors first
  Role role = Role::kEmbedding;
  bool drawn = false;  // else: every element starts at one value
  int64_t tensors = 0;
  int64_t elements = 0;  // of all tensors
  // Of deviations over sqrt(2 / (in + out)), of embeddings and positions over width^(-1/2); else 0.
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
// are the rows that a run of `seed` starts with. Memory is that of one tensor.
AuditReport AuditInitialWeights(const ModelSpec& model, const Inventory& whole, uint64_t seed,
                                int64_t most_elements);

// What a rank holds, against the theory of `whole`: at most so many elements of each tensor, evenly
// spread, that all take some 20 ms.
AuditReport AuditHeldWeights(const ModelSpec& model, const Inventory& whole,
                             const Parameters& held);

// OK, or ExitCode::kPreflight naming the first faults and how many there are.
absl::Status AuditStatus(const AuditReport& report);

}  // namespace deepnet
