#include "trainer/model/deferred_weights.h"

#include <algorithm>
#include <utility>

#include "trainer/kernels/aten.h"

namespace deepnet {

at::Tensor TensorPool::Take(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  auto found = free_.end();
  for (auto candidate = free_.begin(); candidate != free_.end(); ++candidate) {
    if (candidate->size(0) != rows || candidate->size(1) != columns) continue;
    if (candidate->dtype() != options.dtype() || candidate->device() != options.device()) continue;
    if (found == free_.end() || candidate->const_data_ptr() < found->const_data_ptr()) {
      found = candidate;
    }
  }
  if (found != free_.end()) {
    std::swap(*found, free_.back());
    at::Tensor taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  return at::zeros({rows, columns}, options);
}

at::Tensor DeferredWeights::CopyOf(Ops& ops, int64_t rows, const at::Tensor& x_RC) {
  // At the capacity of the original, so that microbatches of any length share buffers.
  at::Tensor copy = pool_->Take(x_RC.size(0), x_RC.size(1), x_RC.options());
  ops.Copy(rows, x_RC, copy);
  copies_.push_back(copy);
  return copy;
}

void DeferredWeights::Add(Ops& ops, Record record, bool one_input) {
  record.dy_RO = CopyOf(ops, record.rows, record.dy_RO);
  const void* const original = record.x_RI.const_data_ptr();
  const auto same = std::ranges::find(inputs_, original, &Input::original);
  if (one_input && same != inputs_.end()) {
    record.x_RI = same->copy_RI;
  } else {
    record.x_RI = CopyOf(ops, record.rows, record.x_RI);
    if (one_input) inputs_.push_back({original, record.x_RI});
  }
  records_.push_back(std::move(record));
}

void DeferredWeights::Compute(Ops& ops, const LayerDone* layer_done) const {
  auto end = ends_.begin();
  const auto tell = [&](size_t computed) {
    if (layer_done == nullptr) return;
    for (; end != ends_.end() && end->records <= computed; ++end) (*layer_done)(end->layer);
  };
  tell(0);
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& r = records_[i];
    ops.LinearBackwardWeight(r.rows, r.dy_RO, r.x_RI, r.dw_OI, r.dbias_O);
    tell(i + 1);
  }
}

void DeferredWeights::Clear() {
  records_.clear();
  ends_.clear();
  inputs_.clear();
  for (at::Tensor& copy : copies_) pool_->Give(std::move(copy));
  copies_.clear();
}

}  // namespace deepnet
