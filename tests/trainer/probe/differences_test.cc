#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/probe/sample_results.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/report.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SampleResult;

// The row `what`; an empty one if there is none.
Difference Row(const LabResult& result, const std::string& what) {
  for (const Difference& row : Differences(ExperimentOf(result), result)) {
    if (row.what == what) return row;
  }
  return {};
}

std::string Notes(const LabResult& result) { return absl::StrJoin(MethodNotes(result), "\n"); }

// As defaults fill it in.
LabResult Trained(const std::string& experiment) {
  LabResult result = SampleResult(experiment, 1);
  for (LabCell& cell : *result.mutable_cells()) {
    OptimSpec& optim = *cell.mutable_run()->mutable_optim();
    optim.set_beta1(0.9);
    optim.set_beta2(0.98);
    optim.set_epsilon(1e-8);
    optim.set_label_smoothing(0.1);
  }
  return result;
}

TEST(Differences, RowsThatSayTheSameAreLeftOut) {
  LabResult result = Trained("fig6");
  for (LabCell& cell : *result.mutable_cells())
    cell.mutable_run()->mutable_train()->set_steps(8000);
  for (const Difference& row : Differences(ExperimentOf(result), result)) {
    EXPECT_NE(row.what, "steps");
    EXPECT_NE(row.what, "Adam's beta1, beta2; epsilon");
    EXPECT_NE(row.what, "label smoothing");
    EXPECT_NE(row.paper, row.here);
  }
}

TEST(Differences, WhatIsMeasuredIsWhatThePanelsShow) {
  EXPECT_EQ(Row(Trained("fig6"), "what is measured").here,
            "loss on the test set, loss while training; 200 test sentences a direction");
  EXPECT_THAT(Row(Trained("table3"), "what is measured").here,
              AllOf(HasSubstr("spBLEU on the test set"), Not(HasSubstr("loss"))));
  EXPECT_THAT(Row(Trained("fig5"), "what is measured").here, HasSubstr("model update"));
}

TEST(Differences, PrecisionIsThatOfTheRuns) {
  LabResult result = Trained("fig6");
  EXPECT_EQ(Row(result, "precision").here, "float32, or bfloat16 where that is faster");
  for (LabCell& cell : *result.mutable_cells())
    cell.mutable_run()->mutable_compute()->set_dtype(BFLOAT16);
  EXPECT_EQ(Row(result, "precision").here, "bfloat16 products, float32 sums");
  result.mutable_cells(0)->mutable_run()->mutable_compute()->set_dtype(FLOAT32);
  EXPECT_EQ(Row(result, "precision").here, "float32; bfloat16 products, float32 sums");
}

TEST(Differences, AdamsConstantsAreCompared) {
  LabResult result = Trained("fig6");
  for (LabCell& cell : *result.mutable_cells()) {
    cell.mutable_run()->mutable_optim()->set_beta2(0.999);
    cell.mutable_run()->mutable_optim()->set_label_smoothing(0);
  }
  EXPECT_EQ(Row(result, "Adam's beta1, beta2; epsilon").here, "0.9, 0.999; 1e-8");
  EXPECT_EQ(Row(result, "label smoothing").here, "0");
}

TEST(Differences, EveryOtherFieldThatWasSetIsThere) {
  LabResult result = Trained("fig6");
  for (LabCell& cell : *result.mutable_cells()) {
    cell.add_sets("model.norm=BATCH_NORM");
    cell.add_sets("model.norm=RMS_NORM");  // the last one counts
    cell.add_sets("optim.rate=1e-3");      // has a row of its own
  }
  result.mutable_cells(0)->add_sets("data.directions=");
  EXPECT_EQ(Row(result, "set: model.norm").here, "RMS_NORM");
  EXPECT_EQ(Row(result, "set: data.directions").here, "all in 1 runs");
  for (const char* field : {"optim.rate", "seed", "model.residual", "model.encoder_layers"}) {
    EXPECT_EQ(Row(result, std::string("set: ") + field).here, "") << field;
  }
}

TEST(Differences, WithoutPublishedSettingsEveryFieldThatWasSetIsThere) {
  LabResult result = Trained("tuning");
  for (LabCell& cell : *result.mutable_cells()) cell.add_sets("optim.rate=1e-3");
  EXPECT_EQ(Row(result, "set: optim.rate").here, "1e-3");
  EXPECT_EQ(Row(result, "corpus").here, "");
  EXPECT_THAT(MakeReport({&result, 1}), AllOf(HasSubstr("What was set on top of the recipe"),
                                              Not(HasSubstr("What differs from the paper"))));
}

// Every cell as if its method were `residual`.
LabResult WithResidual(Residual residual) {
  LabResult result = Trained("fig6");
  for (LabCell& cell : *result.mutable_cells())
    cell.mutable_run()->mutable_model()->set_residual(residual);
  return result;
}

TEST(MethodNotes, AdminSaysWhetherItHadItsProfile) {
  LabResult result = WithResidual(ADMIN);
  EXPECT_THAT(Notes(result), HasSubstr("Admin: omega starts from one number a stack"));
  for (LabCell& cell : *result.mutable_cells()) {
    cell.mutable_run()->mutable_model()->mutable_scheme()->add_admin_omega(1.0);
  }
  EXPECT_THAT(Notes(result), AllOf(HasSubstr("Admin: omega starts from a measured profile"),
                                   Not(HasSubstr("one number a stack"))));
}

TEST(MethodNotes, DsInitSaysItsExponent) {
  LabResult result = WithResidual(DS_INIT);
  EXPECT_THAT(Notes(result),
              HasSubstr("DS-Init: layer l starts l^(-1/2) times smaller, as in its"));
  for (LabCell& cell : *result.mutable_cells()) {
    cell.mutable_run()->mutable_model()->mutable_scheme()->set_ds_exponent(0.25);
  }
  EXPECT_THAT(Notes(result), HasSubstr("DS-Init: layer l starts l^-0.25 times smaller; its paper"));
}

TEST(MethodNotes, TFixupSaysItsSchedule) {
  LabResult result = WithResidual(T_FIXUP);
  EXPECT_THAT(Notes(result), HasSubstr("T-Fixup: trained with the schedule of the other methods"));
  for (LabCell& cell : *result.mutable_cells())
    cell.mutable_run()->mutable_optim()->set_schedule(SHIFTED_INVERSE_SQRT);
  EXPECT_THAT(Notes(result), HasSubstr("T-Fixup: trained without warm-up, as its authors do"));
}

TEST(MethodNotes, StandOnThePageOfAnExperimentWithTheMethodOnly) {
  LabResult result = WithResidual(REZERO);
  EXPECT_THAT(MakeReport({&result, 1}), HasSubstr("<li>ReZero: published in float32"));
  result = WithResidual(POST_LN);
  EXPECT_THAT(MethodNotes(result), IsEmpty());
  EXPECT_THAT(MakeReport({&result, 1}), Not(HasSubstr("Which form of each method")));
}

}  // namespace
}  // namespace deepnet
