#include "trainer/interop/safetensors.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Elements start, start + 1, ...
OutgoingTensor Counting(const std::string& name, std::vector<int64_t> shape, float start) {
  return {.name = name,
          .shape = std::move(shape),
          .read = [start](int64_t first, std::span<float> into) {
            for (size_t i = 0; i < into.size(); ++i) {
              into[i] = start + static_cast<float>(first) + static_cast<float>(i);
            }
            return absl::OkStatus();
          }};
}

std::string LengthBytes(size_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

// A folder f with model.safetensors of this header and `data_bytes` zeros.
void WriteRaw(FileSystem& fs, const std::string& header, size_t data_bytes) {
  ASSERT_TRUE(fs.MakeFolder("f").ok());
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors",
                          LengthBytes(header.size()) + header + std::string(data_bytes, '\0'))
                  .ok());
}

std::string Refusal(FileSystem& fs) {
  const absl::Status status = SafetensorsFolder::Open(fs, "f", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  return std::string(status.message());
}

TEST(FloatType, EveryFloat16IsReadAsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double magnitude = exponent == 0 ? fraction / 16777216.0
                                           : (1.0 + fraction / 1024.0) * std::exp2(exponent - 15);
    const char bytes[] = {static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)};
    float value = 0.0f;
    ReadFloats(FloatType::kFloat16, {bytes, 2}, {&value, 1});
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0);
      EXPECT_EQ(std::isinf(value), fraction == 0);
    } else {
      EXPECT_EQ(value, bits < 0x8000 ? magnitude : -magnitude) << bits;
    }
  }
}

TEST(FloatType, Bfloat16IsTheNearestAndTiesAreEven) {
  for (uint32_t bits = 0; bits < 0xffff0000; bits += 0x7f31) {
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value) || std::abs(value) > 3e38f) continue;
    std::string bytes;
    AppendFloats(FloatType::kBfloat16, {&value, 1}, &bytes);
    float rounded = 0.0f;
    ReadFloats(FloatType::kBfloat16, bytes, {&rounded, 1});
    // The neighbours towards zero and away from it.
    const float low = std::bit_cast<float>(bits & 0xffff0000);
    const float high = std::bit_cast<float>((bits & 0xffff0000) + 0x10000);
    const double to_low = std::abs(double{value} - low), to_high = std::abs(double{value} - high);
    const bool even_low = (bits >> 16 & 1) == 0;
    EXPECT_EQ(rounded, to_low < to_high || (to_low == to_high && even_low) ? low : high) << bits;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::string bytes;
  AppendFloats(FloatType::kBfloat16, {&nan, 1}, &bytes);
  float read = 0.0f;
  ReadFloats(FloatType::kBfloat16, bytes, {&read, 1});
  EXPECT_TRUE(std::isnan(read));
}

TEST(Safetensors, OneFileHasTheBytesOfTheFormat) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("f").ok());
  const std::vector<OutgoingTensor> tensors = {Counting("a", {2, 1}, 1.0f)};
  ASSERT_TRUE(WriteSafetensors(fs, "f", tensors, {}, {}).ok());
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(*ReadWholeFile(fs, "f/model.safetensors", 1000),
            LengthBytes(header.size()) + header + std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  EXPECT_THAT(*fs.List("f"), ElementsAre("model.safetensors"));
}

TEST(Safetensors, AShardEndsWhereTheNextTensorWouldBeTooMuch) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("f").ok());
  const std::vector<OutgoingTensor> tensors = {Counting("a", {4}, 0.0f), Counting("b", {6}, 10.0f),
                                               Counting("c", {11}, 20.0f),
                                               Counting("d", {1}, 40.f)};
  ASSERT_TRUE(WriteSafetensors(fs, "f", tensors, {.max_shard_bytes = 40}, {}).ok());
  EXPECT_THAT(*fs.List("f"),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_THAT(*ReadWholeFile(fs, "f/model.safetensors.index.json", 1000),
              HasSubstr("\"total_size\": 88"));
  const auto folder = SafetensorsFolder::Open(fs, "f", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->tensors().at("b").file, "model-00001-of-00003.safetensors");
  EXPECT_EQ((*folder)->tensors().at("c").file, "model-00002-of-00003.safetensors");
  std::vector<float> piece(3);
  ASSERT_TRUE((*folder)->Read((*folder)->tensors().at("c"), 8, piece).ok());
  EXPECT_THAT(piece, ElementsAre(28.0f, 29.0f, 30.0f));
}

TEST(Safetensors, HeadersThatDoNotAddUpAreRefusedByName) {
  MemoryFileSystem fs;
  for (const char* entry :
       {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})",
        R"({"dtype":"F32","shape":[-2,-1],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2]})"}) {
    WriteRaw(fs, absl::StrCat("{\"a\":", entry, "}"), 8);
    EXPECT_THAT(Refusal(fs), HasSubstr("'f/model.safetensors': tensor 'a': shape, type and place"));
  }
  WriteRaw(fs, R"({"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8);
  EXPECT_THAT(Refusal(fs), HasSubstr("tensor 'a' is I8; read are F32, BF16 and F16"));
  WriteRaw(fs, "[1]", 8);
  EXPECT_THAT(Refusal(fs), HasSubstr("'f/model.safetensors': "));
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors", LengthBytes(100) + "{}").ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("its header does not fit into it"));
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors", "short").ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("its header does not fit into it"));
}

TEST(Safetensors, AFolderWithoutThemSaysWhatToDo) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("f").ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("holds neither model.safetensors nor"));
  ASSERT_TRUE(ReplaceFile(fs, "f/pytorch_model.bin", "x").ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("write it with save_pretrained"));
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors.index.json",
                          R"({"weight_map":{"a":"../model.safetensors"}})")
                  .ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("'../model.safetensors' is no name of a file in this folder"));
}

}  // namespace
}  // namespace deepnet
