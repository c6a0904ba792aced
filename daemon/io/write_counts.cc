#include "daemon/io/write_counts.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "daemon/io/whole_file.h"

namespace memtide {
namespace {

constexpr char kName[] = ".memtide-writes";
constexpr char kCountsMagic[] = "memtide-writes 1";
// 100,000 users that wrote in each ten minutes of a day have less.
constexpr Bytes kMost = GiB(1);

// A line of the file; false: it is none.
bool Parse(absl::string_view line, WriteCounts* counts) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  uint64_t bytes;
  if (!absl::SimpleAtoi(words.back(), &bytes)) return false;
  if (words.size() == 2 && words[0] == "written") {
    counts->written = Bytes(bytes);
    return true;
  }
  WriteCounts::Past past;
  past.bytes = Bytes(bytes);
  if (words.size() != 4 || words[0] != "past" || !absl::SimpleAtoi(words[1], &past.unix_seconds) ||
      !absl::SimpleAtoi(words[2], &past.uid)) {
    return false;
  }
  counts->last_day.push_back(past);
  return true;
}

}  // namespace

absl::StatusOr<WriteCounts> LoadWriteCounts(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kName);
  MEMTIDE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMost));
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  WriteCounts counts;
  // The last line ends, too: after it comes an empty one.
  bool good = lines.size() >= 3 && lines[0] == kCountsMagic && lines.back().empty();
  size_t number = 1;
  for (; good && number + 1 < lines.size(); ++number) {
    good = absl::StartsWith(lines[number], number == 1 ? "written " : "past ") &&
           Parse(lines[number], &counts);
  }
  // The sums of what is there must not overflow.
  Bytes sum;
  for (const WriteCounts::Past& past : counts.last_day) {
    const absl::optional<Bytes> more = CheckedAdd(sum, past.bytes);
    good = good && more.has_value() && *more <= counts.written;
    sum = more.value_or(sum);
  }
  if (good) return counts;
  return absl::DataLossError(
      absl::StrCat(path, " is no file of counts, or damaged, at line ", number));
}

absl::Status SaveWriteCounts(const std::string& directory, const WriteCounts& counts) {
  std::string text = absl::StrCat(kCountsMagic, "\nwritten ", counts.written.count(), "\n");
  for (const WriteCounts::Past& past : counts.last_day) {
    absl::StrAppend(&text, "past ", past.unix_seconds, " ", past.uid, " ", past.bytes.count(),
                    "\n");
  }
  return ReplaceFile(directory, kName, text);
}

}  // namespace memtide
