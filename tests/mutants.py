#!/usr/bin/env python3
"""Breaks the code on purpose, one place at a time, and expects its tests to fail. Prints what caught each, and
after how many seconds of testing.

  tests/mutants.py BUILD_FOLDER [NAME...]

BUILD_FOLDER is a configured build; tests/gpu/mutants.py breaks code for GPUs. All tests must pass first. Files are
changed in place and restored, also on an interrupt or SIGTERM; a file with changes that git does not know is refused.
Exit status 1 if a mutant survives, its place is not found, or its test does not end.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMED_OUT = 124  # as timeout(1)
DATA, OPTIM, DOCTOR = "trainer/data/", "trainer/optim/", "trainer/doctor/"
DECODE, CHECKPOINT, INTEROP = "trainer/decode/", "trainer/checkpoint/", "trainer/interop/"
CHECKPOINT_TEST, TOOLS_TEST, INTEROP_TEST = (
    f"trainer_{name}_test" for name in ("checkpoint", "checkpoint_tools", "interop"))
SOCKETS = "parallel/comm/sockets.cc"
TCP, TCP_TEST = "parallel/comm/tcp_communicator.cc", "tcp_communicator_test"
FAIRSEQ, FAIRSEQ_TEST = "launch/interop/fairseq_to_deepnet.py", "ctest launch_fairseq_to_deepnet_test"
SLURM, SLURM_TEST = "launch/slurm/run.sh", "ctest launch_slurm_run_test"
POLICY, POLICY_TEST = "trainer/checkpoint_policy.cc", "trainer_checkpoint_policy_test"
PARTS = "trainer_data_prepare_test --gtest_filter=PreparedParts.*"
# name: file, text that stands there once, what replaces it, test: a program with arguments, or "ctest NAME PROGRAM..."
MUTANTS = {
    "the-stop-ends-a-token-too-early": (
        DECODE + "search.cc", "Score(log_prob, max_tokens_ + 1));", "Score(log_prob, max_tokens_));",
        "decode_search_test"),
    "the-stop-looks-a-token-too-far": (
        DECODE + "search.cc", "std::max(Score(log_prob, num_tokens_ + 1),", "std::max(Score(log_prob, num_tokens_ + 2),",
        "decode_search_test"),
    "cuts-do-not-reach-the-model": (
        DECODE + "model_scorer.cc", ".cuts = choices.cuts,", "", "decode_model_scorer_test"),
    "averages-of-large-tensors-are-those-of-the-first-piece": (
        OPTIM + "optimizer.cc", "narrow(0, extent.weight + done, count)", "narrow(0, extent.weight, count)",
        "trainer_optim_test"),
    "rates-are-scaled-twice": (
        OPTIM + "learning_rate.cc", "  optim.clear_reference_batch_tokens();\n", "", "trainer_optim_learning_rate_test"),
    "validations-follow-the-minutes-of-saves": (
        "trainer/telemetry/intervals.cc", ".minutes = train.validate_every_minutes()", ".minutes = train.checkpoint_every_minutes()",
        "trainer_intervals_test"),
    "half-an-odd-window-is-enough": (
        "trainer/telemetry/spikes.cc", "2 * window.losses_size() < spec.window_steps()", "window.losses_size() < spec.window_steps() / 2",
        "trainer_spikes_test"),
    "minutes-count-from-the-start-on": (
        POLICY, "  clock_.Restart();\n", "", POLICY_TEST),
    "damaged-checkpoints-are-gone-back-to": (
        "trainer/spike_guard.cc", "if (intact.ok()) intact = VerifyTensors(fs, folder, *manifest);",
        "if (!intact.ok()) intact = VerifyTensors(fs, folder, *manifest);",
        "parity_spike_test --gtest_filter=*Damaged*"),
    "computing-time-adds-up": (
        "trainer/telemetry/stragglers.cc", "std::exchange(sum_seconds_, 0.0)", "sum_seconds_", "trainer_stragglers_test"),
    "whole-shards-are-linked-for-a-part": (
        DATA + "prepare/blocks.cc", "if (only.num_pairs() == sources[0].count) {", "if (only.num_pairs() >= sources[0].count) {",
        PARTS),
    "damaged-shards-are-copied": (
        DATA + "prepare/blocks.cc", "shard.ok() && shard->CheckContent().ok() && ", "shard.ok() && ", PARTS),
    "changed-inputs-keep-their-scans": (
        DATA + "prepare/scan.cc", "found->second.modified_ns(),", "0,", PARTS),
    "tags-take-no-room": (
        DATA + "subword_sampler.cc", "most - pieces.size()", "most", "trainer_data_test --gtest_filter=SubwordSampler*"),
    "spare-targets-are-promised-twice": (
        DATA + "corpus_batch_source.cc", "    spare.target -= pair.size.target;\n", "",
        "trainer_data_prepare_test --gtest_filter=SpareOf.*"),
    "weights-do-not-shape-the-source": (
        DATA + "data_order.cc", "selected.num_pairs, phases, 1, selected.factors);",
        "selected.num_pairs, phases, 1);", "trainer_data_test --gtest_filter=*DataSpec*"),
    "of-two-links-none-is-late": (
        DOCTOR + "diagnosis.cc", "LowerMedian(std::move(latencies))", "Median(std::move(latencies))",
        "trainer_diagnosis_test"),
    "one-rank-with-wrong-kernels-is-outvoted": (
        DOCTOR + "diagnosis.cc", "check.error() > kept.error();", "check.error() < kept.error();", "trainer_diagnosis_test"),
    "errors-that-are-no-numbers-are-forgotten": (
        DOCTOR + "diagnosis.cc", "std::isnan(check.error()) || ", "", "trainer_diagnosis_test"),
    "float32-may-be-off-ten-times-as-far": (
        DOCTOR + "kernel_check.cc", "0x1p-9 : 2e-5;", "0x1p-9 : 2e-4;", "trainer_doctor_test --gtest_filter=KernelCheck.*"),
    "moments-are-not-in-the-memory-of-a-job": (
        "launch/commands/sbatch.cc", "memory.weights() + memory.moments()", "memory.weights()", "launch_plan_test"),
    "what-a-lost-peer-sent-is-lost": (
        TCP, "arrival = TakeFirst(connection.arrived, started->lane())",
        "arrival = connection.lost.ok() ? TakeFirst(connection.arrived, started->lane()) : std::nullopt", TCP_TEST),
    "a-loss-takes-whole-messages-too": (
        TCP, "return arrival.offered; });", "return arrival.offered || true; });", TCP_TEST),
    "half-a-frame-stands-before-the-abort": (
        TCP, "connection.frames.resize(half_sent ? 1 : 0);", "connection.frames.resize(half_sent ? 0 : 0);",
        "ctest tcp_job_end_busy job_end"),
    "groups-are-in-reverse-order": (
        "parallel/comm/communicator.cc", "wishes[a].key < wishes[b].key", "wishes[a].key > wishes[b].key", TCP_TEST),
    "groups-share-their-number": (TCP, "    world_->ReserveGroup(part.number);\n", "", TCP_TEST),
    "the-smallest-work-is-dealt-first": (
        DATA + "prepare/parts.cc", "return costs[a] > costs[b];", "return costs[a] < costs[b];", PARTS),
    "earlier-pairs-begin-behind-dropped-lines": (
        DATA + "prepare/parts.cc", "num_pairs[part.files(0).name()] += part.counts().kept();",
        "num_pairs[part.files(0).name()] += part.counts().lines();", PARTS),
    "one-rank-assembles-everything": (
        DATA + "prepare/scan.cc", "plan.assemble_seconds = most /", "plan.assemble_seconds = plan.text_bytes /",
        "trainer_data_prepare_test --gtest_filter=PreparePlan.*"),
    "the-cosine-does-not-know-the-warm-up": (
        OPTIM + "learning_rate.cc", "static_cast<double>(optim.decay_steps()) - warmup);",
        "static_cast<double>(optim.decay_steps()));", "trainer_optim_learning_rate_test"),
    "the-shifted-root-is-a-step-early": (
        OPTIM + "learning_rate.cc", "std::sqrt(shift / (shift + u));", "std::sqrt(shift / (shift + u - 1));",
        "trainer_optim_learning_rate_test"),
    "overflows-are-never-forgotten": (
        OPTIM + "loss_scale.cc", "    state_.set_overflows(0);\n", "", "trainer_optim_loss_scale_test"),
    "windows-begin-with-the-last-change": (
        OPTIM + "loss_scale.cc", "state_.steps() - state_.last_overflow()) %", "state_.steps() - state_.last_change()) %",
        "trainer_optim_loss_scale_test"),
    "infinities-are-a-measure": (
        CHECKPOINT + "tools/diff.cc", "size_x < kInfinity ? size_x : 0;", "size_x <= kInfinity ? size_x : 0;", TOOLS_TEST),
    "averages-have-the-first-manifest": (
        CHECKPOINT + "tools/rewrite.cc", "Manifest manifest = readers.back()->manifest();",
        "Manifest manifest = readers.front()->manifest();", TOOLS_TEST),
    "empty-files-are-read-ahead": (
        CHECKPOINT + "tools/tensor_reader.cc", "  if (manifest_.files(file).block_crc32c().empty()) return;\n", "",
        TOOLS_TEST),
    "unfinished-folders-of-others-are-deleted": (
        CHECKPOINT + "tools/spread_writer.cc", "if (owns_folder_) fs_.DeleteTree", "fs_.DeleteTree", TOOLS_TEST),
    "leftovers-are-bytes-to-prune": (
        CHECKPOINT + "retention.cc",
        " &&\n                      listed.folder == JoinPath(run_folder, CheckpointName(listed.step));", ";",
        CHECKPOINT_TEST),
    "step-zero-is-kept-as-a-multiple": (
        CHECKPOINT + "retention.cc", "rule.keep_every_steps > 0 && step > 0 &&", "rule.keep_every_steps > 0 &&", CHECKPOINT_TEST),
    "best-pointers-lead-ahead": (
        CHECKPOINT + "retention.cc", "best.step() <= manifest.step() && is_there(best.step())", "is_there(best.step())",
        CHECKPOINT_TEST),
    "m2m-has-512-positions": (
        INTEROP + "hf_config.cc", "max_position_embeddings: 1024\n", "max_position_embeddings: 512\n", INTEROP_TEST),
    "untied-projections-are-imported": (
        INTEROP + "hf_config.cc", "expect(c.tie_word_embeddings(),", "expect(true || c.tie_word_embeddings(),",
        INTEROP_TEST),
    "m2m-has-no-dropout-of-activations": (
        INTEROP + "hf_config.cc", "  model.set_activation_dropout(config.activation_dropout());\n", "", INTEROP_TEST),
    "decoders-are-divided-by-the-encoders-alpha": (
        INTEROP + "marian.cc", "scaling.encoder_alpha : scaling.decoder_alpha;",
        "scaling.encoder_alpha : scaling.encoder_alpha;", INTEROP_TEST),
    "the-first-token-has-another-row": (
        INTEROP + "marian.cc", "embedding(kEos * width + first, end_row)", "embedding(kBos * width + first, end_row)",
        INTEROP_TEST),
    "languages-are-pieces-too": (
        INTEROP + "hf_tokenizer.cc", "  for (const auto& [language, row] : rows->of_language) without.erase(row);\n", "",
        INTEROP_TEST),
    "unknown-pieces-have-another-row": (
        INTEROP + "hf_tokenizer.cc", "rows.of_piece.end() ? kUnk : found->second",
        "rows.of_piece.end() ? kBos : found->second", INTEROP_TEST),
    "rows-behind-the-table-are-read": (
        INTEROP + "import.cc", "if (row >= folder_rows)", "if (row > folder_rows)", INTEROP_TEST),
    "the-data-of-an-import-begins-anew": (
        INTEROP + "import.cc", "  manifest.mutable_data()->set_step(exported.step());\n", "", INTEROP_TEST),
    "exports-may-hold-copies": (
        INTEROP + "import.cc", "(!incoming.from_us && IsRepeatedInHf(name))", "IsRepeatedInHf(name)", INTEROP_TEST),
    "failed-saves-count-as-saved": (
        POLICY, "  if (failed) saved_step_ = -1;\n", "",
        "parity_save_test --gtest_filter=*FullDisk*"),
    "averages-begin-with-nothing": (
        "trainer/rank_snapshot.cc", "  if (begins_average) context.optimizer->BeginAverage(parameters);\n", "",
        "parity_ema_test --gtest_filter=*TurnsItOnLater*"),
    "runs-without-their-lock-tidy-up": (
        "trainer/async_checkpointer.cc", "  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());\n  if (!saved)", "  if (!saved)",
        "parity_save_test --gtest_filter=*LockWasTaken*"),
    "zombies-run": (
        CHECKPOINT + "run_lock.cc", "process.state == 'Z' || process.state == 'X'", "process.state == 'X'",
        CHECKPOINT_TEST),
    "rare-beats-are-missed": (
        CHECKPOINT + "run_lock.cc", "std::clamp(absl::Seconds(found.owner.beat_seconds()),",
        "std::clamp(absl::Seconds(0 * found.owner.beat_seconds()),", CHECKPOINT_TEST),
    "torn-lines-are-not-closed": ("trainer/telemetry/metrics.cc", "  torn_ = !written.ok();\n", "", "trainer_metrics_test"),
    "a-torn-line-alone-stays": (
        "trainer/telemetry/metrics.cc", "return dropped || !line.empty() ?", "return dropped ?", "trainer_metrics_test"),
    "the-last-line-is-the-longest": (
        DATA + "prepare/prepare.cc", "longest = std::max(longest, pieces);", "longest = pieces;",
        "trainer_data_prepare_test --gtest_filter=Prepare.MakesACorpus*"),
    "tokenizers-outlive-their-text": (
        DATA + "prepare/tokenizer.cc",
        "  for (const PreparedPart& scan : context.scans) facts.push_back(absl::StrCat(scan.key()));\n", "", PARTS),
    "zst-is-not-compressed": (
        DATA + "prepare/scan.cc", 'absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".zst");',
        'absl::EndsWith(path, ".gz");', "trainer_data_prepare_test --gtest_filter=PreparePlan.*"),
    "ranks-may-have-other-models": (
        "launch/commands/load_model.cc", '{"--checkpoint", checkpoints}};', '{"--checkpoint", ""}};',
        "launch_decode_ranks_test --gtest_filter=*OneRankAlone*"),
    "the-first-model-says-how-long-sentences-are": (
        "launch/commands/load_model.cc", "model.set_max_positions(std::min(model.max_positions(), positions));",
        "model.set_max_positions(std::max(model.max_positions(), positions));",
        "launch_decode_ranks_test --gtest_filter=*Shortest*"),
    "a-job-forgets-its-root": (
        "launch/commands/plan.cc", 'if (line.flags.Given("root")) words', 'if (words.size() > 9) words', "launch_plan_test"),
    "ports-have-no-end": (
        "launch/launcher.cc", "launch->port > 0 &&\n      launch->port <= 65535", "launch->port > 0",
        "launch_launcher_test"),
    "restarts-meet-those-before": (
        "launch/launcher.cc", '  launch->prefix = TextOf(environment, "TORCHELASTIC_RESTART_COUNT");\n', "",
        "launch_launcher_test"),
    "waits-begin-before-they-do": (
        "parallel/exec/trace.cc", "std::max(wait.start, found->second)", "found->second", "trace_test"),
    "kernels-belong-to-the-action-behind": (
        "trainer/telemetry/run_trace.cc", "events_[next_].start <= time ?", "events_[next_].start <= events_[next_].end ?",
        "trainer_run_trace_test"),
    "ends-stay-on-their-own-clocks": (
        "parallel/exec/trace.cc", "      event.end -= offsets[rank];\n", "", "trace_test"),
    "inner-events-come-first": (
        "parallel/exec/trace.cc", "if (a.end != b.end) return a.end > b.end;", "if (a.end != b.end) return a.end < b.end;",
        "trace_test"),
    "gradients-of-weights-are-waited-for": (
        "parallel/exec/trace.cc", "event.kind != TraceKind::kCompute || event.action.op == Op::kBackwardWeight",
        "event.kind != TraceKind::kCompute", "trace_test"),
    "torn-records-stay": (
        "trainer/telemetry/event_file.cc", "  std::filesystem::resize_file(path_, good_bytes_, error);\n", "",
        "trainer_event_file_test"),
    "zeros-are-never-shown": (
        "trainer/telemetry/event_file.cc", "if (*figure == 0.0 && shown_.count(tag) == 0) continue;", "if (*figure == 0.0) continue;",
        "trainer_event_file_test"),
    "ampersands-are-markup": (
        "trainer/telemetry/event_file.cc", '{"&", "&amp;"}', '{"\\r", "&amp;"}', "trainer_event_file_test"),
    "line-ends-break-labels": ("trainer/telemetry/prometheus_file.cc", ', {"\\n", "\\\\n"}', "", "trainer_prometheus_file_test"),
    "unknown-figures-are-shown": (
        "trainer/telemetry/prometheus_file.cc", "if (value > 0) Gauge", "if (value >= 0) Gauge", "trainer_prometheus_file_test"),
    "another-pad-is-imported": (
        INTEROP + "hf_config.cc", "expect(c.pad_token_id() == kPad,", "expect(true || c.pad_token_id() == kPad,", INTEROP_TEST),
    "any-epsilon-is-that-of-m2m": (
        INTEROP + "hf_config.cc", "if (model.layer_norm_epsilon() != kTorchEpsilon) {",
        "if (model.layer_norm_epsilon() < 0) {", INTEROP_TEST),
    "a-row-behind-the-last-is-named": (
        INTEROP + "hf_tokenizer.cc", "row < 0 || row >= vocabulary_size", "row < 0 || row > vocabulary_size", INTEROP_TEST),
    "bubbles-are-mfu": ("trainer/telemetry/prometheus_file.cc", "step.bubble());", "step.mfu());", "trainer_prometheus_file_test"),
    "gradients-take-the-link-of-one-stage": (
        "parallel/plan/plan_accessors.cc", "int64_t{stages} * replicas;", "int64_t{replicas};", "device_model_test"),
    "a-way-that-is-cut-ends-no-job": ("parallel/comm/links.cc", "  EndJob(comm, status);\n", "", "links_test"),
    "groups-wait-for-ever": (
        "parallel/comm/heartbeat.cc", "(*part, heartbeat_, comm_timeout_)", "(*part, heartbeat_)", "heartbeat_test"),
    "extents-have-the-order-of-buckets": (
        "parallel/plan/shard.cc", "  std::ranges::sort(extents, {}, &Extent::weight);\n", "", "shard_test"),
    "rank-zero-is-no-peer": ("parallel/exec/trace.cc", "if (event.peer >= 0) arguments", "if (event.peer > 0) arguments", "trace_test"),
    "messages-go-the-other-way": (
        "parallel/exec/trace.cc", 'Op::kReceiveForward ? "receive forward" : "receive backward"',
        'Op::kReceiveForward ? "receive backward" : "receive forward"', "trace_test"),
    "confirmations-of-anybody": (
        SOCKETS, "if (!proved || heard.from <= options_.rank",
        "if ((!proved && caller.rank < 0) || heard.from <= options_.rank", TCP_TEST),
    "only-the-first-address-is-tried": (
        SOCKETS, "call.address = (call.address + 1) % call.errors.size();",
        "call.address = call.address % call.errors.size();", TCP_TEST),
    "refused-without-end": (SOCKETS, "++refused_ > kMaxRefused", "++refused_ < 0", TCP_TEST),
    "another-protocol-joins": (
        SOCKETS, "if (words[4] != ProtocolText() || words.size() < 7) {",
        "if (words.size() < 7) {", TCP_TEST),
    "an-older-attempt-wins": (
        SOCKETS, "if (other.attempt > heard.attempt) return;",
        "if (other.attempt < heard.attempt) return;", TCP_TEST),
    "the-target-may-change": (
        "launch/commands/train_text.cc", "ContentsOf({sources.first_file, sources.second_file})",
        "ContentsOf({sources.first_file, sources.first_file})", "launch_train_text_test"),
    "sources-inside-are-deleted": (
        "launch/commands/train_text.cc", "if (LiesIn(source, folder))",
        'if (LiesIn(source, folder / "x"))', "launch_train_text_test"),
    "any-folder-is-ours": (
        "launch/commands/train_text.cc", "if (type == FileType::kFolder && ours) return",
        "if (type == FileType::kFolder && (ours || !ours)) return", "launch_train_text_test"),
    "compressed-text-counts-as-it-is": (
        "launch/commands/train_text.cc", "(IsCompressed(side.file) ? 3 : 1)",
        "(IsCompressed(side.file) ? 1 : 1)", "launch_train_text_test"),
    "second-sides-are-not-checked": (
        DATA + "corpus_shard.cc", "    First(pair);\n    Second(pair);",
        "    First(pair);", "trainer_data_test"),
    "wide-from-one-later": (
        DATA + "corpus_shard.cc", "writer->wide_ = vocabulary_size > 65536;",
        "writer->wide_ = vocabulary_size > 65537;", "trainer_data_test"),
    "an-earlier-corpus-stays-away": (
        DATA + "prepare/folder.cc", "return replaced && !exists ?",
        "return replaced && exists ?", "trainer_data_prepare_test --gtest_filter=Prepare.*:PreparedParts.*:Corpus*"),
    "unused-files-are-parts": (
        DATA + "prepare/folder.cc", "!absl::EndsWith(name, kClaimEnd) && !IsUnusedName(name);",
        "!absl::EndsWith(name, kClaimEnd);", "trainer_data_prepare_test --gtest_filter=Prepare.DoesNot*:PreparedParts.WhatWas*"),
    "a-stop-of-others-is-unknown": (
        "trainer/validation.cc", "transfers_[i]->Done() && bytes_[rank] == 1",
        "transfers_[i]->Done() && bytes_[rank] == 2", "trainer_validation_test"),
    "sources-have-no-bound": (
        "trainer/validation.cc", "options.max_positions = std::min(options.max_positions, capacity.max_source_tokens());",
        "options.max_positions = std::min(options.max_positions, capacity.max_target_tokens());", "trainer_validation_test"),
    "an-earlier-shard-of-another-length": (
        DATA + "prepare/blocks.cc", "kept >= 0 && kept <= shard->num_pairs() - it.first_pair;",
        "kept >= -1000 || it.first_pair >= 0;", "trainer_data_prepare_test --gtest_filter=Prepare.DoesNot*:PreparedParts.WhatWas*"),
    "lost-numbers-are-no-divergence": (
        "trainer/validation.cc", "if (absl::IsOutOfRange(record.status())) {",
        "if (absl::IsUnknown(record.status())) {", "trainer_validation_test"),
    "the-first-block-of-a-pair-is-enough": (
        DATA + "corpus_shard.cc", "const int64_t last = (begin + bytes - 1 - kShardDataOffset) / kShardBlockBytes;",
        "const int64_t last = (begin - kShardDataOffset) / kShardBlockBytes;", "trainer_data_test"),
    "the-id-after-the-last-is-one": (
        DATA + "corpus_shard.cc", "if (id >= vocabulary_size_) {",
        "if (id > vocabulary_size_) {", "trainer_data_test"),
    "secret-that-ones-group-reads": (
        "launch/launcher.cc", "(about.st_mode & 077) != 0",
        "(about.st_mode & 007) != 0", "launch_launcher_test"),
    "octal-is-taken": (
        "parallel/base/messages.cc", "if (!octal) continue;",
        "if (!octal || begins) continue;", "parallel_base_messages_test"),
    "a-stop-leaves-the-failures-counted": (
        SLURM, 'rm -f "$rank_logs/failures"', ":", SLURM_TEST),
    "nodes-that-were-left-out-come-back": (SLURM, "${excluded:+,$excluded}", "", SLURM_TEST),
    "hangs-are-final": (SLURM, "    8 | 9)", "    9)", SLURM_TEST),
    "one-try-too-few": (SLURM, "-le ${DEEPNET_RETRIES:-3}", "-lt ${DEEPNET_RETRIES:-3}", SLURM_TEST),
    "rotated-positions-are-imported": (FAIRSEQ, '"xpos_rel_pos": False, ', "", FAIRSEQ_TEST),
    "language-tokens-are-cut-off": (FAIRSEQ, "piece[2:-2]", "piece[2:-1]", FAIRSEQ_TEST),
    "positions-that-are-not-stored-are-512": (
        FAIRSEQ, 'self.value("max_source_positions", 1024)', 'self.value("max_source_positions", 512)', FAIRSEQ_TEST),
    "overwritten-pieces-are-refused": (FAIRSEQ, "fields[0] in SPECIALS and len(fields) == 2:", "fields[0] in SPECIALS:", FAIRSEQ_TEST),
    "unlike-stacks-are-imported": (FAIRSEQ, "        if encoder != decoder:\n", "        if encoder is None:\n", FAIRSEQ_TEST),
    "dropout-of-activations-has-another-name": (
        FAIRSEQ, 'self.value("activation_dropout", 0.0)', 'self.value("relu_dropout", 0.0)', FAIRSEQ_TEST),
    "blocks-that-are-joined-have-the-lines-of-the-first": (
        DATA + "prepare/scan.cc", "      last.set_lines(last.lines() + blocks_[i].lines());\n", "",
        "trainer_data_prepare_test --gtest_filter=PrepareOnRanks.*"),
    "another-threshold-is-the-same-scan": (
        DATA + "prepare/scan.cc", '" ", text.score_threshold.value_or(-1.0), " "', '" "', PARTS),
    "examples-are-those-of-the-last-batch": (
        DATA + "prepare/cleaning.cc", "if (lines[reason] == 0) examples[reason] = later",
        "if (later.lines[reason] > 0) examples[reason] = later", "trainer_data_prepare_test --gtest_filter=DropCounts.*"),
    "figures-come-after-the-end": (
        "trainer/telemetry/run_recorder.cc", "if (left > 0 && *seconds >= left)", "if (left < 0 && *seconds >= left)",
        "trainer_run_recorder_test"),
    "tensorboard-does-not-go-back": (
        "trainer/telemetry/run_recorder.cc", "  if (files_.events != nullptr) files_.events->GoBack(step);\n", "",
        "parity_spike_test --gtest_filter=*MetricsHave*"),
    "an-unscaled-embedding-is-exported-scaled": (
        INTEROP + "marian.cc", "model.unscaled_embedding() ? 1.0 :", "model.vocabulary_size() == 0 ? 1.0 :", INTEROP_TEST),
    "files-of-a-corpus-are-in-memory-alone": (
        DATA + "prepare/file_writer.cc", " || fsync(fileno(file_.get())) != 0", "",
        "trainer_data_prepare_test --gtest_filter=Prepare.WhatIs*"),
    "damaged-shards-are-linked": (
        DATA + "prepare/blocks.cc", "        RETURN_IF_ERROR(only.CheckContent());\n", "", PARTS),
    "another-cleaning-is-the-same-scan": (
        DATA + "prepare/scan.cc", "      ToBytes(context.spec.cleaning()),\n", "", PARTS),
    "only-the-first-shard-has-to-be-intact": (
        DATA + "corpus.cc", "for (const Shard& shard : shards_) RETURN_IF_ERROR(shard.Intact());",
        "RETURN_IF_ERROR(shards_[0].Intact());", "trainer_data_prepare_test --gtest_filter=CorpusTest.AStep*"),
    "every-step-masks-the-same-pieces": (
        DATA + "corpus_batch_source.cc", "{seed_, direction, pair.pair, step}", "{seed_, direction, pair.pair, 0}",
        "trainer_data_prepare_test --gtest_filter=CorpusTest.AStep*"),
}


def run(command, timeout):
    try:
        done = subprocess.run(command, cwd=ROOT, encoding="utf-8", errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return TIMED_OUT, (late.stdout or b"").decode(errors="replace")


def program_path(build, name):
    return next(p for p in Path(build).rglob(name) if p.is_file())


def caught_by(text):
    found = (re.search(r"\[  FAILED  \] ([\w/]+\.[\w/.]+)", text) or re.search(r"SUMMARY: (\w+: [\w-]+)", text)
             or re.search(r"(emulated GPU: .*)", text) or re.search(r"runtime error: (.*)", text)
             or re.search(r"(?:FAIL|ERROR): (\w+)", text) or re.search(r"- (\w+ \(\w+\))", text))
    return found[1] if found else text.strip().split("\n")[-1].removeprefix("[ RUN      ] ")


def programs(command):
    """Returns the programs that a test needs."""
    words = command.split()
    return words[2:] if words[0] == "ctest" else words[:1]


def build_programs(build, names):
    return run(["ninja", "-C", build, "-j1", *names], 1200) if names else (0, "")


def run_test(build, command):
    """Returns the status of a test, or None if it does not compile, what was printed, and its seconds."""
    status, words = build_programs(build, programs(command))
    if status:
        return None, words, 0
    program, *arguments = command.split()
    if program == "ctest":
        words = ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-R", f"^{arguments[0]}$"]
    else:
        words = [str(program_path(build, program)), *arguments]
    begin = time.monotonic()
    status, words = run(words, 1200)
    return status, words, time.monotonic() - begin


def try_mutant(build, mutant):
    """Returns what caught the mutant, or None, and why it was not caught."""
    path, old, new, command = mutant
    source = ROOT / path
    text = source.read_text(encoding="utf-8")
    if text.count(old) != 1:
        return None, f"the place is there {text.count(old)} times"
    try:
        source.write_text(text.replace(old, new), encoding="utf-8")
        status, words, seconds = run_test(build, command)
    finally:
        source.write_text(text, encoding="utf-8")
    if status is None:
        return None, "does not compile:\n" + words[-2000:]
    if status == TIMED_OUT:
        return None, "its test does not end"
    return (f"{command.split()[0]}: {caught_by(words)} | {seconds:.1f}" if status else None), "survives"


def main(mutants):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # by way of what restores the file
    build, names = sys.argv[1], sys.argv[2:] or list(mutants)
    files = sorted({mutants[name][0] for name in names})
    changed = run(["git", "status", "--porcelain", *files], 60)[1].strip()
    if changed:
        sys.exit(f"commit or stash first:\n{changed}")
    commands = sorted({mutants[name][3] for name in names})
    for command in commands:
        status, words, _ = run_test(build, command)
        if status != 0 or "[  PASSED  ] 0 tests" in words:
            sys.exit(f"{command} fails without a mutant, or has no tests:\n{words[-2000:]}")
    failed = 0
    print("| mutant | caught by | seconds |\n| --- | --- | --- |")
    for name in names:
        caught, why = try_mutant(build, mutants[name])
        failed += caught is None
        print(f"| {name} | {caught or '**' + why + '** |'} |", flush=True)
    build_programs(build, sorted({program for command in commands for program in programs(command)}))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(MUTANTS))
