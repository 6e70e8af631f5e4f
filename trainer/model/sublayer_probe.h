// Who wants to see what sub-layers do to their stream, while a forward pass runs. Looking changes
// nothing, unless the looker changes parameters itself (trainer/probe/admin_profile.h does).
//
// Letters: R rows, D width.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/model/pass.h"
#include "trainer/model/scheme.h"

namespace deepnet {

// Which sub-layer, and what of it. Tensors hold pass.rows->count real rows and are gone or
// overwritten when the call returns.
struct SublayerView {
  int stack = 0;  // 0 encoder, 1 decoder
  int layer = 0;  // within the stack
  SublayerKind kind = SublayerKind::kSelfAttention;
  const SublayerScheme* scheme = nullptr;
  at::Tensor stream_RD;  // stream: as it entered; in AtLeave after omega, before alpha and e
  at::Tensor input_RD;   // operand: what the branch reads; undefined in AtLeave
  at::Tensor branch_RD;  // stream: as it joins, after dropout; undefined in AtEnter
  at::Tensor sum_RD;  // stream: what the norm behind the sum reads; undefined where there is none
  double seconds = 0.0;  // that it took to make this view
};

class SublayerProbe {
 public:
  virtual ~SublayerProbe() = default;
  virtual void AtEnter(const PassContext& pass, const SublayerView& view) = 0;
  virtual void AtLeave(const PassContext& pass, const SublayerView& view) = 0;
};

}  // namespace deepnet
