// Tensors as the arguments of kernels (trainer/kernels/native, trainer/kernels/cuda): pointers,
// shapes and strides of what the structs of ops.h hold. Nothing is read, copied or checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/native/matrix.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

native::Element ElementOf(at::ScalarType type);

// The first `rows` rows of x [.., cols], which may be a column slice, or [cols], which is one row.
// An undefined tensor is null.
native::ConstMatrix In(const at::Tensor& x, int64_t rows);
native::Matrix Out(const at::Tensor& x, int64_t rows);

// The elements of a contiguous tensor; null where it is undefined.
float* Floats(const at::Tensor& x);
uint8_t* Bytes(const at::Tensor& x);

// Converts to any type: stands for a field where fields are counted.
struct AnyField {
  template <typename T>
  operator T() const;  // NOLINT
};

// Returns the number of fields of an aggregate.
template <typename Struct, typename... Counted>
constexpr int NumFields() {
  if constexpr (requires { Struct{Counted()..., AnyField()}; }) {
    return NumFields<Struct, Counted..., AnyField>();
  } else {
    return sizeof...(Counted);
  }
}

// Returns references to all fields of an aggregate. Each number of fields has a line here.
template <typename Struct>
auto FieldsOf(Struct& s) {
#define DEEPNET_FIELDS(count, ...)                                   \
  if constexpr (NumFields<std::remove_const_t<Struct>>() == count) { \
    auto& [__VA_ARGS__] = s;                                         \
    return std::tie(__VA_ARGS__);                                    \
  }
  DEEPNET_FIELDS(2, a, b);
  DEEPNET_FIELDS(5, a, b, c, d, e);
  DEEPNET_FIELDS(6, a, b, c, d, e, f);
  DEEPNET_FIELDS(7, a, b, c, d, e, f, g);
  DEEPNET_FIELDS(8, a, b, c, d, e, f, g, h);
  DEEPNET_FIELDS(9, a, b, c, d, e, f, g, h, i);
  DEEPNET_FIELDS(10, a, b, c, d, e, f, g, h, i, j);
  DEEPNET_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  DEEPNET_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
#undef DEEPNET_FIELDS
}

// Each sets a field of a kernel's arguments to what that of a layer's says.
void Convert(const at::Tensor& x, native::ConstMatrix& to);
void Convert(const at::Tensor& x, native::Matrix& to);
inline void Convert(const at::Tensor& x, float*& to) { to = Floats(x); }
inline void Convert(const at::Tensor& x, const float*& to) { to = Floats(x); }
inline void Convert(const at::Tensor& x, uint8_t*& to) { to = Bytes(x); }
inline void Convert(const at::Tensor& x, const uint8_t*& to) { to = Bytes(x); }
void Convert(const PackedRows* rows, PackedRows& to);
void Convert(const Weight* weight, const native::PackedWeight*& to);  // native_ops.cc
inline void Convert(double x, float& to) { to = static_cast<float>(x); }
template <typename T>
void Convert(const T& x, T& to) {
  to = x;
}
template <template <typename> class Args>
void Convert(const Args<Tensors>& a, Args<native::Pointers>& to) {
  const auto from = FieldsOf(a);
  const auto fields = FieldsOf(to);
  [&]<size_t... i>(std::index_sequence<i...>) {
    (Convert(std::get<i>(from), std::get<i>(fields)), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(from)>>());
}

// Returns the arguments of a kernel, field by field.
template <template <typename> class Args>
Args<native::Pointers> ArgsOf(const Args<Tensors>& a) {
  Args<native::Pointers> args;
  Convert(a, args);
  return args;
}

}  // namespace deepnet
