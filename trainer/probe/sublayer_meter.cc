#include "trainer/probe/sublayer_meter.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/ATen.h>

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/sublayer_order.h"

namespace deepnet {
namespace {

constexpr int kFigures = 4;  // of Seen

// Mean square of the rows' lengths.
double MeanSquare(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows = x_RD.narrow(0, 0, pass.rows->count).to(at::kDouble);
  return rows.square().sum().item<double>() / static_cast<double>(pass.rows->count);
}

}  // namespace

SublayerMeter::SublayerMeter(const ModelSpec& model)
    : model_(model), seen_(static_cast<size_t>(NumSublayers(model))) {}

SublayerMeter::Seen& SublayerMeter::SeenAt(const SublayerView& view) {
  return seen_[static_cast<size_t>(SublayerIndex(model_, {view.stack, view.layer, view.kind}))];
}

void SublayerMeter::AtEnter(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = SeenAt(view);
  seen.input = MeanSquare(pass, view.input_RD);
  seen.norm_input = view.scheme->input_norm ? MeanSquare(pass, view.stream_RD) : 0.0;
  seconds_ += SecondsNow() - started;
}

void SublayerMeter::AtLeave(const PassContext& pass, const SublayerView& view) {
  const double started = SecondsNow();
  Seen& seen = SeenAt(view);
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
    one.set_name(LayerPrefix(place.stack, place.layer) + BaseName(place.kind));
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
