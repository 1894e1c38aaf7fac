#include "engine/verify_contents.h"

#include <fcntl.h>

#include <algorithm>
#include <string_view>

#include "base/os/syscalls.h"
#include "format/contents.h"

namespace neve::engine {
namespace {

constexpr uint64_t kSniffedBytes = 9;  // the length of a header, and its brace

Problem ProblemOf(const std::string& path, const absl::Status& status, std::string_view code) {
  Problem problem;
  problem.code = code;
  problem.place = problem.file = path;
  problem.message = std::string(status.message());
  return problem;
}

}  // namespace

bool IsForeignContents(const std::string& path) {
  const absl::StatusOr<os::File> file = os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file.ok()) return false;
  const absl::StatusOr<struct ::stat> facts = os::StatOpen(*file);
  if (!facts.ok()) return false;
  if (!S_ISREG(facts->st_mode)) return S_ISDIR(facts->st_mode);
  std::string head(kSniffedBytes, '\0');
  if (static_cast<uint64_t>(facts->st_size) < kSniffedBytes) return false;
  return os::ReadAt(*file, 0, std::as_writable_bytes(std::span(head))).ok() && head.back() != '{';
}

absl::StatusOr<VerifyReport> VerifyContents(const std::string& path, const Progress& progress) {
  VerifyReport report;
  absl::StatusOr<std::unique_ptr<format::Contents>> contents = format::OpenContents(path);
  if (!contents.ok()) {
    const absl::Status& status = contents.status();
    const bool lost = absl::IsDataLoss(status);
    if (!lost && !IsDamaged(status)) return status;
    report.ok = false;
    report.structural = !lost;
    report.problems.push_back(ProblemOf(path, status, lost ? "digest" : "header"));
    return report;
  }
  report.notes.assign((*contents)->notes().begin(), (*contents)->notes().end());
  const uint64_t total = (*contents)->image_bytes();
  std::vector<format::ContentsProblem> problems;
  const absl::Status status = (*contents)->Check(
      [&](uint64_t done) {
        report.checked_bytes = done;
        if (progress) progress(done, std::max(done, total));
      },
      &problems);
  report.worst = status;
  if (!status.ok()) {
    report.ok = false;
    report.problems.push_back(ProblemOf(path, status, "io"));
  }
  for (format::ContentsProblem& problem : problems) {
    report.ok = false;
    report.structural = report.structural || problem.structural;
    Problem found;
    found.code = problem.structural ? "truncated" : "digest";
    found.place = path;
    found.file = (*contents)->files()[problem.file];
    found.tensor = std::move(problem.tensor);
    found.offset = static_cast<int64_t>(problem.offset);
    found.message = std::move(problem.message);
    report.problems.push_back(std::move(found));
  }
  return report;
}

}  // namespace neve::engine
