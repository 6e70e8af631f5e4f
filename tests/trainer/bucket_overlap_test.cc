// Exchanges of gradients begin while layers before them still run backward.
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/pipeline_stage.h"

namespace deepnet {
namespace {

using testing::TinyCapacity;
using testing::TinyMicrobatch;

// Shows the caller what every exchange is about to send.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  using Watch = std::function<void(std::span<const Buffer> send)>;

  WatchedCommunicator(Communicator& inner, Watch watch)
      : ForwardingCommunicator(inner), watch_(std::move(watch)) {}

  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override {
    watch_(send);
    return inner().AllToAll(send, receive);
  }

 private:
  Watch watch_;
};

// One of two replicas of a whole model in one chunk.
class Replica {
 public:
  Replica(Communicator& world, int virtual_replicas)
      : ops_(MakeNativeOps(Float32())),
        model_(Spec(), TinyCapacity(), *ops_, /*trainable=*/true),
        watched_(world, [this](std::span<const Buffer> send) { Look(send); }),
        sums_(*ops_, model_.parameters(), Layout(world.rank()), Groups{.replicas = &watched_},
              {.local_replicas = virtual_replicas}),
        stage_(model_, {.seed = 9, .virtual_replicas = virtual_replicas}, sums_) {
    model_.parameters().Initialize(5);
    model_.Refresh();
    for (int m = 0; m < virtual_replicas; ++m) {
      batch_.microbatches.push_back(
          TinyMicrobatch(Spec(), static_cast<uint32_t>(1 + m + 2 * world.rank())));
      batch_.num_target_tokens += batch_.microbatches.back().num_target_tokens;
    }
  }

  absl::Status Step(bool split) {
    stage_.BeginStep(batch_, /*step=*/1);
    for (int m = 0; m < static_cast<int>(batch_.microbatches.size()); ++m) {
      RETURN_IF_ERROR(stage_.Forward(0, m));
      if (!split) {
        RETURN_IF_ERROR(stage_.Backward(0, m));
      } else {
        RETURN_IF_ERROR(stage_.BackwardInput(0, m));
        EXPECT_LE(started_.size(), 1u) << "more than the output layer before weight gradients";
        RETURN_IF_ERROR(stage_.BackwardWeight(0, m));
      }
    }
    return sums_.Finish();
  }

  const std::vector<int>& started() const { return started_; }  // first layers of buckets, in order
  int early() const { return early_; }  // of these, with layers before them that had no gradient

 private:
  static ComputeSpec Float32() {
    ComputeSpec compute;
    compute.set_dtype(FLOAT32);
    compute.set_threads_per_rank(1);
    return compute;
  }

  static ModelSpec Spec() {
    ModelSpec spec = testing::TinySpec();
    spec.set_tied_embeddings(TIE_NONE);  // a bucket is one piece
    return spec;
  }

  ShardLayout Layout(int replica) const {
    const Inventory& whole = model_.parameters().inventory();
    return MakeShardLayout(whole, whole, MakeBuckets(model_),
                           {.num_replicas = 2, .replica = replica});
  }

  // No layer before the one whose bucket is being sent has gradients of its matrices yet.
  void Look(std::span<const Buffer> send) {
    const Parameters& parameters = model_.parameters();
    const auto* base = parameters.gradient().const_data_ptr<float>();
    const bool all_to_second = send[0].bytes == 0;  // then it has no address
    const int64_t sent = static_cast<const float*>(send[all_to_second ? 1 : 0].data) - base;
    for (const GradientBucket& bucket : MakeBuckets(model_)) {
      if (sent < bucket.begin || sent >= bucket.begin + bucket.count) continue;
      started_.push_back(bucket.first_layer);
      const int reached = bucket.completes_in_forward ? 0 : bucket.first_layer;
      if (reached > 0) ExpectNoGradientsBefore(reached);
    }
  }

  void ExpectNoGradientsBefore(int reached) {
    const Parameters& parameters = model_.parameters();
    const Inventory& inventory = parameters.inventory();
    bool any = false;
    std::set<int> with_gradients;
    for (const Use& use : parameters.uses()) {
      const LayerKind kind = inventory.layers[use.layer].kind;
      const bool block = kind == LayerKind::kEncoder || kind == LayerKind::kDecoder;
      if (use.layer >= reached || !block) continue;
      if (inventory.parameters[use.parameter].shape.size() < 2) continue;
      any = true;
      const at::Tensor gradient = parameters.gradient().narrow(0, use.gradient_offset, use.count);
      if (gradient.count_nonzero().item<int64_t>() > 0) with_gradients.insert(use.layer);
    }
    EXPECT_EQ(with_gradients, std::set<int>()) << "before the exchange of layer " << reached;
    if (any) ++early_;
  }

  std::unique_ptr<Ops> ops_;
  Transformer model_;
  WatchedCommunicator watched_;
  GradientSums sums_;
  PipelineStage stage_;
  StepBatch batch_;
  std::vector<int> started_;
  int early_ = 0;
};

void ExpectOverlap(int virtual_replicas, bool split) {
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) -> absl::Status {
    Replica replica(world, virtual_replicas);
    RETURN_IF_ERROR(replica.Step(split));
    // A layer is larger than a group of this model: source embedding, two encoder layers, target
    // embedding, three decoder layers, output.
    EXPECT_EQ(replica.started(), (std::vector<int>{7, 6, 5, 4, 3, 2, 1, 0}));
    EXPECT_EQ(replica.early(), 5);
    return absl::OkStatus();
  }));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(BucketOverlap, ExchangesBeginBesideTheBackwardPassOfLayersBefore) {
  ExpectOverlap(/*virtual_replicas=*/1, /*split=*/false);
}

TEST(BucketOverlap, ExchangesBeginBesideTheLastOfSeveralVirtualReplicas) {
  ExpectOverlap(/*virtual_replicas=*/2, /*split=*/false);
}

TEST(BucketOverlap, ExchangesBeginBesideDeferredWeightGradients) {
  ExpectOverlap(/*virtual_replicas=*/1, /*split=*/true);
  ExpectOverlap(/*virtual_replicas=*/2, /*split=*/true);
}

}  // namespace
}  // namespace deepnet
