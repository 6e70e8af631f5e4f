#include "trainer/kernels/native/attention.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::Append;
using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::Operand;
using testing::RandomFloats;
using testing::RelativeError;
using testing::Tolerance;

struct Case {
  std::vector<int32_t> q_offsets, k_offsets;
  int heads;
  int head_dim;
  bool causal;
  double rate;
  Element element;
};

// Attention and its gradient by plain loops in double precision.
struct Oracle {
  const Case& c;
  std::vector<double> q, k, v, d_context;
  std::function<double(int64_t q_row, int head, int64_t key)> keep;  // 0 or 1 / (1 - rate)
  std::vector<double> context, lse, dq, dk, dv;

  int64_t width() const { return static_cast<int64_t>(c.heads) * c.head_dim; }

  double Dot(const std::vector<double>& a, int64_t a_row, const std::vector<double>& b,
             int64_t b_row, int head) const {
    double sum = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
      const int64_t column = head * c.head_dim + i;
      sum += a[a_row * width() + column] * b[b_row * width() + column];
    }
    return sum;
  }

  void AddScaled(std::vector<double>& to, int64_t to_row, double factor,
                 const std::vector<double>& from, int64_t from_row, int head) const {
    for (int i = 0; i < c.head_dim; ++i) {
      const int64_t column = head * c.head_dim + i;
      to[to_row * width() + column] += factor * from[from_row * width() + column];
    }
  }

  void Query(int64_t row, int head, int64_t first_key, int64_t num_keys) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    std::vector<double> p(num_keys), dp(num_keys);
    double sum = 0.0, mean = 0.0;
    for (int64_t j = 0; j < num_keys; ++j) {
      sum += p[j] = std::exp(scale * Dot(q, row, k, first_key + j, head));
    }
    lse[row * c.heads + head] = std::log(sum);
    for (int64_t j = 0; j < num_keys; ++j) {
      p[j] /= sum;
      AddScaled(context, row, p[j] * keep(row, head, j), v, first_key + j, head);
      if (d_context.empty()) continue;
      dp[j] = Dot(d_context, row, v, first_key + j, head) * keep(row, head, j);
      mean += p[j] * dp[j];
    }
    if (d_context.empty()) return;
    for (int64_t j = 0; j < num_keys; ++j) {
      const double ds = p[j] * (dp[j] - mean) * scale;
      AddScaled(dq, row, ds, k, first_key + j, head);
      AddScaled(dk, first_key + j, ds, q, row, head);
      AddScaled(dv, first_key + j, p[j] * keep(row, head, j), d_context, row, head);
    }
  }

  void Run() {
    context.assign(q.size(), 0.0);
    lse.assign(q.size() / c.head_dim, 0.0);
    dq.assign(q.size(), 0.0);
    dk.assign(k.size(), 0.0);
    dv.assign(v.size(), 0.0);
    for (size_t s = 0; s + 1 < c.q_offsets.size(); ++s) {
      const int64_t keys = c.k_offsets[s + 1] - c.k_offsets[s];
      for (int64_t row = c.q_offsets[s]; row < c.q_offsets[s + 1]; ++row) {
        for (int head = 0; head < c.heads; ++head) {
          Query(row, head, c.k_offsets[s], c.causal ? row - c.q_offsets[s] + 1 : keys);
        }
      }
    }
  }
};

constexpr int64_t kExtraRows = 2;  // after the last sentence

class Attention : public ::testing::TestWithParam<Case> {
 protected:
  Attention()
      : c_(GetParam()),
        width_(static_cast<int64_t>(c_.heads) * c_.head_dim),
        q_rows_(c_.q_offsets.back() + kExtraRows),
        k_rows_(c_.k_offsets.back() + kExtraRows),
        q_(Operand::Of(c_.element, q_rows_, width_, RandomFloats(q_rows_ * width_, 1), 7)),
        k_(Operand::Of(c_.element, k_rows_, width_, RandomFloats(k_rows_ * width_, 2), 3)),
        v_(Operand::Of(c_.element, k_rows_, width_, RandomFloats(k_rows_ * width_, 3), 1)),
        d_context_(Operand::Of(c_.element, q_rows_, width_, RandomFloats(q_rows_ * width_, 4))),
        ids_(q_rows_),
        key_{.seed = 2, .step = 3, .stack = 1, .layer = 5, .site = 2, .rate = c_.rate},
        oracle_{c_, q_.Values(), k_.Values(), v_.Values(), d_context_.Values(), {}, {},
                {}, {},          {},          {}} {
    oracle_.keep = [this](int64_t row, int head, int64_t key) {
      if (key_.rate == 0.0) return 1.0;
      const bool keep =
          KeepElement(key_, ids_.pair[row], ids_.position[row], head * kMaxAttentionKeys + key);
      return keep ? 1.0 / (1.0 - key_.rate) : 0.0;
    };
  }

  AttentionArgs Args(float* log_sum_exp, Operand& context) {
    PackedRows queries = ids_.rows(), keys = {.count = k_rows_};
    queries.num_sentences = static_cast<int>(c_.q_offsets.size()) - 1;
    queries.offsets = c_.q_offsets.data();
    keys.offsets = c_.k_offsets.data();
    return {.q_RD = q_.view(),
            .k_RD = k_.view(),
            .v_RD = v_.view(),
            .queries = queries,
            .keys = keys,
            .heads = c_.heads,
            .causal = c_.causal,
            .dropout = key_,
            .context_RD = context.view(),
            .log_sum_exp_RH = log_sum_exp};
  }

  Case c_;
  int64_t width_, q_rows_, k_rows_;
  Operand q_, k_, v_, d_context_;
  testing::Ids ids_;
  DropoutSite key_;
  Oracle oracle_;
};

TEST_P(Attention, ForwardAndBackwardAreTheDefinition) {
  oracle_.Run();
  const double tolerance = Tolerance(c_.element);
  ForEachIsaAndThreads([&](Cpu& cpu) {
    Operand context(c_.element, q_rows_, width_, 4);
    std::vector<float> lse(q_rows_ * c_.heads);
    AttentionForward(cpu, Args(lse.data(), context));
    Operand dq(c_.element, q_rows_, width_, 1), dk(c_.element, k_rows_, width_, 2);
    Operand dv(c_.element, k_rows_, width_, 3);
    AttentionBackward(cpu, {.forward = Args(lse.data(), context),
                            .dcontext_RD = d_context_.view(),
                            .dq_RD = dq.view(),
                            .dk_RD = dk.view(),
                            .dv_RD = dv.view()});
    EXPECT_LT(RelativeError(context.Values(), oracle_.context), tolerance);
    EXPECT_LT(RelativeError(Doubles(lse), oracle_.lse), 1e-5);
    EXPECT_LT(RelativeError(dq.Values(), oracle_.dq), tolerance);
    EXPECT_LT(RelativeError(dk.Values(), oracle_.dk), tolerance);
    EXPECT_LT(RelativeError(dv.Values(), oracle_.dv), tolerance);
    EXPECT_TRUE(context.MarginIsUntouched() && dq.MarginIsUntouched() && dk.MarginIsUntouched() &&
                dv.MarginIsUntouched());
    std::vector<double> all = context.Values();
    for (const Operand* gradient : {&dq, &dk, &dv}) Append(all, gradient->Values());
    return all;
  });
}

const std::vector<int32_t> kShort = {0, 5, 6, 6, 19, 31};
const std::vector<int32_t> kMixed = {0, 33, 50, 131, 133};
const std::vector<int32_t> kOther = {0, 7, 9, 9, 26, 59};

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(Case{kShort, kShort, 2, 8, false, 0.0, Element::kFloat32},
                      Case{kShort, kShort, 2, 8, true, 0.0, Element::kFloat32},
                      Case{kShort, kOther, 1, 5, false, 0.2, Element::kFloat32},
                      Case{kMixed, kMixed, 2, 64, false, 0.0, Element::kFloat32},
                      Case{kMixed, kMixed, 3, 20, true, 0.1, Element::kFloat32},
                      Case{kMixed, kMixed, 2, 32, true, 0.0, Element::kBfloat16},
                      Case{kShort, kOther, 2, 32, false, 0.1, Element::kBfloat16},
                      Case{{0, 40}, {0, 300}, 1, 16, false, 0.1, Element::kFloat32}));

// The oracle's own gradient, on the first case: the kernels are compared with nothing weaker.
TEST(AttentionOracle, GradientIsTheSlope) {
  const Case c = {{0, 3, 5}, {0, 3, 5}, 2, 4, true, 0.3, Element::kFloat32};
  const int64_t n = 5 * 8;
  Oracle oracle{c,
                Doubles(RandomFloats(n, 1)),
                Doubles(RandomFloats(n, 2)),
                Doubles(RandomFloats(n, 3)),
                Doubles(RandomFloats(n, 4)),
                {},
                {},
                {},
                {},
                {},
                {}};
  oracle.keep = [](int64_t row, int head, int64_t key) {
    return (row + head + key) % 3 == 0 ? 0.0 : 1.5;
  };
  const auto loss = [&] {
    oracle.Run();
    double total = 0.0;
    for (int64_t i = 0; i < n; ++i) total += oracle.context[i] * oracle.d_context[i];
    return total;
  };
  const std::vector<double> dq = testing::FiniteDifferences(oracle.q, loss);
  const std::vector<double> dk = testing::FiniteDifferences(oracle.k, loss);
  const std::vector<double> dv = testing::FiniteDifferences(oracle.v, loss);
  oracle.Run();
  EXPECT_LT(RelativeError(oracle.dq, dq), 1e-8);
  EXPECT_LT(RelativeError(oracle.dk, dk), 1e-8);
  EXPECT_LT(RelativeError(oracle.dv, dv), 1e-8);
}

TEST(AttentionRange, LargeScoresDoNotOverflowAndTheirSumsNeedNotBeKept) {
  const std::vector<int32_t> offsets = {0, 4};
  Operand q = Operand::Of(Element::kFloat32, 4, 4, std::vector<float>(16, 100.0f));
  Operand v = Operand::Of(Element::kFloat32, 4, 4, std::vector<float>(16, 2.0f));
  Operand context(Element::kFloat32, 4, 4);
  const PackedRows rows = {.count = 4, .num_sentences = 1, .offsets = offsets.data()};
  Cpu cpu(1);
  AttentionArgs args = {.q_RD = q.view(),
                        .k_RD = q.view(),
                        .v_RD = v.view(),
                        .queries = rows,
                        .keys = rows,
                        .context_RD = context.view()};
  AttentionForward(cpu, args);
  EXPECT_LT(RelativeError(context.Values(), std::vector<double>(16, 2.0)), 1e-6);
  args.v_RD.rows = 3;
  EXPECT_DEATH(AttentionForward(cpu, args), "a matrix is .3, 4., not .4, 4.");
}

TEST(DecodeAttention, IsTheLastQueryOfTheCausalOneAndEachRowStandsAlone) {
  for (const Element element : {Element::kFloat32, Element::kBfloat16}) {
    const int heads = 2;
    for (const int head_dim : {5, 32, 64}) {
      const int64_t width = heads * head_dim, rows = 7;
      const std::vector<int32_t> lengths = {1, 2, 17, 33, 5, 16, 80};
      Operand q = Operand::Of(element, rows, width, RandomFloats(rows * width, 1), 2);
      // One cache for all rows; the positions of a row lie scattered in it.
      const int64_t cached = 154, index_stride = 80;
      Operand keys = Operand::Of(element, cached, width, RandomFloats(cached * width, 10), 3);
      Operand values = Operand::Of(element, cached, width, RandomFloats(cached * width, 20), 3);
      std::vector<int32_t> index(rows * index_stride, -1);
      int32_t place = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int32_t j = 0; j < lengths[r]; ++j) {
          index[r * index_stride + j] = place = (place + 5) % static_cast<int32_t>(cached);
        }
      }
      const auto gather = [&](const std::vector<double>& all, int64_t r) {
        std::vector<double> rows_of_r;
        for (int32_t j = 0; j < lengths[r]; ++j) {
          const auto from = all.begin() + index[r * index_stride + j] * width;
          rows_of_r.insert(rows_of_r.end(), from, from + width);
        }
        return rows_of_r;
      };
      std::vector<double> expected;
      for (int64_t r = 0; r < rows; ++r) {
        const Case c = {{0, 1}, {0, lengths[r]}, heads, head_dim, false, 0.0, element};
        const std::vector<double> all = q.Values();
        Oracle oracle{c,
                      {all.begin() + r * width, all.begin() + (r + 1) * width},
                      gather(keys.Values(), r),
                      gather(values.Values(), r),
                      {},
                      {},
                      {},
                      {},
                      {},
                      {},
                      {}};
        oracle.keep = [](int64_t, int, int64_t) { return 1.0; };
        oracle.Run();
        Append(expected, oracle.context);
      }
      ForEachIsaAndThreads([&](Cpu& cpu) {
        Operand together(element, rows, width, 1), alone(element, rows, width, 1);
        DecodeAttentionArgs args = {.rows = rows,
                                    .q_RD = q.view(),
                                    .keys_ND = keys.view(),
                                    .values_ND = values.view(),
                                    .index = index.data(),
                                    .index_stride = index_stride,
                                    .lengths = lengths.data(),
                                    .heads = heads,
                                    .context_RD = together.view()};
        DecodeAttention(cpu, args);
        EXPECT_LT(RelativeError(together.Values(), expected), Tolerance(element));
        EXPECT_TRUE(together.MarginIsUntouched());
        const int64_t bytes = element == Element::kFloat32 ? 4 : 2;
        for (int64_t r = 0; r < rows; ++r) {
          args.rows = 1;
          args.q_RD = q.view();
          args.q_RD.data = static_cast<const char*>(args.q_RD.data) + r * args.q_RD.stride * bytes;
          args.context_RD = alone.view();
          args.context_RD.data =
              static_cast<char*>(args.context_RD.data) + r * args.context_RD.stride * bytes;
          args.index = index.data() + r * index_stride;
          args.lengths = lengths.data() + r;
          DecodeAttention(cpu, args);
        }
        EXPECT_EQ(alone.Values(), together.Values());
        return together.Values();
      });
    }
  }
}

}  // namespace
}  // namespace deepnet::native
