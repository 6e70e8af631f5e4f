#include "trainer/optim/tied_sums.h"

#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/optim/gradient_exchange.h"
#include "trainer/optim/groups.h"

namespace deepnet {

TiedSums::TiedSums(Ops& ops, at::Tensor gradient, std::vector<TiedTensor> tied,
                   const Groups& groups)
    : ops_(ops),
      gradient_(std::move(gradient)),
      tied_(std::move(tied)),
      stages_(groups.stages),
      limit_(groups.limit) {
  for (const TiedTensor& tensor : tied_) {
    for (const TiedTensor::Use& use : tensor.uses) {
      const bool here = use.stage == (stages_ == nullptr ? 0 : stages_->rank());
      DEEPNET_CHECK_EQ(here, use.gradient >= 0) << "stage " << use.stage;
    }
  }
}

absl::Status TiedSums::Fold() {
  for (const TiedTensor& tensor : tied_) {
    for (const TiedTensor::Share& share : tensor.shares) {
      RETURN_IF_ERROR(FoldShare(tensor, share));
    }
  }
  return absl::OkStatus();
}

// Where a use of the share is: in the gradient, or in new memory for one that another stage sends.
at::Tensor TiedSums::PlaceOf(const TiedTensor::Use& use, const TiedTensor::Share& share) {
  if (use.gradient < 0) return at::empty({share.count}, gradient_.options());
  return gradient_.narrow(0, use.gradient + share.begin, share.count);
}

absl::Status TiedSums::FoldShare(const TiedTensor& tensor, const TiedTensor::Share& share) {
  std::vector<at::Tensor> uses;
  int home = -1;
  for (const TiedTensor::Use& use : tensor.uses) {
    if (home < 0 && use.gradient >= 0) home = static_cast<int>(uses.size());
    uses.push_back(PlaceOf(use, share));
  }
  RETURN_IF_ERROR(Exchange(tensor, uses));
  AddParts(ops_, uses, home, FAST);
  return absl::OkStatus();
}

// A message for each use and each stage that lacks it. The tag is the use's place in the order.
absl::Status TiedSums::Exchange(const TiedTensor& tensor, std::span<const at::Tensor> uses) {
  std::set<int> others;
  for (const TiedTensor::Use& use : tensor.uses) {
    if (use.gradient < 0) others.insert(use.stage);
  }
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int u = 0; u < static_cast<int>(uses.size()); ++u) {
    const Buffer buffer = BufferOf(uses[u]);
    if (tensor.uses[u].gradient < 0) {
      ASSIGN_OR_RETURN(auto transfer, stages_->Receive(buffer, tensor.uses[u].stage, u));
      transfers.push_back(std::move(transfer));
      continue;
    }
    for (const int other : others) {
      ASSIGN_OR_RETURN(auto transfer, stages_->Send(buffer, other, u));
      transfers.push_back(std::move(transfer));
    }
  }
  for (const auto& transfer : transfers)
    RETURN_IF_ERROR(Named(transfer->Wait(limit_), "sum over the uses of a tied tensor"));
  return absl::OkStatus();
}

}  // namespace deepnet
