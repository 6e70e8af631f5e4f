#include "parallel/plan/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/plan/device_model.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// A device of round figures: 100 multiprocessors of 1e10 operations a second.
DeviceModel Round() {
  DeviceModel device;
  device.set_name("round");
  device.set_flops_16bit(1e12);
  device.set_flops_32bit(1e11);
  device.set_product_share(1);
  device.set_fused_share(0.5);
  device.set_memory_bytes_per_second(1e9);
  device.set_memory_share(0.5);
  device.set_multiprocessors(100);
  device.set_launch_seconds(1e-3);
  return device;
}

KernelWork Product(int64_t rows, int64_t columns, int64_t depth) {
  return {.name = "product",
          .flops = 2.0 * static_cast<double>(rows * columns * depth),
          .product = {.rows = rows, .columns = columns, .depth = depth}};
}

TEST(Roofline, AProductIsAsLongAsItsWavesOfTiles) {
  const DeviceModel device = Round();
  const auto seconds = [&](const KernelWork& kernel) {
    return TimeOf(kernel, device, BFLOAT16).seconds;
  };
  // 100 tiles of 256 x 128 are one wave, in which no multiprocessor waits.
  const KernelWork full = Product(256 * 10, 128 * 10, 1024);
  EXPECT_NEAR(seconds(full), full.flops / 1e12, 1e-9);
  EXPECT_STREQ(TimeOf(full, device, BFLOAT16).bound, "arithmetic");
  // A row of tiles more would begin a second wave; smaller tiles do better, and worse than one.
  const KernelWork more = Product(256 * 10 + 1, 128 * 10, 1024);
  EXPECT_GT(seconds(more), 1.1 * seconds(full));
  EXPECT_LE(seconds(more), 2 * seconds(full));
  // Few tiles leave multiprocessors without work, however many numbers each element sums.
  const KernelWork narrow = Product(512, 512, 1 << 16);
  EXPECT_GT(seconds(narrow), 2 * narrow.flops / 1e12);
  KernelWork twice = full;
  twice.launches = 2;
  EXPECT_NEAR(seconds(twice), 2 * seconds(full), 1e-9);
  // float32 products have another peak.
  EXPECT_GT(TimeOf(full, device, FLOAT32).seconds, 10 * seconds(full));
}

TEST(Roofline, OtherKernelsAreAsLongAsTheirBytesOrTheirOperations) {
  DeviceModel device = Round();
  const KernelTime copy = TimeOf({.name = "copy", .bytes = 1e6}, device, BFLOAT16);
  EXPECT_NEAR(copy.seconds, 2e-3, 1e-9);
  EXPECT_STREQ(copy.bound, "memory");
  const KernelWork fused = {.name = "fused", .flops = 1e10, .bytes = 1e6, .reaches = 0.5};
  EXPECT_NEAR(TimeOf(fused, device, BFLOAT16).seconds, 1e10 / 2.5e11, 1e-6);
  const KernelWork scalar = {.name = "scalar", .flops = 1e10, .unit = ComputeUnit::kFloat32};
  EXPECT_NEAR(TimeOf(scalar, device, BFLOAT16).seconds, 0.1, 1e-6);
  device.set_kernel_seconds(1);
  EXPECT_STREQ(TimeOf(scalar, device, BFLOAT16).bound, "start");
  EXPECT_NEAR(TimeOf(scalar, device, BFLOAT16).seconds, 1.1, 1e-6);
}

Inventory OneLayer(const LayerWork& work) {
  Inventory inventory;
  inventory.layers.push_back({.name = "a", .forward_flops = 1e9, .work = 0});
  inventory.work = {work};
  return inventory;
}

TEST(Roofline, ALayerIsAsLongAsTheDeviceOrTheHostNeeds) {
  LayerWork work;
  work.forward = {{.name = "copy", .bytes = 1e6}};                        // 2 ms, 1 launch
  work.backward_input = {{.name = "copy", .launches = 5, .bytes = 1e6}};  // 5 launches
  work.recompute[SELECTIVE_FFN] = {{.name = "copy", .bytes = 2e6}};
  Speeds speeds{.device = Round(), .flops_per_second = 1e9, .operands = BFLOAT16};
  const LayerSeconds seconds = MakeLayerSeconds(OneLayer(work), speeds)[0];
  EXPECT_NEAR(seconds.forward, 2e-3, 1e-9);
  EXPECT_NEAR(seconds.backward_input, 5e-3, 1e-9);
  EXPECT_EQ(seconds.backward_weight, 0);
  EXPECT_NEAR(seconds.recompute[SELECTIVE_FFN], 4e-3, 1e-9);
  EXPECT_EQ(seconds.recompute[NONE], 0);
  // A stated rate, or a device without a model, goes by operations.
  speeds.states_flops = true;
  EXPECT_EQ(MakeLayerSeconds(OneLayer(work), speeds)[0].backward_weight, 1.0);
  speeds = {.flops_per_second = 1e9};
  EXPECT_EQ(MakeLayerSeconds(OneLayer(work), speeds)[0].forward, 1.0);
  Inventory loss = OneLayer(work);
  loss.layers[0].computes_loss = true;
  EXPECT_EQ(MakeLayerSeconds(loss, speeds)[0].forward, 3.0);
  EXPECT_EQ(MakeLayerSeconds(loss, speeds)[0].backward_input, 0.0);
}

TEST(Roofline, APredictionNamesWhatTheSlowestRankSpendsMostOn) {
  LayerWork work;
  work.forward = {{.name = "copy", .bytes = 1e6}, {.name = "short", .launches = 9}};
  work.backward_weight = {Product(2560, 1280, 1024)};
  work.backward_weight[0].label = "fc1";
  const Inventory inventory = OneLayer(work);
  Plan plan;
  plan.set_pipeline_parallel_size(1);
  plan.set_data_parallel_size(1);
  plan.set_global_microbatches(4);
  plan.set_step_seconds(0.1);
  plan.add_stages()->set_flops_per_step(1e10);
  ChunkPlan& chunk = *plan.add_chunks();
  chunk.set_end_layer(1);
  chunk.set_recompute(NONE);
  DataSpec data;
  data.mutable_microbatch()->set_max_target_tokens(50);
  const Speeds speeds{.device = Round(), .operands = BFLOAT16};
  const Prediction prediction = Predict(plan, inventory, data, speeds);
  EXPECT_NEAR(prediction.mfu(), 0.1, 1e-9);
  EXPECT_NEAR(prediction.tokens_per_second(), 2000, 1e-6);
  EXPECT_EQ(prediction.launches(), 4 * 11);
  ASSERT_EQ(prediction.kernels_size(), 4);
  // 10 launches of a millisecond, while the device works 2 of them.
  EXPECT_EQ(prediction.kernels(0).name(), "launches by the host");
  EXPECT_NEAR(prediction.kernels(0).seconds(), 4 * 8e-3, 1e-9);
  EXPECT_EQ(prediction.kernels(1).name(), "fc1 (weight gradients)");
  EXPECT_EQ(prediction.kernels(2).name(), "copy");
  EXPECT_EQ(prediction.kernels(2).bound(), "memory");
  EXPECT_THAT(PredictionText(prediction), HasSubstr("launches by the host: 0.032 s (host), fc1"));
  EXPECT_THAT(PredictionText(prediction), HasSubstr("44 launches on rank 0 (0 with"));
}

// Two replicas of two stages with a layer each; every replica has two of four microbatches.
TEST(Roofline, APredictionIsOfOneReplicaAndOfTheOperationsOfAll) {
  Inventory inventory;
  inventory.layers = {{.name = "a", .work = 0}, {.name = "b", .work = 1}};
  inventory.work.resize(2);
  inventory.work[0].forward = {{.name = "other rank's", .bytes = 1e9}};
  inventory.work[1].forward = {{.name = "slow", .bytes = 1e6}};                          // 2 ms
  inventory.work[1].backward_input = {{.name = "slow", .flops = 6e8}};                   // 1.2 ms
  inventory.work[1].recompute[FULL] = {{.name = "again", .launches = 2, .bytes = 2e6}};  // 4 ms
  Plan plan;
  plan.set_pipeline_parallel_size(2);
  plan.set_data_parallel_size(2);
  plan.set_global_microbatches(4);
  plan.set_step_seconds(0.1);
  for (const int rank : {0, 1, 2, 3}) {
    StagePlan& stage = *plan.add_stages();
    stage.set_rank(rank);
    stage.set_busy_seconds(rank % 2);
    stage.set_flops_per_step(1e10);
  }
  for (const int rank : {0, 1}) {
    ChunkPlan& chunk = *plan.add_chunks();
    chunk.set_rank(rank);
    chunk.set_first_layer(rank);
    chunk.set_end_layer(rank + 1);
    chunk.set_recompute(FULL);
  }
  DataSpec data;
  data.mutable_microbatch()->set_max_source_tokens(30);
  data.mutable_microbatch()->set_max_target_tokens(20);
  Prediction& prediction = *plan.mutable_prediction();
  prediction = Predict(plan, inventory, data, {.device = Round(), .operands = BFLOAT16});
  EXPECT_NEAR(prediction.mfu(), 4e10 / 4e12 / 0.1, 1e-9);
  EXPECT_NEAR(prediction.tokens_per_second(), 2000, 1e-6);
  EXPECT_EQ(prediction.rank(), 1);
  EXPECT_EQ(prediction.launches(), 2 * 4);
  ASSERT_EQ(prediction.kernels_size(), 2);
  EXPECT_EQ(prediction.kernels(0).name(), "again");
  EXPECT_NEAR(prediction.kernels(0).seconds(), 2 * 4e-3, 1e-9);
  EXPECT_EQ(prediction.kernels(1).bound(), "memory");  // as the longer one of that name
  EXPECT_NEAR(prediction.kernels(1).seconds(), 2 * 3.2e-3, 1e-9);
  EXPECT_THAT(KernelsText(plan), HasSubstr("    0.008    8.0%         4  memory      again\n"));
}

TEST(Roofline, GraphsTakeAllLaunchesButThoseThatTheyCannot) {
  LayerWork work;
  work.forward = {{.name = "short", .launches = 512}, {.name = "sized", .launches = 3}};
  work.forward[1].alone = true;
  Speeds speeds{.device = Round(), .operands = BFLOAT16};
  EXPECT_NEAR(MakeLayerSeconds(OneLayer(work), speeds)[0].forward, 515e-3, 1e-9);
  speeds.graphs = true;
  // Two graphs of 256, a launch for each of the three and for what is between them; the host notes
  // what the graphs take.
  EXPECT_NEAR(MakeLayerSeconds(OneLayer(work), speeds)[0].forward, 8e-3 + 512 * 0.5e-6, 1e-9);
}

}  // namespace
}  // namespace deepnet
