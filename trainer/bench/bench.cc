#include "trainer/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/philox.h"
#include "parallel/base/statistics.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/device_model.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/roofline.h"
#include "trainer/data/batcher.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/decode/search.h"
#include "trainer/decode/translator.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/flops.h"
#include "trainer/model/transformer.h"
#include "trainer/model/work.h"
#include "trainer/telemetry/tensor_memory.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

struct Shape {
  const char* name;
  int layers, width, ffn, heads, target_tokens, vocabulary;
};

constexpr Shape kShapes[] = {
    {"A", 6, 256, 1024, 4, 2000, 8000},         {"B", 18, 256, 1024, 4, 2000, 8000},
    {"C", 100, 64, 128, 2, 2000, 8000},         {"D", 500, 64, 128, 2, 500, 8000},
    {"paper", 500, 512, 2048, 8, 4096, 250002}, {"paper-100", 100, 512, 2048, 8, 4096, 250002}};
constexpr char kBenchRun[] = R"(
    seed: 1
    model { residual: DEEPNORM max_positions: 1024 dropout: 0.1 layer_norm_epsilon: 1e-5 }
    data { global_microbatches: 1 }
    optim { schedule: CONSTANT learning_rate: 1e-4 beta1: 0.9 beta2: 0.98 epsilon: 1e-8
            label_smoothing: 0.1 })";
constexpr int kWarmUpSteps = 3;                          // of a GPU
constexpr int kGraphWarmUpSteps = 6;                     // which are also recorded and compared
constexpr double kMaxLength = 1 << 20;                   // of a sentence in it
constexpr int64_t kMaxLengthsBytes = int64_t{64} << 20;  // of a file of sentence lengths

// Returns microbatches as full as the capacity allows; repeats the lengths if there are few.
absl::StatusOr<std::vector<Microbatch>> MakeBatches(const BenchOptions& options,
                                                    const RunSpec& run) {
  const MicrobatchSpec& capacity = run.data().microbatch();
  ASSIGN_OR_RETURN(auto lengths, ReadBenchLengths(options.lengths_file));
  std::erase_if(lengths, [&](const std::pair<int, int>& pair) {
    return pair.first > capacity.max_source_tokens() || pair.second > capacity.max_target_tokens();
  });
  if (lengths.empty()) {
    return DataError(options.lengths_file, ": no pair of at most ", capacity.max_target_tokens(),
                     " tokens");
  }
  const size_t distinct = lengths.size();
  while (lengths.size() < distinct * (capacity.max_target_tokens() / 250)) {
    lengths.push_back(lengths[lengths.size() - distinct]);
  }
  return MakeBenchMicrobatches(
      lengths,
      {capacity.max_source_tokens(), capacity.max_target_tokens(), capacity.max_sentences()},
      static_cast<int32_t>(run.model().vocabulary_size()), /*seed=*/1);
}

// One rank that trains alone.
class Trainee {
 public:
  static absl::StatusOr<Trainee> Make(const RunSpec& run, const RecomputeChoice& recompute,
                                      Communicator& alone, bool traced = false) {
    const Inventory whole = Describe(run.model(), run.data().microbatch());
    Plan plan = LonePlan(whole, run.data().global_microbatches());
    plan.mutable_chunks(0)->set_recompute(recompute.level);
    plan.mutable_chunks(0)->set_recompute_segment(recompute.segment);
    Trainee trainee;
    ASSIGN_OR_RETURN(trainee.context_,
                     MakeRankContext(run, whole, plan, alone, {.traced = traced}));
    trainee.context_->model->parameters().Initialize(run.seed());
    trainee.context_->model->Refresh();
    return trainee;
  }

  // Seconds of the next step, until a device has done it.
  absl::StatusOr<double> Step(const StepBatch& batch) {
    const double start = SecondsNow();
    RETURN_IF_ERROR(RunTrainStep(batch, step_, step_ + 1, *context_).status());
    context_->ops->session().ReadBack();
    ++step_;
    return SecondsNow() - start;
  }

  // Takes the steps before the first that counts: a GPU chooses the algorithms of its products.
  absl::Status WarmUp(const StepBatch& batch) {
    const bool on_cpu = context_->model->parameters().gradient().is_cpu();
    const int on_gpu = context_->ops->session().RepeatsPasses() ? kGraphWarmUpSteps : kWarmUpSteps;
    const int steps = on_cpu ? 1 : on_gpu;
    for (int i = 0; i < steps; ++i) RETURN_IF_ERROR(Step(batch).status());
    return absl::OkStatus();
  }

  TracedOps& traced() { return *context_->traced; }

 private:
  std::unique_ptr<RankContext> context_;
  int64_t step_ = 0;
};

// The figures of the timed steps.
struct Measured {
  std::vector<double> seconds, rates, speeds;  // of each step
  std::vector<double> growth;                  // of each step over the twin's, if there is one
  int64_t peak_bytes = 0, peak_device_bytes = 0;
};

bool IsOnDevice(const RunSpec& run) { return run.compute().device() != "cpu"; }

// Returns the microbatches of step `i`.
StepBatch BatchOf(const std::vector<Microbatch>& batches, const RunSpec& run, int i) {
  const int count = run.data().global_microbatches();
  StepBatch step;
  for (int m = 0; m < count; ++m) {
    step.Add(batches[static_cast<size_t>(i * count + m) % batches.size()]);
  }
  return step;
}

absl::StatusOr<Measured> MeasureSteps(const BenchOptions& options, const RunSpec& run) {
  ASSIGN_OR_RETURN(const auto batches, MakeBatches(options, run));
  SelfCommunicator alone;
  Measured measured;
  ASSIGN_OR_RETURN(Trainee trainee, Trainee::Make(run, options.recompute, alone));
  RETURN_IF_ERROR(trainee.WarmUp(BatchOf(batches, run, 0)));
  measured.peak_bytes = PeakResidentBytes();
  if (IsOnDevice(run)) {
    measured.peak_device_bytes = TensorMemory(run.compute().device()).peak_bytes();
  }
  std::optional<Trainee> twin;
  if (options.recompute.level != NONE) {
    // Two Ops of one GPU would each take its copies into an order of their own.
    if (IsOnDevice(run)) {
      return absl::InvalidArgumentError(
          "--recompute compares with a twin, which is there on CPUs only");
    }
    ASSIGN_OR_RETURN(twin, Trainee::Make(run, {}, alone));
    RETURN_IF_ERROR(twin->WarmUp(BatchOf(batches, run, 0)));
  }
  for (int i = 1; i <= options.steps; ++i) {
    const StepBatch batch = BatchOf(batches, run, i);
    ASSIGN_OR_RETURN(const double took, trainee.Step(batch));
    measured.seconds.push_back(took);
    measured.rates.push_back((batch.num_source_tokens + batch.num_target_tokens) / took);
    measured.speeds.push_back(StepFlops(run.model(), batch) / took * 1e-9);
    if (!twin.has_value()) continue;
    ASSIGN_OR_RETURN(const double without, twin->Step(batch));
    measured.growth.push_back(took / without - 1);
  }
  return measured;
}

// Returns "A", or "A layers=2 width=512".
std::string NameOf(const std::string& shape, const BenchSize& size) {
  std::string name = shape;
  if (size.layers > 0) absl::StrAppend(&name, " layers=", size.layers);
  if (size.width > 0) absl::StrAppend(&name, " width=", size.width);
  if (size.tokens > 0) absl::StrAppend(&name, " tokens=", size.tokens);
  if (size.residual != RESIDUAL_UNSPECIFIED) {
    absl::StrAppend(&name, " residual=", Residual_Name(size.residual));
  }
  return name;
}

// Returns the run of a benchmark with its arithmetic decided, as a run of `train` would have it.
absl::StatusOr<RunSpec> RunOf(const BenchOptions& options) {
  ASSIGN_OR_RETURN(RunSpec run, BenchRun(options.shape, options.size));
  const std::string& device_model = options.device_model;
  if (!device_model.empty()) RETURN_IF_ERROR(FindDeviceModel(device_model).status());
  run.mutable_cluster()->set_device_model(device_model);
  run.mutable_data()->set_global_microbatches(options.microbatches);
  *run.mutable_compute() = ResolveCompute(options.compute);
  run.mutable_compute()->set_attention(ChooseAttention(run.model(), run.compute()));
  RETURN_IF_ERROR(CheckCompute(run.compute()));
  return run;
}

// Returns what CUDA calls the GPU that computes; "cpu" without one.
absl::StatusOr<std::string> DeviceName(const RunSpec& run) {
  return IsOnDevice(run) ? CheckCurrentGpu() : std::string("cpu");
}

// The record of a benchmark whose products made `gflops` a second, beside what its device can do.
absl::StatusOr<BenchRecord> MakeRecord(const std::string& name, double gflops, const RunSpec& run) {
  const ComputeSpec& compute = run.compute();
  BenchRecord record;
  record.set_name(name);
  record.set_gflops(gflops);
  record.set_ceiling_gflops(MeasureProductCeiling(compute, run.model().d_model(), 1.0));
  record.set_gemm_efficiency(record.gflops() / record.ceiling_gflops());
  ASSIGN_OR_RETURN(*record.mutable_device(), DeviceName(run));
  const double peak = StatedPeakFlops(record.device(), run.cluster(), compute.dtype());
  if (IsOnDevice(run) && peak > 0) record.set_mfu(1e9 * gflops / peak);
  record.set_dtype(DataType_Name(compute.dtype()));
  record.set_isa(Isa_Name(compute.isa()));
  record.set_threads(compute.threads_per_rank());
  return record;
}

// Describes a run's model with the work of a GPU, whatever computes it.
Inventory WorkOf(const RunSpec& run) {
  Inventory inventory = Describe(run.model(), run.data().microbatch());
  ComputeSpec compute = run.compute();
  compute.set_device("cuda");
  DescribeWork(run.model(), run.data().microbatch(), compute, inventory);
  return inventory;
}

// Calls `use` with each kernel of a full microbatch.
void ForEachKernel(const Inventory& inventory, const std::function<void(const KernelWork&)>& use) {
  for (const Layer& layer : inventory.layers) {
    const LayerWork& work = inventory.work[layer.work];
    for (const auto* kernels : {&work.forward, &work.backward_input, &work.backward_weight}) {
      for (const KernelWork& kernel : *kernels) use(kernel);
    }
  }
}

std::string NameOf(const std::string& label, ProductForm form) {
  constexpr const char* kForms[] = {"", " forward", " input gradient", " weight gradient"};
  return label + kForms[static_cast<size_t>(form)];
}

// The names of products by what a trace shows of them. Those of one form with weights of one shape
// have one name, of all their labels.
class ProductNames {
 public:
  explicit ProductNames(const Inventory& inventory) {
    ForEachKernel(inventory, [&](const KernelWork& kernel) {
      if (kernel.product.form == ProductForm::kNone) return;
      labels_[KeyOf(kernel.product)].insert(kernel.label);
    });
  }

  std::string Of(const ProductShape& product) const {
    const auto found = labels_.find(KeyOf(product));
    return NameOf(found == labels_.end() ? "other" : absl::StrJoin(found->second, ", "),
                  product.form);
  }

 private:
  // Without the rows of a microbatch, which may be fewer than its capacity.
  using Key = std::tuple<ProductForm, int64_t, int64_t>;
  static Key KeyOf(const ProductShape& product) {
    const bool of_weights = product.form == ProductForm::kWeightGradient;
    return {product.form, of_weights ? product.rows : product.depth, product.columns};
  }

  std::map<Key, std::set<std::string>> labels_;
};

// Adds what the roofline predicts for the kernels of a full microbatch, and `plan` for the step, if
// the GPU is in the table.
void AddPredictions(const RunSpec& run, const ProductNames& names, KernelsRecord& record) {
  const std::string model = DeviceModelOf(run.cluster().device_model(), record.device());
  const auto device = FindDeviceModel(model);
  if (!IsOnDevice(run) || model.empty() || !device.ok()) return;
  record.set_device_model(device->name());
  const Inventory inventory = WorkOf(run);
  const int microbatches = run.data().global_microbatches();
  std::map<std::string, double> seconds;  // by the names of kernels and of products
  ForEachKernel(inventory, [&](const KernelWork& kernel) {
    const double of_step = microbatches * TimeOf(kernel, *device, run.compute().dtype()).seconds;
    seconds[kernel.name] += of_step;
    if (kernel.product.form != ProductForm::kNone) seconds[names.Of(kernel.product)] += of_step;
  });
  ClusterSpec cluster = run.cluster();
  cluster.set_device_model(model);
  ParallelSpec parallel;
  parallel.set_recompute(NONE);
  const auto plan =
      MakePlan(inventory, {run.data(), run.optim(), run.compute(), cluster, parallel});
  record.set_predicted_seconds_per_step(plan.ok() ? plan->step_seconds() : 0.0);
  for (auto* const kernels : {record.mutable_kernels(), record.mutable_products()}) {
    for (KernelRecord& kernel : *kernels) {
      kernel.set_predicted_seconds_per_step(seconds[kernel.name()]);
    }
  }
}

// The product that `kernel` is, with what follows it.
ProductTask TaskOf(const RunSpec& run, const KernelWork& kernel, int repeats) {
  const DataType dtype = run.compute().dtype();
  const double operand = dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
  const bool of_loss = kernel.label == "logits";
  const ProductForm form = kernel.product.form;
  const bool by_relu = (kernel.label == "fc1" && form == ProductForm::kForward) ||
                       (kernel.label == "fc2" && form == ProductForm::kInputGradient);
  return {.shape = kernel.product,
          .operand = dtype == FLOAT32    ? native::Element::kFloat32
                     : dtype == BFLOAT16 ? native::Element::kBfloat16
                                         : native::Element::kFloat16,
          .float_result = kernel.result_bytes != operand || dtype == FLOAT32,
          .accumulate = kernel.result_bytes == 2 * sizeof(float),
          .bias = !of_loss && HasBiases(run.model()),
          .relu = by_relu && run.model().activation() != GELU,
          // A row of a forward product may not depend on how many rows there are.
          .may_split = form == ProductForm::kWeightGradient ||
                       (of_loss && form == ProductForm::kInputGradient),
          .repeats = repeats};
}

constexpr int kWarmUpSentences = 8;  // searched before the clock starts
constexpr int32_t kFirstPiece = 4;   // ids below are special

// Stands between the search of `translate` and the model, and decides when a sentence ends. Before
// the wanted length </s> is forbidden, there all else is. So all hypotheses of a sentence end
// together, after as many steps as the real target has tokens.
class FixedLengthScorer : public Scorer {
 public:
  explicit FixedLengthScorer(Scorer& model) : model_(model) {}

  // Output tokens, </s> included, of each source of the next Start.
  void SetTargets(std::vector<int> tokens) { targets_ = std::move(tokens); }

  int64_t vocabulary_size() const override { return model_.vocabulary_size(); }

  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override {
    auto state = std::make_unique<State>();
    state->of_model = model_.Start(sources);
    state->targets = targets_;
    return state;
  }

  void Reorder(DecoderState& decoder_state, std::span<const int32_t> parents) override {
    auto& state = static_cast<State&>(decoder_state);
    model_.Reorder(*state.of_model, parents);
    std::vector<int> targets;
    for (const int32_t parent : parents) targets.push_back(state.targets[parent]);
    state.targets = std::move(targets);
  }

  void Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) override {
    auto& state = static_cast<State&>(decoder_state);
    ++state.steps;
    std::vector<native::TokenChoice> bent(choices.choices, choices.choices + choices.count);
    for (native::TokenChoice& choice : bent) {
      const bool ends = state.steps >= state.targets[choice.row];
      choice.forbidden = TokenKind::kNever | (ends ? TokenKind::kOther : TokenKind::kEnd);
    }
    native::TokenChoices of_model = choices;
    of_model.choices = bent.data();
    model_.Step(*state.of_model, tokens, of_model);
  }

 private:
  struct State : public DecoderState {
    int num_rows() const override { return of_model->num_rows(); }

    std::unique_ptr<DecoderState> of_model;
    std::vector<int> targets;  // of each row
    int steps = 0;
  };

  Scorer& model_;
  std::vector<int> targets_;
};

std::vector<int32_t> RandomSource(uint64_t seed, int sentence, int tokens, int64_t vocabulary) {
  std::vector<int32_t> source;
  for (int position = 0; position + 1 < tokens; ++position) {
    const PhiloxBlock block =
        Philox(MakeKey(seed, RandomPurpose::kSampling),
               {static_cast<uint32_t>(sentence), static_cast<uint32_t>(position), 0, 0});
    source.push_back(kFirstPiece + static_cast<int32_t>(
                                       block[0] % static_cast<uint32_t>(vocabulary - kFirstPiece)));
  }
  source.push_back(kEos);
  return source;
}

// Returns the seconds that the searches of sentences with these {source, target} tokens take.
double SearchSeconds(const RunSpec& run, const BatchLimits& limits, FixedLengthScorer& scorer,
                     std::span<const std::pair<int, int>> lengths) {
  std::vector<int> source_lengths;
  for (const auto& [source, target] : lengths) source_lengths.push_back(source);
  double seconds = 0.0;
  for (const std::vector<int>& indices :
       PlanBatches(source_lengths, limits.batch_tokens, limits.max_sentences)) {
    SearchBatch batch;
    std::vector<int> targets;
    for (const int i : indices) {
      batch.sources.push_back(
          RandomSource(run.seed(), i, lengths[i].first, scorer.vocabulary_size()));
      targets.push_back(lengths[i].second);
    }
    scorer.SetTargets(std::move(targets));
    const double start = SecondsNow();
    Search(scorer, batch,
           {.beam_size = run.decode().beam_size(),
            .max_tokens = static_cast<int>(run.model().max_positions()) - 1});
    seconds += SecondsNow() - start;
  }
  return seconds;
}

}  // namespace

absl::StatusOr<std::vector<std::pair<int, int>>> ReadBenchLengths(const std::string& file) {
  const auto text = ReadWholeFile(*MakePosixFileSystem(), file, kMaxLengthsBytes);
  google::protobuf::ListValue list;
  if (!text.ok() || !google::protobuf::util::JsonStringToMessage(*text, &list).ok()) {
    return DataError(file, ": not a JSON list of [source, target]");
  }
  std::vector<std::pair<int, int>> lengths;
  for (const auto& pair : list.values()) {
    const auto& values = pair.list_value().values();
    const auto is_length = [](const google::protobuf::Value& value) {
      const double number = value.number_value();
      return number >= 1 && number <= kMaxLength && number == std::floor(number);
    };
    if (values.size() != 2 || !is_length(values[0]) || !is_length(values[1])) {
      return DataError(file, ": entry ", lengths.size(), " is not [source, target]");
    }
    lengths.emplace_back(static_cast<int>(values[0].number_value()),
                         static_cast<int>(values[1].number_value()));
  }
  if (lengths.empty()) return DataError(file, ": an empty list");
  return lengths;
}

absl::StatusOr<RunSpec> BenchRun(const std::string& shape, const BenchSize& size) {
  const auto found = std::ranges::find_if(kShapes, [&](const Shape& s) { return shape == s.name; });
  if (found == std::end(kShapes)) {
    return ConfigError("shape: \"", shape, "\": not one of A, B, C, D, paper, paper-100");
  }
  Shape s = *found;
  if (size.layers > 0) s.layers = size.layers;
  if (size.tokens > 0) s.target_tokens = size.tokens;
  if (size.width > 0) {
    s.ffn = s.ffn / s.width * size.width;
    s.heads = std::max(1, s.heads * size.width / s.width);
    s.width = size.width;
  }
  if (s.width % s.heads != 0) {
    return ConfigError("width: ", s.width, ": ", s.heads, " heads do not divide it");
  }
  RunSpec run;
  DEEPNET_CHECK(ParseTextProto(kBenchRun, &run));
  ModelSpec& model = *run.mutable_model();
  model.set_encoder_layers(s.layers);
  model.set_decoder_layers(s.layers);
  model.set_d_model(s.width);
  model.set_ffn_dim(s.ffn);
  model.set_num_heads(s.heads);
  if (size.residual != RESIDUAL_UNSPECIFIED) model.set_residual(size.residual);
  model.set_vocabulary_size(s.vocabulary);
  MicrobatchSpec& microbatch = *run.mutable_data()->mutable_microbatch();
  microbatch.set_max_source_tokens(s.target_tokens);
  microbatch.set_max_target_tokens(s.target_tokens);
  microbatch.set_max_sentences(s.target_tokens / 4);
  return run;
}

absl::StatusOr<BenchRecord> BenchStep(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const RunSpec run, RunOf(options));
  ASSIGN_OR_RETURN(const Measured measured, MeasureSteps(options, run));
  const std::vector<double>& rates = measured.rates;
  ASSIGN_OR_RETURN(BenchRecord record,
                   MakeRecord(absl::StrCat("step/", NameOf(options.shape, options.size)),
                              Median(measured.speeds), run));
  record.set_tokens_per_second(Median(rates));
  record.set_tokens_per_second_best(rates.empty() ? 0.0
                                                  : *std::max_element(rates.begin(), rates.end()));
  record.set_peak_resident_bytes(measured.peak_bytes);
  record.set_peak_device_bytes(measured.peak_device_bytes);
  record.set_seconds_per_step(Median(measured.seconds));
  record.set_recompute(Recompute_Name(options.recompute.level));
  if (options.recompute.level == FULL) record.set_recompute_segment(options.recompute.segment);
  record.set_recompute_share(Median(measured.growth));
  return record;
}

absl::StatusOr<KernelsRecord> BenchKernels(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const RunSpec run, RunOf(options));
  ASSIGN_OR_RETURN(const auto batches, MakeBatches(options, run));
  SelfCommunicator alone;
  ASSIGN_OR_RETURN(Trainee trainee, Trainee::Make(run, options.recompute, alone, /*traced=*/true));
  RETURN_IF_ERROR(trainee.WarmUp(BatchOf(batches, run, 0)));
  trainee.traced().StartTrace();
  double seconds = 0.0;
  for (int i = 1; i <= options.steps; ++i) {
    ASSIGN_OR_RETURN(const double took, trainee.Step(BatchOf(batches, run, i)));
    seconds += took;
  }
  struct Times {
    int64_t calls = 0;
    double seconds = 0.0;

    void Add(const TimedKernel& kernel) {
      ++calls;
      seconds += kernel.end - kernel.start;
    }
  };
  const ProductNames names(WorkOf(run));
  std::map<std::string, Times> of_name, of_product;
  for (const TimedKernel& kernel : trainee.traced().StopTrace()) {
    of_name[kernel.name].Add(kernel);
    const ProductShape& product = kernel.product;
    if (product.form != ProductForm::kNone) of_product[names.Of(product)].Add(kernel);
  }
  KernelsRecord record;
  record.set_name(absl::StrCat("kernels/", NameOf(options.shape, options.size)));
  ASSIGN_OR_RETURN(*record.mutable_device(), DeviceName(run));
  record.set_dtype(DataType_Name(run.compute().dtype()));
  record.set_threads(run.compute().threads_per_rank());
  record.set_seconds_per_step(seconds / options.steps);
  const auto list = [&](const std::map<std::string, Times>& all, auto& kernels) {
    for (const auto& [name, times] : all) {
      KernelRecord& kernel = *kernels.Add();
      kernel.set_name(name);
      kernel.set_calls_per_step(static_cast<double>(times.calls) / options.steps);
      kernel.set_seconds_per_call(times.seconds / static_cast<double>(times.calls));
      kernel.set_share(times.seconds / seconds);
    }
    std::sort(kernels.begin(), kernels.end(),
              [](const KernelRecord& a, const KernelRecord& b) { return a.share() > b.share(); });
  };
  list(of_name, *record.mutable_kernels());
  list(of_product, *record.mutable_products());
  AddPredictions(run, names, record);
  return record;
}

absl::StatusOr<ProductsRecord> BenchProducts(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const RunSpec run, RunOf(options));
  ProductsRecord record;
  record.set_name(absl::StrCat("products/", NameOf(options.shape, options.size)));
  ASSIGN_OR_RETURN(*record.mutable_device(), DeviceName(run));
  record.set_dtype(DataType_Name(run.compute().dtype()));
  record.set_threads(run.compute().threads_per_rank());
  record.set_repeats(options.repeats);
  std::vector<std::pair<KernelWork, int>> products;  // with its calls
  ForEachKernel(WorkOf(run), [&](const KernelWork& kernel) {
    if (kernel.product.form == ProductForm::kNone) return;
    const auto same = std::find_if(products.begin(), products.end(), [&](const auto& other) {
      return other.first.label == kernel.label && other.first.product == kernel.product &&
             other.first.result_bytes == kernel.result_bytes;
    });
    if (same != products.end()) {
      same->second += kernel.launches;
    } else {
      products.emplace_back(kernel, kernel.launches);
    }
  });
  for (const auto& [kernel, calls] : products) {
    ProductRecord& product = *record.add_products();
    product.set_name(NameOf(kernel.label, kernel.product.form));
    product.set_rows(kernel.product.rows);
    product.set_columns(kernel.product.columns);
    product.set_depth(kernel.product.depth);
    product.set_calls_per_step(calls);
    for (const ProductWay& way : TimeProduct(run.compute(), TaskOf(run, kernel, options.repeats))) {
      ProductTime& time = *product.add_ways();
      time.set_way(way.name);
      time.set_seconds_per_call(way.seconds);
      time.set_algorithm(way.algorithm);
      time.set_candidates(way.candidates);
      time.set_unequal(way.unequal);
    }
  }
  const auto of_step = [](const ProductRecord& product) {
    return product.calls_per_step() * product.ways(0).seconds_per_call();
  };
  std::stable_sort(
      record.mutable_products()->begin(), record.mutable_products()->end(),
      [&](const ProductRecord& a, const ProductRecord& b) { return of_step(a) > of_step(b); });
  return record;
}

absl::StatusOr<BenchRecord> BenchDecode(const BenchOptions& options) {
  ASSIGN_OR_RETURN(auto lengths, ReadBenchLengths(options.lengths_file));
  ASSIGN_OR_RETURN(RunSpec run, RunOf(options));
  const int count = std::min(options.sentences, static_cast<int>(lengths.size()));
  lengths.resize(count);
  DecodeSpec& decode = *run.mutable_decode();
  decode.set_beam_size(options.beam_size);
  decode.set_batch_tokens(options.batch_tokens);
  for (const auto& [source, target] : lengths) {
    if (const int longer = std::max(source, target); longer >= run.model().max_positions()) {
      return DataError(options.lengths_file, ": ", longer, " tokens, but the model takes ",
                       run.model().max_positions());
    }
    decode.set_max_tokens(std::max(decode.max_tokens(), target));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, MakeOps(run.compute()));
  Transformer model(run.model(), DecodeCapacity(run.model(), decode, IsOnDevice(run)), *ops,
                    /*trainable=*/false);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  ModelScorer model_scorer(model);
  FixedLengthScorer scorer(model_scorer);
  BatchLimits limits{.batch_tokens = BatchTokens(decode, IsOnDevice(run))};
  if (IsOnDevice(run)) {
    ASSIGN_OR_RETURN(limits, FitBatches(decode, {&run.model(), 1},
                                        ops->OperandOptions().dtype().itemsize(), FreeGpuBytes()));
  }
  SearchSeconds(run, limits, scorer, std::span(lengths).first(std::min(count, kWarmUpSentences)));
  const double seconds = SearchSeconds(run, limits, scorer, lengths);

  double tokens = 0.0, flops = 0.0;
  for (const auto& [source, target] : lengths) {
    tokens += source + target;
    flops += SearchFlops(run.model(), source, target, options.beam_size);
  }
  ASSIGN_OR_RETURN(BenchRecord record,
                   MakeRecord(absl::StrCat("decode/", run.model().encoder_layers(), "-",
                                           run.model().decoder_layers()),
                              flops / seconds * 1e-9, run));
  record.set_sentences_per_second(count / seconds);
  record.set_tokens_per_second(tokens / seconds);
  record.set_peak_resident_bytes(PeakResidentBytes());
  if (IsOnDevice(run)) {
    record.set_peak_device_bytes(TensorMemory(run.compute().device()).peak_bytes());
  }
  return record;
}

}  // namespace deepnet
