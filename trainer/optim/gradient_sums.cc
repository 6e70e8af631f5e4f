#include "trainer/optim/gradient_sums.h"

#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

GradientSums::GradientSums(Ops& ops, Parameters& parameters, ShardLayout layout, Groups groups,
                           GradientSumsOptions options)
    : ops_(ops),
      parameters_(parameters),
      layout_(std::move(layout)),
      options_(options),
      trees_(layout_.buckets.size()),
      done_(layout_.buckets.size()),
      tied_(ops, parameters.gradient(), layout_.tied, groups) {
  parameters.ShardMoments(layout_.StateElements());  // before a checkpoint is read into them
  const int num_replicas = groups.replicas == nullptr ? 1 : groups.replicas->size();
  DEEPNET_CHECK_EQ(num_replicas, layout_.num_replicas);
  if (num_replicas == 1) return;
  DEEPNET_CHECK_EQ(groups.replicas->rank(), layout_.replica);
  exchange_ = std::make_unique<GradientExchange>(ops, parameters.gradient(), options.order, groups);
}

void GradientSums::BeginStep() {
  if (exchange_ != nullptr) exchange_->Reset();
  for (ReplicaTree& tree : trees_) tree.Reset();
  done_.assign(done_.size(), 0);
  started_ = static_cast<int>(done_.size());
  parameters_.gradient().zero_();
}

at::Tensor GradientSums::BucketGradient(int bucket) const {
  const GradientBucket& b = layout_.buckets[bucket];
  return parameters_.gradient().narrow(0, b.begin, b.count);
}

absl::Status GradientSums::ReplicaDone(int bucket) {
  DEEPNET_CHECK_LT(done_[bucket], options_.local_replicas) << "bucket " << bucket;
  const bool last = ++done_[bucket] == options_.local_replicas;
  if (options_.order != FAST) {
    const at::Tensor gradient = BucketGradient(bucket);
    if (!last) {
      trees_[bucket].Push(ops_, gradient);
      gradient.zero_();
    } else {
      trees_[bucket].PushLast(ops_, gradient);
    }
  }
  return last && exchange_ != nullptr ? StartComplete() : absl::OkStatus();
}

absl::Status GradientSums::StartComplete() {
  while (started_ > 0 && done_[started_ - 1] == options_.local_replicas) {
    for (const Piece& piece : layout_.pieces[--started_]) {
      RETURN_IF_ERROR(exchange_->Start(piece));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientSums::Finish() {
  for (size_t b = 0; b < done_.size(); ++b) {
    DEEPNET_CHECK_EQ(done_[b], options_.local_replicas) << "bucket " << b;
  }
  if (exchange_ != nullptr) RETURN_IF_ERROR(exchange_->Finish());
  RETURN_IF_ERROR(tied_.Fold());
  ClearZeroRows();
  return absl::OkStatus();
}

void GradientSums::ClearZeroRows() {
  for (const Parameter& p : parameters_.inventory().parameters) {
    if (p.zero_row >= 0) parameters_.Gradient(p.name)[p.zero_row].zero_();
  }
}

}  // namespace deepnet
