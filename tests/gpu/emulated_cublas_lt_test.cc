// The emulated cuBLASLt against plain loops in double precision.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/element.h"
#include "tests/gpu/emulated/product.h"

namespace emulated_gpu {
namespace {

void Ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }
void Ok(cublasStatus_t status) {
  ASSERT_EQ(status, CUBLAS_STATUS_SUCCESS) << cublasGetStatusName(status);
}

size_t SizeOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// Numbers of one type on the device and, as they were rounded, on the host.
struct Array {
  Array() = default;
  Array(cudaDataType_t type, size_t count, int seed) : type(type), host(count) {
    std::minstd_rand draw(seed);
    bytes.resize(count * SizeOf(type));
    for (size_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(draw() % 2001) / 1000.0 - 1.0;
      WriteElement(type, bytes.data(), i, seed == 0 ? 0.0 : value);
      host[i] = ReadElement(type, bytes.data(), i);
    }
    Ok(cudaMalloc(&device, bytes.size()));
    Ok(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    Ok(cudaDeviceSynchronize());
  }
  std::vector<double> Now() const {
    std::vector<char> now(bytes.size());
    Ok(cudaDeviceSynchronize());
    Ok(cudaMemcpy(now.data(), device, now.size(), cudaMemcpyDeviceToHost));
    std::vector<double> values(host.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = ReadElement(type, now.data(), i);
    return values;
  }

  cudaDataType_t type = CUDA_R_32F;
  std::vector<double> host;
  std::vector<char> bytes;
  void* device = nullptr;
};

struct Case {
  int m = 7, n = 5, k = 9;
  bool trans_a = false, trans_b = false;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  float alpha = 1.0F, beta = 0.0F;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool rows = false;  // all matrices in row order
  int pad = 0;        // of leading dimensions
  int batch = 1;
  int64_t aux_ld = 128;
};

// One call of cublasLtMatmul and everything that it needs.
class MatmulRun {
 public:
  explicit MatmulRun(const Case& given) : given_(given) {
    const auto [m, n, k] = std::tuple(given.m, given.n, given.k);
    a_rows_ = given.trans_a ? k : m;
    a_cols_ = given.trans_a ? m : k;
    b_rows_ = given.trans_b ? n : k;
    b_cols_ = given.trans_b ? k : n;
    a = Make(given.in, a_rows_, a_cols_, 1);
    b = Make(given.in, b_rows_, b_cols_, 2);
    c = Make(given.out, m, n, 3);
    d = Make(given.out, m, n, 4);
    bias = Array(given.out, std::max(m, n), 5);
    aux = Array(given.out, given.aux_ld * n, 6);
    workspace = Array(CUDA_R_32F, 2048, 0);
  }

  cublasStatus_t Start(cudaStream_t stream = nullptr, bool heuristic = true) {
    cublasLtHandle_t handle = nullptr;
    Ok(cublasLtCreate(&handle));
    cublasLtMatmulDesc_t desc = nullptr;
    Ok(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      Ok(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, given_.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, given_.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, given_.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.device);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(bias.type));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.device);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, given_.aux_ld);
    cublasLtMatrixLayout_t la = Layout(given_.in, a_rows_, a_cols_);
    cublasLtMatrixLayout_t lb = Layout(given_.in, b_rows_, b_cols_);
    cublasLtMatrixLayout_t ld = Layout(given_.out, given_.m, given_.n);
    cublasLtMatmulPreference_t preference = nullptr;
    Ok(cublasLtMatmulPreferenceCreate(&preference));
    const size_t limit = workspace.bytes.size();
    Ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &limit, sizeof(limit)));
    Ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &reductions, sizeof(reductions)));
    std::vector<cublasLtMatmulHeuristicResult_t> results(algorithm + 1);
    int found = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference,
                                                           algorithm + 1, results.data(), &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? algorithm + 1 : 0);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status =
          cublasLtMatmul(handle, desc, &given_.alpha, a.device, la, b.device, lb, &given_.beta,
                         c.device, ld, d.device, ld, heuristic ? &results[algorithm].algo : nullptr,
                         workspace.device, workspace_bytes, stream);
    }
    for (cublasLtMatrixLayout_t layout : {la, lb, ld}) Ok(cublasLtMatrixLayoutDestroy(layout));
    Ok(cublasLtMatmulPreferenceDestroy(preference));
    Ok(cublasLtMatmulDescDestroy(desc));
    Ok(cublasLtDestroy(handle));
    return status;
  }

  // alpha * op(A) op(B) + beta * C in double.
  double Plain(int i, int j, int batch) const {
    double sum = 0;
    for (int p = 0; p < given_.k; ++p) sum += A(i, p, batch) * B(p, j, batch);
    return given_.alpha * sum + given_.beta * c.host[Index(given_.m, given_.n, i, j, batch)];
  }
  double A(int i, int p, int batch = 0) const {
    return a.host[given_.trans_a ? Index(a_rows_, a_cols_, p, i, batch)
                                 : Index(a_rows_, a_cols_, i, p, batch)];
  }
  double B(int p, int j, int batch = 0) const {
    return b.host[given_.trans_b ? Index(b_rows_, b_cols_, j, p, batch)
                                 : Index(b_rows_, b_cols_, p, j, batch)];
  }
  size_t Index(int rows, int cols, int row, int col, int batch = 0) const {
    const int ld = Ld(rows, cols);
    const size_t in_one = given_.rows ? row * ld + col : col * ld + row;
    return in_one + batch * Stride(rows, cols);
  }

  Array a, b, c, d, bias, aux, workspace;
  size_t workspace_bytes = 8192;
  int algorithm = 0;  // of those that the heuristic proposes
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;

 private:
  int Ld(int rows, int cols) const { return (given_.rows ? cols : rows) + given_.pad; }
  size_t Stride(int rows, int cols) const {
    return static_cast<size_t>(Ld(rows, cols)) * (given_.rows ? rows : cols);
  }
  Array Make(cudaDataType_t type, int rows, int cols, int seed) const {
    return {type, Stride(rows, cols) * given_.batch, seed};
  }
  cublasLtMatrixLayout_t Layout(cudaDataType_t type, int rows, int cols) const {
    cublasLtMatrixLayout_t layout = nullptr;
    Ok(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, Ld(rows, cols)));
    const int32_t order = given_.rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    const auto stride = static_cast<int64_t>(Stride(rows, cols));
    Ok(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, 4));
    Ok(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &given_.batch,
                                        4));
    Ok(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                        &stride, 8));
    return layout;
  }

  const Case given_;
  int a_rows_, a_cols_, b_rows_, b_cols_;
};

class EmulatedCublasLt : public testing::Test {
 protected:
  EmulatedCublasLt() {
    Settings settings;
    settings.devices = 1;
    settings.memory_bytes = 64 << 20;
    settings.longest_delay_us = 0;
    Restart(settings);
  }
};

// Two roundings of the output's type, or the sums' own error.
double Bound(cudaDataType_t out, double value) {
  const double unit = out == CUDA_R_16BF ? 1.0 / 128 : out == CUDA_R_16F ? 1.0 / 1024 : 1e-5;
  return unit * std::max(1.0, std::abs(value));
}

void ExpectPlain(const Case& given) {
  MatmulRun run(given);
  Ok(run.Start());
  const std::vector<double> got = run.d.Now();
  for (int batch = 0; batch < given.batch; ++batch) {
    for (int i = 0; i < given.m; ++i) {
      for (int j = 0; j < given.n; ++j) {
        const double want = run.Plain(i, j, batch);
        ASSERT_NEAR(got[run.Index(given.m, given.n, i, j, batch)], want, Bound(given.out, want))
            << i << ", " << j;
      }
    }
  }
  if (given.pad == 0) return;  // what lies between columns stays
  EXPECT_EQ(got.back(), run.d.host.back());
}

TEST_F(EmulatedCublasLt, ProductsOfAllTypesAndFormsAreRight) {
  const std::pair<cudaDataType_t, cudaDataType_t> types[] = {{CUDA_R_32F, CUDA_R_32F},
                                                             {CUDA_R_16BF, CUDA_R_16BF},
                                                             {CUDA_R_16BF, CUDA_R_32F},
                                                             {CUDA_R_16F, CUDA_R_16F},
                                                             {CUDA_R_16F, CUDA_R_32F}};
  for (const auto& [in, out] : types) {
    for (const int form : {0, 1, 2, 3, 4, 5, 6, 7}) {
      SCOPED_TRACE("types " + std::to_string(in) + ", " + std::to_string(out) + ", form " +
                   std::to_string(form));
      ExpectPlain({.m = 19,
                   .n = 6,
                   .k = 33,
                   .trans_a = (form & 1) != 0,
                   .trans_b = (form & 2) != 0,
                   .in = in,
                   .out = out,
                   .rows = (form & 4) != 0,
                   .pad = form % 3});
    }
  }
}

// The third algorithm cuts the depth in two.
TEST_F(EmulatedCublasLt, ASplitSumIsRightAndHasItsOwnBits) {
  const Case given = {.m = 19, .n = 6, .k = 333};
  std::vector<std::vector<double>> results;
  for (const int algorithm : {0, 1, 2, 2}) {
    MatmulRun run(given);
    run.algorithm = algorithm;
    if (algorithm == 2) run.reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    Ok(run.Start());
    results.push_back(run.d.Now());
    for (int i = 0; i < given.m; ++i) {
      for (int j = 0; j < given.n; ++j) {
        const double want = run.Plain(i, j, 0);
        EXPECT_NEAR(results.back()[run.Index(given.m, given.n, i, j)], want, 1e-4);
      }
    }
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_NE(results[2], results[0]);
  EXPECT_EQ(results[3], results[2]);
}

TEST_F(EmulatedCublasLt, AlphaBetaAndBatches) {
  ExpectPlain({.alpha = 0.5F, .beta = 1.0F});
  ExpectPlain({.trans_b = true, .in = CUDA_R_16BF, .alpha = -2.0F, .beta = 0.25F, .batch = 3});
  ExpectPlain({.m = 1, .n = 1, .k = 1});
}

TEST_F(EmulatedCublasLt, SumsAreThoseOfThePlainLoopToTheBit) {
  constexpr int kRows = 37, kColumns = 11, kDepth = 300;
  std::mt19937 draw(3);
  std::vector<float> a(kDepth * kRows), b(kColumns * kDepth);
  for (auto* values : {&a, &b}) {
    for (float& value : *values) value = static_cast<float>(draw()) / 1e9F - 2.0F;
  }
  const std::vector<float> c = Multiply(kRows, kColumns, kDepth, a, b);
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      float sum = 0;
      for (int p = 0; p < kDepth; ++p) sum += a[p * kRows + i] * b[j * kDepth + p];
      ASSERT_EQ(c[j * kRows + i], sum);
    }
  }
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_F(EmulatedCublasLt, BiasReluAndGeluFollowTheProduct) {
  for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF}) {
    for (const uint32_t epilogue :
         {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
          CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
          CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_RELU_AUX_BIAS}) {
      SCOPED_TRACE("epilogue " + std::to_string(epilogue));
      const Case given = {.in = type, .out = type, .epilogue = epilogue};
      MatmulRun run(given);
      Ok(run.Start());
      const auto got = run.d.Now(), aux = run.aux.Now();
      int positive = 0;
      for (int i = 0; i < given.m; ++i) {
        for (int j = 0; j < given.n; ++j) {
          double want = run.Plain(i, j, 0);
          if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) want += run.bias.host[i];
          if ((epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX) {
            EXPECT_NEAR(aux[j * given.aux_ld + i], want, Bound(type, want));
          }
          positive += want > 0 ? 1 : 0;
          if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) want = std::max(want, 0.0);
          if ((epilogue & CUBLASLT_EPILOGUE_GELU) != 0) want = Gelu(want);
          EXPECT_NEAR(got[run.Index(given.m, given.n, i, j)], want, Bound(type, want));
        }
      }
      EXPECT_GT(positive, 0);
      EXPECT_LT(positive, given.m * given.n);
    }
  }
}

TEST_F(EmulatedCublasLt, ReluBackwardReadsTheMaskThatForwardWrote) {
  MatmulRun forward({.epilogue = CUBLASLT_EPILOGUE_RELU_AUX});
  Ok(forward.Start());
  for (const uint32_t epilogue : {CUBLASLT_EPILOGUE_DRELU, CUBLASLT_EPILOGUE_DRELU_BGRAD}) {
    MatmulRun backward({.epilogue = epilogue});
    Ok(cudaDeviceSynchronize());
    Ok(cudaMemcpy(backward.aux.device, forward.aux.device, forward.aux.bytes.size(),
                  cudaMemcpyDeviceToDevice));
    Ok(backward.Start());
    const auto got = backward.d.Now(), bias = backward.bias.Now();
    for (int i = 0; i < 7; ++i) {
      double sum = 0;
      for (int j = 0; j < 5; ++j) {
        const double want = forward.Plain(i, j, 0) > 0 ? backward.Plain(i, j, 0) : 0.0;
        EXPECT_NEAR(got[backward.Index(7, 5, i, j)], want, 1e-5);
        sum += want;
      }
      const bool has_sum = epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD;
      EXPECT_NEAR(bias[i], has_sum ? sum : backward.bias.host[i], 1e-5);
    }
  }
}

TEST_F(EmulatedCublasLt, GeluBackwardReadsItsInput) {
  for (const uint32_t epilogue : {CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD}) {
    MatmulRun run({.epilogue = epilogue});
    Ok(run.Start());
    const auto got = run.d.Now(), bias = run.bias.Now();
    for (int i = 0; i < 7; ++i) {
      double sum = 0;
      for (int j = 0; j < 5; ++j) {
        const double x = run.aux.host[j * 128 + i], step = 1e-5;
        const double slope = (Gelu(x + step) - Gelu(x - step)) / (2 * step);
        const double want = run.Plain(i, j, 0) * slope;
        EXPECT_NEAR(got[run.Index(7, 5, i, j)], want, 1e-5);
        sum += want;
      }
      const bool has_sum = epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
      EXPECT_NEAR(bias[i], has_sum ? sum : run.bias.host[i], 1e-5);
    }
  }
}

TEST_F(EmulatedCublasLt, BiasGradientsSumAnInputOverTheDepth) {
  for (const bool trans : {false, true}) {
    MatmulRun of_a({.trans_a = trans, .trans_b = !trans, .epilogue = CUBLASLT_EPILOGUE_BGRADA});
    MatmulRun of_b({.trans_a = trans, .trans_b = !trans, .epilogue = CUBLASLT_EPILOGUE_BGRADB});
    Ok(of_a.Start());
    Ok(of_b.Start());
    const auto a = of_a.bias.Now(), b = of_b.bias.Now();
    for (int i = 0; i < 7; ++i) {
      double sum_a = 0, sum_b = 0;
      for (int p = 0; p < 9; ++p) {
        sum_a += of_a.A(i, p);
        if (i < 5) sum_b += of_b.B(p, i);
      }
      EXPECT_NEAR(a[i], sum_a, 1e-5);
      if (i < 5) {
        EXPECT_NEAR(b[i], sum_b, 1e-5);
      }
    }
  }
}

TEST_F(EmulatedCublasLt, WhatTheDocumentationDoesNotListIsRefused) {
  EXPECT_EQ(MatmulRun({.in = CUDA_R_32F, .out = CUDA_R_16BF}).Start(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(MatmulRun({.in = CUDA_R_16F, .out = CUDA_R_16BF}).Start(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(MatmulRun({.epilogue = 3}).Start(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(MatmulRun({.epilogue = CUBLASLT_EPILOGUE_BIAS, .rows = true}).Start(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(MatmulRun({.epilogue = CUBLASLT_EPILOGUE_RELU_AUX, .aux_ld = 64}).Start(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(MatmulRun({.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, .aux_ld = 9}).Start(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  MatmulRun bias({.in = CUDA_R_16BF, .out = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_BIAS});
  bias.bias = Array(CUDA_R_32F, 7, 5);
  EXPECT_EQ(bias.Start(), CUBLAS_STATUS_NOT_SUPPORTED);
  MatmulRun shifted({.epilogue = CUBLASLT_EPILOGUE_BIAS});
  shifted.bias.device = static_cast<char*>(shifted.bias.device) + 8;
  EXPECT_EQ(shifted.Start(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, MemoryThatIsTooSmallIsRefused) {
  MatmulRun short_of_d({});
  Ok(cudaFree(short_of_d.d.device));
  EXPECT_EQ(short_of_d.Start(), CUBLAS_STATUS_INVALID_VALUE);
  MatmulRun short_of_workspace({});
  short_of_workspace.workspace_bytes = 100;
  EXPECT_EQ(short_of_workspace.Start(), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(short_of_workspace.Start(nullptr, /*heuristic=*/false), CUBLAS_STATUS_SUCCESS);
}

TEST_F(EmulatedCublasLt, TheWorkspaceIsOverwritten) {
  MatmulRun run({});
  Ok(run.Start());
  const auto now = run.workspace.Now();
  EXPECT_TRUE(std::isnan(now[0]));
  EXPECT_TRUE(std::isnan(now[1023]));
  EXPECT_EQ(now[1024], 0.0);
}

TEST_F(EmulatedCublasLt, AProductIsALaunchOnItsStreamAndFailsAsAsked) {
  cudaStream_t stream = nullptr;
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MatmulRun run({});
  Ok(run.Start(stream));
  EXPECT_EQ(ReadLaunches()["cublasLtMatmul"], 1);
  FailAt("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(run.Start(stream), CUBLAS_STATUS_EXECUTION_FAILED);
  Ok(run.Start(stream));
}

TEST_F(EmulatedCublasLt, IsFastEnoughForTests) {
  constexpr int kSize = 512;
  const std::vector<float> values(kSize * kSize, 1.0F);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<float> product = Multiply(kSize, kSize, kSize, values, values);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(product[0], kSize);
  std::printf("%.1f GFLOP/s\n", 2e-9 * kSize * kSize * kSize / seconds);
}

}  // namespace
}  // namespace emulated_gpu
