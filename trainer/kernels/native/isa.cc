#include "trainer/kernels/native/isa.h"

#include "parallel/base/check.h"

namespace deepnet::native {

bool Supports(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return Supports(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Bf16:
      return Supports(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == Isa::kBaseline;
#endif
}

Isa BestIsa() {
  Isa best = Isa::kBaseline;
  for (const Isa isa : kAllIsas) {
    if (Supports(isa)) best = isa;
  }
  return best;
}

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

const KernelTable& Table(Isa isa) {
  DEEPNET_CHECK(Supports(isa)) << "this host or build does not have " << IsaName(isa);
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kBaseline:
      return baseline::Table();
    case Isa::kAvx2:
      return avx2::Table();
    case Isa::kAvx512:
      return avx512::Table();
    case Isa::kAvx512Bf16:
      return avx512_bf16::Table();
  }
#endif
  return baseline::Table();
}

}  // namespace deepnet::native
