// cuBLASLt's calls for products with float32 accumulation, as its documentation has them: matrices
// by columns or rows, epilogues, and refusals (CUBLAS_STATUS_NOT_SUPPORTED) of combinations of
// types that the documentation's table does not list. The bias has the type of D. GELU is the tanh
// form, as the library's. The workspace that an algorithm asks for is overwritten with NaN.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/gpu/emulated/element.h"
#include "tests/gpu/emulated/machine.h"
#include "tests/gpu/emulated/product.h"

namespace emulated_gpu {
namespace {

// The contents of the header's opaque structures.
struct MatmulDesc {
  int32_t compute = CUBLAS_COMPUTE_32F;
  int32_t scale = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t trans_a = CUBLAS_OP_N;
  int32_t trans_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;
  int32_t aux_type = -1;
  void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
};

struct Layout {
  uint32_t type = 0;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0;
  uint64_t cols = 0;
  int64_t ld = 0;
  int32_t batch = 1;
  int32_t unused = 0;
  int64_t batch_stride = 0;
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

// An algorithm holds the problem that it was chosen for. The first two of a heuristic are one but
// for their numbers; others cut sums into parts, where that is allowed.
struct Algorithm {
  static constexpr uint64_t kMagic = 0x656d756c61746564;
  uint64_t magic = kMagic;
  uint64_t workspace_bytes = 0;
  uint32_t types[3] = {};
  uint32_t epilogue = 0;
  int32_t trans[2] = {};
  int32_t id = 0;
  int32_t splits = 1;
};

static_assert(sizeof(MatmulDesc) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename Value, typename Opaque>
Value Held(const Opaque* opaque) {
  Value value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof(value));
  return value;
}

template <typename Value, typename Opaque>
void Hold(Opaque* opaque, const Value& value) {
  std::memset(opaque, 0, sizeof(*opaque));
  std::memcpy(opaque, &value, sizeof(value));
}

cublasStatus_t Refuse(cublasStatus_t status, const std::string& why) {
  std::fprintf(stderr, "emulated GPU: cuBLASLt: %s\n", why.c_str());
  return status;
}

cublasStatus_t NotSupported(const std::string& why) {
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
}

cublasStatus_t Invalid(const std::string& why) { return Refuse(CUBLAS_STATUS_INVALID_VALUE, why); }

// Copies an attribute in or out where its size is right.
template <typename T, typename Buffer>
cublasStatus_t SetField(T& field, const Buffer* buffer, size_t bytes) {
  if (buffer == nullptr || bytes != sizeof(T)) return Invalid("an attribute's size is wrong");
  std::memcpy(&field, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Checks

bool Has(uint32_t epilogue, uint32_t bits) { return (epilogue & bits) == bits; }

constexpr uint32_t kAux = 128;
constexpr uint32_t kBiasGradient = 16;
constexpr uint32_t kDRelu = 8;
constexpr uint32_t kDGelu = 64;

bool IsKnown(uint32_t epilogue) {
  constexpr uint32_t kKnown[] = {
      CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_RELU,        CUBLASLT_EPILOGUE_RELU_AUX,
      CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_RELU_BIAS,   CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
      CUBLASLT_EPILOGUE_DRELU,    CUBLASLT_EPILOGUE_DRELU_BGRAD, CUBLASLT_EPILOGUE_GELU,
      CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_BIAS,   CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
      CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,
      CUBLASLT_EPILOGUE_BGRADB};
  return std::find(std::begin(kKnown), std::end(kKnown), epilogue) != std::end(kKnown);
}

struct Problem {
  MatmulDesc desc;
  Layout a, b, c, d;
  int64_t m = 0, n = 0, k = 0;
};

cudaDataType_t TypeOf(const Layout& layout) { return static_cast<cudaDataType_t>(layout.type); }

size_t SizeOf(const Layout& layout) { return TypeOf(layout) == CUDA_R_32F ? 4 : 2; }

cublasStatus_t CheckShapes(Problem& problem) {
  const auto& [desc, a, b, c, d, m, n, k] = problem;
  for (const int32_t trans : {desc.trans_a, desc.trans_b}) {
    if (trans != CUBLAS_OP_N && trans != CUBLAS_OP_T) return NotSupported("transposition");
  }
  const bool ta = desc.trans_a == CUBLAS_OP_T, tb = desc.trans_b == CUBLAS_OP_T;
  problem.m = static_cast<int64_t>(ta ? a.cols : a.rows);
  problem.k = static_cast<int64_t>(ta ? a.rows : a.cols);
  problem.n = static_cast<int64_t>(tb ? b.rows : b.cols);
  const auto shape = [](const Layout& layout) {
    return std::to_string(layout.rows) + " x " + std::to_string(layout.cols);
  };
  if ((tb ? b.cols : b.rows) != static_cast<uint64_t>(k) || d.rows != static_cast<uint64_t>(m) ||
      d.cols != static_cast<uint64_t>(n) || c.rows != d.rows || c.cols != d.cols) {
    return Invalid("shapes do not fit: A " + shape(a) + (ta ? " transposed" : "") + ", B " +
                   shape(b) + (tb ? " transposed" : "") + ", C " + shape(c) + ", D " + shape(d));
  }
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->order != CUBLASLT_ORDER_COL && layout->order != CUBLASLT_ORDER_ROW) {
      return NotSupported("order of a matrix");
    }
    const uint64_t least = layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->cols;
    if (layout->ld < static_cast<int64_t>(least)) {
      return Invalid("leading dimension " + std::to_string(layout->ld) + " of " + shape(*layout));
    }
    if (layout->batch != d.batch) return Invalid("batch counts differ");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckTypes(const Problem& problem) {
  const auto& [desc, a, b, c, d, m, n, k] = problem;
  switch (desc.compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      break;
    default:
      return NotSupported("compute type " + std::to_string(desc.compute));
  }
  if (desc.scale != CUDA_R_32F) return NotSupported("scale type");
  if (desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return NotSupported("pointer mode");
  const bool inputs = IsElement(TypeOf(a)) && a.type == b.type;
  if (!inputs || c.type != d.type || (d.type != a.type && TypeOf(d) != CUDA_R_32F)) {
    return NotSupported("types A " + std::to_string(a.type) + ", B " + std::to_string(b.type) +
                        ", C " + std::to_string(c.type) + ", D " + std::to_string(d.type));
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckEpilogue(const Problem& problem) {
  const MatmulDesc& desc = problem.desc;
  const Layout& d = problem.d;
  if (!IsKnown(desc.epilogue)) return NotSupported("epilogue " + std::to_string(desc.epilogue));
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (d.batch != 1) return NotSupported("an epilogue of a batch");
  if (d.order != CUBLASLT_ORDER_COL) return NotSupported("an epilogue where D is in row order");
  const bool vector = (desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | kBiasGradient |
                                        CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0;
  if (vector && desc.bias_type >= 0 && desc.bias_type != static_cast<int32_t>(d.type)) {
    return NotSupported("a bias of type " + std::to_string(desc.bias_type) + " where D has type " +
                        std::to_string(d.type));
  }
  if (vector && reinterpret_cast<uintptr_t>(desc.bias) % 16 != 0) {
    return NotSupported("a bias that is not aligned to 16 bytes");
  }
  if (!Has(desc.epilogue, kAux)) return CUBLAS_STATUS_SUCCESS;
  const bool mask = (desc.epilogue & (CUBLASLT_EPILOGUE_RELU | kDRelu)) != 0;
  const int64_t multiple = mask ? 128 : 8;
  if (desc.aux_ld < problem.m || desc.aux_ld % multiple != 0) {
    return NotSupported("auxiliary leading dimension " + std::to_string(desc.aux_ld) + ", not a " +
                        "multiple of " + std::to_string(multiple) + " and at least " +
                        std::to_string(problem.m));
  }
  if (reinterpret_cast<uintptr_t>(desc.aux) % 16 != 0) {
    return NotSupported("an auxiliary matrix that is not aligned to 16 bytes");
  }
  if (desc.aux_type >= 0 && desc.aux_type != static_cast<int32_t>(d.type)) {
    return NotSupported("an auxiliary matrix of another type than D");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t MakeProblem(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                           cublasLtMatrixLayout_t d, Problem& problem) {
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return Invalid("a descriptor or layout is missing");
  }
  problem.desc = Held<MatmulDesc>(desc);
  problem.a = Held<Layout>(a);
  problem.b = Held<Layout>(b);
  problem.c = Held<Layout>(c);
  problem.d = Held<Layout>(d);
  cublasStatus_t status = CheckShapes(problem);
  if (status == CUBLAS_STATUS_SUCCESS) status = CheckTypes(problem);
  if (status == CUBLAS_STATUS_SUCCESS) status = CheckEpilogue(problem);
  return status;
}

Algorithm AlgorithmFor(const Problem& problem, uint64_t workspace_limit) {
  constexpr uint64_t kWishedWorkspace = 4096;
  Algorithm algorithm;
  algorithm.workspace_bytes = std::min(workspace_limit, kWishedWorkspace);
  algorithm.types[0] = problem.a.type;
  algorithm.types[1] = problem.d.type;
  algorithm.types[2] = static_cast<uint32_t>(problem.desc.compute);
  algorithm.epilogue = problem.desc.epilogue;
  algorithm.trans[0] = problem.desc.trans_a;
  algorithm.trans[1] = problem.desc.trans_b;
  return algorithm;
}

// ---- Arithmetic

size_t At(const Layout& layout, int64_t row, int64_t col) {
  return layout.order == CUBLASLT_ORDER_COL ? col * layout.ld + row : row * layout.ld + col;
}

// Elements from the first one to behind the last one, of the whole batch.
size_t Extent(const Layout& layout) {
  if (layout.rows == 0 || layout.cols == 0) return 0;
  return At(layout, static_cast<int64_t>(layout.rows) - 1, static_cast<int64_t>(layout.cols) - 1) +
         1 + (layout.batch - 1) * layout.batch_stride;
}

double GeluTanh(double x) {
  const double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

double GeluTanhGradient(double x) {
  const double root = std::sqrt(2.0 / M_PI);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * x * x);
}

// A product with host's views of its memory; runs when its turn on the stream comes.
struct Product {
  Problem problem;
  const char* a = nullptr;
  const char* b = nullptr;
  const char* c = nullptr;
  char* d = nullptr;
  char* bias = nullptr;
  char* aux = nullptr;
  char* workspace = nullptr;
  size_t workspace_bytes = 0;
  float alpha = 1.0F;
  float beta = 0.0F;
  int32_t splits = 1;
  bool other_bits = false;  // of the first element of D

  void Run() const;
  void RunOne(int batch) const;
  float Epilogue(int64_t i, int64_t j, float value) const;
  void SumInputs(const std::vector<float>& a_KM, const std::vector<float>& b_NK) const;
  std::vector<float> Sums(const std::vector<float>& a_KM, const std::vector<float>& b_NK) const;
};

bool MaskBit(const char* mask, int64_t ld, int64_t i, int64_t j) {
  const int64_t bit = j * ld + i;
  return (static_cast<unsigned char>(mask[bit / 8]) >> (bit % 8) & 1) != 0;
}

void SetMaskBit(char* mask, int64_t ld, int64_t i, int64_t j, bool value) {
  const int64_t bit = j * ld + i;
  const auto one = static_cast<unsigned char>(1U << (bit % 8));
  auto byte = static_cast<unsigned char>(mask[bit / 8]);
  byte = static_cast<unsigned char>(value ? byte | one : byte & ~one);
  mask[bit / 8] = static_cast<char>(byte);
}

float Product::Epilogue(int64_t i, int64_t j, float value) const {
  const MatmulDesc& desc = problem.desc;
  const uint32_t epilogue = desc.epilogue;
  const cudaDataType_t type = TypeOf(problem.d);
  if (Has(epilogue, CUBLASLT_EPILOGUE_BIAS)) {
    value += static_cast<float>(ReadElement(type, bias, i));
  }
  if (Has(epilogue, CUBLASLT_EPILOGUE_RELU)) {
    if (Has(epilogue, kAux)) SetMaskBit(aux, desc.aux_ld, i, j, value > 0);
    return std::max(value, 0.0F);
  }
  if (Has(epilogue, CUBLASLT_EPILOGUE_GELU)) {
    if (Has(epilogue, kAux)) WriteElement(type, aux, j * desc.aux_ld + i, value);
    return static_cast<float>(GeluTanh(value));
  }
  if (Has(epilogue, kDRelu)) return MaskBit(aux, desc.aux_ld, i, j) ? value : 0.0F;
  if (Has(epilogue, kDGelu)) {
    return value *
           static_cast<float>(GeluTanhGradient(ReadElement(type, aux, j * desc.aux_ld + i)));
  }
  return value;
}

// BGRADA and BGRADB: sums of an input over the depth.
void Product::SumInputs(const std::vector<float>& a_KM, const std::vector<float>& b_NK) const {
  const bool of_a = problem.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  if (!of_a && problem.desc.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
  for (int64_t i = 0; i < (of_a ? problem.m : problem.n); ++i) {
    float sum = 0.0F;
    for (int64_t p = 0; p < problem.k; ++p) {
      sum += of_a ? a_KM[p * problem.m + i] : b_NK[i * problem.k + p];
    }
    WriteElement(TypeOf(problem.d), bias, i, sum);
  }
}

// The sums of all parts of the depth, added in their order.
std::vector<float> Product::Sums(const std::vector<float>& a_KM,
                                 const std::vector<float>& b_NK) const {
  const int64_t m = problem.m, n = problem.n, k = problem.k;
  if (splits == 1) return Multiply(m, n, k, a_KM, b_NK);
  std::vector<float> sums(m * n);
  for (int32_t part = 0; part < splits; ++part) {
    const int64_t begin = k * part / splits, depth = k * (part + 1) / splits - begin;
    const std::vector<float> a(a_KM.begin() + begin * m, a_KM.begin() + (begin + depth) * m);
    std::vector<float> b;
    for (int64_t j = 0; j < n; ++j) {
      b.insert(b.end(), b_NK.begin() + j * k + begin, b_NK.begin() + j * k + begin + depth);
    }
    const std::vector<float> more = Multiply(m, n, depth, a, b);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  }
  return sums;
}

void Product::RunOne(int batch) const {
  const auto& [desc, la, lb, lc, ld, m, n, k] = problem;
  std::vector<float> a_KM(k * m), b_NK(n * k);
  const bool ta = desc.trans_a == CUBLAS_OP_T, tb = desc.trans_b == CUBLAS_OP_T;
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < m; ++i) {
      const size_t at = (ta ? At(la, p, i) : At(la, i, p)) + batch * la.batch_stride;
      a_KM[p * m + i] = static_cast<float>(ReadElement(TypeOf(la), a, at));
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      const size_t at = (tb ? At(lb, j, p) : At(lb, p, j)) + batch * lb.batch_stride;
      b_NK[j * k + p] = static_cast<float>(ReadElement(TypeOf(lb), b, at));
    }
  }
  const std::vector<float> sums = Sums(a_KM, b_NK);
  std::vector<float> gradient(m);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float value = alpha * sums[j * m + i];
      if (beta != 0.0F) {
        value += beta * static_cast<float>(
                            ReadElement(TypeOf(lc), c, At(lc, i, j) + batch * lc.batch_stride));
      }
      value = Epilogue(i, j, value);
      gradient[i] += value;
      WriteElement(TypeOf(ld), d, At(ld, i, j) + batch * ld.batch_stride, value);
    }
  }
  if (Has(desc.epilogue, kBiasGradient)) {
    for (int64_t i = 0; i < m; ++i) WriteElement(TypeOf(ld), bias, i, gradient[i]);
  }
  SumInputs(a_KM, b_NK);
}

void Product::Run() const {
  if (workspace != nullptr) std::memset(workspace, 0xff, workspace_bytes);
  for (int batch = 0; batch < problem.d.batch; ++batch) RunOne(batch);
  if (other_bits) d[0] = static_cast<char>(d[0] ^ 1);
}

// Finds the memory of every matrix and vector; fills `work` with the blocks.
cublasStatus_t FindMemory(const Machine& machine, Product& product, const void* a, const void* b,
                          const void* c, void* d, Work& work) {
  const Problem& problem = product.problem;
  const MatmulDesc& desc = problem.desc;
  const size_t bias_count = desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem.n : problem.m;
  const bool has_bias =
      (desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | kBiasGradient | CUBLASLT_EPILOGUE_BGRADA |
                        CUBLASLT_EPILOGUE_BGRADB)) != 0;
  const bool has_aux = Has(desc.epilogue, kAux);
  const bool is_mask = (desc.epilogue & (CUBLASLT_EPILOGUE_RELU | kDRelu)) != 0;
  const size_t aux_elements = desc.aux_ld * (problem.n - 1) + problem.m;
  const size_t aux_bytes = is_mask ? (aux_elements + 7) / 8 : aux_elements * SizeOf(problem.d);
  struct Wanted {
    const char* name;
    const void* pointer;
    size_t bytes;
    const char** view;
  };
  const Wanted wanted[] = {
      {"A", a, Extent(problem.a) * SizeOf(problem.a), &product.a},
      {"B", b, Extent(problem.b) * SizeOf(problem.b), &product.b},
      {"C", c, product.beta == 0 ? 0 : Extent(problem.c) * SizeOf(problem.c), &product.c},
      {"D", d, Extent(problem.d) * SizeOf(problem.d), const_cast<const char**>(&product.d)},
      {"the bias", desc.bias, has_bias ? bias_count * SizeOf(problem.d) : 0,
       const_cast<const char**>(&product.bias)},
      {"the auxiliary matrix", desc.aux, has_aux ? aux_bytes : 0,
       const_cast<const char**>(&product.aux)},
      {"the workspace", product.workspace, product.workspace_bytes,
       const_cast<const char**>(&product.workspace)},
  };
  for (const auto& [name, pointer, bytes, view] : wanted) {
    *view = nullptr;
    if (bytes == 0) continue;
    std::string why;
    *view = machine.Resolve(pointer, bytes, work, why);
    if (*view == nullptr) return Invalid(std::string(name) + " is in " + why);
  }
  return CUBLAS_STATUS_SUCCESS;
}

void CountProduct(const Product& product, Counters& counters) {
  const Problem& problem = product.problem;
  const auto m = static_cast<int64_t>(problem.m), n = static_cast<int64_t>(problem.n);
  const auto k = static_cast<int64_t>(problem.k);
  const auto size = [](const auto& matrix) { return static_cast<int64_t>(SizeOf(matrix)); };
  counters.product_operations += 2 * m * n * k * problem.d.batch;
  counters.product_bytes += (m * k * size(problem.a) + k * n * size(problem.b) +
                             m * n * size(problem.d) * (product.beta == 0 ? 1 : 2)) *
                            problem.d.batch;
}

cublasStatus_t CheckAlgorithm(const Problem& problem, const cublasLtMatmulAlgo_t* given,
                              size_t workspace_bytes, size_t& wanted_bytes, int32_t& splits) {
  wanted_bytes = 0;
  if (given == nullptr) return CUBLAS_STATUS_SUCCESS;
  const auto algorithm = Held<Algorithm>(given);
  if (algorithm.magic != Algorithm::kMagic) return Invalid("an algorithm that nobody chose");
  Algorithm right = AlgorithmFor(problem, algorithm.workspace_bytes);
  right.id = algorithm.id;
  right.splits = algorithm.splits;
  if (std::memcmp(&algorithm, &right, sizeof(right)) != 0) {
    return Invalid("an algorithm that was chosen for other types, transpositions or epilogue");
  }
  if (algorithm.workspace_bytes > workspace_bytes) {
    return Invalid("a workspace smaller than the algorithm's");
  }
  wanted_bytes = algorithm.workspace_bytes;
  splits = algorithm.splits;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Injected(const char* call) {
  return static_cast<cublasStatus_t>(TheMachine().Injected(call));
}

}  // namespace
}  // namespace emulated_gpu

using emulated_gpu::Held;
using emulated_gpu::Hold;
using emulated_gpu::Injected;
using emulated_gpu::Invalid;
using emulated_gpu::SetField;

struct cublasLtContext {
  int device = 0;
};

extern "C" {

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "unknown status";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
const char* cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const cublasStatus_t injected = Injected("cublasLtCreate");
  if (injected != CUBLAS_STATUS_SUCCESS) return injected;
  if (emulated_gpu::TheMachine().devices.empty()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{emulated_gpu::CurrentDevice()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t;
  return cublasLtMatmulDescInit_internal(*desc, sizeof(**desc), compute, scale);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  emulated_gpu::MatmulDesc value;
  value.compute = compute;
  value.scale = scale;
  Hold(desc, value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* buffer, size_t bytes) {
  auto value = Held<emulated_gpu::MatmulDesc>(desc);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      status = SetField(value.compute, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      status = SetField(value.scale, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      status = SetField(value.pointer_mode, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSA:
      status = SetField(value.trans_a, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      status = SetField(value.trans_b, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      status = SetField(value.epilogue, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      status = SetField(value.bias, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      status = SetField(value.bias_type, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      status = SetField(value.aux, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      status = SetField(value.aux_ld, buffer, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      status = SetField(value.aux_type, buffer, bytes);
      break;
    default:
      return Invalid("attribute " + std::to_string(attribute) + " of a product");
  }
  if (status == CUBLAS_STATUS_SUCCESS) Hold(desc, value);
  return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof(**layout), type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  emulated_gpu::Layout value;
  value.type = type;
  value.rows = rows;
  value.cols = cols;
  value.ld = ld;
  Hold(layout, value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* buffer, size_t bytes) {
  auto value = Held<emulated_gpu::Layout>(layout);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      status = SetField(value.type, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      status = SetField(value.order, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      status = SetField(value.rows, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      status = SetField(value.cols, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_LD:
      status = SetField(value.ld, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      status = SetField(value.batch, buffer, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      status = SetField(value.batch_stride, buffer, bytes);
      break;
    default:
      return Invalid("attribute " + std::to_string(attribute) + " of a layout");
  }
  if (status == CUBLAS_STATUS_SUCCESS) Hold(layout, value);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof(**preference));
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t) {
  Hold(preference, emulated_gpu::Preference());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

// Promised alignments change nothing here.
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* buffer, size_t bytes) {
  auto value = Held<emulated_gpu::Preference>(preference);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    status = SetField(value.workspace_bytes, buffer, bytes);
  } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    status = SetField(value.reductions, buffer, bytes);
  }
  if (status == CUBLAS_STATUS_SUCCESS) Hold(preference, value);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  cublasStatus_t status = Injected("cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (wanted < 1) return Invalid("no algorithm is wanted");
  emulated_gpu::Problem problem;
  status = emulated_gpu::MakeProblem(desc, a, b, c, d, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto preferred = Held<emulated_gpu::Preference>(preference);
  auto algorithm = emulated_gpu::AlgorithmFor(problem, preferred.workspace_bytes);
  const bool splits = (preferred.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  for (int i = 0; i < std::min(wanted, splits ? 3 : 2); ++i) {
    algorithm.id = i;
    algorithm.splits = i < 2 ? 1 : 2;
    Hold(&results[i].algo, algorithm);
    results[i].workspaceSize = algorithm.workspace_bytes;
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].wavesCount = 1.0F;
    *found = i + 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* given,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* buffer, size_t bytes, size_t* written) {
  const auto algorithm = Held<emulated_gpu::Algorithm>(given);
  if (buffer == nullptr || bytes != sizeof(int32_t)) return Invalid("an attribute's size is wrong");
  if (attribute != CUBLASLT_ALGO_CONFIG_ID && attribute != CUBLASLT_ALGO_CONFIG_SPLITK_NUM) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool is_id = attribute == CUBLASLT_ALGO_CONFIG_ID;
  std::memcpy(buffer, is_id ? &algorithm.id : &algorithm.splits, sizeof(int32_t));
  *written = sizeof(int32_t);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  cublasStatus_t status = Injected("cublasLtMatmul");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  auto product = std::make_shared<emulated_gpu::Product>();
  status =
      emulated_gpu::MakeProblem(desc, a_layout, b_layout, c_layout, d_layout, product->problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  status = emulated_gpu::CheckAlgorithm(product->problem, algorithm, workspace_bytes,
                                        product->workspace_bytes, product->splits);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  product->other_bits = Injected("other bits of a product") != CUBLAS_STATUS_SUCCESS;
  std::memcpy(&product->alpha, alpha, sizeof(float));
  std::memcpy(&product->beta, beta, sizeof(float));
  product->workspace = static_cast<char*>(workspace);
  emulated_gpu::Machine& machine = emulated_gpu::TheMachine();
  emulated_gpu::Machine::Lock lock(machine.mutex);
  emulated_gpu::Work work = {.name = "cublasLtMatmul"};
  status = emulated_gpu::FindMemory(machine, *product, a, b, c, d, work);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  CUstream_st* const on = machine.Find(stream);
  if (on == nullptr || machine.devices[on->device].error != cudaSuccess) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  emulated_gpu::CountProduct(*product, machine.devices[on->device].counters);
  work.run = [product] { product->Run(); };
  machine.Push(lock, *on, emulated_gpu::Kind::kLaunch, std::move(work));
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
