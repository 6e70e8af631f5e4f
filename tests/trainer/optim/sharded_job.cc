#include "tests/trainer/optim/sharded_job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "parallel/base/status_macros.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/run_ranks.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr int kNumLayers = 6;

std::vector<int> StageOfLayer(const Job& job) {
  std::vector<int> stages;
  for (int s = 0; s < static_cast<int>(job.stages.size()); ++s) {
    for (const LayerSpan& span : job.stages[s]) {
      stages.resize(std::max<size_t>(stages.size(), span.end));
      for (int l = span.first; l < span.end; ++l) stages[l] = s;
    }
  }
  return stages;
}

// Returns a rank's buckets, as its layers [first, end): one per chunk, and one for the output
// layer.
std::vector<LayerSpan> BucketLayers(const Job& job, int stage) {
  std::vector<LayerSpan> buckets;
  int first = 0;
  for (const LayerSpan& chunk : job.stages[stage]) {
    const int end = first + chunk.NumLayers();
    const bool output = chunk.end == kNumLayers;
    if (!output || end - first > 1) buckets.push_back({first, output ? end - 1 : end});
    if (output) buckets.push_back({end - 1, end});
    first = end;
  }
  return buckets;
}

std::vector<GradientBucket> MakeJobBuckets(const Job& job, int stage, const Inventory& held) {
  std::vector<GradientBucket> buckets;
  int64_t begin = 0;
  for (const LayerSpan& layers : BucketLayers(job, stage)) {
    GradientBucket bucket{.begin = begin};
    for (int l = layers.first; l < layers.end; ++l) {
      for (const int p : held.layers[l].parameters) {
        bucket.count += held.parameters[p].NumElements();
      }
    }
    begin += bucket.count;
    buckets.push_back(bucket);
  }
  return buckets;
}

// One rank's part of a job.
class Rank {
 public:
  Rank(const Job& job, const Inventory& model, int stage, int replica, Groups groups)
      : job_(job),
        buckets_(BucketLayers(job, stage)),
        ops_(MakeJobOps(job.native)),
        parameters_(Select(model, job.stages[stage]), *ops_, /*trainable=*/true),
        layout_(MakeShardLayout(model, parameters_.inventory(),
                                MakeJobBuckets(job, stage, parameters_.inventory()),
                                {.num_replicas = job.replicas,
                                 .replica = replica,
                                 .replicas_per_node = job.replicas_per_node,
                                 .piece_elements = job.piece_elements,
                                 .stage_of_layer = StageOfLayer(job)})),
        groups_(groups),
        local_(std::max(1, job.virtual_replicas / job.replicas)),
        sums_(*ops_, parameters_, layout_, groups, {.local_replicas = local_, .order = job.order}),
        step_(SixLayersOptim(), model, layout_, groups) {
    parameters_.Initialize(7);
    parameters_.ShardMoments(layout_.StateElements());
  }

  // Buckets from the last to the first, as a backward pass has them.
  absl::Status AddGradients(int64_t update) {
    sums_.BeginStep();
    for (int r = layout_.replica * local_; r < (layout_.replica + 1) * local_; ++r) {
      for (int b = static_cast<int>(buckets_.size()) - 1; b >= 0; --b) {
        AddReplica(b, update, r);
        RETURN_IF_ERROR(sums_.ReplicaDone(b));
      }
    }
    return sums_.Finish();
  }

  void AddReplica(int bucket, int64_t update, int replica) {
    const Inventory& held = parameters_.inventory();
    int64_t begin = layout_.buckets[bucket].begin;
    for (int l = buckets_[bucket].first; l < buckets_[bucket].end; ++l) {
      for (const int p : held.layers[l].parameters) {
        const at::Tensor part = JobGradient(held.layers[l], held.parameters[p], update, replica);
        parameters_.gradient().narrow(0, begin, part.numel()).add_(part);
        begin += part.numel();
      }
    }
  }

  absl::Status Run(int rank, const BeforeUpdate& before_update, RankResult& result) {
    for (int64_t update = 1; update <= job_.updates; ++update) {
      RETURN_IF_ERROR(AddGradients(update));
      if (before_update != nullptr) {
        RETURN_IF_ERROR(before_update(rank, update, layout_, parameters_, groups_));
      }
      ASSIGN_OR_RETURN(const double norm, step_.Norm(*ops_, parameters_));
      ASSIGN_OR_RETURN(result.updates.emplace_back(),
                       step_.Apply(*ops_, parameters_, {update, norm, /*loss=*/1.0}));
    }
    for (const Parameter& p : parameters_.inventory().parameters) {
      result.names.push_back(p.name);
      result.weights.push_back(parameters_.Get(p.name).reshape({-1}).clone());
    }
    result.state_elements = parameters_.moment1().numel();
    DEEPNET_CHECK_EQ(parameters_.moment2().numel(), result.state_elements);
    result.weight_elements = parameters_.weights().numel();
    result.gradient_elements = parameters_.gradient().numel();
    return absl::OkStatus();
  }

 private:
  const Job& job_;
  std::vector<LayerSpan> buckets_;  // layers of each
  std::unique_ptr<Ops> ops_;
  Parameters parameters_;
  ShardLayout layout_;
  Groups groups_;
  int local_;
  GradientSums sums_;
  OptimizerStep step_;
};

}  // namespace

Inventory SixLayers(bool tied) {
  Inventory model;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, Role role) {
    Parameter p{.name = name, .shape = std::move(shape), .role = role, .initial_std = 0.1};
    p.offset = offset;
    if (role == Role::kEmbedding) p.zero_row = 1;
    offset += p.NumElements();
    model.parameters.push_back(p);
    return static_cast<int>(model.parameters.size()) - 1;
  };
  const auto layer = [&](const std::string& name, LayerKind kind, std::vector<int> parameters) {
    model.layers.push_back({.name = name,
                            .kind = kind,
                            .position = static_cast<int>(model.layers.size()),
                            .parameters = std::move(parameters)});
  };
  const auto block = [&](const std::string& name) {
    return std::vector<int>{add(name + ".weight", {113, 77}, Role::kFeedForward),
                            add(name + ".bias", {113}, Role::kFeedForward)};
  };
  const std::vector<int64_t> embedding = {1301, 8};
  const int source = add("embed", embedding, Role::kEmbedding);
  layer("source", LayerKind::kSourceEmbedding,
        {source, add("positions", {200, 8}, Role::kPosition)});
  layer("encoder.0", LayerKind::kEncoder, block("encoder.0"));
  layer("encoder.1", LayerKind::kEncoder, block("encoder.1"));
  layer("target", LayerKind::kTargetEmbedding,
        {tied ? source : add("target.embed", embedding, Role::kEmbedding)});
  layer("decoder.0", LayerKind::kDecoder, block("decoder.0"));
  layer("output", LayerKind::kOutput,
        {tied ? source : add("output.embed", embedding, Role::kEmbedding),
         add("output.bias", {1301}, Role::kFeedForward)});
  return model;
}

OptimSpec SixLayersOptim() {
  OptimSpec optim;
  optim.set_optimizer(ADAM);
  optim.set_schedule(CONSTANT);
  optim.set_learning_rate(0.01);
  optim.set_beta1(0.9);
  optim.set_beta2(0.98);
  optim.set_epsilon(1e-6);
  optim.set_weight_decay(0.1);
  optim.set_clip_norm(1.0);
  return optim;
}

std::unique_ptr<Ops> MakeJobOps(bool native) {
  if (!native) return MakeAtenOps(at::kFloat, at::kFloat);
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  return MakeNativeOps(compute);
}

at::Tensor JobGradient(const Layer& layer, const Parameter& parameter, int64_t step, int replica) {
  const int64_t n = parameter.NumElements();
  at::Tensor gradient = at::empty({n});
  FillInitialNormal(1000 * step + replica, layer.name + "/" + parameter.name, 0,
                    {gradient.data_ptr<float>(), static_cast<size_t>(n)});
  for (int64_t i = 0; i < n; ++i) {
    gradient.data_ptr<float>()[i] *= std::ldexp(1.0f, static_cast<int>((7 * i + 3 * replica) % 31));
  }
  return gradient;
}

std::vector<absl::Status> RunJob(const Job& job, const Inventory& model,
                                 std::vector<RankResult>& results,
                                 const BeforeUpdate& before_update) {
  const int size = static_cast<int>(job.stages.size()) * job.replicas;
  results.assign(size, {});
  return RunRanks(size, [&](Communicator& world) -> absl::Status {
    const int stage = world.rank() / job.replicas, replica = world.rank() % job.replicas;
    ASSIGN_OR_RETURN(const OwnedGroups owned,
                     SplitGroups(world, stage, replica, job.replicas_per_node));
    const bool nodes = job.replicas_per_node > 0;
    CommMeter all_sent, node_sent;
    CountingCommunicator counted(nodes ? *owned.node_replicas : *owned.replicas, all_sent);
    CountingCommunicator across(nodes ? *owned.across_nodes : *owned.replicas, node_sent);
    Groups groups = owned.all;
    (nodes ? groups.node_replicas : groups.replicas) = &counted;
    if (nodes) groups.across_nodes = &across;
    Rank rank(job, model, stage, replica, groups);
    RankResult& result = results[world.rank()];
    RETURN_IF_ERROR(rank.Run(world.rank(), before_update, result));
    result.node_bytes_sent = node_sent.counts().sent_bytes / job.updates;
    result.replica_bytes_sent = all_sent.counts().sent_bytes / job.updates + result.node_bytes_sent;
    return absl::OkStatus();
  });
}

const std::vector<Stages>& AllStages() {
  static const auto& stages = *new std::vector<Stages>{{{{0, 6}}},
                                                       {{{0, 3}}, {{3, 6}}},
                                                       {{{0, 2}}, {{2, 5}}, {{5, 6}}},
                                                       {{{0, 2}, {5, 6}}, {{2, 5}}}};
  return stages;
}

std::vector<RankResult> RunToTheEnd(const Job& job, const Inventory& model) {
  std::vector<RankResult> results;
  const absl::Status status = FirstError(RunJob(job, model, results));
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

std::string Describe(const Job& job) {
  return absl::StrCat(job.stages.size(), " stages, ", job.replicas, " replicas, ",
                      job.virtual_replicas, " virtual, pieces of ", job.piece_elements);
}

}  // namespace deepnet
