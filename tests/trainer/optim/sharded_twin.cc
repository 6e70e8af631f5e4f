// The same as RunJob in one obvious loop.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/trainer/optim/sharded_job.h"
#include "trainer/kernels/aten.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {
namespace {

at::Tensor TreeSum(const std::vector<at::Tensor>& parts, size_t first, size_t count) {
  if (count == 1) return parts[first];
  return TreeSum(parts, first, count / 2) + TreeSum(parts, first + count / 2, count / 2);
}

// The whole model's gradient in the Inventory's flat order.
at::Tensor TwinGradient(const Job& job, const Inventory& model, int64_t update) {
  at::Tensor gradient = at::zeros({model.NumElements()});
  std::vector<bool> seen(model.parameters.size());
  for (const Layer& layer : model.layers) {
    for (const int p : layer.parameters) {
      const Parameter& parameter = model.parameters[p];
      std::vector<at::Tensor> parts;
      for (int r = 0; r < job.virtual_replicas; ++r) {
        parts.push_back(JobGradient(layer, parameter, update, r));
      }
      const at::Tensor sum = TreeSum(parts, 0, parts.size());
      const at::Tensor place = gradient.narrow(0, parameter.offset, sum.numel());
      place.copy_(seen[p] ? place + sum : sum);
      seen[p] = true;
    }
  }
  return gradient;
}

}  // namespace

double TwinNorm(Ops& ops, const Inventory& model, const at::Tensor& gradient) {
  std::vector<int> uses(model.parameters.size());
  for (const Layer& layer : model.layers) {
    for (const int p : layer.parameters) ++uses[p];
  }
  double total = 0.0;
  const auto add = [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += kSumBlock) {
      double sum = 0.0;
      const SquareSums block{gradient.narrow(0, begin, std::min(kSumBlock, end - begin)),
                             {&sum, 1}};
      ops.SumSquares({&block, 1});
      total += sum;
    }
  };
  int64_t at = 0;
  for (const Layer& layer : model.layers) {
    int64_t end = at;
    for (const int p : layer.parameters) {
      const Parameter& parameter = model.parameters[p];
      if (parameter.offset < at) continue;  // an earlier layer's
      end = parameter.offset + parameter.NumElements();
      if (uses[p] == 1) continue;
      add(at, parameter.offset);
      add(parameter.offset, end);
      at = end;
    }
    add(at, end);
    at = end;
  }
  return std::sqrt(total);
}

RankResult RunTwin(const Job& job, const Inventory& model) {
  const std::unique_ptr<Ops> ops = MakeJobOps(job.native);
  const OptimSpec optim = SixLayersOptim();
  Parameters parameters(model, *ops, /*trainable=*/false);
  parameters.Initialize(7);
  const int64_t n = model.NumElements();
  const at::Tensor m = at::zeros({n}), v = at::zeros({n});
  RankResult result;
  for (int64_t update = 1; update <= job.updates; ++update) {
    const at::Tensor gradient = TwinGradient(job, model, update);
    const double norm = TwinNorm(*ops, model, gradient);
    result.updates.push_back({.gradient_norm = norm, .rate = LearningRate(optim, update)});
    for (const Parameter& p : model.parameters) {
      const auto slice = [&](const at::Tensor& x) {
        return x.narrow(0, p.offset, p.NumElements());
      };
      ops->Adam(
          {.weights = slice(parameters.weights()),
           .gradient = slice(gradient),
           .moment1 = slice(m),
           .moment2 = slice(v),
           .rule = {.rate = optim.learning_rate(),
                    .beta1 = optim.beta1(),
                    .beta2 = optim.beta2(),
                    .epsilon = optim.epsilon(),
                    .weight_decay = p.shape.size() == 2 ? optim.weight_decay() : 0.0,
                    .gradient_scale = norm > optim.clip_norm() ? optim.clip_norm() / norm : 1.0,
                    .step = update,
                    .fairseq_epsilon = true}});
    }
  }
  for (const Parameter& p : model.parameters) {
    result.names.push_back(p.name);
    result.weights.push_back(parameters.Get(p.name).reshape({-1}).clone());
  }
  return result;
}

}  // namespace deepnet
