#define DEEPNET_ISA_NAMESPACE baseline
#include "trainer/kernels/native/kernels.inc"
