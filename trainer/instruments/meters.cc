#include "trainer/instruments/meters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr int kFigures = 4;  // of Seen

// Mean square of the rows' lengths.
double MeanSquare(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows =
      x_RD.narrow(0, 0, pass.rows->count).to(at::Device(at::kCPU)).to(at::kDouble);
  return rows.square().sum().item<double>() / static_cast<double>(pass.rows->count);
}

// The layer that each block's elements belong to: the first that uses their parameter.
std::vector<int> LayersOfBlocks(const Inventory& whole, std::span<const int64_t> borders) {
  std::vector<int> layer_of_block;
  int next = 0;  // parameter that no earlier layer uses
  for (int l = 0; l < static_cast<int>(whole.layers.size()); ++l) {
    for (const int p : whole.layers[l].parameters) {
      if (p < next) continue;
      next = p + 1;
      const int64_t end = whole.parameters[p].offset + whole.parameters[p].NumElements();
      while (layer_of_block.size() + 1 < borders.size() && borders[layer_of_block.size()] < end) {
        layer_of_block.push_back(l);
      }
    }
  }
  return layer_of_block;
}

double Variance(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows = x_RD.narrow(0, 0, pass.rows->count).to(at::kDouble);
  return rows.var(/*unbiased=*/false).item<double>();
}

// Sub-layers of a stack run in order, so that each is given its omega just before it runs.
class Profile : public SublayerProbe {
 public:
  explicit Profile(const Parameters& parameters) : parameters_(parameters) {}

  void AtEnter(const PassContext&, const SublayerView& view) override {
    const double r = std::sqrt(squares_[view.place.stack]);
    omega_.push_back(r);
    parameters_.Get(BlockName(view.place) + kStreamScale).fill_(r);
  }
  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    squares_[view.place.stack] = Variance(pass, view.stream_RD) + Variance(pass, view.branch_RD);
  }

  const std::vector<double>& omega() const { return omega_; }

 private:
  const Parameters& parameters_;
  std::array<double, 2> squares_ = {1.0, 1.0};  // r^2 of each stack
  std::vector<double> omega_;
};

}  // namespace

SublayerMeter::SublayerMeter(const ModelSpec& model) : model_(model), seen_(NumSublayers(model)) {}

void SublayerMeter::AtEnter(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = seen_[SublayerIndex(model_, view.place)];
  seen.input = MeanSquare(pass, view.input_RD);
  seen.norm_input = view.scheme->input_norm ? MeanSquare(pass, view.stream_RD) : 0.0;
  seconds_ += SecondsNow() - started;
}

void SublayerMeter::AtLeave(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = seen_[SublayerIndex(model_, view.place)];
  const double alpha = view.scheme->alpha;
  seen.branch = MeanSquare(pass, view.branch_RD);
  seen.stream = alpha * alpha * MeanSquare(pass, view.stream_RD);
  if (view.scheme->end_norm) seen.norm_input = MeanSquare(pass, view.sum_RD);
  seconds_ += view.seconds + SecondsNow() - started;
}

absl::StatusOr<std::vector<SublayerInstruments>> SublayerMeter::Gather(const Groups& groups) {
  std::vector<double> sums;
  for (const Seen& seen : seen_) {
    sums.insert(sums.end(), {seen.input, seen.branch, seen.stream, seen.norm_input});
  }
  std::fill(seen_.begin(), seen_.end(), Seen());
  seconds_ = 0.0;
  RETURN_IF_ERROR(groups.world->AllReduceSum(std::span(sums), groups.limit));
  std::vector<SublayerInstruments> all;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const SublayerPlace place = SublayerAt(model_, static_cast<int>(i));
    const double* figures = &sums[kFigures * i];
    SublayerInstruments& one = all.emplace_back();
    one.set_name(BlockName(place));
    one.set_input_norm(std::sqrt(figures[0]));
    one.set_branch_norm(std::sqrt(figures[1]));
    one.set_stream_norm(std::sqrt(figures[2]));
    one.set_norm_input(std::sqrt(figures[3]));
    const double both = figures[1] + figures[2];
    one.set_stream_share(both > 0 ? figures[2] / both : 0.0);
  }
  return all;
}

LayerMeter::LayerMeter(const Inventory& whole, const ShardLayout& layout,
                       const at::TensorOptions& options)
    : layer_of_block_(LayersOfBlocks(whole, SumBlockBorders(whole))),
      runs_(BlockRunsOf(whole, layout)) {
  for (const Layer& layer : whole.layers) layers_.push_back(layer.name);
  const int64_t elements = runs_.empty() ? 0 : runs_.back().packed + runs_.back().count;
  copy_ = at::empty({elements}, options);
}

void LayerMeter::Remember(const at::Tensor& weights) {
  for (const BlockRun& run : runs_) {
    copy_.narrow(0, run.packed, run.count).copy_(weights.narrow(0, run.weight, run.count));
  }
}

// Adding the zeros of the ranks that do not update a block is exact.
absl::StatusOr<std::vector<LayerInstruments>> LayerMeter::Measure(Ops& ops,
                                                                  const Parameters& parameters,
                                                                  const Groups& groups) {
  ops.Scale(copy_.size(0), copy_, -1.0);
  for (const BlockRun& run : runs_) {
    ops.Add(copy_.narrow(0, run.packed, run.count),
            parameters.weights().narrow(0, run.weight, run.count));
  }
  const size_t blocks = layer_of_block_.size();
  std::vector<double> sums(3 * blocks, 0.0);
  const std::span<double> all(sums);
  SumBlockSquares(ops, parameters.gradient(), runs_, &BlockRun::gradient, all.subspan(0, blocks));
  SumBlockSquares(ops, parameters.weights(), runs_, &BlockRun::weight, all.subspan(blocks, blocks));
  SumBlockSquares(ops, copy_, runs_, &BlockRun::packed, all.subspan(2 * blocks, blocks));
  if (groups.world != nullptr) {
    RETURN_IF_ERROR(
        Named(groups.world->AllReduceSum(all, groups.limit), "sums of the instruments' squares"));
  }
  std::vector<LayerInstruments> layers(layers_.size());
  for (size_t l = 0; l < layers.size(); ++l) layers[l].set_name(layers_[l]);
  for (size_t b = 0; b < blocks; ++b) {
    LayerInstruments& layer = layers[layer_of_block_[b]];
    layer.set_gradient_norm(layer.gradient_norm() + sums[b]);
    layer.set_weight_norm(layer.weight_norm() + sums[blocks + b]);
    layer.set_update_norm(layer.update_norm() + sums[2 * blocks + b]);
  }
  for (LayerInstruments& layer : layers) {
    layer.set_gradient_norm(std::sqrt(layer.gradient_norm()));
    layer.set_weight_norm(std::sqrt(layer.weight_norm()));
    layer.set_update_norm(std::sqrt(layer.update_norm()));
  }
  return layers;
}

std::vector<double> ProfileAdmin(Transformer& model, const Microbatch& microbatch, uint64_t seed) {
  DEEPNET_CHECK_EQ(model.spec().residual(), ADMIN);
  DEEPNET_CHECK_EQ(model.chunks().size(), 1u);
  Profile profile(model.parameters());
  MicrobatchPass pass = MakePass(model.ops(), microbatch, seed, /*step=*/0, /*training=*/true);
  pass.probe = &profile;
  const auto kept = model.MakeActivations(/*shared=*/false);
  model.chunks()[0].Forward(pass, kept->values, model.work(), kept->kept,
                            {.gradient_scale = 0.0, .dhidden_RD = kept->gradients.target_RD});
  return profile.omega();
}

}  // namespace deepnet
