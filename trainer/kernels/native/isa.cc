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
  constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
  const size_t number = static_cast<size_t>(isa) - 1;
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

const KernelTable& Table(Isa isa) {
  DEEPNET_CHECK(Supports(isa)) << "this host or build does not have " << IsaName(isa);
#if defined(__x86_64__)
  constexpr decltype(&BaselineTable) kTables[] = {BaselineTable, Avx2Table, Avx512Table,
                                                  Avx512Bf16Table};
  return kTables[static_cast<int>(isa) - 1]();
#else
  return BaselineTable();
#endif
}

}  // namespace deepnet::native
