#include "launch/commands/decoding.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/message_differencer.h"

#include "launch/spec_loader.h"
#include "parallel/base/clock.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/decode/search.h"
#include "trainer/decode/text_stream.h"
#include "trainer/decode/translator.h"

namespace deepnet {
namespace {

using google::protobuf::util::MessageDifferencer;

// Opens the two files that `score` names, or none: pairs come from standard input then, and always
// to rank 0.
absl::StatusOr<std::vector<std::unique_ptr<FdStream>>> OpenPairs(const DecodingJob& job) {
  std::vector<std::unique_ptr<FdStream>> files;
  const std::vector<std::string>& names = job.line.flags.positional();
  if (job.world.rank() != 0) return files;
  if (names.size() == 1)
    return ConfigError("one file given: name a source and a target file, or none");
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(files.emplace_back(), FdStream::Open(ResolvePath(job.line, name)));
  }
  return files;
}

std::string ScoreSummary(const ScoreStreamReport& report) {
  std::string text =
      absl::StrFormat("%s pairs, %s target tokens, log-probability %.4f",
                      WithCommas(report.num_pairs), WithCommas(report.num_tokens), report.log_prob);
  if (report.num_tokens > 0) {
    const double nats = -report.log_prob / static_cast<double>(report.num_tokens);
    absl::StrAppendFormat(&text, ", %.4f nats a token, perplexity %.3f", nats, std::exp(nats));
  }
  return text;
}

// Returns the tags of --from and --to. Refuses a language that the vocabulary lacks, listing those
// it has.
absl::StatusOr<TagFrame> TagFrameOf(const DecodingJob& job) {
  std::vector<std::string> mistakes;
  const auto tag = [&](const char* flag) {
    const std::string& language = job.line.flags.Text(flag);
    const std::optional<int32_t> id = job.vocabulary.TagId(language);
    if (!id.has_value()) {
      mistakes.push_back(absl::StrCat("--", flag, ": ", language, ": the model knows ",
                                      absl::StrJoin(job.vocabulary.languages(), ", ")));
    }
    return id.value_or(-1);
  };
  const int32_t source_tag = tag("from");
  const int32_t target_tag = tag("to");
  RETURN_IF_ERROR(BadConfig(mistakes));
  return MakeTagFrame({job.run.data().tags(), source_tag, target_tag});
}

absl::StatusOr<TranslatorOptions> OptionsOf(const DecodingJob& job, const BatchLimits& limits) {
  TranslatorOptions options{.limits = limits,
                            .max_positions = job.run.model().max_positions(),
                            .share = {.part = job.world.rank(), .num_parts = job.world.size()}};
  ASSIGN_OR_RETURN(options.search, MakeSearchOptions(job.run.decode(), job.vocabulary.TagIds()));
  if (options.limits.batch_tokens < 1 || options.limits.batch_tokens > kMaxBatchTokens) {
    return ConfigError("decode.batch_tokens: ", options.limits.batch_tokens, ": must be from 1 to ",
                       kMaxBatchTokens);
  }
  return options;
}

}  // namespace

Flag CheckpointFlag() {
  return Required(
      ListFlag("checkpoint", "FOLDER",
               "A run folder (its newest checkpoint), one checkpoint of it, or a pointer such "
               "as runs/a/best-bleu; required. Given several times, the models are an ensemble: "
               "the average of their probabilities counts. They must have one vocabulary."));
}

std::vector<Flag> ModelFlags() {
  return {
      CheckpointFlag(),
      Required(TextFlag("from", "LANGUAGE", "Language of the source, for example de; required.")),
      Required(TextFlag("to", "LANGUAGE", "Language of the translation; required."))};
}

std::vector<Flag> SearchFlags() {
  return {
      IntegerFlag("beam-size", "Hypotheses kept. Default: decode.beam_size of the run, else 5."),
      NumberFlag("length-penalty", "P",
                 "A hypothesis scores log p / length^P. Default: the run's, else 1."),
      IntegerFlag("nbest",
                  "Translations printed of each line, at most the beam size; above 1 each "
                  "starts with the number of its line. With --sample: samples drawn."),
      SwitchFlag("greedy", "The most probable token at each step: a beam of 1."),
      NumberFlag("sample", "T", "Draw each token from p^(1/T) instead of searching."),
      IntegerFlag("top-k", "With --sample: draw from so many of the most probable tokens only."),
      NumberFlag("top-p", "P",
                 "With --sample: draw from the nucleus only, the fewest most probable tokens that "
                 "have at least this probability together."),
      NumberFlag("epsilon", "P",
                 "With --sample: draw only tokens of at least this probability, or the best."),
      IntegerFlag("seed",
                  "Seed of --sample. The same seed and line give the same samples, whatever the "
                  "batch. Default 0."),
      IntegerFlag("batch-tokens",
                  "Source tokens decoded together: memory against speed. Default: the run's, "
                  "else 2000; on a GPU 16000, or what its memory has room for.")};
}

absl::Status CheckSearchFlags(const ParsedFlags& flags) {
  std::vector<std::string> mistakes;
  const bool sampling = flags.Given("sample"), greedy = flags.Switch("greedy");
  const bool beam = flags.Given("beam-size");
  if (greedy && beam) mistakes.push_back("--greedy: contradicts --beam-size");
  if (sampling && (greedy || beam)) {
    mistakes.push_back("--sample: contradicts --greedy and --beam-size");
  }
  const auto check = [&](const char* name, const auto& is_good, const char* text) {
    const double value = flags.Number(name);
    if (!flags.Given(name) || is_good(value)) return;
    mistakes.push_back(absl::StrCat("--", name, ": ", value, ": ", text));
  };
  check(
      "sample", [](double t) { return t > 0.0; }, "must be above 0");
  for (const char* name : {"top-k", "top-p", "epsilon", "seed"}) {
    if (flags.Given(name) && !sampling) {
      mistakes.push_back(absl::StrCat("--", name, ": only with --sample"));
    }
  }
  check(
      "top-p", [](double p) { return p > 0.0 && p <= 1.0; }, "must be above 0 and at most 1");
  check(
      "epsilon", [](double p) { return p > 0.0 && p < 1.0; }, "must be above 0 and below 1");
  for (const char* name : {"beam-size", "nbest", "top-k", "batch-tokens"}) {
    constexpr int64_t kMax = 1000000;
    if (!flags.Given(name)) continue;
    const int64_t value = flags.Integer(name);
    if (value < 1 || value > kMax) {
      mistakes.push_back(absl::StrCat("--", name, ": ", value, ": must be 1 to ", kMax));
    }
  }
  return BadConfig(mistakes);
}

DecodeSpec WithSearchFlags(DecodeSpec decode, const ParsedFlags& flags) {
  const auto integer = [&](const char* name) { return static_cast<int32_t>(flags.Integer(name)); };
  if (flags.Given("beam-size")) decode.set_beam_size(integer("beam-size"));
  if (flags.Given("length-penalty")) decode.set_length_penalty(flags.Number("length-penalty"));
  if (flags.Given("nbest")) decode.set_nbest(integer("nbest"));
  if (flags.Given("batch-tokens")) decode.set_batch_tokens(integer("batch-tokens"));
  if (flags.Given("sample")) decode.set_sampling_temperature(flags.Number("sample"));
  if (flags.Given("top-k")) decode.set_sampling_top_k(integer("top-k"));
  if (flags.Given("top-p")) decode.set_sampling_top_p(flags.Number("top-p"));
  if (flags.Given("epsilon")) decode.set_sampling_epsilon(flags.Number("epsilon"));
  if (flags.Given("seed")) decode.set_sampling_seed(static_cast<uint64_t>(flags.Integer("seed")));
  if (flags.Switch("greedy")) decode.set_beam_size(1);
  // A search that is asked for is one, even from a run that samples.
  if (flags.Switch("greedy") || flags.Given("beam-size")) decode.set_sampling_temperature(0.0);
  return decode;
}

absl::StatusOr<ComputeSpec> ComputeOverrides(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec named, ReadRunSpec(SourcesOf(line), RunSpec()));
  ComputeSpec compute = named.compute();
  ResolveDevice(line, &compute);
  return compute;
}

absl::StatusOr<RunSpec> DecodingRunSpec(const CommandLine& line, const RunSpec& of_checkpoint) {
  ASSIGN_OR_RETURN(RunSpec run, LoadRunSpec(line, of_checkpoint));
  std::vector<std::string> mistakes;
  if (!MessageDifferencer::Equivalent(run.model(), of_checkpoint.model())) {
    mistakes.push_back("model: is given by the checkpoint; only decode and compute may change");
  }
  if (run.data().tags() != of_checkpoint.data().tags()) {
    mistakes.push_back("data.tags: is given by the checkpoint; only decode and compute may change");
  }
  RETURN_IF_ERROR(BadConfig(mistakes));
  if (line.flags.Has("beam-size")) {
    *run.mutable_decode() = WithSearchFlags(run.decode(), line.flags);
  }
  return run;
}

absl::Status TranslateLines(const DecodingJob& job, const BatchLimits& limits, Scorer& scorer) {
  const CommandLine& line = job.line;
  Communicator& world = job.world;
  ASSIGN_OR_RETURN(const TagFrame tags, AgreeOn(world, TagFrameOf(job)));
  ASSIGN_OR_RETURN(const TranslatorOptions options, AgreeOn(world, OptionsOf(job, limits)));
  Translator translator(scorer, MakeTextCodec(job.vocabulary), tags, options);
  const std::string& prefix_name = line.flags.Text("prefixes");
  const bool opens = !prefix_name.empty() && world.rank() == 0;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<FdStream> prefix_file,
      AgreeOn(world, opens ? FdStream::Open(ResolvePath(line, prefix_name)) : nullptr));
  LineChunkReader in(line.in, "standard input");
  LineChunkReader prefixes(opens ? *prefix_file : line.in, prefix_name);
  const double start = SecondsNow();
  ASSIGN_OR_RETURN(
      const TranslateStreamReport report,
      TranslateStream(in, translator,
                      {.chunk_lines = static_cast<int>(line.flags.Integer("chunk-lines")),
                       .scores = line.flags.Switch("scores"),
                       .prefixes = prefix_name.empty() ? nullptr : &prefixes,
                       .world = &world},
                      line.out));
  if (world.rank() != 0) return absl::OkStatus();

  Logger log({.stream = &line.err});
  if (report.num_cut_sources > 0) {
    log.Warning(absl::StrCat(report.num_cut_sources, " lines were cut to model.max_positions (",
                             options.max_positions, " tokens)"));
  }
  const double seconds = SecondsNow() - start;
  log.Info(absl::StrFormat("%s lines, %s tokens in %.1f s: %.1f lines/s",
                           WithCommas(report.num_lines), WithCommas(report.num_tokens), seconds,
                           static_cast<double>(report.num_lines) / std::max(seconds, 1e-9)));
  return absl::OkStatus();
}

absl::Status ScoreLines(const DecodingJob& job, PairScorer& scorer) {
  Communicator& world = job.world;
  const int max_positions = job.run.model().max_positions();
  ASSIGN_OR_RETURN(const TagFrame tags, AgreeOn(world, TagFrameOf(job)));
  ASSIGN_OR_RETURN(const auto files, AgreeOn(world, OpenPairs(job)));
  const std::vector<std::string>& names = job.line.flags.positional();
  const bool from_files = !files.empty();
  LineChunkReader sources(from_files ? *files[0] : job.line.in,
                          from_files ? names[0] : "standard input");
  std::optional<LineChunkReader> targets;
  if (from_files) targets.emplace(*files[1], names[1]);
  ASSIGN_OR_RETURN(const ScoreStreamReport report,
                   ScoreStream(sources, scorer, MakeTextCodec(job.vocabulary),
                               {.tags = tags,
                                .max_positions = max_positions,
                                .targets = from_files ? &*targets : nullptr,
                                .world = &world},
                               job.line.out));
  if (world.rank() != 0) return absl::OkStatus();

  Logger log({.stream = &job.line.err});
  if (report.num_scored < report.num_pairs) {
    log.Warning(absl::StrCat(report.num_pairs - report.num_scored,
                             " pairs have a side above model.max_positions (", max_positions,
                             " tokens) and score nan"));
  }
  log.Info(ScoreSummary(report));
  return absl::OkStatus();
}

}  // namespace deepnet
