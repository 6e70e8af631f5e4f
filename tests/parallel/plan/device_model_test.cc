#include "parallel/plan/device_model.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "parallel/plan/plan_accessors.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr char kOwn[] = R"(
  name: "own" memory_gib: 16 flops_16bit: 100e12 flops_32bit: 10e12 product_share: 0.5 fused_share: 0.4
  memory_bytes_per_second: 1e12 memory_share: 0.8 multiprocessors: 64
  launch_seconds: 4e-6 kernel_seconds: 1e-6
  inside_node { bytes_per_second: 5e10 latency_seconds: 1e-6 }
  between_nodes { bytes_per_second: 1e10 latency_seconds: 2e-6 })";

ComputeSpec OnGpu(DataType dtype) {
  ComputeSpec compute;
  compute.set_device("cuda");
  compute.set_dtype(dtype);
  return compute;
}

TEST(DeviceModel, AreFoundByNameWhateverTheCapitals) {
  for (const char* name : {"A100", "A100-40GB", "H100", "H100-PCIe", "H200", "B200", "h100"}) {
    const auto device = FindDeviceModel(name);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_GT(device->flops_16bit(), 3 * device->flops_32bit()) << name;
    EXPECT_GT(device->inside_node().bytes_per_second(), device->between_nodes().bytes_per_second());
    EXPECT_GT(device->memory_bytes_per_second(), 1e12) << name;
  }
  const DeviceModel h100 = *FindDeviceModel(kDefaultDeviceModel);
  EXPECT_EQ(PeakFlops(h100, BFLOAT16), 989.4e12);
  EXPECT_EQ(PeakFlops(h100, FLOAT16), 989.4e12);
  EXPECT_EQ(PeakFlops(h100, FLOAT32), 66.9e12);
  EXPECT_DOUBLE_EQ(h100.inside_node().bytes_per_second(), 0.8 * 450e9);  // that messages reach
}

TEST(DeviceModel, OfAUserMustBeWhole) {
  const auto own = FindDeviceModel(kOwn);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->multiprocessors(), 64);
  const auto without = [](const std::string& words, const std::string& instead) {
    std::string text = kOwn;
    text.replace(text.find(words), words.size(), instead);
    const absl::Status status = FindDeviceModel(text).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig) << words;
    return std::string(status.message());
  };
  EXPECT_THAT(without("multiprocessors: 64", ""), HasSubstr("multiprocessors must be above 0"));
  EXPECT_THAT(without("bytes_per_second: 1e10", ""),
              HasSubstr("between_nodes.bytes_per_second must be above 0"));
  EXPECT_THAT(without("fused_share: 0.4", "fused_share: 40"), HasSubstr("must be at most 1"));
  EXPECT_THAT(std::string(FindDeviceModel("name: ").status().message()),
              HasSubstr("no text of a DeviceModel"));
  EXPECT_THAT(std::string(FindDeviceModel("V99").status().message()),
              HasSubstr("cluster.device_model: 'V99' is none of A100, A100-40GB, H100"));
}

TEST(DeviceModel, IsKnownByWhatCudaCallsTheGpu) {
  EXPECT_EQ(DeviceModelOf("", "NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(DeviceModelOf("", "NVIDIA H100 PCIe"), "H100-PCIe");
  EXPECT_EQ(DeviceModelOf("", "NVIDIA H200"), "H200");
  EXPECT_EQ(DeviceModelOf("", "NVIDIA B200"), "B200");
  EXPECT_EQ(DeviceModelOf("", "NVIDIA A100-SXM4-40GB"), "A100-40GB");
  EXPECT_EQ(DeviceModelOf("", "NVIDIA A100-SXM4-80GB"), "A100");
  for (const char* other : {"Tesla V100-SXM2-16GB", "NVIDIA H100 NVL", "NVIDIA GH200 480GB",
                            "NVIDIA GB200", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"}) {
    EXPECT_EQ(DeviceModelOf("", other), "");
  }
}

TEST(DeviceModel, IsWhatTheUserSaysOrElseWhatCudaSays) {
  EXPECT_EQ(DeviceModelOf("", "NVIDIA H200"), "H200");
  EXPECT_EQ(DeviceModelOf("A100", "NVIDIA H200"), "A100");
  EXPECT_EQ(DeviceModelOf("A100", "Another GPU"), "A100");
  EXPECT_EQ(DeviceModelOf("", "Another GPU"), "");
}

// 32 bytes a weight of a rank's share, and of all its weights 4 for the gradient and 6 for operands
// of 16 bits, at 0.8 of 1e12 bytes a second.
TEST(DeviceModel, SharesAnUpdateBetweenReplicasButForWhatEachHasWhole) {
  ClusterSpec cluster;
  cluster.set_device_model(kOwn);
  MemoryEstimate memory;
  memory.set_weights(4'000'000'000);
  const auto update = [&](DataType dtype, int replicas) {
    return MakeStageExchange(memory, /*foreign_bytes=*/0, /*stages=*/1, replicas,
                             MakeSpeeds(cluster, OnGpu(dtype)))
        .update_seconds;
  };
  EXPECT_DOUBLE_EQ(update(BFLOAT16, 1), 0.04 + 0.0125);
  EXPECT_DOUBLE_EQ(update(BFLOAT16, 4), 0.01 + 0.0125);
  EXPECT_DOUBLE_EQ(update(FLOAT32, 4), 0.01 + 0.005);
}

// 1 s and 100 B/s among the four ranks of a node, 10 s and 10 B/s among more.
TEST(StageExchange, IsAMessageToEachOtherReplicaOverTheLinkThatAllRanksHave) {
  ClusterSpec cluster;
  cluster.set_devices_per_node(4);
  cluster.mutable_inside_node()->set_latency_seconds(1);
  cluster.mutable_inside_node()->set_bytes_per_second(100);
  cluster.mutable_between_nodes()->set_latency_seconds(10);
  cluster.mutable_between_nodes()->set_bytes_per_second(10);
  MemoryEstimate memory;
  memory.set_gradients(800);
  memory.set_weights(400);
  const auto expect = [&](int stages, int replicas, double reduce, double gather, double tied) {
    const StageExchange exchange = MakeStageExchange(memory, /*foreign_bytes=*/80, stages, replicas,
                                                     MakeSpeeds(cluster, ComputeSpec()));
    EXPECT_DOUBLE_EQ(exchange.reduce_seconds, reduce) << stages << " x " << replicas;
    EXPECT_DOUBLE_EQ(exchange.gather_seconds, gather) << stages << " x " << replicas;
    EXPECT_DOUBLE_EQ(exchange.tied_seconds, tied) << stages << " x " << replicas;
  };
  expect(2, 2, 1 + 400 / 100.0, 1 + 200 / 100.0, 1 + 40 / 100.0);
  expect(2, 4, 3 * 10 + 600 / 10.0, 3 * 10 + 300 / 10.0, 1 + 20 / 100.0);
  expect(8, 1, 0, 0, 10 + 80 / 10.0);
}

TEST(DeviceModel, GivesSpeedsWhereTheClusterDoesNot) {
  ClusterSpec cluster;
  cluster.set_device_model(kOwn);
  Speeds speeds = MakeSpeeds(cluster, OnGpu(BFLOAT16));
  ASSERT_TRUE(speeds.device.has_value());
  EXPECT_EQ(speeds.device->name(), "own");
  EXPECT_EQ(speeds.network.inside_node.bytes_per_second, 5e10);
  EXPECT_EQ(speeds.network.between_nodes.latency_seconds, 2e-6);
  EXPECT_LT(speeds.flops_per_second, 100e12);
  EXPECT_GT(speeds.flops_per_second, MakeSpeeds(cluster, OnGpu(FLOAT32)).flops_per_second);
  cluster.mutable_inside_node()->set_bytes_per_second(7e9);
  cluster.set_optimizer_params_per_second(3e9);
  speeds = MakeSpeeds(cluster, OnGpu(BFLOAT16));
  EXPECT_EQ(speeds.network.inside_node.bytes_per_second, 7e9);
  EXPECT_EQ(speeds.optimizer_params_per_second, 3e9);
  EXPECT_FALSE(speeds.states_flops || speeds.graphs);
  ComputeSpec compute = OnGpu(BFLOAT16);
  compute.set_cuda_graphs(true);
  EXPECT_TRUE(MakeSpeeds(cluster, compute).graphs);
  cluster.set_flops_per_second(1);
  EXPECT_TRUE(MakeSpeeds(cluster, compute).states_flops);
  compute.set_device("cpu");
  const Speeds of_cpu = MakeSpeeds(cluster, compute);
  EXPECT_FALSE(of_cpu.device.has_value() || of_cpu.graphs);
  EXPECT_EQ(of_cpu.network.between_nodes.bytes_per_second, 1.25e9);
}

}  // namespace
}  // namespace deepnet
