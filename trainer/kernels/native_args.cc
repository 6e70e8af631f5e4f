#include "trainer/kernels/native_args.h"

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"

namespace deepnet {

native::Element ElementOf(at::ScalarType type) {
  if (type == at::kHalf) return native::Element::kFloat16;
  return type == at::kBFloat16 ? native::Element::kBfloat16 : native::Element::kFloat32;
}

native::ConstMatrix In(const at::Tensor& x, int64_t rows) {
  if (!x.defined()) return {};
  DEEPNET_CHECK(x.dim() == 2 || rows <= 1) << "a vector of several rows";
  const int64_t cols = x.size(-1), stride = x.dim() == 1 ? cols : x.stride(0);
  return {x.const_data_ptr(), ElementOf(x.scalar_type()), rows, cols, stride};
}

native::Matrix Out(const at::Tensor& x, int64_t rows) {
  const native::ConstMatrix m = In(x, rows);
  return {x.defined() ? x.data_ptr() : nullptr, m.element, m.rows, m.cols, m.stride};
}

float* Floats(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

uint8_t* Bytes(const at::Tensor& x) { return x.defined() ? x.data_ptr<uint8_t>() : nullptr; }

void Convert(const at::Tensor& x, native::ConstMatrix& to) {
  if (x.defined()) to = In(x, x.dim() == 1 ? 1 : x.size(0));
}
void Convert(const at::Tensor& x, native::Matrix& to) {
  if (x.defined()) to = Out(x, x.size(0));
}
void Convert(const PackedRows* rows, PackedRows& to) {
  if (rows != nullptr) to = *rows;
  to.index = nullptr;  // the host's, and another one in each microbatch: graphs compare arguments
}

}  // namespace deepnet
