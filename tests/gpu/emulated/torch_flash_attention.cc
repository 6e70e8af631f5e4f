// LibTorch's flash attention of packed sentences on the emulated device: the two operations that
// are not Ops'. The host computes them in double, on the stream. What LibTorch refuses is refused
// here, and rows beyond the lengths and numbers of rows that the caller names are not written.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Context.h>
#include <torch/library.h>

#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/element.h"
#include "tests/gpu/emulated/torch_device.h"
#include "trainer/kernels/aten.h"

namespace emulated_gpu {
namespace {

// [rows, heads, features] of device memory as the host's side sees it, while the work that it was
// made for runs.
class Rows {
 public:
  explicit Rows(const at::Tensor& x)
      : view_(HostView(x.data_ptr())),
        type_(x.scalar_type() == at::kHalf ? CUDA_R_16F : CUDA_R_16BF),
        row_(x.stride(0)),
        head_(x.stride(1)) {}

  double Get(int64_t row, int64_t head, int64_t feature) const {
    return ReadElement(type_, view_, static_cast<size_t>(row * row_ + head * head_ + feature));
  }
  void Set(int64_t row, int64_t head, int64_t feature, double value) const {
    WriteElement(type_, view_, static_cast<size_t>(row * row_ + head * head_ + feature), value);
  }

 private:
  void* view_;
  cudaDataType_t type_;
  int64_t row_, head_;
};

// Inputs of both operations.
struct Call {
  Call(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
       const at::Tensor& cum_q, const at::Tensor& cum_k, int64_t most_q, int64_t most_k,
       bool is_causal)
      : q(query),
        k(key),
        v(value),
        q_offsets(static_cast<const int32_t*>(HostView(cum_q.data_ptr()))),
        k_offsets(static_cast<const int32_t*>(HostView(cum_k.data_ptr()))),
        sentences(cum_q.numel() - 1),
        q_rows(query.size(0)),
        heads(query.size(1)),
        features(query.size(2)),
        max_q(most_q),
        max_k(most_k),
        causal(is_causal) {}

  // One query row of one head and the keys that it sees.
  struct Place {
    int64_t row, head, first_key, keys;
  };

  template <typename Body>
  void ForEach(Body body) const {
    for (int64_t s = 0; s < sentences; ++s) {
      const int64_t queries = q_offsets[s + 1] - q_offsets[s];
      const int64_t keys = std::min<int64_t>(k_offsets[s + 1] - k_offsets[s], max_k);
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < std::min(queries, max_q); ++i) {
          // The last query sees all keys.
          const int64_t seen = causal ? std::clamp<int64_t>(i + 1 + keys - queries, 0, keys) : keys;
          body(Place{q_offsets[s] + i, head, k_offsets[s], seen});
        }
      }
    }
  }

  std::vector<double> Scores(const Place& at) const {
    std::vector<double> scores(static_cast<size_t>(at.keys));
    for (int64_t j = 0; j < at.keys; ++j) {
      double sum = 0.0;
      for (int64_t c = 0; c < features; ++c) {
        sum += q.Get(at.row, at.head, c) * k.Get(at.first_key + j, at.head, c);
      }
      scores[static_cast<size_t>(j)] = sum * scale();
    }
    return scores;
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(features)); }

  Rows q, k, v;
  const int32_t* q_offsets;
  const int32_t* k_offsets;
  int64_t sentences, q_rows, heads, features, max_q, max_k;
  bool causal;
};

void ComputeForward(const Call& call, const Rows& out, float* log_sum_exp) {
  call.ForEach([&](const Call::Place& at) {
    std::vector<double> weights = call.Scores(at);
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - most);
    log_sum_exp[at.head * call.q_rows + at.row] = static_cast<float>(most + std::log(sum));
    for (int64_t c = 0; c < call.features; ++c) {
      double value = 0.0;
      for (int64_t j = 0; j < at.keys; ++j) {
        value += weights[static_cast<size_t>(j)] * call.v.Get(at.first_key + j, at.head, c);
      }
      out.Set(at.row, at.head, c, value / sum);
    }
  });
}

// The tensors that the three kernels of a backward pass share.
struct Gradients {
  Rows d_out, out;
  const float* log_sum_exp;
  Rows dq, dk, dv;
  float* means;   // [heads, rows]: of the gradient of a row's scores
  float* dq_sum;  // [rows, heads, features], of zeros
  int64_t k_rows;
};

// The first: each row's gradient times its context.
void ComputeMeans(const Call& call, const Gradients& g) {
  call.ForEach([&](const Call::Place& at) {
    double mean = 0.0;
    for (int64_t c = 0; c < call.features; ++c) {
      mean += g.d_out.Get(at.row, at.head, c) * g.out.Get(at.row, at.head, c);
    }
    g.means[at.head * call.q_rows + at.row] = static_cast<float>(mean);
  });
}

// The third: the gradients of queries in their type.
void ConvertQueryGradients(const Call& call, const Gradients& g) {
  call.ForEach([&](const Call::Place& at) {
    for (int64_t c = 0; c < call.features; ++c) {
      g.dq.Set(at.row, at.head, c, g.dq_sum[(at.row * call.heads + at.head) * call.features + c]);
    }
  });
}

// The second. The gradients of keys and values are collected in double; rows of no sentence are not
// written.
void ComputeBackward(const Call& call, const Gradients& g) {
  const auto place = [&](int64_t row, int64_t head, int64_t c) {
    return static_cast<size_t>((row * call.heads + head) * call.features + c);
  };
  std::vector<double> dk(static_cast<size_t>(g.k_rows * call.heads * call.features)), dv(dk.size());
  call.ForEach([&](const Call::Place& at) {
    const std::vector<double> scores = call.Scores(at);
    const double log_sum = g.log_sum_exp[at.head * call.q_rows + at.row];
    const double mean = g.means[at.head * call.q_rows + at.row];
    std::vector<double> dq(static_cast<size_t>(call.features));
    for (int64_t j = 0; j < at.keys; ++j) {
      const int64_t key = at.first_key + j;
      const double weight = std::exp(scores[static_cast<size_t>(j)] - log_sum);
      double d_weight = 0.0;
      for (int64_t c = 0; c < call.features; ++c) {
        d_weight += g.d_out.Get(at.row, at.head, c) * call.v.Get(key, at.head, c);
      }
      const double d_score = weight * (d_weight - mean) * call.scale();
      for (int64_t c = 0; c < call.features; ++c) {
        dq[static_cast<size_t>(c)] += d_score * call.k.Get(key, at.head, c);
        dk[place(key, at.head, c)] += d_score * call.q.Get(at.row, at.head, c);
        dv[place(key, at.head, c)] += weight * g.d_out.Get(at.row, at.head, c);
      }
    }
    for (int64_t c = 0; c < call.features; ++c) {
      g.dq_sum[(at.row * call.heads + at.head) * call.features + c] +=
          static_cast<float>(dq[static_cast<size_t>(c)]);
    }
  });
  for (int64_t key = call.k_offsets[0]; key < call.k_offsets[call.sentences]; ++key) {
    for (int64_t head = 0; head < call.heads; ++head) {
      for (int64_t c = 0; c < call.features; ++c) {
        g.dk.Set(key, head, c, dk[place(key, head, c)]);
        g.dv.Set(key, head, c, dv[place(key, head, c)]);
      }
    }
  }
}

void CheckRows(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16,
              "emulated GPU: flash attention: ", name, " is ", x.scalar_type());
  TORCH_CHECK(x.dim() == 3 && x.stride(2) == 1 && x.size(2) % 8 == 0 && x.size(2) <= 256,
              "emulated GPU: flash attention: ", name, " has sizes ", x.sizes(), " and strides ",
              x.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0 && x.stride(0) % 8 == 0,
              "emulated GPU: flash attention: ", name, " is not aligned to 16 bytes");
}

void CheckInputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& cum_q, const at::Tensor& cum_k, double dropout) {
  CheckRows(q, "query");
  CheckRows(k, "key");
  CheckRows(v, "value");
  TORCH_CHECK(k.sizes() == v.sizes() && q.size(1) == k.size(1) && q.size(2) == k.size(2),
              "emulated GPU: flash attention: sizes ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  for (const at::Tensor& offsets : {cum_q, cum_k}) {
    TORCH_CHECK(offsets.scalar_type() == at::kInt && offsets.is_contiguous() &&
                    offsets.numel() == cum_q.numel() && offsets.device() == q.device(),
                "emulated GPU: flash attention: offsets");
  }
  TORCH_CHECK(dropout == 0.0, "emulated GPU: flash attention drops nothing");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> Forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& cum_q, const std::optional<at::Tensor>& cum_k,
    c10::SymInt max_q, c10::SymInt max_k, double dropout, bool causal, bool,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  TORCH_CHECK(cum_q.has_value() && cum_k.has_value() && !scale.has_value(),
              "emulated GPU: flash attention of packed sentences only");
  CheckInputs(q, k, v, *cum_q, *cum_k, dropout);
  const at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor log_sum_exp = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const Call call(q, k, v, *cum_q, *cum_k, max_q.expect_int(), max_k.expect_int(), causal);
  const Rows out_rows(out);
  auto* const sums = static_cast<float*>(HostView(log_sum_exp.data_ptr()));
  TORCH_CHECK(Enqueue(CurrentStream(), "flash_attention_forward",
                      [=] { ComputeForward(call, out_rows, sums); }) == cudaSuccess,
              "emulated GPU: flash attention");
  return {out, log_sum_exp, at::Tensor(), at::Tensor(), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Backward(
    const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& cum_q,
    const at::Tensor& cum_k, c10::SymInt max_q, c10::SymInt max_k, double dropout, bool causal,
    const at::Tensor&, const at::Tensor&, std::optional<double>, std::optional<c10::SymInt>,
    std::optional<c10::SymInt>) {
  CheckInputs(q, k, v, cum_q, cum_k, dropout);
  CheckRows(d_out, "gradient");
  CheckRows(out, "context");
  TORCH_CHECK(log_sum_exp.is_contiguous() && log_sum_exp.size(0) == q.size(1) &&
                  log_sum_exp.size(1) == q.size(0) && log_sum_exp.scalar_type() == at::kFloat,
              "emulated GPU: flash attention: log_sum_exp has sizes ", log_sum_exp.sizes());
  const at::Context& context = at::globalContext();
  TORCH_CHECK(context.deterministicAlgorithms() && !context.deterministicFillUninitializedMemory(),
              "emulated GPU: flash attention would add in another order in each run, or fill what "
              "it allocates");
  const at::Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()),
                   dv = at::empty(v.sizes(), v.options());
  // LibTorch leaves 128 rows free behind each sentence.
  constexpr int64_t kApart = 128;
  const auto floats = q.options().dtype(at::kFloat);
  const at::Tensor means = at::empty({q.size(1), q.size(0)}, floats);
  const at::Tensor dq_sum =
      at::zeros({q.size(0) + kApart * (cum_q.numel() - 1), q.size(1), q.size(2)}, floats);
  const auto view = [](const at::Tensor& x) { return static_cast<float*>(HostView(x.data_ptr())); };
  for (const auto kernel : {ComputeMeans, ComputeBackward, ConvertQueryGradients}) {
    const Call call(q, k, v, cum_q, cum_k, max_q.expect_int(), max_k.expect_int(), causal);
    const Gradients gradients = {Rows(d_out), Rows(out),   view(log_sum_exp), Rows(dq), Rows(dk),
                                 Rows(dv),    view(means), view(dq_sum),      k.size(0)};
    TORCH_CHECK(Enqueue(CurrentStream(), "flash_attention_backward",
                        [=] { kernel(call, gradients); }) == cudaSuccess,
                "emulated GPU: flash attention");
  }
  return {dq, dk, dv};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_flash_attention_forward", TORCH_FN(Forward));
  library.impl("_flash_attention_backward", TORCH_FN(Backward));
}

}  // namespace
}  // namespace emulated_gpu
