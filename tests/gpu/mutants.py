#!/usr/bin/env python3
"""Breaks code for GPUs on purpose, one place at a time, and expects its tests to fail.

  tests/gpu/mutants.py BUILD_FOLDER [NAME...]

BUILD_FOLDER is a configured build for the emulated GPU. tests/mutants.py has the rest of the code, and says the rest.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutants import main  # noqa: E402

CUDA = "trainer/kernels/cuda/"
POINTWISE = "gpu_pointwise_kernels_test"
BIAS = POINTWISE + " --gtest_filter=*Bias*"
EMULATED = "tests/gpu/emulated/"
RUNTIME, NCCL, CUBLAS = (f"gpu_emulated_{name}_test" for name in ("runtime", "nccl", "cublas_lt"))
ATTENTION = "gpu_attention_test"
TRAINING = "gpu_training_kernels_test"
ERRORS = "gpu_device_errors_test"
LANES, TRAIN = "parallel/comm/nccl_communicator.cc", "gpu_train_test --gtest_filter=*Fast*"
CUDA_OPS = "gpu_cuda_ops_test"
BUDGETS = "gpu_budgets_test --gtest_filter=*Table*"
LAYOUTS = "gpu_train_test --gtest_filter=*EveryLayout*"
SAVES = "gpu_train_test --gtest_filter=*Save*"
TRACE = "gpu_train_test --gtest_filter=*ATrace*"
GRAPHS = "gpu_graphs_test --gtest_filter=*Fraction*"
WRONG_GRAPHS = "gpu_graphs_test --gtest_filter=*OtherBits*"
GRAPHS_OF_SCHEDULES = "gpu_graphs_test --gtest_filter=*EverySchedule*"
STREAMS = "gpu_kernels_on_streams_test"
# name: file, text that stands there once, what replaces it, test program with arguments
MUTANTS = {
    "steps-are-arguments-of-kernels": (
        CUDA + "dropout_bits.h", "  if (gpu.step() != nullptr) key.step = 0;\n", "", GRAPHS),
    "steps-are-not-read-from-memory": (
        CUDA + "dropout_bits.h", "  if (stream.step != nullptr) {", "  if (false) {", GRAPHS),
    "row-counts-are-arguments-of-kernels": (
        "trainer/model/pass.cc", "    rows.count = static_cast<int64_t>(side.tokens.size());\n", "", GRAPHS),
    "offsets-lie-where-they-were-uploaded": (
        "trainer/kernels/cuda_session.cc", "    side->offsets = moved(side->offsets);\n", "", GRAPHS),
    "passes-read-the-microbatch-before": (
        "trainer/kernels/cuda_session.cc", "if (std::exchange(in_pass_, uploaded.number) != uploaded.number) {",
        "if (std::exchange(in_pass_, uploaded.number) == 0) {", GRAPHS),
    "graphs-are-told-apart-by-kernels-alone": (
        CUDA + "launch.h", "(graphs->AddToKey(value), ...);", "(static_cast<void>(value), ...);",
        STREAMS),
    "padding-has-a-gradient": (
        "trainer/kernels/cuda_ops.cc", "if (a.dhidden_RD.defined()) ZeroPadding(all_rows, a.rows, a.dhidden_RD);", "", GRAPHS),
    "graphs-are-not-compared": (
        "trainer/kernels/cuda_session.cc", "const bool equal = HaveBits(changed(), eager);", "const bool equal = HaveBits(eager, eager);",
        WRONG_GRAPHS),
    "wrong-graphs-are-used": (
        CUDA + "launch_graphs.cc", "equal ? State::kProved : State::kWrong", "equal ? State::kProved : State::kProved",
        STREAMS),
    "gradients-are-handed-over-before-they-are-launched": (
        "trainer/pipeline_stage.cc", "    model_.ops().session().Flush();\n", "", GRAPHS_OF_SCHEDULES),
    "kernels-are-put-where-they-ran": (
        "trainer/telemetry/run_trace.cc", "host.At(kernel.asked)", "host.At(kernel.start)", TRACE),
    "launches-without-an-end": (
        CUDA + "gpu_stream.cc", "  timed_.back().end = RecordEvent();\n", "", TRACE),
    "products-are-not-timed": (
        CUDA + "linear.cc", "  gpu_.Launching();\n", "", TRACE),
    "exceptions-pass-what-is-under-way": (
        "parallel/exec/pipeline_executor.cc", "return options_.guard ? options_.guard(work) : work();", "return work();", ERRORS),
    "memory-that-ends-is-internal": (
        "trainer/kernels/device_errors.cc", "return OutOfMemory(error.what_without_backtrace(), use);",
        "return absl::InternalError(error.what_without_backtrace());", ERRORS),
    "last-launch-is-not-told": (
        CUDA + "gpu_stream.cc", "  last_ = what;\n", "", ERRORS),
    "one-rank-reserves-alone": (
        "trainer/rank_context.cc", "AgreeOnStatus(\n      world, MakeOpsWithMemory(run.compute(), options.traced, whole, plan, *context)));",
        "MakeOpsWithMemory(run.compute(), options.traced, whole, plan, *context));", ERRORS),
    "old-nccl-is-taken": (
        "parallel/comm/nccl_communicator.cc", "if (loaded >= NCCL_VERSION_CODE)", "if (loaded >= 22805)", ERRORS),
    "gpus-are-shared": (
        "launch/device_group.cc", "if (names[rank] != names[other]) continue;", "continue;", ERRORS),
    "architectures-are-not-compared": (
        CUDA + "devices.cc", "built / 10 == capability / 10", "built <= capability", ERRORS),
    "memory-is-not-measured": (
        "trainer/resolve_run.cc", "static_cast<double>(FreeGpuBytes() + kContextBytes) / kGib",
        "static_cast<double>(FreeGpuBytes() + kContextBytes)", ERRORS),
    "batches-are-not-planned": (
        "parallel/plan/memory.cc", "gpu.set_uploads(rank.microbatches * inventory.batch_bytes + ResultBytes(memory));",
        "gpu.set_uploads(0 * (rank.microbatches * inventory.batch_bytes + ResultBytes(memory)));", "memory_test"),
    "copies-of-tables-are-not-planned": (
        "parallel/plan/memory.cc", "(rules.gpu ? elements : packed) * rules.packed_bytes", "packed * rules.packed_bytes", "memory_test"),
    "the-table-forgets-a-bias": (
        "trainer/model/cost_ops.cc", "if (dbias.defined()) BiasGradient(\"BiasGradient\"",
        "if (false && dbias.defined()) BiasGradient(\"BiasGradient\"", BUDGETS),
    "the-table-knows-no-partial-sums": (
        "trainer/model/cost_ops.cc", "if (rows <= native::kFewRows) return", "if (rows > 0) return", BUDGETS),
    "logits-are-planned-as-on-a-cpu": (
        "trainer/model/describe.cc", "const int64_t gpu_rows = native::LogitRows(vocabulary, rows);",
        "const int64_t gpu_rows = std::min(native::kCpuLogitRows, rows);", "describe_test"),
    "logits-of-fewer-rows-than-a-block": (
        "trainer/kernels/cuda_ops.cc", "native::LogitRows(classes, a.hidden_RD.size(0))", "native::LogitRows(classes, 128)",
        CUDA_OPS + " --gtest_filter=*LossOf*"),
    "the-table-takes-a-product-for-float32": (
        "trainer/model/cost_ops.cc", "a.x_RI.size(1)},\n            Size(y));",
        "a.x_RI.size(1)},\n            kFloat);", BUDGETS),
    "sum-without-barrier": (
        CUDA + "device_math.h",
        "if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = v;\n  __syncthreads();\n",
        "if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = v;\n",
        POINTWISE),
    "sums-in-one-buffer": (
        CUDA + "residual_norm.cu", "SumInRow(squares, buffers.of[1])", "SumInRow(squares, buffers.of[0])", POINTWISE),
    "turns-in-one-buffer": (
        CUDA + "residual_norm.cu", "SumInRow(sums, buffers.of[turn])", "SumInRow(sums, buffers.of[0])", POINTWISE),
    "groups-without-barrier": (
        CUDA + "row_chunks.h", "  }\n  __syncthreads();\n  if (threadIdx.y > 0) return;", "  }\n  if (threadIdx.y > 0) return;",
        POINTWISE),
    "columns-without-barrier": (
        CUDA + "column_sums.cu", "  __syncthreads();\n", "", POINTWISE),
    "one-row-off": (
        CUDA + "residual_norm.cu", "mask[row * k.mask_stride + columns.begin / kChunkColumns]",
        "mask[(row > 0 ? row - 1 : row) * k.mask_stride + columns.begin / kChunkColumns]", POINTWISE),
    "last-row-left-out": (
        CUDA + "row_chunks.h", "if (row >= rows ||", "if (row + 1 >= rows ||", POINTWISE),
    "run-too-short": (
        CUDA + "column_sums.cu", "r < args.rows; r += kGroups", "r + 1 < args.rows; r += kGroups", POINTWISE),
    "tail-stored-whole": (
        CUDA + "elements.h", "      if (i < n) p[i] = FromFloat<T>(chunk.v[i]);", "      p[i] = FromFloat<T>(chunk.v[i]);", POINTWISE),
    "other-random-block": (
        CUDA + "dropout_bits.h", "stream.counter3 | block", "stream.counter3 | (block + 1)", POINTWISE),
    "nine-rounds": (
        CUDA + "dropout_bits.h", "round < 10", "round < 9", POINTWISE),
    "initial-numbers-turned-the-other-way": (
        CUDA + "initial_normal.cu", "make_uint4(bits.y, bits.z, bits.w, bits.x)", "make_uint4(bits.w, bits.x, bits.y, bits.z)", TRAINING),
    "half-a-name-in-initial-counters": (
        CUDA + "initial_normal.cu", "static_cast<uint32_t>(hash >> 32)", "0", TRAINING),
    "initial-weights-without-deviation": (
        CUDA + "initial_normal.cu", ") * p.std;", ");", TRAINING),
    "initial-weights-of-another-purpose": (
        "trainer/kernels/cuda_ops.cc", "MakeKey(seed, RandomPurpose::kInitialWeight)", "MakeKey(seed, RandomPurpose::kDropout)",
        "gpu_init_test"),
    "bias-left-out": (
        CUDA + "column_sums.cu", "blockIdx.y == 0 ? args.first : args.second", "args.first", POINTWISE),
    "tile-loaded-while-read": (
        CUDA + "attention.cu", "      __syncthreads();\n      LoadStreamed<T>(k, p.layout, 0);\n", "      LoadStreamed<T>(k, p.layout, 0);\n", ATTENTION),
    "tile-read-while-loaded": (
        CUDA + "attention.cu", "      __syncthreads();\n    }\n    float scores[", "    }\n    float scores[", ATTENTION),
    "chunk-loaded-while-read": (
        CUDA + "attention.cu", "      __syncthreads();\n      LoadStreamed<T>(from, layout, chunk);\n      __syncthreads();\n    }\n    AddProducts",
        "      LoadStreamed<T>(from, layout, chunk);\n      __syncthreads();\n    }\n    AddProducts", ATTENTION),
    "numbers-loaded-while-read": (
        CUDA + "attention.cu", "    __syncthreads();\n    LoadStreamedNumbers", "    LoadStreamedNumbers", ATTENTION),
    "forbidden-tokens-are-chosen": (
        CUDA + "sampling.cu", "possible && (row.kinds[col] & row.forbidden) == 0", "possible", TRAINING),
    "drawn-from-a-wrong-beginning": (
        CUDA + "sampling.cu", "    before = sum;\n", "", TRAINING),
    "drawn-without-barrier": (
        CUDA + "sampling.cu", "shared.weights[thread / 32] = value;\n  __syncthreads();", "shared.weights[thread / 32] = value;", TRAINING),
    "sum-still-read": (
        CUDA + "sampling.cu", "  __syncthreads();  // all have read the last sum\n", "", TRAINING),
    "one-token-too-few-is-left": (
        CUDA + "sampling.cu", "(of, trial, shared) >= goal", "(of, trial, shared) > goal", TRAINING),
    "equals-are-cut-by-the-last-column": (
        CUDA + "sampling.cu", "static_cast<uint32_t>(cols - 1 - col)", "static_cast<uint32_t>(col + 0 * cols)", TRAINING),
    "the-best-is-cut": (
        CUDA + "sampling.cu", "least < 1.0 ? least : 1.0", "2.0 * least", TRAINING),
    "averages-of-equals-drift": (
        CUDA + "cross_entropy.cu", "y[i] = highest + logf(((n - 1.0f) *", "y[i] = highest + logf((n *", TRAINING),
    "choices-of-another-slice": (
        "trainer/decode/model_scorer.cc", "choice.row %= static_cast<int32_t>(capacity);", "choice.row += 0 * capacity;",
        "gpu_decode_test"),
    "tokens-before-they-are-there": (
        "trainer/decode/model_scorer.cc", "  if (choices.count > 0) ops.session().ReadBack();\n", "", "gpu_decode_test"),
    "lists-in-too-small-a-block": (
        "trainer/kernels/cuda_session.cc", "cuda::UploadBlock::Padded(static_cast<int64_t>(host.size_bytes()))",
        "static_cast<int64_t>(host.size_bytes())", "gpu_decode_test"),
    "weights-without-warp-barrier": (
        CUDA + "attention.cu", "float* to) {\n  __syncwarp();\n", "float* to) {\n", ATTENTION),
    "resident-rows-without-barrier": (
        CUDA + "attention.cu", "p.layout, 1.0f, 1);\n  __syncthreads();\n", "p.layout, 1.0f, 1);\n", ATTENTION),
    "one-key-too-few": (
        CUDA + "attention.cu", "min(query + i + 1, num_keys)", "min(query + i, num_keys)", ATTENTION),
    "one-key-too-many": (
        CUDA + "attention.cu", "if (key + member + 8 * j >= seen)", "if (key + member + 8 * j > seen)", ATTENTION),
    "tile-of-the-next-sentence": (
        CUDA + "attention.cu", "/ kTileRows + i <= number", "/ kTileRows + i < number", ATTENTION),
    "sums-not-rescaled": (
        CUDA + "attention.cu", "context[chunk][i][c] *= rescale;", "context[chunk][i][c] *= min(rescale + 1.0f, 1.0f);", ATTENTION),
    "diagonal-left-out": (
        CUDA + "attention.cu", "a.causal ? tile.begin / kStreamedRows * kStreamedRows : 0",
        "a.causal ? (tile.begin / kStreamedRows + 1) * kStreamedRows : 0", ATTENTION),
    "keys-past-the-list": (
        CUDA + "attention.cu", "  if (place >= length) score = -INFINITY;\n", "", ATTENTION),
    "gradient-over-unread-logits": (
        CUDA + "cross_entropy.cu", "    if (p.in_place) __syncthreads();\n", "", TRAINING),
    "row-sums-without-barrier": (
        CUDA + "cross_entropy.cu", "shared.of_warp[thread / 32] = sums;\n  __syncthreads();\n", "shared.of_warp[thread / 32] = sums;\n", TRAINING),
    "row-result-without-barrier": (
        CUDA + "cross_entropy.cu", "  __syncthreads();\n  return shared.of_row;", "  return shared.of_row;", TRAINING),
    "last-row-of-a-token": (
        CUDA + "embedding.cu", "for (int i = begin; i < end; ++i)", "for (int i = begin; i + 1 < end; ++i)", TRAINING),
    "sum-in-another-order": (
        CUDA + "adam.cu", "sum = SumInWarp(sum);", "sum = SumInWarp(SumInWarp(sum, 4)) * 0.25;", TRAINING),
    "ties-by-the-last-column": (
        CUDA + "sampling.cu", "a.index < b.index", "a.index > b.index", TRAINING),
    "floor-too-high": (
        CUDA + "sampling.cu", "better == k - 1", "better == max(k - 2, 0)", TRAINING),
    "too-many-equals": (
        CUDA + "sampling.cu", "if (found > kMaxCandidates) {", "if (false) {", TRAINING),
    "result-still-read": (
        CUDA + "sampling.cu", "  __syncthreads();  // all have read the last result\n", "", TRAINING),
    "attention-of-shorter-sentences": (
        "trainer/kernels/cuda_session.cc", "    index.longest = LongestOf(", "    index.longest = -1 + LongestOf(", CUDA_OPS),
    "sums-of-the-next-row": (
        "trainer/kernels/cuda_ops.cc", "a.log_sum_exp_RH.view({-1}).narrow(0, 0, a.heads * rows)",
        "a.log_sum_exp_RH.view({-1}).narrow(0, 1, a.heads * rows)", CUDA_OPS),
    "sums-of-queries-in-any-order": (
        "trainer/kernels/cuda_ops.cc", "setDeterministicAlgorithms(true,", "setDeterministicAlgorithms(false,", CUDA_OPS),
    "gradient-of-keys-for-values": (
        "trainer/kernels/cuda_ops.cc", "  CopyHeads(dv, g.dv_RD);", "  CopyHeads(dk, g.dv_RD);", CUDA_OPS),
    "gradient-keeps-its-scale": (
        "trainer/train_step.cc", "result.gradient_unit = 1.0 / (result.loss_scale * tokens);", "result.gradient_unit = 1.0 / tokens;",
        "gpu_train_test"),
    "scale-is-not-resumed": (
        "trainer/train_session.cc", "resolved.state.loss_scale());", "LossScale());", "gpu_train_test"),
    "overflow-is-not-counted": (
        "trainer/optim/loss_scale.cc", "if (overflow) return Overflow();", "if (overflow && window_ < 0) return Overflow();", "trainer_optim_loss_scale_test"),
    "bias-of-what-is-not-masked": (
        CUDA + "scaled_sums.cu", "if (kRelu && !(output[i].v[j] > 0.0f)) gradient[i].v[j] = 0.0f;", "", BIAS),
    "labels-are-not-looked-at": (
        "trainer/kernels/cuda_session.cc", "uploaded->target.last_label = LargestOf(labels, \"target\");", "", CUDA_OPS),
    "buffer-given-back-while-a-stream-reads-it": (
        CUDA + "host_copies.cc", " || cudaEventQuery((*block)->copied) != cudaSuccess", "",
        STREAMS),
    "upload-is-not-waited-for": (
        "tests/gpu/kernels/device_testing.h", "  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);\n", "",
        "gpu_kernels_on_streams_test --gtest_filter=KernelsOnStreams.*"),
    "uploads-as-large-as-they-must-be": (
        CUDA + "host_copies.cc", "(gpu_, block_bytes_), bytes};", "(gpu_, bytes), bytes};",
        "gpu_kernels_on_streams_test --gtest_filter=*Larger*"),
    "more-than-an-upload-has-room-for": (
        CUDA + "host_copies.cc", "  DEEPNET_CHECK_LE(used_, room_) << \"bytes of arrays in an upload\";\n", "",
        "gpu_kernels_on_streams_test --gtest_filter=*NoRoom*"),
    "no-upload-is-reserved": (
        "trainer/kernels/cuda_session.cc", "uploads_.Reserve(num_batches, batch_bytes);", "uploads_.Reserve(0 * num_batches, batch_bytes);",
        "gpu_budgets_test --gtest_filter=*EverySize*"),
    "refused-algorithm-is-tried-again": (
        CUDA + "linear.cc", "    algorithms_of_rows_.emplace(key, other);\n", "", STREAMS),
    "gradient-that-no-query-adds-to": (
        "trainer/kernels/cuda_ops.cc", "count == 0) return ZeroKeyGradients(g);", "count == 0) return;",
        "gpu_cuda_ops_test --gtest_filter=*NoQuery*"),
    "labels-of-the-first-chunk": (
        "trainer/kernels/kernel_ops.inc", ".targets = a.labels + begin,", ".targets = a.labels,", "gpu_cuda_ops_test --gtest_filter=*LossOf*"),
    "last-run-of-rows": (
        CUDA + "scaled_sums.cu", "run * kRunRows < rows; run", "(run + 1) * kRunRows < rows; run", BIAS),
    "last-row-of-a-group": (
        CUDA + "scaled_sums.cu", "(rows - first + kGroups - 1) / kGroups", "(rows - first) / kGroups", BIAS),
    "a-row-that-is-not-there-is-added": (
        CUDA + "scaled_sums.cu", "      if (i >= count) continue;\n", "", BIAS),
    "runs-read-before-they-are-stored": (
        CUDA + "scaled_sums.cu", "sum);\n    __syncthreads();\n", "sum);\n", BIAS),
    "runs-stored-before-they-are-read": (
        CUDA + "scaled_sums.cu", "    __syncthreads();  // before the next run's sums are stored\n", "", BIAS),
    "partial-sums-in-one-place": (
        CUDA + "scaled_sums.cu", "out[blockIdx.x * cols + slab + column]", "out[slab + column]", BIAS),
    "sums-of-few-rows-overwrite": (
        CUDA + "scaled_sums.cu", "out[slab + column] += total", "out[slab + column] = total", BIAS),
    "half-of-a-row-of-floats-is-copied": (
        CUDA + "elementwise.cu", "from.rows, units * from.cols", "from.rows, from.cols", POINTWISE + " --gtest_filter=*Cast*"),
    "rows-of-no-address-are-checked": (
        CUDA + "residual_norm.cu", "  if (args.rows == 0) return;  // memory of no rows may have no address\n", "", POINTWISE),
    "queries-of-no-address-are-checked": (
        CUDA + "attention.cu", "q_rows == 0 || a.context_RD.data != nullptr", "a.context_RD.data != nullptr", ATTENTION),
    "scaled-twice": (
        CUDA + "scaled_sums.cu", "y + *factor * x", "y + *factor * *factor * x",
        POINTWISE + " --gtest_filter=*AddScaled*"),
    "shares-off-by-a-thousandth": (
        CUDA + "cross_entropy.cu", "const float d = (Exponential(logit - log_sum_exp) - smooth) * scale;",
        "const float d = (Exponential(logit - log_sum_exp) * 0.999f - smooth) * scale;", TRAINING + " --gtest_filter=*GpuCrossEntropy.*"),
    "lanes-end-on-another-device": (
        LANES, "    cudaSetDevice(device);  // an error", "    // an error", NCCL),
    "weights-read-by-the-host": (
        "trainer/model_loader.cc", "host = parameters.weights().to(at::kCPU);\n  std::vector<uint64_t>",
        "host = parameters.weights();\n  std::vector<uint64_t>", "gpu_train_test --gtest_filter=*Resumed*"),
    "messages-before-their-data": (
        "parallel/comm/nccl_communicator.cc", "operation.inputs_ready, 0)", "operation.ended, 0)", LAYOUTS),
    "messages-swapped": (
        "parallel/exec/pipeline_executor.cc", "return a.posted_behind < b.posted_behind;", "return a.needed_by < b.needed_by;",
        LAYOUTS),
    "votes-in-the-wrong-phase": (
        "tests/gpu/emulated/cuda_on_host.cc", "    MakeReady(number, others);\n", "", "gpu_cuda_on_host_test"),
    "leaving-is-not-seen": (
        "tests/gpu/emulated/cuda_on_host.cc", "  bool awaited = in_block_ > 0;\n", "  bool awaited = false;\n",
        "gpu_cuda_on_host_test"),
    "event-wait-does-nothing": (
        EMULATED + "runtime.cc", "if (record == nullptr || record->done) return cudaSuccess;",
        "if (record == nullptr || record != nullptr) return cudaSuccess;", RUNTIME),
    "a-queue-for-each-stream": (
        EMULATED + "machine.cc", "device.queues.resize(std::clamp(settings.connections, 1, 32));",
        "device.queues.resize(32);", RUNTIME),
    "idle-device-is-not-waited-for": (
        EMULATED + "machine.cc", "return work.first->ended >= work.second;", "return work.second > 0;", RUNTIME),
    "freed-memory-is-reused-at-once": (
        EMULATED + "machine.cc",
        "if (progress->ended < pushed) return false;\n    }\n    memory.Recycle",
        "if (progress->ended < pushed) continue;\n    }\n    memory.Recycle", RUNTIME),
    "bounds-are-not-looked-at": (
        EMULATED + "memory.cc", "if (at == end) return;", "if (at != nullptr) return;", RUNTIME),
    "the-host-reads-device-memory": (
        EMULATED + "memory.cc", "view ? PROT_READ | PROT_WRITE : PROT_NONE", "PROT_READ | PROT_WRITE", RUNTIME),
    "memory-without-limit": (
        EMULATED + "memory.cc", "if (bytes > space.limit || space.used + RoundUp(bytes) > space.limit) return nullptr;\n", "",
        RUNTIME),
    "pageable-copies-are-not-staged": (
        EMULATED + "runtime.cc",
        "const bool staged = from.place == Place::kPageable && to.place == Place::kDevice;",
        "const bool staged = false;", RUNTIME),
    "directions-are-not-checked": (
        EMULATED + "runtime.cc", "if (!DirectionFits(copy.kind, to, from)) {",
        "if (!DirectionFits(cudaMemcpyDefault, to, from)) {", RUNTIME),
    "default-stream-does-not-wait": (
        EMULATED + "machine.cc", "if (other->number > 0 && other->blocking) {", "if (other->number < 0) {", RUNTIME),
    "mismatches-are-not-seen": (
        EMULATED + "nccl.cc", "part.other != part.descriptor) Mismatch", "false) Mismatch", NCCL),
    "lanes-are-used-before-they-connect": (
        EMULATED + "nccl.cc", "if (state.ready && !state.launching) return ncclSuccess;", "return ncclSuccess;", NCCL),
    "senders-do-not-wait": (
        EMULATED + "nccl.cc", "part.done = through && (!part.send || group.AllRead(part.peer));", "part.done = through;",
        NCCL),
    "dead-peers-are-not-seen": (
        EMULATED + "shared_group.cc", "return asked && lock.l_type == F_UNLCK", "return !asked && lock.l_type == F_UNLCK",
        NCCL),
    "sums-in-rank-order": (
        EMULATED + "nccl.cc", "ReadElement(type, parts[(first + 1) % ranks], i);",
        "ReadElement(type, parts[first % ranks], i);", NCCL),
    "lane-does-not-wait-for-its-inputs": (
        LANES, "cudaStreamWaitEvent(end_->stream, operation.inputs_ready, 0)", "cudaSuccess", NCCL),
    "connected-without-a-trial": (
        LANES, "for (const auto& [end, launch] : trials) {", "for (const auto& [end, launch] : trials) {\n    if (end->device >= 0) continue;",
        NCCL),
    "collective-that-was-not-connected": (
        LANES, "return connected_.*use ? Find(kAll) : nullptr;", "return use == nullptr ? nullptr : Find(kAll);", NCCL),
    "other-lanes-are-not-aborted": (
        LANES, "for (const auto& [ends, other] : lanes_) other->Fail(error_);", "", NCCL),
    "lanes-end-one-after-the-other": (
        LANES, "add(ncclCommAbort(comm));", "ncclGroupEnd(), add(ncclCommAbort(comm)), ncclGroupStart();", NCCL),
    "another-lane-loses-the-peer": (
        LANES, "absl::CancelledError(absl::StrCat(\"given up: \", status.message()))", "status", NCCL),
    "what-a-start-lacks-is-a-lost-peer": (
        LANES, "/*connecting=*/!connected", "/*connecting=*/false", NCCL),
    "collectives-take-all-channels": (
        LANES, "kCollectiveThreadBlocks = 8;", "kCollectiveThreadBlocks = 32;", NCCL),
    "variables-are-not-looked-at": (
        "launch/device_group.cc", "if (given == nullptr || given == value) continue;", "continue;", ERRORS),
    "next-update-does-not-wait-for-a-save": (
        "trainer/async_checkpointer.cc", "  snapshot_.HoldUpdate();\n", "", SAVES),
    "save-is-written-before-it-is-copied": (
        "trainer/rank_snapshot.cc", "      side_->Wait();\n", "", SAVES),
    "tensors-launched-one-by-one": (
        LANES, "ncclResult_t first = ncclGroupStart();", "ncclResult_t first = ncclSuccess;", NCCL),
    "who-has-not-come-is-not-said": (
        "parallel/comm/heartbeat.cc", "heartbeat_.SetSuspect(LongestBusy());", "",
        "gpu_stuck_train_test --gtest_filter=*Replica*/GPU"),
    "ranks-are-not-connected": (
        "trainer/rank_context.cc", "if (!context->model->parameters().gradient().is_cpu()) {", "if (world.size() == 0) {", TRAIN),
    "fast-sums-by-exchange": (
        "trainer/optim/gradient_sums.cc", "return order == FAST && !gradient.is_cpu();",
        "return order == FAST && !gradient.defined();", TRAIN),
    "sum-stays-in-its-block": (
        "trainer/optim/gradient_sums.cc", "flight.own.copy_(flight.sum);", "", TRAIN),
    "gelu-in-its-exact-form": (
        EMULATED + "cublas_lt.cc", "return 0.5 * x * (1.0 + std::tanh(inner));",
        "return inner == 0 ? 0.0 : 0.5 * x * std::erfc(-x * M_SQRT1_2);", CUBLAS),
    "mask-of-another-row": (
        EMULATED + "cublas_lt.cc", "if (Has(epilogue, kDRelu)) return MaskBit(aux, desc.aux_ld, i, j)",
        "if (Has(epilogue, kDRelu)) return MaskBit(aux, desc.aux_ld, i + 1, j)", CUBLAS),
    "bias-by-columns": (
        EMULATED + "cublas_lt.cc", "ReadElement(type, bias, i));", "ReadElement(type, bias, j));", CUBLAS),
    "beta-is-ignored": (
        EMULATED + "cublas_lt.cc", "if (beta != 0.0F) {", "if (false) {", CUBLAS),
    "bias-gradient-of-one-column": (
        EMULATED + "cublas_lt.cc", "gradient[i] += value;", "gradient[i] = value;", CUBLAS),
    "grid-too-high": (
        CUDA + "row_chunks.h", "const dim3 grid(static_cast<unsigned>((rows + y - 1) / y) * across);",
        "const dim3 grid(static_cast<unsigned>((rows + y - 1) / y), across);", "gpu_stream_test"),
    "refused-product-given-up": (
        CUDA + "linear.cc", "(status == CUBLAS_STATUS_NOT_SUPPORTED ||", "(status == CUBLAS_STATUS_ALLOC_FAILED ||",
        STREAMS),
    "other-bits-pass": (
        CUDA + "product_trials.cc", "      ++unequal;\n", "", STREAMS),
    "sums-are-split-everywhere": (
        CUDA + "product_trials.cc", "task_.may_split ? parts : never;", "parts;", STREAMS),
    "bias-where-it-lies": (
        CUDA + "linear_algorithms.h", "return reinterpret_cast<uintptr_t>(bias) % 16 == 0;", "return bias != nullptr;",
        CUDA_OPS + " --gtest_filter=*ABias*"),
    "stream-outlives-its-operations": (
        "trainer/kernels/cuda_session.cc", "if (guard_.getStream(stream_.device()) == stream_) guard_.exchangeStream(standard);",
        "static_cast<void>(standard);", CUDA_OPS + " --gtest_filter=*TheThreadsStream*"),
    "squares-of-another-range": (
        CUDA + "adam.cu", "(p.first_block[middle] <= block ? range : end) = middle;",
        "(p.first_block[middle] < block ? range : end) = middle;", TRAINING),
    "pieces-in-one-slot": (
        CUDA + "embedding.cu", "return 2 * (begin / kEmbedPieceRows);", "return begin / kEmbedPieceRows;", TRAINING),
    "batches-of-one-matrix": (
        EMULATED + "cublas_lt.cc", " + batch * la.batch_stride", "", CUBLAS),
}


if __name__ == "__main__":
    sys.exit(main(MUTANTS))
