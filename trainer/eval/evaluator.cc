#include "trainer/eval/evaluator.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "trainer/data/encoded_pair.h"
#include "trainer/decode/search.h"
#include "trainer/decode/translator.h"
#include "trainer/eval/sacrebleu.h"
#include "trainer/eval/score_table.h"
#include "trainer/eval/tokenizers.h"

namespace deepnet {

std::pair<size_t, size_t> RangeOf(const EvaluateShare& share, size_t num_sentences) {
  const size_t part = static_cast<size_t>(share.part), parts = static_cast<size_t>(share.num_parts);
  return {num_sentences * part / parts, num_sentences * (part + 1) / parts};
}

absl::StatusOr<SentenceScores> Gather(const EvaluateShare& share,
                                      const absl::StatusOr<SentenceScores>& mine) {
  if (share.num_parts == 1) return mine;
  using Bytes = absl::StatusOr<std::string>;
  ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                   share.gather(mine.ok() ? Bytes(ToBytes(*mine)) : Bytes(mine.status())));
  SentenceScores all;
  for (const std::string& part : parts) {
    SentenceScores scores;
    RETURN_IF_ERROR(ParseSent(part, scores));
    const int64_t num_tokens = all.num_tokens() + scores.num_tokens();
    all.MergeFrom(scores);
    all.set_num_tokens(num_tokens);
  }
  return all;
}

namespace {

template <typename... Parts>
absl::Status NotFoundData(const Parts&... parts) {
  return WithExitCode(NotFound(parts...), ExitCode::kData);
}

absl::StatusOr<std::vector<Direction>> Directions(const Corpus& corpus,
                                                  const EvaluateOptions& options) {
  std::vector<Direction> routes;
  for (const std::string& name : options.directions) {
    const std::vector<std::string> sides = absl::StrSplit(name, '-');
    if (sides.size() != 2) return NotFoundData("direction \"", name, "\": write xx-yy");
    routes.push_back({sides[0], sides[1]});
  }
  std::set<std::string> languages;
  for (const Direction& d : corpus.TextDirections(options.split)) {
    if (options.directions.empty()) routes.push_back(d);
    languages.insert({d.source, d.target});
  }
  if (options.any_to_any) {
    routes.clear();
    for (const std::string& a : languages) {
      for (const std::string& b : languages) {
        if (a == b) continue;
        const absl::Status found = corpus.Sentences(options.split, a, b).status();
        if (!found.ok() && !absl::IsNotFound(found)) return WithExitCode(found, ExitCode::kData);
        if (found.ok()) routes.push_back({a, b});
      }
    }
  }
  if (routes.empty()) {
    return NotFoundData("the corpus has no ", options.split, " sentences");
  }
  std::sort(routes.begin(), routes.end(),
            [](const Direction& a, const Direction& b) { return a.Name() < b.Name(); });
  return routes;
}

// Nats per target token over the pairs that the model takes; there must be some.
double MeanNll(const SentenceScores& scores) {
  double sum = 0.0;
  for (const double log_p : scores.log_probabilities()) sum -= log_p;
  return sum / static_cast<double>(scores.num_tokens());
}

// Replaces `folder`/`name`.
absl::Status WriteLines(const std::string& folder, const std::string& name,
                        const std::vector<std::string>& lines) {
  const std::string text = absl::StrJoin(lines, "\n") + "\n";
  const auto files = MakePosixFileSystem(Durability::kProcessEnd);
  RETURN_IF_ERROR(
      WithExitCode(WithPrefix("--output", files->MakeFolder(folder)), ExitCode::kBadConfig));
  return WithExitCode(WithPrefix("--output", ReplaceFile(*files, JoinPath(folder, name), text)),
                      ExitCode::kData);
}

struct Evaluator {
  Scorer& scorer;
  PairScorer& pair_scorer;
  const Corpus& corpus;
  const Vocabulary& vocabulary;
  const EvaluateOptions& options;
  const TextCodec codec = MakeTextCodec(vocabulary);

  // Adds the score of directions[index] and its samples to `record`.
  absl::Status Score(const std::vector<Direction>& directions, size_t index,
                     EvalRecord& record) const {
    const Direction& route = directions[index];
    ASSIGN_OR_RETURN(
        ParallelSentences text,
        WithExitCode(corpus.Sentences(options.split, route.source, route.target), ExitCode::kData));
    if (options.sentences > 0 && text.source.size() > static_cast<size_t>(options.sentences)) {
      text.source.resize(options.sentences);
      text.target.resize(options.sentences);
    }
    const auto source_tag = vocabulary.TagId(route.source),
               target_tag = vocabulary.TagId(route.target);
    if (!source_tag.has_value() || !target_tag.has_value()) {
      return NotFoundData("direction ", route.Name(), ": the model has no such language");
    }
    const absl::StatusOr<SentenceScores> scores = Gather(
        options.share,
        ScoreSentences(text, route.Name(), {options.run.data().tags(), *source_tag, *target_tag}));
    RETURN_IF_ERROR(WithPrefix(route.Name(), scores.status()));

    DirectionScore& score = *record.add_directions();
    score.set_direction(route.Name());
    score.set_sentences(std::ssize(text.source));
    score.set_too_long(std::ssize(text.source) - scores->log_probabilities_size());
    if (scores->num_tokens() > 0) score.set_nll(MeanNll(*scores));
    if (!std::isfinite(score.nll())) {
      return WithExitCode(absl::OutOfRangeError(absl::StrCat(route.Name(), ": ", kNotFinite)),
                          ExitCode::kCheckpoint);
    }
    if (!options.translates || text.source.empty()) return absl::OkStatus();
    const std::vector<std::string> hypotheses(scores->hypotheses().begin(),
                                              scores->hypotheses().end());
    RETURN_IF_ERROR(Compare(hypotheses, text.target, route, score));
    for (const size_t i :
         SampleSentences(options.samples, index, directions.size(), text.source.size())) {
      SampleTranslation& sample = *record.add_samples();
      sample.set_direction(route.Name());
      sample.set_line(static_cast<int64_t>(i) + 1);
      sample.set_source(ShownText(text.source[i]));
      sample.set_reference(ShownText(text.target[i]));
      sample.set_translation(ShownText(hypotheses[i]));
    }
    return absl::OkStatus();
  }

  // Scores translations and writes them, where that is asked for.
  absl::Status Compare(const std::vector<std::string>& hypotheses,
                       const std::vector<std::string>& references, const Direction& route,
                       DirectionScore& score) const {
    ASSIGN_OR_RETURN(const BleuTokenizer tokenizer,
                     MakeTokenizer(TokenizerNameForLanguage(route.target)));
    score.set_tokenizer(tokenizer.name);
    score.set_bleu(CorpusBleu(hypotheses, references, tokenizer).score);
    score.set_chrf(CorpusChrf(hypotheses, references));
    if (!options.spm_file.empty()) {
      ASSIGN_OR_RETURN(const BleuTokenizer pieces, MakeSentencePieceTokenizer(options.spm_file));
      score.set_spbleu(CorpusBleu(hypotheses, references, pieces).score);
    }
    const std::string& folder = options.output_folder;
    if (folder.empty() || options.share.part > 0) return absl::OkStatus();
    RETURN_IF_ERROR(WriteLines(folder, route.Name() + ".hyp", hypotheses));
    return WriteLines(folder, route.Name() + ".ref", references);
  }

  // Sentence i as the model learns it. What a masked model does not see is the same every time.
  EncodedPair Encode(const ParallelSentences& text, size_t i, const std::string& direction,
                     const DirectionTags& tags) const {
    switch (options.run.model().architecture()) {
      case DECODER_ONLY:
        return EncodeTargetSide(tags, vocabulary.Encode(text.target[i]));
      case ENCODER_ONLY:
        return EncodeSourceSide(tags, vocabulary.Encode(text.source[i]),
                                {options.run.data().mlm_probability(), vocabulary.first_tag()},
                                {.direction = direction, .pair = static_cast<int64_t>(i)});
      default:
        return EncodePair(tags, vocabulary.Encode(text.source[i]),
                          vocabulary.Encode(text.target[i]));
    }
  }

  // This evaluator's share of the sentences.
  absl::StatusOr<SentenceScores> ScoreSentences(const ParallelSentences& text,
                                                const std::string& direction,
                                                const DirectionTags& tags) const {
    const auto [first, end] = RangeOf(options.share, text.source.size());
    SentenceScores scores;
    if (options.translates) {
      ASSIGN_OR_RETURN(const std::vector<Translation> translations,
                       Translate(std::span(text.source).subspan(first, end - first), first, tags));
      for (const Translation& t : translations) scores.add_hypotheses(t.best[0].text);
    }
    std::vector<EncodedPair> pairs;
    for (size_t i = first; i < end; ++i) {
      EncodedPair pair = Encode(text, i, direction, tags);
      const size_t longest = std::max(pair.source.size(), pair.labels.size());
      if (options.max_positions > 0 && longest > static_cast<size_t>(options.max_positions))
        continue;
      scores.set_num_tokens(scores.num_tokens() +
                            std::ranges::count_if(pair.labels, [](int32_t id) { return id >= 0; }));
      pairs.push_back(std::move(pair));
    }
    const std::vector<double> log_probs = pair_scorer.LogProbabilities(pairs);
    scores.mutable_log_probabilities()->Assign(log_probs.begin(), log_probs.end());
    return scores;
  }

  absl::StatusOr<std::vector<Translation>> Translate(std::span<const std::string> sources,
                                                     size_t first,
                                                     const DirectionTags& tags) const {
    ASSIGN_OR_RETURN(SearchOptions search,
                     MakeSearchOptions(options.run.decode(), vocabulary.TagIds()));
    search.nbest = 1;
    Translator translator(scorer, codec, MakeTagFrame(tags),
                          {.search = std::move(search),
                           .limits = options.limits,
                           .max_positions = options.max_positions});
    return translator.Translate(sources, static_cast<int64_t>(first));
  }
};

// The signatures of all tokenizers that were used, spBLEU's last.
std::string Signatures(const EvalRecord& record, const EvaluateOptions& options) {
  std::set<std::string> names;
  for (const DirectionScore& d : record.directions()) {
    if (!d.tokenizer().empty()) names.insert(d.tokenizer());
  }
  std::vector<std::string> signatures;
  for (const std::string& name : names) signatures.push_back(BleuSignature(name));
  if (!options.spm_file.empty()) signatures.push_back(BleuSignature(kSentencePieces));
  return absl::StrJoin(signatures, "; ");
}

}  // namespace

std::vector<size_t> SampleSentences(int samples, size_t index, size_t num_directions,
                                    size_t num_sentences) {
  // Sample k belongs to direction k * num_directions / samples.
  const auto first_of = [&](size_t direction) {
    return (direction * static_cast<size_t>(samples) + num_directions - 1) / num_directions;
  };
  const size_t count = std::min(first_of(index + 1) - first_of(index), num_sentences);
  std::vector<size_t> sentences;
  for (size_t k = 0; k < count; ++k) sentences.push_back(k * num_sentences / count);
  return sentences;
}

absl::StatusOr<EvalRecord> Evaluate(Scorer& scorer, PairScorer& pair_scorer, const Corpus& corpus,
                                    const Vocabulary& vocabulary, const EvaluateOptions& options) {
  const double start = SecondsNow();
  ASSIGN_OR_RETURN(const std::vector<Direction> routes, Directions(corpus, options));
  const Evaluator evaluator{scorer, pair_scorer, corpus, vocabulary, options};
  EvalRecord record;
  for (size_t i = 0; i < routes.size(); ++i) {
    if (options.progress) {
      options.progress(routes[i].Name(),
                       static_cast<double>(i) / static_cast<double>(routes.size()));
    }
    RETURN_IF_ERROR(evaluator.Score(routes, i, record));
  }
  const DirectionScore all = MeanScore(record, AnyDirection);
  if (all.has_bleu()) record.set_bleu(all.bleu());
  if (all.has_chrf()) record.set_chrf(all.chrf());
  if (all.has_nll()) record.set_nll(all.nll());
  if (all.has_spbleu()) record.set_spbleu(all.spbleu());
  const DirectionScore to = MeanScore(record, IsToEnglish), from = MeanScore(record, IsFromEnglish);
  if (to.has_bleu()) record.set_bleu_to_english(to.bleu());
  if (from.has_bleu()) record.set_bleu_from_english(from.bleu());
  record.set_bleu_signature(Signatures(record, options));
  if (options.translates) record.set_chrf_signature(ChrfSignature());
  record.set_seconds(SecondsNow() - start);
  return record;
}

}  // namespace deepnet
