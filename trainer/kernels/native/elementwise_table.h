// Elementwise kernels of one instruction set; filled in by elementwise.inc.
#pragma once

namespace deepnet::native {

struct ElementwiseTable {};

}  // namespace deepnet::native
