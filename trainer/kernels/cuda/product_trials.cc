// TryProduct of trainer/kernels/kernel_times.h.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/linear_algorithms.h"
#include "trainer/kernels/kernel_times.h"

namespace deepnet::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr int kWarmUps = 5, kBatches = 4, kCalls = 10;
// Operands and results change from call to call, so that they come from memory as in a step.
constexpr int64_t kBeyondCaches = int64_t{256} << 20;
constexpr int kMinSets = 3, kMaxSets = 16;
constexpr int64_t kDrawn = int64_t{1} << 20;  // random numbers, used again and again

int64_t BytesOf(const native::ConstMatrix& m) {
  return m.rows * m.stride * native::BytesOf(m.element);
}

class Trials {
 public:
  explicit Trials(const ProductTask& task);
  ~Trials() { cublasLtDestroy(handle_); }
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  std::vector<ProductWay> Run();

 private:
  // A set of operands, with what epilogues and kernels read and write.
  struct Set {
    MatmulArgs args;
    void* vector = nullptr;  // of y's element, as many as the longer side of y
    void* mask = nullptr;    // a bit for each element of y
    native::Matrix relu_output;
  };

  void* Allocate(int64_t bytes);
  native::Matrix Random(int64_t rows, int64_t cols, native::Element element);
  Set MakeSet();
  MatmulEpilogue With(const Set& set, cublasLtEpilogue_t kind) const;
  double SecondsOf(const std::function<cublasStatus_t(const Set& set)>& call);
  ProductWay Try(std::string name, cublasLtEpilogue_t kind, uint32_t reductions, int wanted);
  int CountUnequal(cublasLtEpilogue_t kind, const cublasLtMatmulAlgo_t& algorithm);
  ProductWay ThenKernel(const ProductWay& product, const char* name,
                        const std::function<void(const Set& set)>& kernel);

  const ProductTask task_;
  GpuStream gpu_;
  cublasLtHandle_t handle_ = nullptr;
  std::vector<std::shared_ptr<void>> memory_;
  void* workspace_ = nullptr;
  native::ConstMatrix drawn_;  // [1, kDrawn] float32
  std::vector<Set> sets_;
};

Trials::Trials(const ProductTask& task) : task_(task) {
  CheckCublas("cublasLtCreate", cublasLtCreate(&handle_));
  workspace_ = Allocate(kMatmulWorkspaceBytes);
  std::vector<float> host(kDrawn);
  std::mt19937 draw(1);
  for (float& x : host) x = static_cast<float>(draw()) / 2147483648.0f - 1.0f;
  void* const drawn = Allocate(kDrawn * int64_t{sizeof(float)});
  gpu_.Check("cudaMemcpyAsync", cudaMemcpyAsync(drawn, host.data(), host.size() * sizeof(float),
                                                cudaMemcpyHostToDevice, gpu_.get()));
  gpu_.Wait();
  drawn_ = {drawn, native::Element::kFloat32, 1, kDrawn, kDrawn};
  int64_t bytes = 0;
  while (std::ssize(sets_) < kMinSets || (bytes < kBeyondCaches && std::ssize(sets_) < kMaxSets)) {
    const MatmulArgs& args = sets_.emplace_back(MakeSet()).args;
    bytes += BytesOf(args.a) + BytesOf(args.b) + BytesOf(args.y);
  }
}

void* Trials::Allocate(int64_t bytes) {
  memory_.push_back(gpu_.Allocate(bytes));
  return memory_.back().get();
}

native::Matrix Trials::Random(int64_t rows, int64_t cols, native::Element element) {
  const int64_t size = native::BytesOf(element);
  auto* const data = static_cast<char*>(Allocate(rows * cols * size));
  for (int64_t done = 0; done < rows * cols; done += kDrawn) {
    const int64_t count = std::min(kDrawn, rows * cols - done);
    native::ConstMatrix from = drawn_;
    from.cols = count;
    Cast(gpu_, from, {data + done * size, element, 1, count, count});
  }
  return {data, element, rows, cols, cols};
}

Trials::Set Trials::MakeSet() {
  const auto [form, rows, cols, depth] = task_.shape;
  const bool of_weights = form == ProductForm::kWeightGradient;
  const bool forward = form == ProductForm::kForward;
  const native::Element result = task_.float_result ? native::Element::kFloat32 : task_.operand;
  Set set;
  set.args = {
      .a = of_weights ? Random(depth, rows, task_.operand) : Random(rows, depth, task_.operand),
      .transpose_a = of_weights,
      .b = forward ? Random(cols, depth, task_.operand) : Random(depth, cols, task_.operand),
      .transpose_b = forward,
      .y = Random(rows, cols, result),
      .accumulate = task_.accumulate};
  set.vector = Random(1, std::max(rows, cols), result).data;
  // Random numbers are bits of a mask, too.
  set.mask = Random(1, rows * cols / 32 + 1, native::Element::kFloat32).data;
  if (form == ProductForm::kInputGradient && task_.relu) {
    set.relu_output = Random(rows, cols, task_.operand);
  }
  return set;
}

MatmulEpilogue Trials::With(const Set& set, cublasLtEpilogue_t kind) const {
  const bool has_vector = kind != CUBLASLT_EPILOGUE_DEFAULT && kind != CUBLASLT_EPILOGUE_RELU &&
                          kind != CUBLASLT_EPILOGUE_DRELU;
  const bool has_mask = kind == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || kind == CUBLASLT_EPILOGUE_DRELU;
  return {.kind = kind,
          .vector = has_vector ? set.vector : nullptr,
          .mask = has_mask ? set.mask : nullptr};
}

// Returns the least mean of some calls in a row, or 0 where one is refused. They are one graph:
// else the host would be slower than small products.
double Trials::SecondsOf(const std::function<cublasStatus_t(const Set& set)>& call) {
  size_t next = 0;
  const auto calls = [&](int count) {
    bool ran = true;
    for (int i = 0; i < count && ran; ++i) {
      ran = call(sets_[next++ % sets_.size()]) == CUBLAS_STATUS_SUCCESS;
    }
    return ran;
  };
  if (!calls(kWarmUps)) return 0.0;
  gpu_.BeginCapture();
  const bool captured = calls(kCalls);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> graph(gpu_.EndCapture(),
                                                                       &cudaGraphDestroy);
  if (!captured) return 0.0;
  cudaGraphExec_t exec = nullptr;
  gpu_.Check("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph.get(), 0));
  const std::unique_ptr<CUgraphExec_st, decltype(&cudaGraphExecDestroy)> held(
      exec, &cudaGraphExecDestroy);
  gpu_.Check("cudaGraphUpload", cudaGraphUpload(exec, gpu_.get()));
  double least = 0.0;
  for (int batch = 0; batch < kBatches; ++batch) {
    gpu_.StartClock();
    gpu_.Launched("CudaGraph", cudaGraphLaunch(exec, gpu_.get()));
    gpu_.StopClock();
    gpu_.Wait();
    const double seconds = gpu_.ClockedSeconds() / kCalls;
    least = batch == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

ProductWay Trials::Try(std::string name, cublasLtEpilogue_t kind, uint32_t reductions, int wanted) {
  ProductWay way{.name = std::move(name)};
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  try {
    const MatmulRows rows = wanted == 1 ? MatmulRows::kRounded : MatmulRows::kTheirs;
    found = FindAlgorithms(handle_, sets_[0].args, With(sets_[0], kind), rows, reductions, wanted);
  } catch (const GpuError&) {
    return way;  // cuBLASLt has no such product
  }
  const cublasLtMatmulAlgo_t* best = nullptr;
  for (const cublasLtMatmulHeuristicResult_t& result : found) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    const double seconds = SecondsOf([&](const Set& set) {
      return Multiply(handle_, set.args, With(set, kind), result.algo, workspace_, gpu_.get());
    });
    if (seconds == 0.0) continue;
    ++way.candidates;
    if (best != nullptr && seconds >= way.seconds) continue;
    best = &result.algo;
    way.seconds = seconds;
  }
  if (best == nullptr) return way;
  way.algorithm = AlgorithmText(*best);
  way.unequal = CountUnequal(kind, *best);
  return way;
}

// Repeats a product of the same numbers, and compares its result and what its epilogue writes.
int Trials::CountUnequal(cublasLtEpilogue_t kind, const cublasLtMatmulAlgo_t& algorithm) {
  const Set& set = sets_[0];
  const auto y_bytes = static_cast<size_t>(BytesOf(set.args.y));
  const size_t vector_bytes =
      kind == CUBLASLT_EPILOGUE_BGRADB ? static_cast<size_t>(set.args.y.rows) * sizeof(float) : 0;
  void* pinned = nullptr;
  gpu_.Check("cudaMallocHost", cudaMallocHost(&pinned, y_bytes + vector_bytes));
  const std::unique_ptr<void, decltype(&cudaFreeHost)> held(pinned, &cudaFreeHost);
  auto* const now = static_cast<char*>(pinned);
  std::vector<char> first;
  int unequal = 0;
  for (int i = 0; i < task_.repeats; ++i) {
    gpu_.Check("cudaMemsetAsync", cudaMemsetAsync(set.args.y.data, 0, y_bytes, gpu_.get()));
    CheckCublas("cublasLtMatmul",
                Multiply(handle_, set.args, With(set, kind), algorithm, workspace_, gpu_.get()));
    const auto copy = [&](char* to, const void* from, size_t bytes) {
      if (bytes == 0) return;
      gpu_.Check("cudaMemcpyAsync",
                 cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, gpu_.get()));
    };
    copy(now, set.args.y.data, y_bytes);
    copy(now + y_bytes, set.vector, vector_bytes);
    gpu_.Wait();
    if (i == 0) {
      first.assign(now, now + y_bytes + vector_bytes);
    } else if (std::memcmp(first.data(), now, first.size()) != 0) {
      ++unequal;
    }
  }
  return unequal;
}

ProductWay Trials::ThenKernel(const ProductWay& product, const char* name,
                              const std::function<void(const Set& set)>& kernel) {
  ProductWay way = product;
  way.name = std::string("plain + ") + name;
  if (way.seconds == 0.0) return way;
  way.seconds += SecondsOf([&](const Set& set) {
    kernel(set);
    return CUBLAS_STATUS_SUCCESS;
  });
  return way;
}

std::vector<ProductWay> Trials::Run() {
  const ProductForm form = task_.shape.form;
  const uint32_t never = CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint32_t parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint32_t allowed = task_.may_split ? parts : never;
  // A mask has rows of whole 128 bits.
  const bool has_masks = task_.shape.columns % 128 == 0;
  cublasLtEpilogue_t usual = CUBLASLT_EPILOGUE_DEFAULT;
  if (form == ProductForm::kForward && task_.bias) {
    usual = task_.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  }
  std::vector<ProductWay> ways = {Try("first", usual, never, 1),
                                  Try("best", usual, never, kCandidates)};
  if (task_.may_split) ways.push_back(Try("split", usual, allowed, kCandidates));
  const ProductWay plain = ways.back();
  if (usual != CUBLASLT_EPILOGUE_DEFAULT) {
    ways.push_back(Try("plain", CUBLASLT_EPILOGUE_DEFAULT, never, kCandidates));
  }
  if (form == ProductForm::kForward && task_.bias && task_.relu && has_masks) {
    ways.push_back(Try("RELU_AUX_BIAS", CUBLASLT_EPILOGUE_RELU_AUX_BIAS, never, kCandidates));
  }
  if (form == ProductForm::kInputGradient && task_.relu) {
    ways.push_back(ThenKernel(plain, "ReluBackward", [&](const Set& set) {
      ReluBackward(gpu_, set.relu_output, set.args.y);
    }));
    if (has_masks) {
      ways.push_back(Try("DRELU", CUBLASLT_EPILOGUE_DRELU, allowed, kCandidates));
    }
  }
  if (form == ProductForm::kWeightGradient && task_.bias) {
    ways.push_back(ThenKernel(plain, "BiasGradient", [&](const Set& set) {
      AddBiasGradient(gpu_, set.args.a, static_cast<float*>(set.vector));
    }));
    ways.push_back(Try("BGRADB", CUBLASLT_EPILOGUE_BGRADB, allowed, kCandidates));
  }
  return ways;
}

}  // namespace

}  // namespace deepnet::cuda

namespace deepnet {

std::vector<ProductWay> TryProduct(const ProductTask& task) { return cuda::Trials(task).Run(); }

}  // namespace deepnet
