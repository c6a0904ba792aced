#include "daemon/io/snapshot_set.h"

#include <algorithm>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "daemon/io/whole_file.h"

namespace memtide {
namespace {

constexpr char kSetName[] = ".memtide-set";
constexpr absl::string_view kSetMagic = "memtide-set 1\n";
constexpr Bytes kMostOfSet = MiB(1);

// A directory as one of a set: what its file of that name says.
struct SetMember {
  std::string set;
  size_t number = 0;               // From zero, in `paths`.
  std::vector<std::string> paths;  // All of the set, in its order, as they were when it was made.
};

struct Looked {
  absl::optional<SetMember> member;
  bool has_jobs = false;  // It holds files of durable jobs.
};

absl::optional<SetMember> DecodeMember(absl::string_view text) {
  SetMember member;
  if (!absl::ConsumePrefix(&text, kSetMagic)) return absl::nullopt;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  // The last line ends, too.
  if (lines.size() < 4 || !lines.back().empty()) return absl::nullopt;
  if (!absl::SimpleAtoi(lines[1], &member.number)) return absl::nullopt;
  member.set = lines[0];
  member.paths.assign(lines.begin() + 2, lines.end() - 1);
  if (member.number == 0 || member.number > member.paths.size()) return absl::nullopt;
  --member.number;
  return member;
}

std::string EncodeMember(const SetMember& member) {
  return absl::StrCat(kSetMagic, member.set, "\n", member.number + 1, "\n",
                      absl::StrJoin(member.paths, "\n"), "\n");
}

absl::StatusOr<Looked> LookAt(const std::string& directory) {
  Looked looked;
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  for (const std::string& name : names) {
    // A file that a crash has left of a snapshot that was not saved is of no job.
    const bool is_snapshot =
        absl::StartsWith(name, kSnapshotPrefix) && !absl::EndsWith(name, kNextSuffix);
    if (is_snapshot || absl::StartsWith(name, kStorePrefix)) looked.has_jobs = true;
  }
  const absl::StatusOr<std::string> text =
      ReadWholeFile(absl::StrCat(directory, "/", kSetName), kMostOfSet);
  if (absl::IsNotFound(text.status())) return looked;
  MEMTIDE_RETURN_IF_ERROR(text.status());
  looked.member = DecodeMember(*text);
  return looked;
}

absl::StatusOr<std::vector<Looked>> LookAt(const std::vector<std::string>& directories) {
  std::vector<Looked> all;
  for (const std::string& directory : directories) {
    MEMTIDE_ASSIGN_OR_RETURN(Looked looked, LookAt(directory));
    all.push_back(std::move(looked));
  }
  return all;
}

bool IsMember(const Looked& looked, const SetMember& of, size_t number) {
  return looked.member && looked.member->set == of.set && looked.member->number == number &&
         looked.member->paths.size() == of.paths.size();
}

// Whether these are all directories of one set, in its order.
bool AreSet(const std::vector<Looked>& all) {
  if (!all.front().member || all.front().member->paths.size() != all.size()) return false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!IsMember(all[i], *all.front().member, i)) return false;
  }
  return true;
}

bool AnyHasJobs(const std::vector<Looked>& all) {
  return std::any_of(all.begin(), all.end(), [](const Looked& each) { return each.has_jobs; });
}

// The flags with which the directories are those of the set, in its order.
std::string FlagsOf(const SetMember& of, const std::vector<std::string>& directories,
                    const std::vector<Looked>& all) {
  std::string flags;
  for (size_t number = 0; number < of.paths.size(); ++number) {
    std::string path = of.paths[number];
    for (size_t i = 0; i < all.size(); ++i) {
      if (IsMember(all[i], of, number)) path = directories[i];
    }
    absl::StrAppend(&flags, " --ssd-dir=", path);
  }
  return flags;
}

absl::Status OtherSet(const std::vector<std::string>& directories, const std::vector<Looked>& all) {
  std::string text = "durable jobs were saved over other SSD directories, or in another order";
  std::string jobs;
  const SetMember* of = nullptr;
  for (size_t i = 0; i < all.size(); ++i) {
    const absl::optional<SetMember>& member = all[i].member;
    absl::StrAppend(&text, i == 0 ? ": " : ", ", directories[i]);
    if (member) {
      absl::StrAppend(&text, " is number ", member->number + 1, " of ", member->paths.size(),
                      " of set ", member->set);
      if (of == nullptr || (all[i].has_jobs && jobs.empty())) of = &*member;
    } else {
      absl::StrAppend(&text, " is of no set");
    }
    if (!all[i].has_jobs) continue;
    absl::StrAppend(&jobs, " ", directories[i], "/", kSnapshotPrefix, "* ", directories[i], "/",
                    kStorePrefix, "*");
  }
  // Each start tries again where all that is missing may be a drive that is mounted late.
  bool is_late = of != nullptr && of->paths.size() == all.size();
  for (size_t i = 0; is_late && i < all.size(); ++i) {
    is_late = IsMember(all[i], *of, i) || (!all[i].member && !all[i].has_jobs);
  }
  absl::StrAppend(&text, ". Nothing is changed. ");
  if (is_late) {
    absl::StrAppend(&text, "Is a drive not mounted yet? ");
  } else if (of != nullptr) {
    absl::StrAppend(&text, "Start with", FlagsOf(*of, directories, all), ". ");
  } else {
    absl::StrAppend(&text, "Put ", kSetName, " back. ");
  }
  absl::StrAppend(&text, "To give these jobs up for ever: rm -f", jobs);
  return is_late ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
}

}  // namespace

absl::Status CheckSet(const std::vector<std::string>& directories) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<Looked> all, LookAt(directories));
  if (!AnyHasJobs(all) || AreSet(all)) return absl::OkStatus();
  return OtherSet(directories, all);
}

absl::Status MakeSet(const std::vector<std::string>& directories) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<Looked> all, LookAt(directories));
  if (AreSet(all)) return absl::OkStatus();
  if (AnyHasJobs(all)) return OtherSet(directories, all);
  SetMember member;
  std::random_device random;
  member.set = absl::StrFormat("%08x%08x", random(), random());
  for (const std::string& path : directories) member.paths.push_back(absl::CEscape(path));
  for (const std::string& path : directories) {
    MEMTIDE_RETURN_IF_ERROR(ReplaceFile(path, kSetName, EncodeMember(member)));
    ++member.number;
  }
  return absl::OkStatus();
}

}  // namespace memtide
