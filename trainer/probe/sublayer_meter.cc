#include "trainer/probe/sublayer_meter.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/ATen.h>

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr int kFigures = 4;  // of Seen

// Mean square of the rows' lengths.
double MeanSquare(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows = x_RD.narrow(0, 0, pass.rows->count).to(at::kDouble);
  return rows.square().sum().item<double>() / static_cast<double>(pass.rows->count);
}

// `count`: sub-layers of a layer.
SublayerKind KindOf(int in_layer, int count) {
  if (in_layer == 0) return SublayerKind::kSelfAttention;
  return in_layer + 1 < count ? SublayerKind::kCrossAttention : SublayerKind::kFeedForward;
}

int InLayer(SublayerKind kind, int count) {
  if (kind == SublayerKind::kSelfAttention) return 0;
  return kind == SublayerKind::kCrossAttention ? 1 : count - 1;
}

}  // namespace

SublayerMeter::SublayerMeter(const ModelSpec& model)
    : model_(model),
      seen_(static_cast<size_t>(2 * model.encoder_layers() +
                                SublayersPerLayer(model, 1) * model.decoder_layers())) {}

size_t SublayerMeter::IndexOf(const SublayerView& view) const {
  const int count = SublayersPerLayer(model_, view.stack);
  const int before = view.stack == 0 ? 0 : 2 * model_.encoder_layers();
  return static_cast<size_t>(before + count * view.layer + InLayer(view.kind, count));
}

void SublayerMeter::AtEnter(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = seen_[IndexOf(view)];
  seen.input = MeanSquare(pass, view.input_RD);
  seen.norm_input = view.scheme->input_norm ? MeanSquare(pass, view.stream_RD) : 0.0;
  seconds_ += SecondsNow() - started;
}

void SublayerMeter::AtLeave(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = seen_[IndexOf(view)];
  const double alpha = view.scheme->alpha;
  seen.branch = MeanSquare(pass, view.branch_RD);
  seen.stream = alpha * alpha * MeanSquare(pass, view.stream_RD);
  if (view.scheme->end_norm) {
    const int64_t rows = pass.rows->count;
    seen.norm_input = MeanSquare(
        pass, view.stream_RD.narrow(0, 0, rows) * alpha + view.branch_RD.narrow(0, 0, rows));
  }
  seconds_ += SecondsNow() - started;
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
  const size_t in_encoder = static_cast<size_t>(2 * model_.encoder_layers());
  for (size_t i = 0; i < seen_.size(); ++i) {
    const int stack = i < in_encoder ? 0 : 1;
    const int within = static_cast<int>(stack == 0 ? i : i - in_encoder);
    const int per_layer = SublayersPerLayer(model_, stack);
    const double* figures = &sums[kFigures * i];
    SublayerInstruments& one = all.emplace_back();
    one.set_name(LayerPrefix(stack, within / per_layer) +
                 BaseName(KindOf(within % per_layer, per_layer)));
    one.set_input_norm(std::sqrt(figures[0]));
    one.set_branch_norm(std::sqrt(figures[1]));
    one.set_stream_norm(std::sqrt(figures[2]));
    one.set_norm_input(std::sqrt(figures[3]));
    const double both = figures[1] + figures[2];
    one.set_stream_share(both > 0 ? figures[2] / both : 0.0);
  }
  return all;
}

}  // namespace deepnet
