// Matrix products of a model, as plans, traces and benchmarks name them.
#pragma once

#include <cstdint>

namespace deepnet {

// The product of a layer's forward pass, or one of the two of its backward pass.
enum class ProductForm {
  kNone,            // no product
  kForward,         // rows times weights
  kInputGradient,   // gradients of rows times weights
  kWeightGradient,  // gradients of rows times rows, summed over the rows
};

// A result of rows x columns, each a sum of `depth` numbers.
struct ProductShape {
  ProductForm form = ProductForm::kNone;
  int64_t rows = 0, columns = 0, depth = 0;

  friend bool operator==(const ProductShape&, const ProductShape&) = default;
};

}  // namespace deepnet
