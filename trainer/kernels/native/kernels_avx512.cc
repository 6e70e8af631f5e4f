#define DEEPNET_ISA_NAMESPACE avx512
#include "trainer/kernels/native/kernels.inc"
