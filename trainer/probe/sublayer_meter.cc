#include "trainer/probe/sublayer_meter.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/ATen.h>

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kFigures = 4;  // of Seen

// Mean square of the rows' lengths.
double MeanSquare(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows = x_RD.narrow(0, 0, pass.rows->count).to(at::kDouble);
  return rows.square().sum().item<double>() / static_cast<double>(pass.rows->count);
}

SublayerKind KindOf(int stack, int in_layer) {
  if (in_layer == 0) return SublayerKind::kSelfAttention;
  return stack == 1 && in_layer == 1 ? SublayerKind::kCrossAttention : SublayerKind::kFeedForward;
}

int InLayer(int stack, SublayerKind kind) {
  if (kind == SublayerKind::kSelfAttention) return 0;
  return kind == SublayerKind::kCrossAttention || stack == 0 ? 1 : 2;
}

}  // namespace

SublayerMeter::SublayerMeter(const ModelSpec& model)
    : model_(model),
      seen_(static_cast<size_t>(2 * model.encoder_layers() + 3 * model.decoder_layers())) {}

size_t SublayerMeter::IndexOf(const SublayerView& view) const {
  const int in_layer = InLayer(view.stack, view.kind);
  if (view.stack == 0) return static_cast<size_t>(2 * view.layer + in_layer);
  return static_cast<size_t>(2 * model_.encoder_layers() + 3 * view.layer + in_layer);
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
    const size_t within = stack == 0 ? i : i - in_encoder;
    const size_t per_layer = stack == 0 ? 2 : 3;
    const double* figures = &sums[kFigures * i];
    SublayerInstruments& one = all.emplace_back();
    one.set_name(LayerPrefix(stack, static_cast<int>(within / per_layer)) +
                 BaseName(KindOf(stack, static_cast<int>(within % per_layer))));
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
