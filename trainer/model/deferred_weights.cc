#include "trainer/model/deferred_weights.h"

#include <utility>

#include <ATen/ATen.h>

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
  at::Tensor made = at::zeros({rows, columns}, options);
  bytes_ += static_cast<int64_t>(made.nbytes());
  return made;
}

at::Tensor DeferredWeights::CopyOf(Ops& ops, int64_t rows, const at::Tensor& x_RC) {
  // At the capacity of the original, so that microbatches of any length share buffers.
  at::Tensor copy = pool_->Take(x_RC.size(0), x_RC.size(1), x_RC.options());
  ops.Copy(rows, x_RC, copy);
  copies_.push_back(copy);
  return copy;
}

at::Tensor DeferredWeights::InputOf(Ops& ops, int64_t rows, const at::Tensor& x_RI,
                                    bool one_input) {
  if (!one_input) return CopyOf(ops, rows, x_RI);
  for (const Input& input : inputs_) {
    if (input.original == x_RI.const_data_ptr()) return input.copy_RI;
  }
  inputs_.push_back({x_RI.const_data_ptr(), CopyOf(ops, rows, x_RI)});
  return inputs_.back().copy_RI;
}

void DeferredWeights::Add(Ops& ops, Record record, bool one_input) {
  record.dy_RO = CopyOf(ops, record.rows, record.dy_RO);
  record.x_RI = InputOf(ops, record.rows, record.x_RI, one_input);
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

int64_t DeferredWeights::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& copy : copies_) sum += static_cast<int64_t>(copy.nbytes());
  return sum;
}

}  // namespace deepnet
