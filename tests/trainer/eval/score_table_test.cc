#include "trainer/eval/score_table.h"

#include <string>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

void AddScore(EvalRecord& record, const std::string& direction, double bleu, double spbleu = 0) {
  DirectionScore* score = record.add_directions();
  score->set_direction(direction);
  score->set_sentences(200);
  score->set_bleu(bleu);
  if (spbleu > 0) score->set_spbleu(spbleu);
  score->set_chrf(2 * bleu);
  score->set_nll(bleu / 10);
}

TEST(ScoreTable, ShowsDirectionsAndTheThreeMeans) {
  EvalRecord record;
  AddScore(record, "de-en", 20);
  AddScore(record, "en-de", 10);
  AddScore(record, "fr-de", 7.5);
  AddScore(record, "fr-en", 30);
  record.set_bleu_signature("nrefs:1|tok:13a");
  EXPECT_EQ(ScoreTable(record),
            "direction    BLEU   chrF     nll  sentences\n"
            "de-en       20.00  40.00   2.000        200\n"
            "en-de       10.00  20.00   1.000        200\n"
            "fr-de        7.50  15.00   0.750        200\n"
            "fr-en       30.00  60.00   3.000        200\n"
            "X->en (2)   25.00  50.00   2.500        400\n"
            "en->X (1)   10.00  20.00   1.000        200\n"
            "all (4)     16.88  33.75   1.688        800\n"
            "BLEU|nrefs:1|tok:13a\n");
}

TEST(ScoreTable, HasASpBleuColumnOnlyWhereThereIsOne) {
  EvalRecord record;
  AddScore(record, "de-fr", 20, 25);
  EXPECT_EQ(ScoreTable(record),
            "direction    BLEU   chrF spBLEU     nll  sentences\n"
            "de-fr       20.00  40.00  25.00   2.000        200\n"
            "all (1)     20.00  40.00  25.00   2.000        200\n");
}

TEST(ScoreTable, HasPerplexitiesOfAModelThatDoesNotTranslate) {
  EvalRecord record;
  record.add_directions()->set_direction("de-en");
  record.mutable_directions(0)->set_sentences(200);
  record.mutable_directions(0)->set_nll(2);
  EXPECT_EQ(ScoreTable(record),
            "direction      nll perplexity  sentences\n"
            "de-en        2.000       7.39        200\n"
            "X->en (1)    2.000       7.39        200\n"
            "all (1)      2.000       7.39        200\n");
}

TEST(ScoreTable, AFigureThatDoesNotExistIsNoneAndInNoMean) {
  EvalRecord record;
  AddScore(record, "de-en", 20);
  AddScore(record, "fr-en", 30);
  record.mutable_directions(1)->clear_nll();
  EXPECT_EQ(ScoreTable(record),
            "direction    BLEU   chrF     nll  sentences\n"
            "de-en       20.00  40.00   2.000        200\n"
            "fr-en       30.00  60.00       -        200\n"
            "X->en (2)   25.00  50.00   2.000        400\n"
            "all (2)     25.00  50.00   2.000        400\n");
  const DirectionScore none = MeanScore(record, IsFromEnglish);
  EXPECT_FALSE(none.has_bleu() || none.has_chrf() || none.has_nll() || none.has_spbleu());
}

TEST(ScoreTable, DirectionsWithPairsThatAreTooLongAreNamedThoseWithoutNllFirst) {
  EvalRecord record;
  EXPECT_EQ(TooLongText(record), "");
  for (const char* name : {"a-b", "c-d", "e-f", "g-h", "i-j"}) {
    AddScore(record, name, 20);
    record.mutable_directions()->rbegin()->set_too_long(3);
  }
  record.mutable_directions(3)->clear_nll();
  EXPECT_EQ(TooLongText(record),
            "pairs that are too long for the model have no nll, and the beginning of their source "
            "is translated: g-h 3 of 200 (no nll), a-b 3 of 200, c-d 3 of 200, e-f 3 of 200 and 1 "
            "more directions");
}

}  // namespace
}  // namespace deepnet
