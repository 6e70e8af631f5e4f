#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using native::KeepElement;
using native::kMaxAttentionKeys;
using native::testing::Ids;
using native::testing::RandomFloats;
using testing::AppendBytes;
using testing::Bound;
using testing::DeviceArray;
using testing::DeviceMatrix;
using testing::Element;
using testing::ExpectClose;
using testing::ForThreadOrders;
using testing::HalfUnit;
using testing::Launches;
using testing::Rounded;

struct Case {
  std::vector<int32_t> q_offsets, k_offsets;
  int heads;
  int head_dim;
  bool causal;
  double rate;
  Element element;
  int64_t margin = 8;  // columns beside the views: rows are aligned or not
};

struct Results {
  std::vector<float> context, lse, dq, dk, dv;
};

constexpr int64_t kExtraRows = 2;  // behind the last sentence

class GpuAttention : public ::testing::TestWithParam<Case> {
 protected:
  GpuAttention()
      : c_(GetParam()),
        width_(int64_t{c_.heads} * c_.head_dim),
        q_rows_(c_.q_offsets.back() + kExtraRows),
        k_rows_(c_.k_offsets.back() + kExtraRows),
        q_(Random(q_rows_, 1)),
        k_(Random(k_rows_, 2)),
        v_(Random(k_rows_, 3)),
        d_context_(Random(q_rows_, 4)),
        ids_(q_rows_),
        key_{.seed = 2, .step = 3, .stack = 1, .layer = 5, .site = 2, .rate = c_.rate} {}

  std::vector<float> Random(int64_t rows, uint32_t seed) const {
    return Rounded(c_.element, RandomFloats(rows * width_, seed));
  }

  // Without the matrices. `ids` are of the queries.
  native::AttentionArgs Args(PackedRows ids, const int32_t* q_offsets, const int32_t* k_offsets,
                             float* log_sum_exp) const {
    ids.num_sentences = static_cast<int>(c_.q_offsets.size()) - 1;
    ids.offsets = q_offsets;
    return {.queries = ids,
            .keys = {.count = k_rows_, .num_sentences = ids.num_sentences, .offsets = k_offsets},
            .heads = c_.heads,
            .causal = c_.causal,
            .dropout = key_,
            .log_sum_exp_RH = log_sum_exp};
  }

  // The CPU's kernels on the same numbers, in float32.
  Results Twin() {
    Results r;
    const auto zeros = [&](int64_t rows) { return std::vector<float>(rows * width_); };
    r.context = r.dq = zeros(q_rows_);
    r.dk = r.dv = zeros(k_rows_);
    r.lse.resize(q_rows_ * c_.heads);
    const auto matrix = [&](std::vector<float>& x, int64_t rows) {
      return native::Matrix{x.data(), Element::kFloat32, rows, width_, width_};
    };
    native::Cpu cpu(1);
    native::AttentionArgs args =
        Args(ids_.rows(), c_.q_offsets.data(), c_.k_offsets.data(), r.lse.data());
    args.q_RD = matrix(q_, q_rows_);
    args.k_RD = matrix(k_, k_rows_);
    args.v_RD = matrix(v_, k_rows_);
    args.context_RD = matrix(r.context, q_rows_);
    native::AttentionForward(cpu, args);
    native::AttentionBackward(cpu, {.forward = args,
                                    .dcontext_RD = matrix(d_context_, q_rows_),
                                    .dq_RD = matrix(r.dq, q_rows_),
                                    .dk_RD = matrix(r.dk, k_rows_),
                                    .dv_RD = matrix(r.dv, k_rows_)});
    return r;
  }

  Results OnDevice(GpuStream& gpu) const {
    const auto matrix = [&](int64_t rows, const std::vector<float>& values, int64_t before) {
      return DeviceMatrix(c_.element, rows, width_, values, before, c_.margin);
    };
    const auto empty = [&](int64_t rows) {
      return DeviceMatrix(c_.element, rows, width_, 0, c_.margin);
    };
    const DeviceMatrix q = matrix(q_rows_, q_, c_.margin), k = matrix(k_rows_, k_, 2 * c_.margin);
    const DeviceMatrix v = matrix(k_rows_, v_, 0), d_context = matrix(q_rows_, d_context_, 0);
    const DeviceMatrix context = empty(q_rows_), dq = empty(q_rows_);
    const DeviceMatrix dk = empty(k_rows_), dv = empty(k_rows_);
    const DeviceArray<int32_t> q_offsets(c_.q_offsets), k_offsets(c_.k_offsets);
    const DeviceArray<uint32_t> pair(ids_.pair), position(ids_.position);
    const DeviceArray<float> lse(std::vector<float>(q_rows_ * c_.heads));
    native::AttentionArgs args =
        Args({.count = q_rows_, .positions = position.data(), .pairs = pair.data()},
             q_offsets.data(), k_offsets.data(), lse.data());
    args.q_RD = q.view();
    args.k_RD = k.view();
    args.v_RD = v.view();
    args.context_RD = context.view();
    AttentionForward(gpu, args);
    EXPECT_EQ(Launches(gpu), 1);
    AttentionBackward(gpu, {.forward = args,
                            .dcontext_RD = d_context.view(),
                            .dq_RD = dq.view(),
                            .dk_RD = dk.view(),
                            .dv_RD = dv.view()});
    EXPECT_EQ(Launches(gpu), 2);
    return {context.Read(gpu), lse.Read(gpu), dq.Read(gpu), dk.Read(gpu), dv.Read(gpu)};
  }

  Case c_;
  int64_t width_, q_rows_, k_rows_;
  std::vector<float> q_, k_, v_, d_context_;
  Ids ids_;
  DropoutSite key_;
};

TEST_P(GpuAttention, IsThatOfTheCpu) {
  const Results twin = Twin();
  // One rounding of what is written. The gradient also knows the context only as it was rounded,
  // and by it the mean that it takes off each score's.
  const double unit = HalfUnit(c_.element);
  const Bound forward = {unit, 2e-6}, backward = {unit, 4e-6 + (unit > 1e-6 ? 2 * unit : 0.0)};
  ForThreadOrders([&](GpuStream& gpu) {
    const Results got = OnDevice(gpu);
    ExpectClose(got.context, twin.context, forward, "context");
    ExpectClose(got.lse, twin.lse, {0.0, 1e-6}, "lse");
    ExpectClose(got.dq, twin.dq, backward, "dq");
    ExpectClose(got.dk, twin.dk, backward, "dk");
    ExpectClose(got.dv, twin.dv, backward, "dv");
    std::vector<uint8_t> bytes;
    for (const auto* x : {&got.context, &got.lse, &got.dq, &got.dk, &got.dv}) {
      AppendBytes(bytes, *x);
    }
    return bytes;
  });
}

const std::vector<int32_t> kShort = {0, 5, 6, 6, 19, 31};
const std::vector<int32_t> kOther = {0, 7, 9, 9, 26, 59};
const std::vector<int32_t> kMixed = {0, 33, 50, 131, 133};
const std::vector<int32_t> kInside = {3, 35, 35, 35, 68};  // rows of no sentence in front

#ifdef EMULATED_GPU_TSAN
INSTANTIATE_TEST_SUITE_P(
    Tiny, GpuAttention,
    ::testing::Values(Case{{0, 2}, {0, 33}, 1, 5, false, 0.2, Element::kFloat32},
                      Case{{0, 33, 34}, {0, 33, 34}, 1, 12, true, 0.2, Element::kBfloat16},
                      Case{{0, 33}, {0, 33}, 1, 65, true, 0.2, Element::kFloat32},
                      Case{{0, 33}, {0, 17}, 1, 129, false, 0.2, Element::kFloat16}));
#else
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuAttention,
    ::testing::Values(
        Case{kShort, kShort, 2, 8, false, 0.0, Element::kFloat32},
        Case{kShort, kShort, 2, 8, true, 0.0, Element::kFloat32},
        Case{kShort, kOther, 1, 5, false, 0.2, Element::kFloat32, 3},
        Case{kOther, kShort, 3, 1, false, 0.5, Element::kBfloat16, 1},
        Case{kMixed, kMixed, 2, 64, false, 0.0, Element::kFloat32},
        Case{kMixed, kMixed, 3, 20, true, 0.1, Element::kFloat32},
        Case{kMixed, kMixed, 2, 32, true, 0.0, Element::kBfloat16},
        Case{kShort, kOther, 2, 32, false, 0.1, Element::kFloat16},
        Case{kInside, kInside, 2, 63, true, 0.3, Element::kFloat32, 0},
        Case{kInside, kInside, 1, 36, true, 0.1, Element::kBfloat16, 2},
        Case{kInside, kMixed, 1, 65, false, 0.1, Element::kFloat32},
        Case{kMixed, {3, 40, 41, 60, 99}, 1, 128, false, 0.1, Element::kBfloat16},
        Case{kMixed, kMixed, 2, 100, true, 0.1, Element::kFloat16, 4},
        Case{kShort, kShort, 1, 129, true, 0.1, Element::kFloat32},
        Case{kMixed, kMixed, 1, 256, true, 0.1, Element::kFloat32},
        Case{kShort, kOther, 2, 200, false, 0.1, Element::kBfloat16},
        Case{{0, 40}, {0, 300}, 1, 16, false, 0.1, Element::kFloat32},
        Case{{0, 300}, {0, 40}, 1, 16, false, 0.1, Element::kFloat32},
        Case{{0, 0, 1, 1, 1, 34}, {0, 0, 1, 7, 7, 40}, 1, 8, false, 0.0, Element::kFloat32},
        Case{{0, 200}, {0, 200}, 1, 64, true, 0.1, Element::kFloat16}));
#endif

// Weights that are all equal and values that name their key show each decision by itself.
class GpuAttentionDropout : public ::testing::Test {
 protected:
  static constexpr int kRows = 45, kDim = 48, kHeads = 2, kWidth = kDim * kHeads;
  static constexpr DropoutSite kKey = {.seed = 9, .step = 7, .site = 4, .rate = 0.4};

  // Row r has a 1 in column r of each head.
  static DeviceMatrix Names() {
    std::vector<float> x(kRows * kWidth);
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < kHeads; ++h) x[r * kWidth + h * kDim + r] = 1.0f;
    }
    return DeviceMatrix(Element::kFloat32, kRows, kWidth, x);
  }
  static DeviceMatrix Constant(float value) {
    return DeviceMatrix(Element::kFloat32, kRows, kWidth,
                        std::vector<float>(kRows * kWidth, value));
  }
  bool Keeps(int query, int head, int key) const {
    return KeepElement(kKey, ids_.pair[query], ids_.position[query],
                       head * kMaxAttentionKeys + key);
  }

  Ids ids_{kRows};
  DeviceArray<int32_t> offsets_{std::vector<int32_t>{0, kRows}};
  DeviceArray<uint32_t> pair_{ids_.pair}, position_{ids_.position};
  DeviceArray<float> lse_{static_cast<size_t>(kRows * kHeads)};
  const PackedRows rows_ = {.count = kRows,
                            .num_sentences = 1,
                            .positions = position_.data(),
                            .pairs = pair_.data(),
                            .offsets = offsets_.data()};
};

TEST_F(GpuAttentionDropout, EveryDecisionIsThatOfTheDefinitionInAllThreeKernels) {
  GpuStream gpu;
  const DeviceMatrix zeros = Constant(0.0f), ones = Constant(1.0f), names = Names();
  const DeviceMatrix context = Constant(5.0f), again = Constant(5.0f);
  const DeviceMatrix dq = Constant(5.0f), dk = Constant(5.0f), dv = Constant(5.0f);
  const auto args = [&](const DeviceMatrix& v, const DeviceMatrix& to) {
    return native::AttentionArgs{.q_RD = zeros.view(),
                                 .k_RD = names.view(),
                                 .v_RD = v.view(),
                                 .queries = rows_,
                                 .keys = rows_,
                                 .heads = kHeads,
                                 .dropout = kKey,
                                 .context_RD = to.view(),
                                 .log_sum_exp_RH = lse_.data()};
  };
  const auto backward = [&](const DeviceMatrix& v, const DeviceMatrix& of,
                            const DeviceMatrix& d_context) {
    AttentionBackward(gpu, {.forward = args(v, of),
                            .dcontext_RD = d_context.view(),
                            .dq_RD = dq.view(),
                            .dk_RD = dk.view(),
                            .dv_RD = dv.view()});
  };
  AttentionForward(gpu, args(names, context));
  backward(names, context, names);
  const std::vector<float> kept = context.Read(gpu), kept_by_key = dv.Read(gpu);
  // d is m / (1 - rate) of each key, so d_score has its sign.
  AttentionForward(gpu, args(ones, again));
  backward(ones, again, ones);
  const std::vector<float> slopes = dq.Read(gpu);
  for (int query = 0; query < kRows; ++query) {
    for (int head = 0; head < kHeads; ++head) {
      for (int key = 0; key < kRows; ++key) {
        const bool keep = Keeps(query, head, key);
        ASSERT_EQ(kept[query * kWidth + head * kDim + key] > 0.0f, keep) << query << " " << key;
        ASSERT_EQ(kept_by_key[key * kWidth + head * kDim + query] > 0.0f, keep)
            << query << " " << key;
        ASSERT_EQ(slopes[query * kWidth + head * kDim + key] > 0.0f, keep) << query << " " << key;
      }
    }
  }
}

TEST(GpuAttentionRange, LargeScoresDoNotOverflowAndNanStaysInItsRows) {
  std::vector<float> q(4 * 4, 100.0f);
  q[3 * 4] = std::nanf("");
  const DeviceMatrix queries(Element::kFloat32, 4, 4, q);
  const DeviceMatrix keys(Element::kFloat32, 4, 4, std::vector<float>(16, 100.0f));
  const DeviceMatrix values(Element::kFloat32, 4, 4, std::vector<float>(16, 2.0f));
  const DeviceMatrix context(Element::kFloat32, 4, 4);
  const DeviceArray<int32_t> offsets({0, 2, 4});
  const DeviceArray<float> lse(4);
  GpuStream gpu;
  const PackedRows rows = {.count = 4, .num_sentences = 2, .offsets = offsets.data()};
  AttentionForward(gpu, {.q_RD = queries.view(),
                         .k_RD = keys.view(),
                         .v_RD = values.view(),
                         .queries = rows,
                         .keys = rows,
                         .context_RD = context.view(),
                         .log_sum_exp_RH = lse.data()});
  const std::vector<float> got = context.Read(gpu);
  for (int i = 0; i < 16; ++i) {
    if (i < 12) {
      EXPECT_FLOAT_EQ(got[i], 2.0f);
    } else {
      EXPECT_TRUE(std::isnan(got[i]));
    }
  }
}

TEST(GpuAttentionRange, WithoutSentencesAllRowsAreZeroAndWithoutRowsNothingIsLaunched) {
  const DeviceMatrix x(Element::kBfloat16, 70, 12, std::vector<float>(70 * 12, 1.0f));
  const DeviceMatrix context(Element::kBfloat16, 70, 12);
  const DeviceArray<int32_t> offsets(std::vector<int32_t>{9});
  const DeviceArray<float> lse(70 * 3);
  GpuStream gpu;
  gpu.StartTiming();
  const PackedRows rows = {.count = 70, .offsets = offsets.data()};
  native::AttentionArgs args = {.q_RD = x.view(),
                                .k_RD = x.view(),
                                .v_RD = x.view(),
                                .queries = rows,
                                .keys = rows,
                                .heads = 3,
                                .causal = true,
                                .context_RD = context.view(),
                                .log_sum_exp_RH = lse.data()};
  AttentionForward(gpu, args);
  EXPECT_EQ(context.Read(gpu), std::vector<float>(70 * 12, 0.0f));
  args.queries.count = args.keys.count = 0;
  AttentionForward(gpu, args);
  EXPECT_EQ(Launches(gpu), 1);
}

TEST(GpuAttentionRange, WithoutQueriesTheGradientOfKeysIsZeroAndWithoutKeysNothingIsLaunched) {
  constexpr int kRows = 5, kWidth = 12;
  const DeviceMatrix keys(Element::kBfloat16, kRows, kWidth, std::vector<float>(kRows * kWidth));
  const DeviceMatrix dk(Element::kBfloat16, kRows, kWidth), dv(Element::kBfloat16, kRows, kWidth);
  const DeviceMatrix none(Element::kBfloat16, 0, kWidth);  // has no address
  const DeviceArray<int32_t> no_rows({0, 0}), all_rows({0, kRows});
  GpuStream gpu;
  gpu.StartTiming();
  native::AttentionGradArgs args = {
      .forward = {.q_RD = none.view(),
                  .k_RD = keys.view(),
                  .v_RD = keys.view(),
                  .queries = {.num_sentences = 1, .offsets = no_rows.data()},
                  .keys = {.count = kRows, .num_sentences = 1, .offsets = all_rows.data()},
                  .heads = 3,
                  .context_RD = none.view()},
      .dcontext_RD = none.view(),
      .dq_RD = none.view(),
      .dk_RD = dk.view(),
      .dv_RD = dv.view()};
  AttentionBackward(gpu, args);
  EXPECT_EQ(dk.Read(gpu), std::vector<float>(kRows * kWidth, 0.0f));
  EXPECT_EQ(dv.Read(gpu), std::vector<float>(kRows * kWidth, 0.0f));
  args.forward.keys = args.forward.queries;
  args.forward.k_RD = args.forward.v_RD = none.view();
  args.dk_RD = args.dv_RD = none.view();
  AttentionBackward(gpu, args);
  EXPECT_EQ(Launches(gpu), 1);
}

TEST(GpuAttentionDeathTest, NamesWhatItCannotDo) {
  GpuStream gpu;
  const native::Matrix wide = {nullptr, Element::kFloat32, 0, 257, 257};
  native::DecodeAttentionArgs args = {
      .q_RD = wide, .keys_ND = wide, .values_ND = wide, .context_RD = wide};
  EXPECT_DEATH(DecodeAttention(gpu, args), "heads of 257 columns");
  args.values_ND.element = Element::kBfloat16;
  EXPECT_DEATH(DecodeAttention(gpu, args), "matrices of two elements");
  args.heads = 0;
  EXPECT_DEATH(DecodeAttention(gpu, args), "0 heads");
}

struct DecodeCase {
  Element element;
  int head_dim;
  int64_t margin;
};

class GpuDecodeAttention : public ::testing::TestWithParam<DecodeCase> {};

TEST_P(GpuDecodeAttention, IsThatOfTheCpuAndEachRowStandsAlone) {
  const auto [element, head_dim, margin] = GetParam();
  const int heads = 2;
  const int64_t width = heads * head_dim, rows = 7, cached = 154, index_stride = 80;
  const std::vector<int32_t> lengths = {1, 2, 17, 33, 5, 16, 80};
  std::vector<float> q = Rounded(element, RandomFloats(rows * width, 1));
  std::vector<float> keys = Rounded(element, RandomFloats(cached * width, 10));
  std::vector<float> values = Rounded(element, RandomFloats(cached * width, 20));
  std::vector<int32_t> index(rows * index_stride, -1);  // never read past a row's length
  int32_t place = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t j = 0; j < lengths[r]; ++j) {
      index[r * index_stride + j] = place = (place + 5) % static_cast<int32_t>(cached);
    }
  }
  std::vector<float> twin(rows * width);
  const auto matrix = [&](std::vector<float>& x, int64_t n) {
    return native::Matrix{x.data(), Element::kFloat32, n, width, width};
  };
  native::Cpu cpu(1);
  native::DecodeAttention(cpu, {.rows = rows,
                                .q_RD = matrix(q, rows),
                                .keys_ND = matrix(keys, cached),
                                .values_ND = matrix(values, cached),
                                .index = index.data(),
                                .index_stride = index_stride,
                                .lengths = lengths.data(),
                                .heads = heads,
                                .context_RD = matrix(twin, rows)});
  const DeviceMatrix device_q(element, rows, width, q, margin, 0);
  const DeviceMatrix device_keys(element, cached, width, keys, 0, margin);
  const DeviceMatrix device_values(element, cached, width, values, 2 * margin, margin);
  const DeviceArray<int32_t> device_index(index), device_lengths(lengths);
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceMatrix together(element, rows, width, 0, margin),
        alone(element, rows, width, 0, margin);
    native::DecodeAttentionArgs args = {.rows = rows,
                                        .q_RD = device_q.view(),
                                        .keys_ND = device_keys.view(),
                                        .values_ND = device_values.view(),
                                        .index = device_index.data(),
                                        .index_stride = index_stride,
                                        .lengths = device_lengths.data(),
                                        .heads = heads,
                                        .context_RD = together.view()};
    DecodeAttention(gpu, args);
    EXPECT_EQ(Launches(gpu), 1);
    const std::vector<float> got = together.Read(gpu);
    ExpectClose(got, twin, {HalfUnit(element), 2e-6}, "context");
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t bytes = native::BytesOf(element);
      args.rows = 1;
      args.q_RD = device_q.view();
      args.q_RD.data = static_cast<const char*>(args.q_RD.data) + r * args.q_RD.stride * bytes;
      args.context_RD = alone.view();
      args.context_RD.data =
          static_cast<char*>(args.context_RD.data) + r * args.context_RD.stride * bytes;
      args.index = device_index.data() + r * index_stride;
      args.lengths = device_lengths.data() + r;
      DecodeAttention(gpu, args);
    }
    EXPECT_EQ(alone.Read(gpu), got);
    std::vector<uint8_t> result;
    AppendBytes(result, got);
    return result;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuDecodeAttention,
    ::testing::Values(DecodeCase{Element::kFloat32, 5, 1}, DecodeCase{Element::kFloat32, 64, 4},
                      DecodeCase{Element::kBfloat16, 32, 8}, DecodeCase{Element::kFloat16, 64, 3},
                      DecodeCase{Element::kFloat32, 100, 0}, DecodeCase{Element::kBfloat16, 256, 8},
                      DecodeCase{Element::kFloat16, 130, 1}));

}  // namespace
}  // namespace deepnet::cuda
