#include "trainer/kernels/native/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::Append;
using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::Operand;
using testing::RandomFloats;
using testing::RelativeError;

constexpr float kScale = 0.25f;

double LogSumExp(const std::vector<double>& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (const double v : x) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

// fairseq's formula, literally.
double SmoothedLoss(const std::vector<double>& logits, int target, double smoothing) {
  const double lse = LogSumExp(logits);
  const double share = smoothing / (static_cast<double>(logits.size()) - 1);
  double smooth = 0.0;
  for (const double v : logits) smooth += lse - v;
  return (1.0 - smoothing - share) * (lse - logits[target]) + share * smooth;
}

struct Case {
  int64_t vocabulary;
  double smoothing;
  Element element;
};

class CrossEntropy : public ::testing::TestWithParam<Case> {};

TEST_P(CrossEntropy, LossAndGradientAreTheDefinition) {
  const auto [vocabulary, smoothing, element] = GetParam();
  const int64_t rows = 6, stride = vocabulary + 5;
  const std::vector<float> logits = RandomFloats(rows * stride, 1, 3.0f);
  const std::vector<int32_t> targets = {
      0, static_cast<int32_t>(vocabulary) - 1, -1, static_cast<int32_t>(vocabulary / 2), 1, -1};
  std::vector<double> nll, loss, gradient;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> row(&logits[r * stride], &logits[r * stride] + vocabulary);
    const int target = targets[r];
    nll.push_back(target < 0 ? 0.0 : SmoothedLoss(row, target, 0.0));
    loss.push_back(target < 0 ? 0.0 : SmoothedLoss(row, target, smoothing));
    std::vector<double> slopes(vocabulary, 0.0);
    if (target >= 0) {
      // All slopes of a long row would take long: its ends and the target's neighbourhood do.
      const double lse = LogSumExp(row);
      const double share = smoothing / static_cast<double>(vocabulary - 1);
      for (int64_t v = 0; v < vocabulary; ++v) {
        slopes[v] = std::exp(row[v] - lse) - share - (v == target ? 1 - smoothing - share : 0.0);
      }
      for (const int64_t v : {int64_t{0}, int64_t{target}, vocabulary - 1}) {
        constexpr double kStep = 1e-4;
        const double saved = row[v];
        row[v] = saved + kStep;
        const double above = SmoothedLoss(row, target, smoothing);
        row[v] = saved - kStep;
        const double below = SmoothedLoss(row, target, smoothing);
        row[v] = saved;
        EXPECT_NEAR(slopes[v], (above - below) / (2 * kStep), 1e-7);
      }
    }
    for (const double slope : slopes) gradient.push_back(slope * kScale);
  }
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> got_nll(rows), got_loss(rows);
    Operand d_logits(element, rows, vocabulary, 3);
    CrossEntropyRows(cpu, {.rows = rows,
                           .vocabulary = vocabulary,
                           .logits = logits.data(),
                           .stride = stride,
                           .targets = targets.data(),
                           .smoothing = smoothing,
                           .scale = kScale,
                           .nll = got_nll.data(),
                           .loss = got_loss.data(),
                           .d_logits = d_logits.view()});
    EXPECT_LT(RelativeError(Doubles(got_nll), nll), 1e-5);
    EXPECT_LT(RelativeError(Doubles(got_loss), loss), 1e-5);
    EXPECT_LT(RelativeError(d_logits.Values(), gradient), testing::Tolerance(element));
    EXPECT_TRUE(d_logits.MarginIsUntouched());
    std::vector<double> all = d_logits.Values();
    Append(all, Doubles(got_loss));
    Append(all, Doubles(got_nll));
    return all;
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropy,
                         ::testing::Values(Case{2, 0.0, Element::kFloat32},
                                           Case{19, 0.1, Element::kFloat32},
                                           Case{33, 0.1, Element::kBfloat16},
                                           Case{4100, 0.1, Element::kFloat32},
                                           Case{5003, 0.2, Element::kBfloat16}));

TEST(CrossEntropyRows, GradientMayReplaceTheLogits) {
  const int64_t vocabulary = 4099;
  std::vector<float> logits = RandomFloats(2 * vocabulary, 4);
  const std::vector<int32_t> targets = {5, 4000};
  std::vector<float> nll(2), loss(2), separate(2 * vocabulary);
  Cpu cpu(2);
  CrossEntropyArgs args = {.rows = 2,
                           .vocabulary = vocabulary,
                           .logits = logits.data(),
                           .stride = vocabulary,
                           .targets = targets.data(),
                           .smoothing = 0.1,
                           .nll = nll.data(),
                           .loss = loss.data()};
  args.d_logits = {separate.data(), Element::kFloat32, 2, vocabulary, vocabulary};
  CrossEntropyRows(cpu, args);
  args.d_logits.data = logits.data();
  CrossEntropyRows(cpu, args);
  EXPECT_EQ(logits, separate);
}

TEST(CrossEntropyRows, AnInfiniteOrMissingNumberReachesTheLoss) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    ForEachIsaAndThreads([&](Cpu& cpu) {
      std::vector<float> logits(40, 1.0f);
      logits[17] = bad;
      const int32_t target = 3;
      float nll = 0.0f, loss = 0.0f;
      CrossEntropyRows(cpu, {.rows = 1,
                             .vocabulary = 40,
                             .logits = logits.data(),
                             .stride = 40,
                             .targets = &target,
                             .smoothing = 0.1,
                             .nll = &nll,
                             .loss = &loss});
      EXPECT_FALSE(std::isfinite(loss)) << bad;
      return std::vector<double>();
    });
  }
}

TEST(LogSoftmax, IsTheDefinitionAndEachRowStandsAlone) {
  const int64_t rows = 9, vocabulary = 2500, stride = 2503;
  const std::vector<float> logits = RandomFloats(rows * stride, 6, 4.0f);
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row(&logits[r * stride], &logits[r * stride] + vocabulary);
    const double lse = LogSumExp(row);
    for (const double v : row) expected.push_back(v - lse);
  }
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> y(rows * vocabulary), alone(vocabulary);
    LogSoftmaxRows(cpu, {logits.data(), Element::kFloat32, rows, vocabulary, stride},
                   {y.data(), Element::kFloat32, rows, vocabulary, vocabulary});
    EXPECT_LT(RelativeError(Doubles(y), expected), 1e-6);
    LogSoftmaxRows(cpu, {&logits[5 * stride], Element::kFloat32, 1, vocabulary, stride},
                   {alone.data(), Element::kFloat32, 1, vocabulary, vocabulary});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + 5 * vocabulary));
    return Doubles(y);
  });
}

TEST(AverageLogProbs, IsTheLogarithmOfTheMeanProbability) {
  const int64_t count = 20001;
  for (const int n : {2, 3, 7}) {
    const std::vector<float> x = RandomFloats(count, 1, 20.0f), y = RandomFloats(count, 2, 20.0f);
    std::vector<double> expected;
    for (int64_t i = 0; i < count; ++i) {
      const double sum = (n - 1) * std::exp(static_cast<double>(y[i])) + std::exp(double{x[i]});
      expected.push_back(std::log(sum / n));
    }
    ForEachIsaAndThreads([&](Cpu& cpu) {
      std::vector<float> average = y;
      AverageLogProbs(cpu, count, n, x.data(), average.data());
      EXPECT_LT(RelativeError(Doubles(average), expected), 1e-6);
      return Doubles(average);
    });
  }
}

TEST(AverageLogProbs, OfEqualNumbersHasTheirBitsAndOfOddOnesIsOdd) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Cpu cpu(1);
  std::vector<float> x = RandomFloats(5000, 1, 20.0f);
  x.push_back(-kInfinity);
  for (int n = 2; n < 20; ++n) {
    std::vector<float> average = x;
    AverageLogProbs(cpu, std::ssize(x), n, x.data(), average.data());
    EXPECT_EQ(average, x) << n;
  }
  const std::vector<float> odd = {-kInfinity, -1.0f, std::nanf(""), -1.0f};
  std::vector<float> average = {-1.0f, -kInfinity, -1.0f, std::nanf("")};
  AverageLogProbs(cpu, 4, 2, odd.data(), average.data());
  EXPECT_NEAR(average[0], -1.0 - std::log(2.0), 1e-6);
  EXPECT_EQ(average[0], average[1]);
  EXPECT_TRUE(std::isnan(average[2]) && std::isnan(average[3]));
}

}  // namespace
}  // namespace deepnet::native
