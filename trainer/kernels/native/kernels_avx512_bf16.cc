#define DEEPNET_ISA_NAMESPACE avx512_bf16
#include "trainer/kernels/native/kernels.inc"
