#include "trainer/doctor/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/units.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kGiB = static_cast<int64_t>(kGib);

// Four healthy ranks on two hosts, a link each way between neighbours.
DoctorReport Healthy() {
  DoctorReport report;
  for (int r = 0; r < 4; ++r) {
    DoctorRank& rank = *report.add_ranks();
    rank.set_rank(r);
    rank.set_host(r < 2 ? "a" : "b");
    rank.set_cores(8);
    rank.set_memory_bytes(64 * kGiB);
    rank.set_device("cpu");
    rank.set_instructions("AVX512");
    rank.set_program("0.1.0");
    rank.set_build("12345678");
    rank.set_mpi("Open MPI v4.1.4");
    rank.set_product_flops((100 + r) * 1e9);
    rank.set_memory_bytes_per_second((20 - r) * 1e9);
    rank.set_clock_offset_seconds(r * 1e-3);
    rank.set_folder("/runs");
    rank.set_free_bytes(100 * kGiB);
    rank.set_sync_seconds(1e-3);
  }
  for (int r = 0; r + 1 < 4; ++r) {
    for (const bool back : {false, true}) {
      DoctorLink& link = *report.add_links();
      link.set_from(back ? r + 1 : r);
      link.set_to(back ? r : r + 1);
      link.set_between_hosts(r == 1);
      link.set_latency_seconds(r == 1 ? 60e-6 : 20e-6);
      link.set_bytes_per_second(r == 1 ? 1e9 : 5e9);
    }
  }
  DoctorCheck& check = *report.add_checks();
  check.set_name("Linear, float32");
  check.set_error(3e-7);
  check.set_limit(1e-5);
  return report;
}

std::vector<std::string> Findings(DoctorReport report, int64_t folder_bytes = 0) {
  Diagnose(folder_bytes, report);
  std::vector<std::string> texts;
  for (const DoctorFinding& finding : report.findings()) {
    texts.push_back((finding.failure() ? "FAILED " : "OUTLIER ") + finding.text());
  }
  return texts;
}

TEST(Diagnosis, OfHealthyRanksNamesNothing) {
  EXPECT_THAT(Findings(Healthy(), kGiB), IsEmpty());
  DoctorReport report = Healthy();
  Diagnose({}, report);
  EXPECT_THAT(DoctorTable(report), HasSubstr("\nall is well\n"));
  EXPECT_THAT(DoctorTable(report), HasSubstr("103.0 GFLOP/s"));
  EXPECT_THAT(DoctorTable(report), HasSubstr("2 -> 1  between hosts"));
}

TEST(Diagnosis, TheTableTellsCoresOfTheHostThatARankMayNotUse) {
  DoctorReport report = Healthy();
  report.mutable_ranks(0)->set_host_cores(64);
  report.mutable_ranks(1)->set_host_cores(8);
  const std::string table = DoctorTable(report);
  EXPECT_THAT(table, HasSubstr("\n0     a     8 of 64  64.0 GiB"));
  EXPECT_THAT(table, HasSubstr("\n1     a     8        64.0 GiB"));
}

TEST(Diagnosis, NamesTheHostWhoseRanksAreNotConsecutive) {
  DoctorReport report = Healthy();
  report.mutable_ranks(1)->set_host("b");
  report.mutable_ranks(2)->set_host("a");
  report.mutable_ranks(3)->set_host("c");
  EXPECT_THAT(
      Findings(report),
      ElementsAre("OUTLIER host a: its ranks 0, 2 are not consecutive, so that more messages "
                  "go between hosts than the plan counts"));
}

TEST(Diagnosis, NamesTheRankThatHasLess) {
  DoctorReport report = Healthy();
  report.mutable_ranks(2)->set_memory_bytes(16 * kGiB);
  report.mutable_ranks(3)->set_cores(1);
  EXPECT_THAT(
      Findings(report),
      ElementsAre("OUTLIER rank 3 (host b): cores 1, the median of cpu ranks is 8",
                  "OUTLIER rank 2 (host b): memory 16.0 GiB, the median of cpu ranks is 64.0 GiB"));
}

TEST(Diagnosis, NamesTheSlowRankAlsoOfTwo) {
  DoctorReport report = Healthy();
  report.mutable_ranks(1)->set_product_flops(50e9);
  report.mutable_ranks(1)->set_memory_bytes_per_second(9e9);
  const auto expected = ElementsAre(
      HasSubstr("OUTLIER rank 1 (host a): matrix products 50.0 GFLOP/s, the median of cpu ranks"),
      HasSubstr("OUTLIER rank 1 (host a): memory bandwidth 9.00 GB/s, the median of cpu ranks"));
  EXPECT_THAT(Findings(report), expected);
  report.mutable_ranks()->DeleteSubrange(2, 2);
  report.clear_links();
  EXPECT_THAT(Findings(report), expected);
}

// A cluster may have GPUs of two kinds; each is compared with its own.
TEST(Diagnosis, ComparesRatesAmongRanksOfOneDevice) {
  DoctorReport report = Healthy();
  for (const int r : {2, 3}) {
    report.mutable_ranks(r)->set_device("NVIDIA H100");
    report.mutable_ranks(r)->set_product_flops(6e14);
  }
  EXPECT_THAT(Findings(report),
              ElementsAre("OUTLIER rank 2 (host b): device kind NVIDIA H100, that of most is cpu",
                          "OUTLIER rank 3 (host b): device kind NVIDIA H100, that of most is cpu"));
}

TEST(Diagnosis, NamesAnotherProgramAndAnotherLibrary) {
  DoctorReport report = Healthy();
  report.mutable_ranks(0)->set_build("00000000");
  report.mutable_ranks(3)->set_mpi("");
  EXPECT_THAT(Findings(report),
              ElementsAre("FAILED rank 0 (host a): program build 0.1.0 00000000, that of most is "
                          "0.1.0 12345678",
                          "FAILED rank 3 (host b): MPI version none, that of most is Open MPI "
                          "v4.1.4"));
}

TEST(Diagnosis, NamesAClockThatIsOff) {
  DoctorReport report = Healthy();
  report.mutable_ranks(1)->set_clock_offset_seconds(90);
  report.mutable_ranks(2)->set_clock_offset_seconds(-2.5);
  EXPECT_THAT(Findings(report),
              ElementsAre("OUTLIER rank 1 (host a): clock 90.00 s ahead of that of rank 0",
                          "OUTLIER rank 2 (host b): clock 2.50 s behind that of rank 0"));
}

TEST(Diagnosis, NamesWhatAFolderCannotDo) {
  DoctorReport report = Healthy();
  report.mutable_ranks(1)->add_folder_failures("rename: not supported");
  report.mutable_ranks(2)->set_free_bytes(kGiB);
  report.mutable_ranks(3)->set_sync_seconds(12);
  EXPECT_THAT(
      Findings(report, 2 * kGiB),
      ElementsAre(
          "FAILED rank 1 (host a): folder /runs: rename: not supported",
          "FAILED rank 2 (host b): folder /runs: 1.0 GiB free, two checkpoints need 2.0 GiB",
          "OUTLIER rank 3 (host b): folder /runs: a small file was durable after 12.00 s"));
}

// Links between hosts are slower than those inside, and are compared with each other only.
TEST(Diagnosis, NamesTheSlowLink) {
  DoctorReport report = Healthy();
  report.mutable_links(5)->set_bytes_per_second(1e9);
  report.mutable_links(0)->set_latency_seconds(5e-3);
  EXPECT_THAT(Findings(report),
              ElementsAre("OUTLIER link from rank 0 (host a) to rank 1 (host a): latency 5.0 ms, "
                          "the median of links inside of hosts is 20 us",
                          "OUTLIER link from rank 3 (host b) to rank 2 (host b): 1.00 GB/s, the "
                          "median of links inside of hosts is 5.00 GB/s"));
}

TEST(Diagnosis, OfTwoLinksNamesTheLateOne) {
  DoctorReport report = Healthy();
  report.mutable_ranks()->DeleteSubrange(2, 2);
  report.mutable_links()->DeleteSubrange(2, 4);
  report.mutable_links(1)->set_latency_seconds(5e-3);
  EXPECT_THAT(Findings(report), ElementsAre(HasSubstr("rank 1 (host a) to rank 0 (host a): latency "
                                                      "5.0 ms, the median of links inside")));
}

// One rank is wrong, whichever it is; the others are right.
TEST(MergeChecks, KeepsTheWorstOfAllRanks) {
  DoctorCheck wrong, not_a_number, failed;
  wrong.set_error(2e-3);
  not_a_number.set_error(std::numeric_limits<double>::quiet_NaN());
  failed.set_failure("an illegal memory access was encountered");
  for (DoctorCheck bad : {wrong, not_a_number, failed}) {
    for (const int of : {0, 2, 3}) {
      DoctorReport report = Healthy();
      const DoctorCheck good = report.checks(0);
      report.clear_checks();
      for (DoctorRank& rank : *report.mutable_ranks()) {
        *rank.add_checks() = good;
        if (rank.rank() == of) *rank.mutable_checks(0) = bad;
        rank.mutable_checks(0)->set_name(good.name());
        *rank.add_checks() = good;
        rank.mutable_checks(1)->set_name("another");
      }
      MergeChecks(report);
      ASSERT_EQ(report.checks_size(), 2);
      EXPECT_EQ(report.ranks(of).checks_size(), 0);
      EXPECT_THAT(Findings(report),
                  ElementsAre(AllOf(HasSubstr("FAILED rank " + std::to_string(of)),
                                    HasSubstr(good.name()))));
    }
  }
}

TEST(Diagnosis, NamesTheCheckThatFails) {
  DoctorReport report = Healthy();
  report.mutable_checks(0)->set_error(2e-3);
  report.mutable_checks(0)->set_rank(2);
  DoctorCheck& thrown = *report.add_checks();
  thrown.set_name("Gelu and backward, bfloat16");
  thrown.set_failure("an illegal memory access was encountered");
  DoctorCheck& nothing = *report.add_checks();
  nothing.set_name("Adam, float32");
  nothing.set_error(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Findings(report),
              ElementsAre("FAILED rank 2 (host b): Linear, float32: error 0.002, at most 1e-05 is "
                          "right",
                          "FAILED rank 0 (host a): Gelu and backward, bfloat16: an illegal memory "
                          "access was encountered",
                          "FAILED rank 0 (host a): Adam, float32: error nan, at most 0 is right"));
  Diagnose({}, report);
  EXPECT_TRUE(std::ranges::any_of(report.findings(), &DoctorFinding::failure));
}

}  // namespace
}  // namespace deepnet
