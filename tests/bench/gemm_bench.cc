// Speed of the native matrix products against what this processor multiplies at most, both measured
// in turns in this process. Prints GFLOP/s and the share of the peak of each product and shape:
//
//   gemm_bench [float32|bfloat16] [threads] [substring of a shape, such as 460x64]
//
// GFLOP/s are the best of several short runs; the share is the median over pairs of runs, one of
// the product and one of the peak loop, so that a busy machine shows little.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "parallel/base/clock.h"
#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/linear.h"

namespace deepnet::native {
namespace {

constexpr int kRounds = 15;
constexpr double kSecondsPerRound = 0.002;

// Seconds of one call of `run`, the best of one round.
double TimeOnce(const std::function<void()>& run) {
  const double start = SecondsNow();
  int calls = 0;
  do {
    run();
    ++calls;
  } while (SecondsNow() - start < kSecondsPerRound);
  return (SecondsNow() - start) / calls;
}

#if defined(__x86_64__)
constexpr int kPeakSteps = 2000;
constexpr int kChains = 24;

// Chains of multiply-adds that touch no memory. Each returns its floating-point operations.
__attribute__((target("avx512f"))) double PeakAvx512() {
  __m512 chain[kChains];
  for (__m512& c : chain) c = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(1e-3f);
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma GCC unroll 24
    for (__m512& c : chain) c = _mm512_fmadd_ps(x, x, c);
#pragma GCC unroll 24
    for (__m512& c : chain) asm volatile("" : "+v"(c));
  }
  return 2.0 * 16 * kChains * kPeakSteps;
}

__attribute__((target("avx512f,avx512bf16"))) double PeakAvx512Bf16() {
  __m512 chain[kChains];
  for (__m512& c : chain) c = _mm512_setzero_ps();
  const __m512bh x = (__m512bh)_mm512_set1_ps(1e-3f);
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma GCC unroll 24
    for (__m512& c : chain) c = _mm512_dpbf16_ps(c, x, x);
#pragma GCC unroll 24
    for (__m512& c : chain) asm volatile("" : "+v"(c));
  }
  return 4.0 * 16 * kChains * kPeakSteps;
}

__attribute__((target("avx2,fma"))) double PeakAvx2() {
  __m256 chain[12];
  for (__m256& c : chain) c = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(1e-3f);
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma GCC unroll 12
    for (__m256& c : chain) c = _mm256_fmadd_ps(x, x, c);
#pragma GCC unroll 12
    for (__m256& c : chain) asm volatile("" : "+x"(c));
  }
  return 2.0 * 8 * 12 * kPeakSteps;
}
#endif

double Peak(Isa isa, Element element) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16 && element == Element::kBfloat16) return PeakAvx512Bf16();
  if (isa >= Isa::kAvx512) return PeakAvx512();
  if (isa == Isa::kAvx2) return PeakAvx2();
#endif
  (void)isa, (void)element;
  return 0;  // not measured
}

struct Shape {
  int64_t rows, in, out;
};

// Random numbers of either element.
std::vector<float> Operand(int64_t numbers) {
  std::vector<float> result(numbers);
  std::mt19937 random(1);
  // Small bfloat16 pairs as well: exponent and mantissa bits of both halves stay ordinary.
  for (float& x : result) x = 1.0f + static_cast<float>(random() % 1000) / 1024;
  return result;
}

// Times `run` in turns with the peak loop on all threads; prints GFLOP/s and share.
void Report(ThreadPool& pool, Isa isa, Element element, double flops,
            const std::function<void()>& run) {
  double best = 0, best_peak = 0;  // operations per second
  std::vector<double> peak_flops(pool.num_threads());
  for (int round = 0; round < kRounds; ++round) {
    best = std::max(best, flops / TimeOnce(run));
    const double seconds = TimeOnce([&] {
      pool.ParallelFor(pool.num_threads(),
                       [&](int64_t i, int) { peak_flops[i] = Peak(isa, element); });
    });
    best_peak =
        std::max(best_peak, std::accumulate(peak_flops.begin(), peak_flops.end(), 0.0) / seconds);
  }
  std::printf("  %7.1f %4.0f%%", best * 1e-9, best_peak > 0 ? 100 * best / best_peak : 0.0);
}

void Bench(Cpu& cpu, Isa isa, Element element, const Shape& s) {
  const std::vector<float> master = Operand(s.out * s.in);
  std::vector<float> x = Operand(s.rows * s.in), dy = Operand(s.rows * s.out);
  std::vector<float> y(s.rows * s.out), dx(s.rows * s.in), dw(s.out * s.in), bias(s.out);
  PackedWeight weight(cpu.table, s.out, s.in, element, PackedFor::kTraining);
  weight.Pack(cpu.pool, master.data());
  const ConstMatrix x_view = {x.data(), element, s.rows, s.in, s.in};
  const ConstMatrix dy_view = {dy.data(), element, s.rows, s.out, s.out};
  const Matrix y_view = {y.data(), element, s.rows, s.out, s.out};
  const Matrix dx_view = {dx.data(), element, s.rows, s.in, s.in};
  const double flops = 2.0 * s.rows * s.in * s.out;
  std::printf("%5ld x %4ld x %4ld", s.rows, s.in, s.out);
  Report(cpu.pool, isa, element, flops, [&] {
    LinearForward(cpu, {s.rows, x_view, &weight, bias.data(), false, y_view});
  });
  Report(cpu.pool, isa, element, flops, [&] {
    LinearBackwardInput(cpu, {s.rows, dy_view, &weight, {}, false, dx_view});
  });
  Report(cpu.pool, isa, element, flops,
         [&] { LinearBackwardWeight(cpu, dy_view, x_view, dw.data(), bias.data()); });
  double pack = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    pack = std::min(pack, TimeOnce([&] { weight.Pack(cpu.pool, master.data()); }));
  }
  std::printf("  %6.1f\n", 4.0 * s.in * s.out / pack * 1e-9);
}

}  // namespace
}  // namespace deepnet::native

int main(int argc, char** argv) {
  using namespace deepnet::native;  // NOLINT
  const Element element =
      argc > 1 && std::string(argv[1]) == "bfloat16" ? Element::kBfloat16 : Element::kFloat32;
  const int num_threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  const std::string wanted = argc > 3 ? argv[3] : "";
  const Shape shapes[] = {
      {1, 256, 256},    {5, 256, 256},    {20, 256, 256},   {100, 256, 256},   {5, 256, 8000},
      {460, 64, 64},    {460, 64, 128},   {460, 64, 192},   {460, 128, 64},    {1850, 64, 64},
      {1850, 64, 192},  {1850, 64, 256},  {1850, 256, 64},  {1000, 128, 128},  {1000, 128, 512},
      {460, 256, 256},  {1850, 256, 256}, {1850, 256, 768}, {1850, 256, 1024}, {1850, 1024, 256},
      {1850, 512, 512}, {460, 64, 8000},  {460, 256, 8000},
  };
  for (const Isa isa : kAllIsas) {
    if (!Supports(isa) || (isa != BestIsa() && wanted != IsaName(isa))) continue;
    Cpu cpu(num_threads, isa);
    std::printf("%s %s, %d threads; GFLOP/s and share of peak; GB/s of master weights\n",
                std::string(IsaName(isa)).c_str(),
                element == Element::kFloat32 ? "float32" : "bfloat16", cpu.pool.num_threads());
    std::printf("rows x   in x  out       forward    input grad.  weight grad.    pack\n");
    for (const Shape& s : shapes) {
      const std::string name =
          std::to_string(s.rows) + "x" + std::to_string(s.in) + "x" + std::to_string(s.out);
      if (wanted == IsaName(isa) || name.find(wanted) != std::string::npos) {
        Bench(cpu, isa, element, s);
      }
    }
  }
  return 0;
}
