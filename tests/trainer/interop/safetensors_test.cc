#include "trainer/interop/safetensors.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

TEST(Safetensors, TensorsAreDealtToFilesInOrderByTheirSize) {
  const struct {
    std::vector<int64_t> sizes;  // elements
    std::vector<int64_t> bytes;  // of each file; "long" ones stand alone
  } cases[] = {{{6, 4, 1}, {40, 4}},
               {{11, 4, 6, 1, 3}, {44, 40, 16}},
               {{10, 11, 1}, {40, 44, 4}},
               {{1, 2, 3}, {24}}};
  for (const auto& [sizes, bytes] : cases) {
    MemoryFileSystem fs;
    ASSERT_TRUE(fs.MakeFolder("f").ok());
    std::vector<OutgoingTensor> tensors;
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back(Counting(absl::StrCat("t", i), {sizes[i]}, 0.0f));
    }
    int64_t total = 0, last = 0, all = 0;
    ToolOptions options;
    options.progress = [&](int64_t done, int64_t of) {
      EXPECT_GT(done, last);
      last = done;
      all = of;
    };
    ASSERT_TRUE(WriteSafetensors(fs, "f", tensors, {.max_shard_bytes = 40}, options).ok());
    std::vector<int64_t> found;
    const std::vector<std::string> names = *fs.List("f");
    for (const std::string& name : names) {
      if (!name.ends_with(".safetensors")) continue;
      std::string length(8, '\0');
      ASSERT_TRUE(fs.ReadAt(JoinPath("f", name), 0, length).ok());
      found.push_back(*fs.Size(JoinPath("f", name)) - 8 -
                      static_cast<int64_t>(static_cast<unsigned char>(length[0])) -
                      256 * static_cast<int64_t>(static_cast<unsigned char>(length[1])));
      total += found.back();
    }
    EXPECT_EQ(found, bytes);
    EXPECT_EQ(last, total);
    EXPECT_EQ(all, total);
  }
}

TEST(Safetensors, TheIndexSaysWhereEachTensorIs) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("f").ok());
  const std::vector<OutgoingTensor> tensors = {Counting("b", {3}, 0.0f), Counting("a", {2}, 1.0f)};
  ASSERT_TRUE(
      WriteSafetensors(fs, "f", tensors, {.type = FloatType::kBfloat16, .max_shard_bytes = 6}, {})
          .ok());
  const std::string index = R"({
  "metadata": {"total_size": 10},
  "weight_map": {
    "b": "model-00001-of-00002.safetensors",
    "a": "model-00002-of-00002.safetensors"
  }
}
)";
  EXPECT_EQ(*ReadWholeFile(fs, "f/model.safetensors.index.json", 1000), index);
  EXPECT_TRUE(SafetensorsFolder::Open(fs, "f", {}).ok());
  const auto with = [&](const char* from, const char* to) {
    EXPECT_TRUE(
        ReplaceFile(fs, "f/model.safetensors.index.json", absl::StrReplaceAll(index, {{from, to}}))
            .ok());
    return Refusal(fs);
  };
  EXPECT_EQ(with("00002-of", "00001-of"),
            "'f/model.safetensors.index.json': tensor 'a' is not in "
            "'model-00001-of-00002.safetensors'");
  EXPECT_EQ(with("\"a\"", "\"c\""),
            "'f/model.safetensors.index.json': tensor 'c' is not in "
            "'model-00002-of-00002.safetensors'");
  const std::string swapped =
      absl::StrReplaceAll(index, {{"00001-of", "00002-of"}, {"00002-of", "00001-of"}});
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors.index.json", swapped).ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("' is not in 'model-0000"));
  ASSERT_TRUE(ReplaceFile(fs, "f/model-00002-of-00002.safetensors",
                          *ReadWholeFile(fs, "f/model-00001-of-00002.safetensors", 1000))
                  .ok());
  EXPECT_EQ(with("\"a\"", "\"b2\""),
            "'f/model-00002-of-00002.safetensors': tensor 'b' is in another file too");
}

// Longer than what is written or read at a time, whole and in parts.
TEST(Safetensors, ALongTensorIsReadAsItWasWritten) {
  for (const FloatType type : {FloatType::kFloat32, FloatType::kBfloat16}) {
    MemoryFileSystem fs;
    ASSERT_TRUE(fs.MakeFolder("f").ok());
    constexpr size_t kSize = 700001;
    const std::vector<OutgoingTensor> tensors = {
        Counting("a", {3}, 5.0f),
        {.name = "b", .shape = {kSize}, .read = [](int64_t first, std::span<float> into) {
           for (float& value : into) value = static_cast<float>(first++ % 251);
           return absl::OkStatus();
         }}};
    ASSERT_TRUE(WriteSafetensors(fs, "f", tensors, {.type = type}, {}).ok());
    const auto folder = SafetensorsFolder::Open(fs, "f", {});
    ASSERT_TRUE(folder.ok()) << folder.status();
    for (const int64_t first : {0, 1, 262143, 699999}) {
      std::vector<float> values(kSize - static_cast<size_t>(first));
      ASSERT_TRUE((*folder)->Read((*folder)->tensors().at("b"), first, values).ok());
      size_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        wrong += values[i] != static_cast<float>((static_cast<size_t>(first) + i) % 251) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0u) << first;
    }
    ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors",
                            ReadWholeFile(fs, "f/model.safetensors", 1 << 24)->substr(0, 5000))
                    .ok());
    std::vector<float> values(kSize);
    const absl::Status status = (*folder)->Read((*folder)->tensors().at("b"), 0, values);
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_EQ(std::string(status.message()), "'f/model.safetensors': became shorter");
  }
}

TEST(ReadRows, HasEveryRunOfElementsOfRowsInAnyOrder) {
  const std::vector<int64_t> rows = {3, 4, 1, 0, 2, 2, 5};
  constexpr int64_t kWidth = 3;
  const ElementReader read = ReadRows(Counting("m", {6, kWidth}, 0.0f).read, rows, kWidth);
  std::vector<float> all;
  for (const int64_t row : rows) {
    for (int64_t i = 0; i < kWidth; ++i) all.push_back(static_cast<float>(row * kWidth + i));
  }
  for (size_t begin = 0; begin < all.size(); ++begin) {
    for (size_t end = begin; end <= all.size(); ++end) {
      std::vector<float> part(end - begin);
      ASSERT_TRUE(read(static_cast<int64_t>(begin), part).ok());
      EXPECT_EQ(part, std::vector<float>(all.begin() + static_cast<int64_t>(begin),
                                         all.begin() + static_cast<int64_t>(end)));
    }
  }
}

TEST(Safetensors, HeadersThatDoNotAddUpAreRefusedByName) {
  MemoryFileSystem fs;
  for (const char* entry :
       {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})",
        R"({"dtype":"F32","shape":[-2,-1],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})",
        R"({"dtype":"BF16","shape":[1],"data_offsets":[0,3]})",
        R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})",
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
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors", LengthBytes(3) + "{}").ok());
  EXPECT_THAT(Refusal(fs), HasSubstr("its header does not fit into it"));
  ASSERT_TRUE(ReplaceFile(fs, "f/model.safetensors", LengthBytes(2) + "{}").ok());
  EXPECT_TRUE(SafetensorsFolder::Open(fs, "f", {}).ok());
  const absl::Status status = SafetensorsFolder::Open(fs, "f", {.memory_bytes = 1000}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the header of 'f/model.safetensors' takes"));
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
