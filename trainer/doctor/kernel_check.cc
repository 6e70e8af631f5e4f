// An operation is a function from an Ops to the tensors that it writes. Its arguments are numbers
// without a pattern, rounded to the type in which the Ops under test gets them, so that the
// reference in float64 sees the same ones and what differs is the work of the operation.
#include "trainer/doctor/kernel_check.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/model/pass.h"

namespace deepnet {
namespace {

using at::Tensor;

constexpr int64_t kRoom = 40, kWidth = 64, kInner = 96, kVocabulary = 101, kPositions = 24;
constexpr int kHeads = 4;
constexpr double kSecondsPerCall = 0.01;  // of a measured call, at least
constexpr double kWindowSeconds = 0.4;    // of a measurement
constexpr int kCallsPerWait = 4;          // so that waiting for a GPU costs next to nothing

// The sentences that all operations work on: more rows than a warp has, none a multiple of it.
class Sentences {
 public:
  explicit Sentences(const std::vector<int>& lengths) {
    for (const int length : lengths) {
      for (int i = 0; i < length; ++i) {
        positions_.push_back(static_cast<uint32_t>(i));
        pairs_.push_back(static_cast<uint32_t>(offsets_.size()));
        tokens_.push_back(static_cast<int32_t>((17 * tokens_.size() + 4) % kVocabulary));
        labels_.push_back(tokens_.size() % 7 == 0 ? -1 : tokens_.back());
      }
      offsets_.push_back(offsets_.back() + length);
    }
  }
  PackedRows Rows() const {
    return {.count = static_cast<int64_t>(tokens_.size()),
            .num_sentences = static_cast<int>(offsets_.size()) - 1,
            .tokens = tokens_.data(),
            .positions = positions_.data(),
            .pairs = pairs_.data(),
            .offsets = offsets_.data()};
  }
  const int32_t* labels() const { return labels_.data(); }

 private:
  std::vector<int32_t> tokens_, offsets_ = {0}, labels_;
  std::vector<uint32_t> positions_, pairs_;
};

// Where an operation runs: makes its arguments, and brings its results home.
class Bench {
 public:
  Bench(Ops& ops, at::ScalarType rounded)
      : ops_(ops),
        rounded_(rounded),
        source_({9, 1, 22}),
        target_({16, 5, 12}),
        rows_(ops.session().Upload(
            {.source = source_.Rows(), .target = target_.Rows(), .labels = target_.labels()})) {}

  Ops& ops() { return ops_; }
  const PackedRows& source() const { return rows_.source; }
  const PackedRows& target() const { return rows_.target; }
  const int32_t* labels() const { return rows_.labels; }
  int64_t n() const { return rows_.target.count; }

  // Numbers between -1 and 1; another `phase` gives others.
  Tensor Operand(at::IntArrayRef shape, double phase) {
    return Sent(Numbers(shape, phase).to(rounded_), ops_.OperandOptions());
  }
  Tensor Residual(at::IntArrayRef shape, double phase) {
    return Sent(Numbers(shape, phase).to(at::kFloat), ops_.ResidualOptions());
  }
  Tensor Positive(at::IntArrayRef shape, double phase) {
    return Sent(Numbers(shape, phase).abs().to(at::kFloat), ops_.ResidualOptions());
  }
  Tensor Mask(int64_t width) {
    return Sent(at::zeros({kRoom, (width + 7) / 8}, at::kByte),
                ops_.OperandOptions().dtype(at::kByte));
  }
  // As Upload returns them; held until the end.
  template <typename T>
  const T* Array(const std::vector<T>& host) {
    held_.push_back(ops_.session().Upload(std::as_bytes(std::span(host))));
    return reinterpret_cast<const T*>(held_.back().get());
  }

  // Results: their first n() rows, or all of them.
  void GiveRows(std::initializer_list<Tensor> all) {
    for (const Tensor& x : all) results_.push_back(Home(FirstRows(n(), x)));
  }
  void Give(std::initializer_list<Tensor> all) {
    for (const Tensor& x : all) results_.push_back(Home(x));
  }
  void Give(const std::vector<double>& x) { results_.push_back(at::tensor(x, at::kDouble)); }
  const std::vector<Tensor>& results() const { return results_; }

  static DropoutSite Site(int site) {
    return {.seed = 3, .step = 5, .stack = 1, .layer = 2, .site = site, .rate = 0.3};
  }

 private:
  static Tensor Numbers(at::IntArrayRef shape, double phase) {
    const int64_t count = c10::multiply_integers(shape);
    return at::sin(at::arange(count, at::kDouble) * 1.3 + phase).reshape(shape);
  }
  static Tensor Sent(const Tensor& host, const at::TensorOptions& options) {
    const Tensor there = at::empty(host.sizes(), options);
    there.copy_(host.to(options.dtype().toScalarType()));
    return there;
  }
  // Bytes stay bytes: they are compared bit by bit.
  static Tensor Home(const Tensor& x) {
    const Tensor whole = at::empty(x.sizes(), x.options());
    whole.copy_(x);
    const Tensor host = whole.to(at::Device(at::kCPU));
    return host.scalar_type() == at::kByte ? host : host.to(at::kDouble);
  }

  Ops& ops_;
  const at::ScalarType rounded_;
  const Sentences source_, target_;
  const MicrobatchRows rows_;
  std::vector<std::shared_ptr<const std::byte>> held_;
  std::vector<Tensor> results_;
};

std::unique_ptr<Weight> MakeWeight(Bench& b, int64_t rows) {
  auto weight = b.ops().MakeWeight(b.Residual({rows, kWidth}, 1), /*backward=*/true);
  b.ops().Refresh(*weight);
  return weight;
}

void RunLinear(Bench& b) {
  const auto weight = MakeWeight(b, kInner);
  const Tensor x = b.Operand({kRoom, kWidth}, 2), bias = b.Residual({kInner}, 3);
  const Tensor y = b.Operand({kRoom, kInner}, 0), wide = b.Residual({kRoom, kInner}, 0);
  b.ops().Linear({b.n(), x, weight.get(), bias, /*relu=*/true, y});
  b.ops().Linear({b.n(), x, weight.get(), Tensor(), /*relu=*/false, wide});
  b.GiveRows({y, wide});
}

void RunLinearBackwardInput(Bench& b) {
  const auto weight = MakeWeight(b, kInner);
  const Tensor dy = b.Operand({kRoom, kInner}, 2), output = b.Operand({kRoom, kWidth}, 3);
  const Tensor dx = b.Operand({kRoom, kWidth}, 0), sum = b.Residual({kRoom, kWidth}, 4);
  b.ops().LinearBackwardInput({b.n(), dy, weight.get(), output, /*accumulate=*/false, dx});
  b.ops().LinearBackwardInput({b.n(), dy, weight.get(), Tensor(), /*accumulate=*/true, sum});
  b.GiveRows({dx, sum});
}

void RunLinearBackwardWeight(Bench& b) {
  const Tensor dw = b.Residual({kInner, kWidth}, 1), dbias = b.Residual({kInner}, 2);
  b.ops().LinearBackwardWeight(b.n(), b.Operand({kRoom, kInner}, 3), b.Operand({kRoom, kWidth}, 4),
                               dw, dbias);
  b.Give({dw, dbias});
}

// A norm of a branch that is dropped and joins its stream, forward and, if asked, backward.
void RunNorm(Bench& b, bool centred, bool backward) {
  NormState state{.xhat_RD = b.Residual({kRoom, kWidth}, 0), .rstd = b.Residual({kRoom}, 0)};
  const Tensor gain = b.Residual({kWidth}, 3), bias = b.Residual({kWidth}, 4);
  const Tensor y = b.Residual({kRoom, kWidth}, 0), narrow = b.Operand({kRoom, kWidth}, 0);
  const Tensor mask = b.Mask(kWidth);
  b.ops().ResidualNorm({.rows = b.n(),
                        .x_RD = b.Residual({kRoom, kWidth}, 1),
                        .branch_RD = b.Operand({kRoom, kWidth}, 2),
                        .alpha = 1.7,
                        .dropout = Bench::Site(kSiteFeedForward),
                        .ids = &b.target(),
                        .centred = centred,
                        .gain_D = gain,
                        .bias_D = bias,
                        .y_RD = y,
                        .y_operand_RD = narrow,
                        .state = state,
                        .mask = mask});
  if (!backward) {
    const Tensor again = b.Operand({kRoom, kWidth}, 0);
    b.ops().NormOutput(b.n(), state, gain, bias, again);
    b.GiveRows({y, narrow, again, state.xhat_RD, state.rstd, mask});
    return;
  }
  const Tensor dx = b.Residual({kRoom, kWidth}, 6), dbranch = b.Operand({kRoom, kWidth}, 0);
  const Tensor dgain = b.Residual({kWidth}, 7), dbias = b.Residual({kWidth}, 8);
  b.ops().ResidualNormBackward({.rows = b.n(),
                                .dy_RD = b.Residual({kRoom, kWidth}, 5),
                                .state = state,
                                .alpha = 1.7,
                                .dropout_rate = Bench::Site(0).rate,
                                .mask = mask,
                                .centred = centred,
                                .gain_D = gain,
                                .dx_RD = dx,
                                .accumulate_dx = true,
                                .dbranch_RD = dbranch,
                                .dgain_D = dgain,
                                .dbias_D = dbias});
  b.GiveRows({dx, dbranch});
  b.Give({dgain, dbias});
}

void RunAddBranch(Bench& b) {
  const Tensor x = b.Residual({kRoom, kWidth}, 1), dbranch = b.Operand({kRoom, kWidth}, 0);
  const Tensor mask = b.Mask(kWidth);
  const DropoutSite site = Bench::Site(kSiteSelfAttention);
  b.ops().ResidualNorm({.rows = b.n(),
                        .x_RD = x,
                        .branch_RD = b.Operand({kRoom, kWidth}, 2),
                        .dropout = site,
                        .ids = &b.target(),
                        .sum_RD = x,
                        .mask = mask});
  b.ops().AddBranchBackward(b.n(), b.Residual({kRoom, kWidth}, 3), site.rate, mask, dbranch);
  b.GiveRows({x, dbranch, mask});
}

void RunScaleShift(Bench& b) {
  const Tensor scale = b.Residual({kHeads}, 1), shift = b.Residual({1}, 2);
  const Tensor x = b.Residual({kRoom, kWidth}, 3), y = b.Operand({kRoom, kWidth}, 0);
  b.ops().ScaleShift({.rows = b.n(), .x_RD = x, .scale_G = scale, .shift_1 = shift, .y_RD = y});
  const Tensor dx = b.Residual({kRoom, kWidth}, 0), dscale = b.Residual({kHeads}, 5),
               dshift = b.Residual({1}, 6);
  b.ops().ScaleShiftBackward({.rows = b.n(),
                              .dy_RD = b.Residual({kRoom, kWidth}, 4),
                              .x_RD = x,
                              .scale_G = scale,
                              .shift_1 = shift,
                              .dx_RD = dx,
                              .dscale_G = dscale,
                              .dshift_1 = dshift});
  b.GiveRows({y, dx});
  b.Give({dscale, dshift});
}

// Attention of a sentence to itself, or of the target to the source.
void RunAttentionOf(Bench& b, bool self, double rate) {
  const Tensor q = b.Operand({kRoom, 3 * kWidth}, 1),
               kv = self ? q : b.Operand({kRoom, 3 * kWidth}, 2);
  AttentionGradArgs args;
  args.forward = {
      .q_RD = q.narrow(1, 0, kWidth),
      .k_RD = kv.narrow(1, kWidth, kWidth),
      .v_RD = kv.narrow(1, 2 * kWidth, kWidth),
      .queries = &b.target(),
      .keys = self ? &b.target() : &b.source(),
      .heads = kHeads,
      .causal = self,
      .dropout = Bench::Site(self ? kSiteSelfAttentionWeights : kSiteCrossAttentionWeights),
      .context_RD = b.Operand({kRoom, kWidth}, 0),
      .log_sum_exp_RH = b.Residual({kRoom, kHeads}, 0)};
  args.forward.dropout.rate = rate;
  args.dcontext_RD = b.Operand({kRoom, kWidth}, 3);
  args.dq_RD = b.Operand({kRoom, kWidth}, 0);
  args.dk_RD = b.Operand({kRoom, kWidth}, 0);
  args.dv_RD = b.Operand({kRoom, kWidth}, 0);
  b.ops().Attention(args.forward);
  b.ops().AttentionBackward(args);
  b.GiveRows({args.forward.context_RD, args.dq_RD});
  const int64_t keys = args.forward.keys->count;
  b.Give({FirstRows(keys, args.dk_RD), FirstRows(keys, args.dv_RD)});
}

void RunDecodeAttention(Bench& b) {
  constexpr int64_t kRows = 5, kStride = 8;
  std::vector<int32_t> index(kRows * kStride), lengths;
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(7 * i % kRoom);
  for (int64_t r = 0; r < kRows; ++r) lengths.push_back(static_cast<int32_t>(r + 3));
  const Tensor context = b.Operand({kRows, kWidth}, 0);
  b.ops().DecodeAttention({.rows = kRows,
                           .q_RD = b.Operand({kRows, kWidth}, 1),
                           .keys_ND = b.Operand({kRoom, kWidth}, 2),
                           .values_ND = b.Operand({kRoom, kWidth}, 3),
                           .index = b.Array(index),
                           .index_stride = kStride,
                           .lengths = b.Array(lengths),
                           .heads = kHeads,
                           .context_RD = context});
  b.Give({context});
}

void RunRelu(Bench& b) {
  const Tensor x = b.Operand({kRoom, kInner}, 1), dx = b.Operand({kRoom, kInner}, 2);
  const Tensor both = b.Operand({kRoom, kInner}, 3), dbias = b.Residual({kInner}, 4);
  b.ops().Relu(b.n(), x);
  b.ops().ReluBackward(b.n(), x, dx);
  if (b.ops().HasReluBackwardWithBias()) {
    b.ops().ReluBackwardWithBias(b.n(), x, both, dbias);
  } else {
    b.ops().ReluBackward(b.n(), x, both);
    b.ops().LinearBackwardWeight(b.n(), both, x, b.Residual({kInner, kInner}, 5), dbias);
  }
  b.GiveRows({x, dx, both});
  b.Give({dbias});
}

void RunGelu(Bench& b) {
  const Tensor pre = b.Operand({kRoom, kInner}, 1), h = b.Operand({kRoom, kInner}, 0);
  const Tensor dpre = b.Operand({kRoom, kInner}, 0);
  b.ops().Gelu(b.n(), pre, h);
  b.ops().GeluBackward(b.n(), pre, b.Operand({kRoom, kInner}, 2), dpre);
  b.GiveRows({h, dpre});
}

void RunDropout(Bench& b) {
  const Tensor x = b.Operand({kRoom, kInner}, 1), dx = b.Operand({kRoom, kInner}, 2);
  const Tensor mask = b.Mask(kInner);
  const DropoutSite site = Bench::Site(kSiteActivation);
  b.ops().Dropout(b.n(), site, b.target(), x, mask);
  b.ops().DropoutBackward(b.n(), site.rate, mask, dx);
  b.GiveRows({x, dx, mask});
}

void RunEmbed(Bench& b) {
  const Tensor x = b.Residual({kRoom, kWidth}, 0), narrow = b.Operand({kRoom, kWidth}, 0);
  const Tensor mask = b.Mask(kWidth);
  const DropoutSite site = Bench::Site(kSiteEmbedding);
  b.ops().Embed({.rows = &b.target(),
                 .table_VD = b.Residual({kVocabulary, kWidth}, 1),
                 .positions_PD = b.Residual({kPositions, kWidth}, 2),
                 .scale = 8.0,
                 .dropout = site,
                 .x_RD = x,
                 .x_operand_RD = narrow,
                 .mask = mask});
  const Tensor dx = b.Residual({kRoom, kWidth}, 3), dtable = b.Residual({kVocabulary, kWidth}, 4),
               dpositions = b.Residual({kPositions, kWidth}, 5);
  b.ops().EmbedBackward({.rows = &b.target(),
                         .dx_RD = dx,
                         .scale = 8.0,
                         .dropout_rate = site.rate,
                         .mask = mask,
                         .dtable_VD = dtable,
                         .dpositions_PD = dpositions});
  b.GiveRows({x, narrow, mask});
  b.Give({dtable, dpositions});
}

void RunCrossEntropy(Bench& b) {
  const auto weight = MakeWeight(b, kVocabulary);
  const Tensor dhidden = b.Residual({kRoom, kWidth}, 0);
  const Tensor dweight = b.Residual({kVocabulary, kWidth}, 3);
  LossSums sums;
  std::vector<float> nlls(static_cast<size_t>(b.n()));
  b.ops().CrossEntropy({.rows = b.n(),
                        .hidden_RD = b.Operand({kRoom, kWidth}, 2),
                        .weight_VD = weight.get(),
                        .labels = b.labels(),
                        .index = b.target().index,
                        .smoothing = 0.1,
                        .scale = 0.5,
                        .dhidden_RD = dhidden,
                        .dweight_VD = dweight,
                        .sums = &sums,
                        .row_nll = nlls.data()});
  b.ops().session().ReadBack();
  b.Give({sums.loss, sums.nll});
  b.Give(std::vector<double>(nlls.begin(), nlls.end()));
  b.GiveRows({dhidden});
  b.Give({dweight});
}

// Log-probabilities, of two models on average, and the best tokens of each row; ids are compared
// bit by bit.
void RunChoice(Bench& b) {
  constexpr int kBest = 4, kRows = 6;
  const Tensor logits = b.Residual({kRows, kVocabulary}, 1);
  const Tensor others = b.Residual({kRows, kVocabulary}, 2);
  b.ops().LogSoftmax(kRows, logits);
  b.ops().LogSoftmax(kRows, others);
  b.ops().AverageLogProbs(3, others, logits);
  std::vector<native::TokenChoice> choices;
  for (int r = 0; r < kRows; ++r) choices.push_back({.row = r, .forbidden = r % 2 ? 2u : 0u});
  std::vector<uint8_t> kinds(kVocabulary, 1);
  for (int64_t token = 0; token < kVocabulary; token += 3) kinds[token] = 2;
  std::vector<native::TokenScore> chosen(kBest * kRows);
  b.ops().ChooseTokens(logits, {.count = kRows,
                                .choices = b.Array(choices),
                                .kinds = b.Array(kinds),
                                .k = kBest,
                                .chosen = chosen.data()});
  b.ops().session().ReadBack();
  b.Give({logits});
  std::vector<double> scores;
  const Tensor tokens = at::empty({kBest * kRows}, at::kByte);
  for (size_t i = 0; i < chosen.size(); ++i) {
    scores.push_back(chosen[i].log_prob);
    tokens.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(chosen[i].token);
  }
  b.Give(scores);
  b.Give({tokens});
}

void RunAdam(Bench& b) {
  constexpr int64_t kCount = 1001;
  for (const bool fairseq : {true, false}) {
    const Tensor weights = b.Residual({kCount}, 1), moment1 = b.Residual({kCount}, 3);
    const Tensor moment2 = b.Positive({kCount}, 4);
    b.ops().Adam({.weights = weights,
                  .gradient = b.Residual({kCount}, 2),
                  .moment1 = moment1,
                  .moment2 = moment2,
                  .rule = {.rate = 0.1,
                           .weight_decay = 0.01,
                           .gradient_scale = 0.5,
                           .step = 3,
                           .fairseq_epsilon = fairseq}});
    b.Give({weights, moment1, moment2});
  }
}

void RunSumSquares(Bench& b) {
  constexpr int64_t kBlocks = 2;
  const Tensor x = b.Residual({native::kSumSquaresBlock + 77}, 1);
  std::vector<double> sums(kBlocks);
  const SquareSums one{.x = x, .sums = sums};
  b.ops().SumSquares(std::span(&one, 1));
  b.Give(sums);
}

void RunElements(Bench& b) {
  const Tensor scaled = b.Residual({kRoom, kWidth}, 1), sum = b.Residual({kRoom, kWidth}, 2);
  const Tensor x = b.Residual({kRoom, kWidth}, 3), narrow = b.Operand({kRoom, kWidth}, 0);
  b.ops().Scale(b.n(), scaled, 1.7);
  b.ops().Add(sum, x);
  b.ops().Copy(b.n(), x, narrow);
  b.GiveRows({scaled});
  b.Give({sum});
  b.GiveRows({narrow});
}

void RunAddScaled(Bench& b) {
  const Tensor factor = b.Residual({1}, 1), x = b.Residual({kRoom, kWidth}, 2);
  const Tensor y = b.Residual({kRoom, kWidth}, 3), dx = b.Residual({kRoom, kWidth}, 4);
  const Tensor dfactor = b.Residual({1}, 5);
  b.ops().AddScaled({.rows = b.n(), .x_RD = x, .factor_1 = factor, .y_RD = y});
  b.ops().AddScaledBackward({.rows = b.n(),
                             .dy_RD = b.Residual({kRoom, kWidth}, 6),
                             .x_RD = x,
                             .factor_1 = factor,
                             .dx_RD = dx,
                             .dfactor_1 = dfactor});
  b.GiveRows({y, dx});
  b.Give({dfactor});
}

struct Operation {
  const char* name;  // of the functions of ops.h
  void (*run)(Bench& b);
};

constexpr Operation kOperations[] = {
    {"Linear", RunLinear},
    {"LinearBackwardInput", RunLinearBackwardInput},
    {"LinearBackwardWeight", RunLinearBackwardWeight},
    {"ResidualNorm and NormOutput", [](Bench& b) { RunNorm(b, true, false); }},
    {"ResidualNormBackward", [](Bench& b) { RunNorm(b, true, true); }},
    {"ResidualNorm, RMS", [](Bench& b) { RunNorm(b, false, false); }},
    {"ResidualNormBackward, RMS", [](Bench& b) { RunNorm(b, false, true); }},
    {"AddBranch and backward", RunAddBranch},
    {"ScaleShift and backward", RunScaleShift},
    {"Attention and backward, self", [](Bench& b) { RunAttentionOf(b, true, 0.3); }},
    {"Attention and backward, cross", [](Bench& b) { RunAttentionOf(b, false, 0.3); }},
    {"DecodeAttention", RunDecodeAttention},
    {"Relu and backward", RunRelu},
    {"Gelu and backward", RunGelu},
    {"Dropout and backward", RunDropout},
    {"Embed and backward", RunEmbed},
    {"CrossEntropy", RunCrossEntropy},
    {"LogSoftmax, averages and ChooseTokens", RunChoice},
    {"Adam", RunAdam},
    {"SumSquares", RunSumSquares},
    {"Scale, Add and Copy", RunElements},
    {"AddScaled and backward", RunAddScaled},
};

// Returns the largest error that rounding explains, of results and of what stands between, over
// sums of some hundred numbers.
double LimitOf(at::ScalarType operand) {
  if (operand == at::kBFloat16) return 0x1p-6;
  return operand == at::kHalf ? 0x1p-9 : 2e-5;
}

std::string TypeName(at::ScalarType operand) {
  if (operand == at::kBFloat16) return "bfloat16";
  return operand == at::kHalf ? "float16" : "float32";
}

double LargestError(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  double error = got.size() == expected.size() ? 0.0 : INFINITY;
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    if (expected[i].scalar_type() == at::kByte) {
      if (!at::equal(got[i], expected[i])) error = INFINITY;
      continue;
    }
    const double largest = expected[i].abs().max().item<double>();
    const double off = (got[i] - expected[i]).abs().max().item<double>();
    error = std::max(error, std::isfinite(off) ? off / std::max(largest, 1e-30) : INFINITY);
  }
  return error;
}

// Runs `run` by both; `rounded` is the type that the arguments of both have been rounded to.
DoctorCheck Compare(const std::string& name, void (*run)(Bench&), Ops& ops, Ops& twin,
                    at::ScalarType rounded) {
  DoctorCheck check;
  check.set_name(absl::StrCat(name, ", ", TypeName(rounded)));
  check.set_limit(LimitOf(rounded));
  const absl::Status status = CatchErrors(
      [&] {
        Bench one(ops, rounded), other(twin, rounded);
        run(one);
        run(other);
        check.set_error(LargestError(one.results(), other.results()));
        return absl::OkStatus();
      },
      {.ops = &ops});
  check.set_failure(std::string(status.message()));
  return check;
}

// Calls a second over some time, so that what else the core does counts too.
double CallsPerSecond(Ops& ops, const std::function<void()>& call) {
  int calls = 0;
  const double start = SecondsNow();
  double seconds = 0.0;
  for (; seconds < kWindowSeconds; calls += kCallsPerWait) {
    for (int i = 0; i < kCallsPerWait; ++i) call();
    ops.session().ReadBack();
    seconds = SecondsNow() - start;
  }
  return calls / seconds;
}

double SecondsOf(Ops& ops, const std::function<void()>& call) {
  call();
  ops.session().ReadBack();
  const double start = SecondsNow();
  call();
  ops.session().ReadBack();
  return SecondsNow() - start;
}

// The most rows of floats that are copied, far more than caches hold: of 512 MiB on a GPU, where
// two such buffers, and all smaller ones that LibTorch keeps, take at most half of what is free.
int64_t MaxRows(int64_t columns, int64_t free_gpu_bytes) {
  const int64_t row_bytes = 4 * columns;
  if (free_gpu_bytes == 0) return (int64_t{256} << 20) / row_bytes;
  return std::min((int64_t{512} << 20) / row_bytes, free_gpu_bytes / 8 / row_bytes);
}

}  // namespace

std::vector<DoctorCheck> CheckKernels(Ops& ops, at::ScalarType operand,
                                      const std::function<void()>& beat) {
  const auto reference = MakeAtenOps(at::kDouble, at::kDouble);
  std::vector<DoctorCheck> checks;
  for (const Operation& operation : kOperations) {
    checks.push_back(Compare(operation.name, operation.run, ops, *reference, operand));
    beat();
  }
  return checks;
}

AttentionResults RunAttention(Ops& ops, at::ScalarType operand) {
  AttentionResults results;
  for (const bool self : {true, false}) {
    Bench bench(ops, operand);
    RunAttentionOf(bench, self, 0.0);
    results.push_back(bench.results());
  }
  return results;
}

std::vector<DoctorCheck> CompareAttention(const AttentionResults& flash,
                                          const AttentionResults& own, at::ScalarType operand) {
  std::vector<DoctorCheck> checks;
  for (const bool self : {true, false}) {
    DoctorCheck& check = checks.emplace_back();
    check.set_name(absl::StrCat("flash beside own attention, ", self ? "self, " : "cross, ",
                                TypeName(operand)));
    check.set_limit(LimitOf(operand));
    check.set_error(LargestError(flash.at(self ? 0 : 1), own.at(self ? 0 : 1)));
  }
  return checks;
}

absl::StatusOr<Rates> MeasureRates(Ops& ops, int64_t free_gpu_bytes,
                                   const std::function<absl::Status()>& barrier) {
  constexpr int64_t kLargest = 8192, kColumns = 1024;
  const int64_t max_rows = MaxRows(kColumns, free_gpu_bytes);
  Rates rates;
  for (int64_t size = 128;; size *= 2) {
    const Tensor master = at::zeros({size, size}, ops.ResidualOptions());
    const Tensor x = at::zeros({size, size}, ops.OperandOptions());
    const Tensor y = at::zeros({size, size}, ops.OperandOptions());
    const auto weight = ops.MakeWeight(master, /*backward=*/false);
    ops.Refresh(*weight);
    const auto call = [&] {
      ops.Linear({.rows = size, .x_RI = x, .weight_OI = weight.get(), .y_RO = y});
    };
    if (SecondsOf(ops, call) < kSecondsPerCall && size < kLargest) continue;
    // A GPU multiplies zeros faster than numbers.
    x.copy_(at::randn({size, size}).to(x.scalar_type()));
    master.copy_(at::randn({size, size}).to(master.scalar_type()));
    ops.Refresh(*weight);
    RETURN_IF_ERROR(barrier());
    rates.product_flops = 2.0 * std::pow(static_cast<double>(size), 3) * CallsPerSecond(ops, call);
    break;
  }
  for (int64_t rows = 64;; rows *= 2) {
    const Tensor x = at::zeros({rows, kColumns}, ops.ResidualOptions());
    const Tensor y = at::zeros({rows, kColumns}, ops.ResidualOptions());
    const auto call = [&] { ops.Copy(rows, x, y); };
    if (SecondsOf(ops, call) < kSecondsPerCall && 2 * rows <= max_rows) continue;
    RETURN_IF_ERROR(barrier());
    rates.copied_bytes = 2.0 * static_cast<double>(rows * kColumns * 4) * CallsPerSecond(ops, call);
    break;
  }
  return rates;
}

}  // namespace deepnet
