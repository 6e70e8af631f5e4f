#include "tests/support/plain_transformer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "trainer/kernels/aten.h"

namespace deepnet::testing {
namespace {

using at::Tensor;

using Function = std::function<Tensor(const Tensor&)>;

Tensor Ids(const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
  return at::tensor(std::vector<int64_t>(ids.begin() + begin, ids.begin() + end), at::kLong);
}

// A sub-layer of a layer.
struct Place {
  int stack;  // 0 encoder, 1 decoder
  int layer;  // from 0
  std::string base;

  std::string Layer() const {
    return (stack == 0 ? "encoder.layers." : "decoder.layers.") + std::to_string(layer) + ".";
  }
  std::string Name(const std::string& what) const { return Layer() + base + what; }
  bool IsBlock() const { return base == "final"; }
  bool IsSelfAttention() const { return base == "self_attn"; }
};

// First rows of the sentences, and behind the last.
using Offsets = std::vector<int32_t>;

struct Plain {
  const ModelSpec& spec;
  const std::function<Tensor(const std::string&)>& get;
  int64_t step;
  mutable Tensor second = {};  // RESIDUAL_DUAL: r of the stack at work

  Tensor Linear(const std::string& name, const Tensor& x) const {
    const Tensor y = at::matmul(x, get(name + ".weight").t());
    return spec.residual() == R_FIXUP ? y : y + get(name + ".bias");
  }
  Tensor Norm(const std::string& name, const Tensor& x) const {
    return Norm(name, x, spec.layer_norm_epsilon());
  }
  Tensor Norm(const std::string& name, const Tensor& x, double eps) const {
    if (spec.norm() == BATCH_NORM) {  // each feature over all tokens of the microbatch
      const Tensor centred = x - x.mean(0, true);
      return centred / at::sqrt(centred.square().mean(0, true) + eps) * get(name + ".weight") +
             get(name + ".bias");
    }
    if (spec.norm() == RMS_NORM) {
      return x / at::sqrt((x * x).mean(-1, true) + eps) * get(name + ".weight");
    }
    return at::layer_norm(x, {x.size(-1)}, get(name + ".weight"), get(name + ".bias"), eps);
  }
  // Every sentence of x looks at its own of y.
  Tensor Attention(const Place& place, const Tensor& x, const Offsets& x_offsets, const Tensor& y,
                   const Offsets& y_offsets, bool causal) const {
    const auto rows = [](const Tensor& z, const Offsets& offsets, size_t s) {
      return z.narrow(0, offsets[s], offsets[s + 1] - offsets[s]);
    };
    std::vector<Tensor> contexts;
    for (size_t s = 0; s + 1 < x_offsets.size(); ++s) {
      contexts.push_back(Context(place, rows(x, x_offsets, s), rows(y, y_offsets, s), causal));
    }
    Tensor context = at::cat(contexts);
    if (spec.residual() == SUB_LN && place.IsSelfAttention()) {
      context = Norm(place.Name("_inner_layer_norm"), context);
    }
    return Linear(place.Name(".out_proj"), context);
  }
  Tensor Context(const Place& place, const Tensor& x, const Tensor& y, bool causal) const {
    const int64_t h = spec.num_heads(), d = spec.d_model();
    const auto split = [&](const Tensor& z) {
      return z.view({z.size(0), h, d / h}).transpose(0, 1);
    };
    const Tensor q = split(Linear(place.Name(".q_proj"), x)),
                 k = split(Linear(place.Name(".k_proj"), y)),
                 v = split(Linear(place.Name(".v_proj"), y));
    Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d / h));
    if (causal) {
      scores = scores.masked_fill(at::ones({x.size(0), y.size(0)}, at::kBool).triu(1), -INFINITY);
    }
    Tensor heads = at::matmul(at::softmax(scores, -1), v);
    if (spec.residual() == NORMFORMER && place.IsSelfAttention()) {
      heads = heads * get(place.Name("_head_scale")).view({h, 1, 1});
    }
    return heads.transpose(0, 1).reshape({x.size(0), d});
  }
  Tensor FeedForward(const Place& place, const Tensor& x) const {
    Tensor inner = Linear(place.Layer() + "fc1", x);
    if (spec.residual() == R_FIXUP) inner = inner - get(place.Name("_middle_shift"));
    inner = spec.activation() == GELU ? at::gelu(inner) : at::relu(inner);
    if (spec.residual() == SUB_LN || spec.residual() == NORMFORMER) {
      inner = Norm(place.Name("_inner_layer_norm"), inner);
    }
    if (spec.residual() == R_FIXUP) inner = inner - get(place.Name("_inner_shift"));
    return Linear(place.Layer() + "fc2", inner);
  }

  // One sub-layer, by the formula of its paper; `entered` is what entered the layer.
  Tensor Sublayer(const Place& place, const Tensor& x, const Tensor& entered,
                  const Function& f) const {
    const double n = spec.encoder_layers(), m = spec.decoder_layers();
    const bool encoder = place.stack == 0, alone = spec.architecture() != ENCODER_DECODER;
    const auto norm = [&](const Tensor& z) { return Norm(place.Name("_layer_norm"), z); };
    switch (spec.residual()) {
      case DEEPNORM:
        if (alone) return norm(std::pow(2 * (n + m), 0.25) * x + f(x));
        return norm(
            (encoder ? 0.81 * std::pow(n * n * n * n * m, 1.0 / 16) : std::pow(3 * m, 0.25)) * x +
            f(x));
      case POST_LN:
      case POST_LN_INIT:
      case DS_INIT:
        return norm(x + f(x));
      case PRE_LN:
      case DLCL:
        return x + f(norm(x));
      case ADMIN:
        return norm(get(place.Name("_stream_scale")) * x + f(x));
      case REZERO:
        return x + get(place.Layer() + "branch_scale") * f(x);
      case R_FIXUP:
        return x + get(place.Name("_branch_scale")) * f(x - get(place.Name("_input_shift")));
      case T_FIXUP:
      case RESIDUAL_ONLY:
        return x + f(x);
      case NORM_ONLY:
        return norm(f(x));
      case NEITHER:
        return f(x);
      case NORMFORMER: {
        const Tensor branch = f(norm(x));
        if (place.IsSelfAttention()) return x + Norm(place.Name("_output_layer_norm"), branch);
        if (!place.IsBlock() || !spec.scheme().normformer_scaled_residual()) return x + branch;
        return get(place.Name("_stream_scale")) * x + branch;
      }
      case SUB_LN:
        return x + f(norm(x));
      case B2T:
        return place.IsBlock() ? norm(entered + x + f(x)) : norm(x + f(x));
      case RESIDUAL_DUAL: {
        const Tensor branch = f(x);
        second = second + spec.scheme().residual_dual_scale() * branch;
        return norm(x + branch);
      }
      case BRANCH_NORM: {
        const double steps = static_cast<double>(spec.scheme().branch_norm_steps());
        return norm(x + std::min(1.0, static_cast<double>(step) / steps) * f(x));
      }
      case MIX_LN: {
        const bool post =
            place.layer < std::floor(spec.scheme().mix_ln_fraction() * (encoder ? n : m));
        return post ? norm(x + f(x)) : x + f(norm(x));
      }
      case LAYERNORM_SCALING:
        return x + f(norm(x) / std::sqrt(place.layer + 1.0));
      case PERI_LN:
        return x + Norm(place.Name("_output_layer_norm"), f(norm(x)));
      case KEEL:
        return Norm(place.Name("_end_layer_norm"), (alone     ? 2 * (n + m)
                                                    : encoder ? 2 * n
                                                              : 3 * m) *
                                                           x +
                                                       f(norm(x)));
      default:
        throw std::logic_error("no formula");
    }
  }

  // DLCL: what a layer reads, and what leaves the stack, is a weighted sum of what entered the
  // stack and of all outputs before it, each normalised. Others: the last output.
  Tensor Read(const std::string& weights, const std::string& stack,
              const std::vector<Tensor>& outputs) const {
    if (spec.residual() != DLCL) return outputs.back();
    Tensor sum = get(weights)[0] * outputs[0];
    for (size_t k = 1; k < outputs.size(); ++k) {
      const std::string norm = stack + "layers." + std::to_string(k - 1) + ".history_layer_norm";
      sum = sum + get(weights)[static_cast<int64_t>(k)] * Norm(norm, outputs[k]);
    }
    return sum;
  }
  // Before the first layer, and behind the last.
  void Begin(const Tensor& x) const { second = spec.scheme().residual_dual_scale() * x; }
  Tensor End(int stack, const Tensor& x) const {
    const std::string name = stack == 0 ? "encoder." : "decoder.";
    switch (spec.residual()) {
      case PRE_LN:
      case DLCL:
      case NORMFORMER:
      case SUB_LN:
      case MIX_LN:
      case LAYERNORM_SCALING:
      case PERI_LN:
        return Norm(name + "layer_norm", x);
      case RESIDUAL_DUAL:
        return x + Norm(name + "layer_norm", second, 1e-7);
      case R_FIXUP: {
        const Tensor& shift = get(name + "final_shift");
        return stack == 0 ? get(name + "final_scale") * (x - shift) : x - shift;
      }
      default:
        return x;
    }
  }

  Tensor Embed(const std::string& side, const std::string& table, const std::vector<int32_t>& ids,
               const Offsets& offsets) const {
    std::vector<Tensor> sentences;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      sentences.push_back(EmbedSentence(side, table, Ids(ids, offsets[s], offsets[s + 1])));
    }
    const Tensor x = at::cat(sentences);
    return spec.residual() == PERI_LN ? Norm(side + ".layernorm_embedding", x) : x;
  }
  Tensor EmbedSentence(const std::string& side, const std::string& table, const Tensor& ids) const {
    const int64_t n = ids.size(0), d = spec.d_model(), half = d / 2;
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

// The only stack of a model, on the target rows.
Tensor OneStack(const Plain& p, const Microbatch& mb, const Offsets& offsets) {
  const int stack = p.spec.architecture() == ENCODER_ONLY ? 0 : 1;
  const std::string side = stack == 0 ? "encoder" : "decoder";
  Tensor x = p.Embed(side, side + ".embed_tokens.weight", mb.target.tokens, offsets);
  p.Begin(x);
  std::vector<Tensor> outputs = {x};
  for (int i = 0; i < p.spec.encoder_layers() + p.spec.decoder_layers(); ++i) {
    const Place attention{stack, i, "self_attn"}, block{stack, i, "final"};
    x = p.Read(attention.Layer() + "history_weight", side + ".", outputs);
    const Tensor entered = x;
    x = p.Sublayer(attention, x, entered, [&](const Tensor& z) {
      return p.Attention(attention, z, offsets, z, offsets, /*causal=*/stack == 1);
    });
    x = p.Sublayer(block, x, entered, [&](const Tensor& z) { return p.FeedForward(block, z); });
    outputs.push_back(x);
  }
  return p.End(stack, p.Read(side + ".history_weight", side + ".", outputs));
}

// Summed over the rows that have a label.
Tensor SmoothedLoss(const Tensor& hidden, const Tensor& table, const std::vector<int32_t>& labels,
                    double eps) {
  const Tensor log_p = at::log_softmax(at::matmul(hidden, table.t()), -1);
  const double spread = eps / (static_cast<double>(log_p.size(1)) - 1);
  Tensor total = at::zeros({}, at::kDouble);
  for (int64_t row = 0; row < hidden.size(0); ++row) {
    if (labels[row] < 0) continue;
    total = total - (1 - eps - spread) * log_p[row][labels[row]] - spread * log_p[row].sum();
  }
  return total;
}

}  // namespace

Tensor PlainLoss(const ModelSpec& spec, const Microbatch& mb, double eps,
                 const std::function<Tensor(const std::string&)>& parameter, int64_t step) {
  const Plain p{spec, parameter, step};
  const bool all = spec.tied_embeddings() == TIE_ALL;
  const std::string source_table = all ? "shared.weight" : "encoder.embed_tokens.weight";
  const std::string target_table = all ? "shared.weight" : "decoder.embed_tokens.weight";
  const std::string output = spec.tied_embeddings() == TIE_NONE ? "lm_head.weight" : target_table;
  const auto offsets_of = [&](const PackedSide& side) {
    return Offsets(side.offsets.begin(), side.offsets.begin() + mb.num_sentences + 1);
  };
  const Offsets source = offsets_of(mb.source), target = offsets_of(mb.target);
  if (spec.architecture() != ENCODER_DECODER) {
    const std::string own = spec.architecture() == ENCODER_ONLY ? "encoder" : "decoder";
    const bool tied = spec.tied_embeddings() != TIE_NONE;
    const Tensor table = parameter(tied ? own + ".embed_tokens.weight" : "lm_head.weight");
    return SmoothedLoss(OneStack(p, mb, target), table, mb.labels, eps);
  }

  Tensor x = p.Embed("encoder", source_table, mb.source.tokens, source);
  p.Begin(x);
  std::vector<Tensor> encoder = {x};
  for (int i = 0; i < spec.encoder_layers(); ++i) {
    const Place attention{0, i, "self_attn"}, block{0, i, "final"};
    x = p.Read(attention.Layer() + "history_weight", "encoder.", encoder);
    const Tensor entered = x;
    x = p.Sublayer(attention, x, entered, [&](const Tensor& z) {
      return p.Attention(attention, z, source, z, source, false);
    });
    x = p.Sublayer(block, x, entered, [&](const Tensor& z) { return p.FeedForward(block, z); });
    encoder.push_back(x);
  }
  x = p.End(0, p.Read("encoder.history_weight", "encoder.", encoder));
  Tensor y = p.Embed("decoder", target_table, mb.target.tokens, target);
  p.Begin(y);
  std::vector<Tensor> decoder = {y};
  for (int i = 0; i < spec.decoder_layers(); ++i) {
    const Place attention{1, i, "self_attn"}, cross{1, i, "encoder_attn"}, block{1, i, "final"};
    y = p.Read(attention.Layer() + "history_weight", "decoder.", decoder);
    const Tensor entered = y;
    y = p.Sublayer(attention, y, entered, [&](const Tensor& z) {
      return p.Attention(attention, z, target, z, target, true);
    });
    y = p.Sublayer(cross, y, entered, [&](const Tensor& z) {
      return p.Attention(cross, z, target, x, source, false);
    });
    y = p.Sublayer(block, y, entered, [&](const Tensor& z) { return p.FeedForward(block, z); });
    decoder.push_back(y);
  }
  y = p.End(1, p.Read("decoder.history_weight", "decoder.", decoder));
  return SmoothedLoss(y, parameter(output), mb.labels, eps);
}

}  // namespace deepnet::testing
