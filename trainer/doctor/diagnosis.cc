#include "trainer/doctor/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/statistics.h"
#include "parallel/base/units.h"

namespace deepnet {
namespace {

// Shares of the median at which a rank or link is an outlier: rates differ by load, sizes do not.
constexpr double kSlow = 0.7, kLess = 0.9, kSlowLink = 0.5;
constexpr double kLate = 3.0;            // times the median latency
constexpr double kLateAtLeast = 200e-6;  // seconds
constexpr double kClockSeconds = 1.0;    // that a clock may differ from rank 0's
constexpr double kSlowSync = 5.0;        // seconds
constexpr double kGiga = 1e9;

std::string NameOf(const DoctorRank& rank) {
  return absl::StrCat("rank ", rank.rank(), " (host ", rank.host(), ")");
}

std::string Flops(double flops) {
  if (flops >= 1e13) return absl::StrFormat("%.0f TFLOP/s", flops / 1e12);
  return absl::StrFormat("%.1f GFLOP/s", flops / kGiga);
}

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.2f GB/s", bytes_per_second / kGiga);
}

std::string Seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size < 1e-3) return absl::StrFormat("%.0f us", 1e6 * seconds);
  if (size < 1.0) return absl::StrFormat("%.1f ms", 1e3 * seconds);
  return absl::StrFormat("%.2f s", seconds);
}

class Diagnosis {
 public:
  Diagnosis(int64_t folder_bytes, DoctorReport& report)
      : folder_bytes_(folder_bytes), report_(report) {}

  void Run() {
    Same("program", "build", true,
         [](const DoctorRank& r) { return absl::StrCat(r.program(), " ", r.build()); });
    Same("MPI", "version", true, &DoctorRank::mpi);
    Same("CUDA", "version", true, &DoctorRank::cuda);
    Same("NCCL", "version", true, &DoctorRank::nccl);
    Same("device", "kind", false, &DoctorRank::device);
    Same("CPU", "instructions", false, &DoctorRank::instructions);
    Least("cores", kLess, &DoctorRank::cores, [](double n) { return absl::StrCat(n); });
    Least("memory", kLess, &DoctorRank::memory_bytes, ByteText);
    Least("GPU memory", kLess, &DoctorRank::device_memory_bytes, ByteText);
    Least("matrix products", kSlow, &DoctorRank::product_flops, Flops);
    Least("memory bandwidth", kSlow, &DoctorRank::memory_bytes_per_second, Rate);
    Hosts();
    for (const DoctorRank& rank : report_.ranks()) {
      if (!rank.run_difference().empty()) {
        Add(true, absl::StrCat(NameOf(rank), ": its run is not rank 0's: ", rank.run_difference()));
      }
      Clock(rank);
      Folder(rank);
    }
    for (const bool between : {false, true}) Links(between);
    for (const DoctorCheck& check : report_.checks()) Check(check);
  }

 private:
  void Add(bool failure, const std::string& text) {
    DoctorFinding& finding = *report_.add_findings();
    finding.set_failure(failure);
    finding.set_text(text);
  }

  // Names the ranks whose text is not that of most ranks, or of rank 0 where there is a draw.
  void Same(const char* what, const char* part, bool failure,
            const std::function<std::string(const DoctorRank&)>& text) {
    std::map<std::string, int> counts;
    for (const DoctorRank& rank : report_.ranks()) ++counts[text(rank)];
    if (counts.size() < 2) return;
    std::string most = text(report_.ranks(0));
    for (const auto& [value, count] : counts) {
      if (count > counts[most]) most = value;
    }
    for (const DoctorRank& rank : report_.ranks()) {
      const std::string own = text(rank);
      if (own == most) continue;
      Add(failure,
          absl::StrCat(NameOf(rank), ": ", what, " ", part, " ", own.empty() ? "none" : own,
                       ", that of most is ", most.empty() ? "none" : most));
    }
  }

  // Names the ranks that have less than `share` of the median of those with their device.
  void Least(const char* what, double share, const std::function<double(const DoctorRank&)>& value,
             const std::function<std::string(double)>& text) {
    std::map<std::string, std::vector<double>> of_device;
    for (const DoctorRank& rank : report_.ranks()) of_device[rank.device()].push_back(value(rank));
    for (const DoctorRank& rank : report_.ranks()) {
      const double median = Median(of_device[rank.device()]);
      if (value(rank) >= share * median) continue;
      Add(false, absl::StrCat(NameOf(rank), ": ", what, " ", text(value(rank)), ", the median of ",
                              rank.device(), " ranks is ", text(median)));
    }
  }

  // Names the hosts whose ranks are not consecutive: plans take the ranks of a host to be.
  void Hosts() {
    std::map<std::string, std::vector<int>> of_host;
    for (const DoctorRank& rank : report_.ranks()) of_host[rank.host()].push_back(rank.rank());
    for (const auto& [host, ranks] : of_host) {
      if (ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size())) continue;
      Add(false, absl::StrCat("host ", host, ": its ranks ", absl::StrJoin(ranks, ", "),
                              " are not consecutive, so that more messages go between hosts than "
                              "the plan counts"));
    }
  }

  void Clock(const DoctorRank& rank) {
    const double offset = rank.clock_offset_seconds();
    if (std::abs(offset) <= kClockSeconds) return;
    Add(false, absl::StrCat(NameOf(rank), ": clock ", Seconds(std::abs(offset)),
                            offset > 0 ? " ahead of" : " behind", " that of rank 0"));
  }

  void Folder(const DoctorRank& rank) {
    for (const std::string& failure : rank.folder_failures()) {
      // Runs do without flock, which some shared file systems lack.
      Add(!absl::StartsWith(failure, "flock: "),
          absl::StrCat(NameOf(rank), ": folder ", rank.folder(), ": ", failure));
    }
    if (!rank.folder().empty() && rank.free_bytes() < folder_bytes_) {
      Add(true,
          absl::StrCat(NameOf(rank), ": folder ", rank.folder(), ": ", ByteText(rank.free_bytes()),
                       " free, two checkpoints need ", ByteText(folder_bytes_)));
    }
    if (rank.sync_seconds() <= kSlowSync) return;
    Add(false, absl::StrCat(NameOf(rank), ": folder ", rank.folder(), ": a small file was durable ",
                            "after ", Seconds(rank.sync_seconds())));
  }

  void Links(bool between_hosts) {
    std::vector<double> rates, latencies;
    for (const DoctorLink& link : report_.links()) {
      if (link.between_hosts() != between_hosts) continue;
      rates.push_back(link.bytes_per_second());
      latencies.push_back(link.latency_seconds());
    }
    const double rate = Median(std::move(rates)), latency = LowerMedian(std::move(latencies));
    const std::string median = absl::StrCat(
        ", the median of links ", between_hosts ? "between hosts" : "inside of hosts", " is ");
    for (const DoctorLink& link : report_.links()) {
      if (link.between_hosts() != between_hosts) continue;
      const std::string name = absl::StrCat("link from ", NameOf(report_.ranks(link.from())),
                                            " to ", NameOf(report_.ranks(link.to())), ": ");
      if (link.bytes_per_second() < kSlowLink * rate) {
        Add(false, absl::StrCat(name, Rate(link.bytes_per_second()), median, Rate(rate)));
      }
      if (link.latency_seconds() > std::max(kLate * latency, latency + kLateAtLeast)) {
        Add(false, absl::StrCat(name, "latency ", Seconds(link.latency_seconds()), median,
                                Seconds(latency)));
      }
    }
  }

  void Check(const DoctorCheck& check) {
    const std::string head =
        absl::StrCat(NameOf(report_.ranks(check.rank())), ": ", check.name(), ": ");
    if (!check.failure().empty()) {
      Add(true, head + check.failure());
    } else if (!(check.error() <= check.limit())) {
      Add(true, absl::StrFormat("%serror %.2g, at most %.2g is right", head, check.error(),
                                check.limit()));
    }
  }

  const int64_t folder_bytes_;
  DoctorReport& report_;
};

using Rows = std::vector<std::vector<std::string>>;

// Returns lines whose columns are as wide as their widest word.
std::string TableText(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    line.resize(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string RankTable(const DoctorReport& report) {
  Rows table = {{"rank", "host", "cores", "memory", "device", "products", "copies (read + written)",
                 "clock", "free", "fsync"}};
  for (const DoctorRank& r : report.ranks()) {
    const bool gpu = r.device_memory_bytes() > 0;
    const std::string device =
        gpu ? absl::StrCat(r.device(), ", ", ByteText(r.device_memory_bytes()))
            : absl::StrCat(r.device(), " ", r.instructions());
    const bool all_cores = r.cores() >= r.host_cores();
    const std::string cores =
        all_cores ? absl::StrCat(r.cores()) : absl::StrCat(r.cores(), " of ", r.host_cores());
    table.push_back({absl::StrCat(r.rank()), r.host(), cores, ByteText(r.memory_bytes()), device,
                     Flops(r.product_flops()), Rate(r.memory_bytes_per_second()),
                     Seconds(r.clock_offset_seconds()), ByteText(r.free_bytes()),
                     Seconds(r.sync_seconds())});
  }
  return TableText(table);
}

std::string Versions(const DoctorRank& first) {
  std::string text = absl::StrCat("deepnet ", first.program(), ", build ", first.build());
  if (!first.mpi().empty()) absl::StrAppend(&text, "; ", first.mpi());
  if (!first.cuda().empty()) absl::StrAppend(&text, "; CUDA ", first.cuda());
  if (!first.nccl().empty()) absl::StrAppend(&text, "; NCCL ", first.nccl());
  return absl::StrCat(text, " (of rank 0)\nfolder ", first.folder(), "\n");
}

std::string LinkTable(const DoctorReport& report) {
  if (report.links().empty()) return "";
  Rows table = {{"link", "", "latency", "rate"}};
  for (const DoctorLink& link : report.links()) {
    table.push_back({absl::StrCat(link.from(), " -> ", link.to()),
                     link.between_hosts() ? "between hosts" : "inside a host",
                     Seconds(link.latency_seconds()), Rate(link.bytes_per_second())});
  }
  return "\n" + TableText(table);
}

std::string CheckTable(const DoctorReport& report) {
  if (report.checks().empty()) return "";
  Rows table = {{"check", "error", "limit", "rank"}};
  for (const DoctorCheck& check : report.checks()) {
    table.push_back({check.name(),
                     check.failure().empty() ? absl::StrFormat("%.2g", check.error()) : "-",
                     absl::StrFormat("%.2g", check.limit()), absl::StrCat(check.rank())});
  }
  return "\n" + TableText(table);
}

}  // namespace

void MergeChecks(DoctorReport& report) {
  std::map<std::string, int> places;
  for (DoctorRank& rank : *report.mutable_ranks()) {
    for (DoctorCheck& check : *rank.mutable_checks()) {
      check.set_rank(rank.rank());
      const auto [place, is_new] = places.emplace(check.name(), report.checks_size());
      if (is_new) {
        *report.add_checks() = check;
        continue;
      }
      DoctorCheck& kept = *report.mutable_checks(place->second);
      if (!kept.failure().empty()) continue;
      const bool worse = std::isnan(check.error()) || check.error() > kept.error();
      if (!check.failure().empty() || worse) kept = check;
    }
    rank.clear_checks();
  }
}

void Diagnose(int64_t folder_bytes, DoctorReport& report) { Diagnosis(folder_bytes, report).Run(); }

std::string DoctorTable(const DoctorReport& report) {
  std::string text;
  if (!report.ranks().empty()) {
    text = absl::StrCat(RankTable(report), Versions(report.ranks(0)), LinkTable(report),
                        CheckTable(report));
  }
  if (!report.layout().empty()) absl::StrAppend(&text, "layout: ", report.layout(), "\n");
  absl::StrAppend(&text, "\n");
  for (const DoctorFinding& finding : report.findings()) {
    absl::StrAppend(&text, finding.failure() ? "FAILED   " : "OUTLIER  ", finding.text(), "\n");
  }
  if (report.findings().empty()) absl::StrAppend(&text, "all is well\n");
  return absl::StrCat(text, absl::StrFormat("%.1f s\n", report.seconds()));
}

}  // namespace deepnet
