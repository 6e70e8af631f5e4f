#include "tests/support/plain_transformer.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>

namespace deepnet::testing {
namespace {

using at::Tensor;

struct Plain {
  const ModelSpec& spec;
  const std::function<Tensor(const std::string&)>& get;
  double alpha_encoder, alpha_decoder;

  Tensor Linear(const std::string& name, const Tensor& x) const {
    return at::linear(x, get(name + ".weight"), get(name + ".bias"));
  }
  Tensor Norm(const std::string& name, const Tensor& x) const {
    return at::layer_norm(x, {x.size(-1)}, get(name + ".weight"), get(name + ".bias"),
                          spec.layer_norm_epsilon());
  }
  Tensor Attention(const std::string& name, const Tensor& x, const Tensor& y, bool causal) const {
    const int64_t h = spec.heads(), d = spec.width();
    const auto split = [&](const Tensor& z) {
      return z.view({z.size(0), h, d / h}).transpose(0, 1);
    };
    const Tensor q = split(Linear(name + ".q_proj", x)), k = split(Linear(name + ".k_proj", y)),
                 v = split(Linear(name + ".v_proj", y));
    Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d / h));
    if (causal) {
      scores = scores.masked_fill(at::ones({x.size(0), y.size(0)}, at::kBool).triu(1), -INFINITY);
    }
    const Tensor context = at::matmul(at::softmax(scores, -1), v);
    return Linear(name + ".out_proj", context.transpose(0, 1).reshape({x.size(0), d}));
  }
  Tensor FeedForward(const std::string& layer, const Tensor& x) const {
    const Tensor pre = Linear(layer + ".fc1", x);
    return Linear(layer + ".fc2", spec.activation() == GELU ? at::gelu(pre) : at::relu(pre));
  }
  // One sub-layer: deepnet.md section 1.1, and Pre-LN of section 3.
  Tensor Sublayer(const std::string& norm, double alpha, const Tensor& x,
                  const std::function<Tensor(const Tensor&)>& f) const {
    if (spec.residual() == PRE_LN) return x + f(Norm(norm, x));
    return Norm(norm, (spec.residual() == DEEPNORM ? alpha : 1.0) * x + f(x));
  }
  Tensor Embed(const std::string& side, const std::string& table, const Tensor& ids) const {
    const int64_t n = ids.size(0), d = spec.width(), half = d / 2;
    Tensor positions;
    if (spec.positions() == LEARNED) {
      positions = get(side + ".embed_positions.weight").narrow(0, 0, n);
    } else {
      const Tensor w = at::exp(at::arange(half, at::kDouble) * (-std::log(1e4) / (half - 1)));
      const Tensor a = (at::arange(n, at::kDouble) + 2).unsqueeze(1) * w;
      positions = at::cat({a.sin(), a.cos()}, 1);
    }
    const double scale = spec.unscaled_embedding() ? 1.0 : std::sqrt(static_cast<double>(d));
    return scale * at::embedding(get(table), ids) + positions;
  }
};

Tensor Ids(const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
  return at::tensor(std::vector<int64_t>(ids.begin() + begin, ids.begin() + end), at::kLong);
}

}  // namespace

Tensor PlainLoss(const ModelSpec& spec, const Microbatch& mb, double eps,
                 const std::function<Tensor(const std::string&)>& parameter) {
  const double n = spec.encoder_layers(), m = spec.decoder_layers();
  const Plain p{spec, parameter, 0.81 * std::pow(n * n * n * n * m, 1.0 / 16),
                std::pow(3 * m, 0.25)};
  const bool all = spec.tied_embeddings() == TIE_ALL;
  const std::string source_table = all ? "shared.weight" : "encoder.embed_tokens.weight";
  const std::string target_table = all ? "shared.weight" : "decoder.embed_tokens.weight";
  const std::string output = spec.tied_embeddings() == TIE_NONE ? "lm_head.weight" : target_table;

  Tensor total = at::zeros({}, at::kDouble);
  for (int s = 0; s < mb.num_sentences; ++s) {
    Tensor x = p.Embed("encoder", source_table,
                       Ids(mb.source.tokens, mb.source.offsets[s], mb.source.offsets[s + 1]));
    for (int i = 0; i < spec.encoder_layers(); ++i) {
      const std::string layer = "encoder.layers." + std::to_string(i);
      x = p.Sublayer(layer + ".self_attn_layer_norm", p.alpha_encoder, x, [&](const Tensor& z) {
        return p.Attention(layer + ".self_attn", z, z, false);
      });
      x = p.Sublayer(layer + ".final_layer_norm", p.alpha_encoder, x,
                     [&](const Tensor& z) { return p.FeedForward(layer, z); });
    }
    if (spec.residual() == PRE_LN) x = p.Norm("encoder.layer_norm", x);
    const int64_t begin = mb.target.offsets[s], end = mb.target.offsets[s + 1];
    Tensor y = p.Embed("decoder", target_table, Ids(mb.target.tokens, begin, end));
    for (int i = 0; i < spec.decoder_layers(); ++i) {
      const std::string layer = "decoder.layers." + std::to_string(i);
      y = p.Sublayer(layer + ".self_attn_layer_norm", p.alpha_decoder, y, [&](const Tensor& z) {
        return p.Attention(layer + ".self_attn", z, z, true);
      });
      y = p.Sublayer(layer + ".encoder_attn_layer_norm", p.alpha_decoder, y, [&](const Tensor& z) {
        return p.Attention(layer + ".encoder_attn", z, x, false);
      });
      y = p.Sublayer(layer + ".final_layer_norm", p.alpha_decoder, y,
                     [&](const Tensor& z) { return p.FeedForward(layer, z); });
    }
    if (spec.residual() == PRE_LN) y = p.Norm("decoder.layer_norm", y);
    const Tensor log_p = at::log_softmax(at::matmul(y, parameter(output).t()), -1);
    const Tensor nll = -log_p.gather(1, Ids(mb.labels, begin, end).unsqueeze(1));
    const double spread = eps / (static_cast<double>(log_p.size(1)) - 1);
    total = total + (1 - eps - spread) * nll.sum() - spread * log_p.sum();
  }
  return total;
}

}  // namespace deepnet::testing
