#define DEEPNET_ISA_NAMESPACE avx2
#include "trainer/kernels/native/kernels.inc"
