#include <limits>
#include <numeric>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using native::testing::RandomFloats;
using testing::AppendBytes;
using testing::DeviceArray;
using testing::DeviceMatrix;
using testing::Element;
using testing::ExpectClose;
using testing::ForThreadOrders;
using testing::HalfUnit;
using testing::Launches;

constexpr float kScale = 0.25f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int64_t vocabulary;
  double smoothing;
  Element element;
  int64_t margin = 4;  // columns beside the views: rows are aligned or not
};

struct Twin {
  std::vector<float> nll, loss, gradient;
};

// The CPU's kernel, with the gradient in float32.
Twin TwinOf(const std::vector<float>& logits, int64_t vocabulary,
            const std::vector<int32_t>& targets, double smoothing) {
  const auto rows = static_cast<int64_t>(targets.size());
  Twin twin;
  twin.nll.resize(rows);
  twin.loss.resize(rows);
  twin.gradient.resize(logits.size());
  native::Cpu cpu(1);
  native::CrossEntropyRows(
      cpu, {.rows = rows,
            .vocabulary = vocabulary,
            .logits = logits.data(),
            .stride = vocabulary,
            .targets = targets.data(),
            .smoothing = smoothing,
            .scale = kScale,
            .nll = twin.nll.data(),
            .loss = twin.loss.data(),
            .d_logits = {twin.gradient.data(), Element::kFloat32, rows, vocabulary, vocabulary}});
  return twin;
}

native::CrossEntropyArgs ArgsOf(const DeviceMatrix& logits, const DeviceArray<int32_t>& targets,
                                double smoothing, const DeviceArray<float>& nll,
                                const DeviceArray<float>& loss) {
  const native::Matrix m = logits.view();
  return {.rows = m.rows,
          .vocabulary = m.cols,
          .logits = static_cast<const float*>(m.data),
          .stride = m.stride,
          .targets = targets.data(),
          .smoothing = smoothing,
          .scale = kScale,
          .nll = nll.data(),
          .loss = loss.data()};
}

// Those of other classes than the target are small, and many: they have a bound of their own.
void ExpectGradient(const std::vector<float>& got, const std::vector<float>& expected,
                    const std::vector<int32_t>& targets, Element element) {
  ExpectClose(got, expected, {HalfUnit(element), 2e-6}, "gradient");
  const size_t vocabulary = got.size() / targets.size();
  std::vector<float> got_others = got, expected_others = expected;
  for (size_t row = 0; row < targets.size(); ++row) {
    const auto begin = got.begin() + static_cast<ptrdiff_t>(row * vocabulary);
    const double sum = std::accumulate(begin, begin + static_cast<ptrdiff_t>(vocabulary), 0.0);
    if (element == Element::kFloat32) {
      EXPECT_NEAR(sum, 0.0, 1e-6 * kScale) << "row " << row;
    }
    if (targets[row] < 0) continue;
    const size_t target = row * vocabulary + static_cast<size_t>(targets[row]);
    got_others[target] = expected_others[target] = kScale;  // the largest that there may be
  }
  // Half the distance of float16 below 2^-14, and what the difference of two shares loses.
  const double least = element == Element::kFloat16 ? 0x1p-25 / kScale : 1e-8;
  ExpectClose(got_others, expected_others, {2e-5 + HalfUnit(element), least}, "other classes");
}

class GpuCrossEntropy : public ::testing::TestWithParam<Case> {};

TEST_P(GpuCrossEntropy, IsThatOfTheCpu) {
  const auto [vocabulary, smoothing, element, margin] = GetParam();
  const auto last = static_cast<int32_t>(vocabulary - 1);
  const std::vector<int32_t> targets = {0, last, -1, last / 2, 1, -1};
  const auto rows = static_cast<int64_t>(targets.size());
  const std::vector<float> logits = RandomFloats(rows * vocabulary, 1, 3.0f);
  const Twin twin = TwinOf(logits, vocabulary, targets, smoothing);
  const DeviceMatrix device_logits(Element::kFloat32, rows, vocabulary, logits, margin, margin);
  const DeviceArray<int32_t> device_targets(targets);
  ForThreadOrders([&, element = element, margin = margin, vocabulary = vocabulary,
                   smoothing = smoothing](GpuStream& gpu) {
    const DeviceArray<float> nll(targets.size()), loss(targets.size());
    const DeviceMatrix gradient(element, rows, vocabulary, margin, 2 * margin);
    native::CrossEntropyArgs args = ArgsOf(device_logits, device_targets, smoothing, nll, loss);
    args.d_logits = gradient.view();
    CrossEntropyRows(gpu, args);
    EXPECT_EQ(Launches(gpu), 1);
    const std::vector<float> got = gradient.Read(gpu);
    ExpectClose(nll.Read(gpu), twin.nll, {0.0, 1e-6}, "nll");
    ExpectClose(loss.Read(gpu), twin.loss, {0.0, 1e-6}, "loss");
    ExpectGradient(got, twin.gradient, targets, element);
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, got);
    AppendBytes(bytes, nll.Read(gpu));
    AppendBytes(bytes, loss.Read(gpu));
    // Without a gradient: the same loss.
    args.d_logits = {};
    const DeviceArray<float> alone(targets.size());
    args.loss = alone.data();
    CrossEntropyRows(gpu, args);
    EXPECT_EQ(alone.Read(gpu), loss.Read(gpu));
    return bytes;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuCrossEntropy,
    ::testing::Values(Case{2, 0.0, Element::kFloat32}, Case{19, 0.1, Element::kFloat32, 1},
                      Case{33, 0.1, Element::kBfloat16}, Case{1024, 0.1, Element::kFloat16},
                      Case{4100, 0.1, Element::kFloat32}, Case{5003, 0.2, Element::kBfloat16, 3},
                      Case{8191, 0.1, Element::kBfloat16}, Case{8192, 0.1, Element::kFloat32},
                      Case{32003, 0.1, Element::kBfloat16, 0}));

TEST(GpuExpectCloseTest, ANumberThatIsNoneFailsWhereverItStands) {
  EXPECT_FATAL_FAILURE(ExpectClose(std::vector<float>{1.0f, NAN, 1.0f},
                                   std::vector<float>{1.0f, 1.0f, 1.0f}, {1.0, 1.0}, "x"),
                       "x[1] is nan");
}

// The gradient of 16-bit numbers lies in the first half of each row.
TEST(GpuCrossEntropyRows, GradientMayReplaceTheLogitsInEveryElement) {
  for (const int64_t vocabulary : {7, 1500, 8204}) {
    for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
      SCOPED_TRACE(vocabulary);
      const std::vector<float> logits = RandomFloats(2 * vocabulary, 4, 2.0f);
      const std::vector<int32_t> targets = {5, static_cast<int32_t>(vocabulary - 1)};
      const DeviceArray<int32_t> device_targets(targets);
      ForThreadOrders([&](GpuStream& gpu) {
        const DeviceMatrix device_logits(Element::kFloat32, 2, vocabulary, logits);
        const DeviceMatrix separate(element, 2, vocabulary);
        const DeviceArray<float> nll(2), loss(2);
        native::CrossEntropyArgs args = ArgsOf(device_logits, device_targets, 0.1, nll, loss);
        args.d_logits = separate.view();
        CrossEntropyRows(gpu, args);
        const std::vector<float> expected = separate.Read(gpu);
        const int64_t per_float = 4 / native::BytesOf(element);
        args.d_logits = device_logits.view();
        args.d_logits.element = element;
        args.d_logits.stride *= per_float;
        CrossEntropyRows(gpu, args);
        const std::vector<float> raw = device_logits.Read(gpu);
        std::vector<float> got;
        for (int64_t row = 0; row < 2; ++row) {
          for (int64_t v = 0; v < vocabulary; ++v) {
            uint32_t bits = 0;
            std::memcpy(&bits,
                        reinterpret_cast<const char*>(&raw[row * vocabulary]) + v * 4 / per_float,
                        4 / per_float);
            got.push_back(testing::FromBits(element, bits));
          }
        }
        EXPECT_TRUE(got == expected);
        std::vector<uint8_t> bytes;
        AppendBytes(bytes, got);
        return bytes;
      });
    }
  }
}

TEST(GpuCrossEntropyRows, InfinityAndNanReachTheLossAndMinusInfinityCountsNothing) {
  GpuStream gpu;
  const DeviceArray<int32_t> target(std::vector<int32_t>{3});
  const DeviceArray<float> nll(size_t{1}), loss(size_t{1});
  const auto losses_of = [&](float odd, double smoothing) {
    std::vector<float> logits(400, 1.0f);
    logits[17] = odd;
    const DeviceMatrix device_logits(Element::kFloat32, 1, 400, logits);
    CrossEntropyRows(gpu, ArgsOf(device_logits, target, smoothing, nll, loss));
    return std::pair(loss.Read(gpu)[0], nll.Read(gpu)[0]);
  };
  for (const float bad : {kInfinity, std::nanf("")}) {
    EXPECT_FALSE(std::isfinite(losses_of(bad, 0.0).first)) << bad;
    EXPECT_FALSE(std::isfinite(losses_of(bad, 0.1).second)) << bad;
  }
  EXPECT_NEAR(losses_of(-kInfinity, 0.0).second, std::log(399.0), 1e-6);
}

TEST(GpuCrossEntropyDeathTest, NamesWhatItCannotDo) {
  GpuStream gpu;
  float x = 0.0f;
  EXPECT_DEATH(CrossEntropyRows(gpu, {.rows = 1, .vocabulary = 1, .logits = &x, .stride = 1}),
               "vocabulary of 1");
  EXPECT_DEATH(CrossEntropyRows(gpu, {.rows = 1,
                                      .vocabulary = 4,
                                      .logits = &x,
                                      .stride = 4,
                                      .d_logits = {&x, Element::kBfloat16, 1, 4, 4}}),
               "d.stride");
}

TEST(GpuLogSoftmax, IsThatOfTheCpuInPlaceAndEachRowStandsAlone) {
  for (const int64_t vocabulary : {1, 6, 2500, 9001}) {
    for (const int64_t margin : {0, 3}) {
      SCOPED_TRACE(vocabulary);
      const int64_t rows = 5;
      const std::vector<float> logits = RandomFloats(rows * vocabulary, 6, 4.0f);
      std::vector<float> twin(logits.size());
      native::Cpu cpu(1);
      native::LogSoftmaxRows(cpu, {logits.data(), Element::kFloat32, rows, vocabulary, vocabulary},
                             {twin.data(), Element::kFloat32, rows, vocabulary, vocabulary});
      ForThreadOrders([&](GpuStream& gpu) {
        const DeviceMatrix x(Element::kFloat32, rows, vocabulary, logits, 0, margin);
        const DeviceMatrix y(Element::kFloat32, rows, vocabulary, margin, margin);
        const auto row = [](const DeviceMatrix& m, int64_t number) {
          native::Matrix view = m.view();
          view.data = static_cast<float*>(view.data) + number * view.stride;
          view.rows = 1;
          return view;
        };
        LogSoftmaxRows(gpu, row(x, 3), row(y, 3));
        const std::vector<float> alone = y.Read(gpu);
        LogSoftmaxRows(gpu, x.view(), y.view());
        const std::vector<float> got = y.Read(gpu);
        LogSoftmaxRows(gpu, x.view(), x.view());
        EXPECT_EQ(Launches(gpu), 3);
        ExpectClose(got, twin, {0.0, 1e-6}, "log probability");
        EXPECT_TRUE(x.Read(gpu) == got);
        EXPECT_TRUE(std::equal(got.begin() + 3 * vocabulary, got.begin() + 4 * vocabulary,
                               alone.begin() + 3 * vocabulary));
        std::vector<uint8_t> bytes;
        AppendBytes(bytes, got);
        return bytes;
      });
    }
  }
}

TEST(GpuAverageLogProbs, IsThatOfTheCpuAndOfEqualNumbersHasTheirBits) {
  native::Cpu cpu(1);
  for (const int64_t count : {0, 1, 255, 256, 257, 3000}) {
    SCOPED_TRACE(count);
    std::vector<float> x = RandomFloats(count, 1, 9.0f), y = RandomFloats(count, 2, 9.0f);
    for (int64_t i = 5; i < count; i += 7) x[i] = i % 2 == 0 ? y[i] : -kInfinity;
    for (int64_t i = 5; i < count; i += 21) y[i] = x[i];
    std::vector<float> twin = y;
    native::AverageLogProbs(cpu, count, 3, x.data(), twin.data());
    ForThreadOrders([&](GpuStream& gpu) {
      const DeviceArray<float> device_x(x), device_y(y);
      AverageLogProbs(gpu, count, 3, device_x.data(), device_y.data());
      const std::vector<float> got = device_y.Read(gpu);
      for (int64_t i = 0; i < count; ++i) {
        if (x[i] == y[i]) {
          EXPECT_EQ(got[i], x[i]) << i;
        } else {
          EXPECT_NEAR(got[i], twin[i], 1e-5) << i;
        }
      }
      std::vector<uint8_t> bytes;
      AppendBytes(bytes, got);
      return bytes;
    });
  }
}

TEST(GpuSumLosses, AddsToWhatIsThereInDoublePrecision) {
  for (const int64_t rows : {0, 1, 31, 255, 256, 257, 5000}) {
    SCOPED_TRACE(rows);
    const std::vector<float> loss = RandomFloats(rows, 3), nll = RandomFloats(rows, 4);
    const DeviceArray<float> device_loss(loss), device_nll(nll);
    ForThreadOrders([&](GpuStream& gpu) {
      const DeviceArray<double> sums(std::vector<double>{100.0, -7.0});
      SumLosses(gpu, rows, device_loss.data(), device_nll.data(), sums.data());
      SumLosses(gpu, rows, device_loss.data(), device_nll.data(), sums.data());
      EXPECT_EQ(Launches(gpu), rows == 0 ? 0 : 2);
      double expected_loss = 100.0, expected_nll = -7.0;
      for (int64_t r = 0; r < rows; ++r) {
        expected_loss += 2.0 * loss[r];
        expected_nll += 2.0 * nll[r];
      }
      const std::vector<double> got = sums.Read(gpu);
      EXPECT_NEAR(got[0], expected_loss, 1e-10);
      EXPECT_NEAR(got[1], expected_nll, 1e-10);
      std::vector<uint8_t> bytes;
      AppendBytes(bytes, got);
      return bytes;
    });
  }
}

}  // namespace
}  // namespace deepnet::cuda
