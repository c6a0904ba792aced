#include "daemon/recovery/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/content_sums.h"
#include "base/status_macros.h"
#include "daemon/recovery/journal_entry.h"
#include "journal.pb.h"

namespace memtide {
namespace {

constexpr char kJournalMagic[8] = {'m', 'e', 'm', 't', 'i', 'd', 'e', 'J'};
constexpr uint64_t kJournalVersion = 4;
// Version 1 has no stripes: its stores are striped evenly. Neither has version 2 jobs of ranks. Up
// to version 3 no entry has a sum, and the word has no check. All else is the same.
constexpr uint64_t kOldestVersion = 1, kFirstVersionWithSums = 4;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kSecondHalf = uint64_t{1} << 31;
constexpr uint64_t kOldSecondHalf = uint64_t{1} << 63;  // In versions without sums.
static_assert(Journal::kMostBytes.count() < kSecondHalf);
// Chunks per entry where the content is written anew.
constexpr size_t kChunksPerEntry = 512;
// Bytes of the content that an Append writes while the content is written anew: for each byte of
// its own, so that the content is whole when a quarter as much has been appended, and at least.
constexpr uint64_t kRewrittenPerByte = 4;
constexpr uint64_t kLeastSlice = 128 << 10;
constexpr uint64_t kLeastFreed = 4 << 20;  // As many bytes are freed in about as much time.
// Bytes that a job or chunk takes in an entry beside its own: a tag, a size, and its part of the
// bytes in front of an entry.
constexpr uint64_t kFramingBytes = 16;

struct Header {
  char magic[8];
  uint64_t version;
  // In the lower 32 bits the active half (kSecondHalf or 0) and the number of its valid bytes; in
  // the upper ones the complement of these.
  std::atomic<uint64_t> counts;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct __attribute__((packed)) EntryHead {
  uint32_t size = 0;
  uint64_t sum = 0;
};

constexpr uint64_t FileBytes() { return kHeaderBytes + 2 * Journal::kMostBytes.count(); }
constexpr uint64_t Begin(int half) { return kHeaderBytes + half * Journal::kMostBytes.count(); }

Header& HeaderOf(char* memory) { return *reinterpret_cast<Header*>(memory); }

// The index of the chunk's entry in the engine's table. A chunk that takes the place of a freed one
// replaces its record.
uint32_t PlaceOf(ChunkId chunk) { return static_cast<uint32_t>(chunk.value()); }

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create(Bytes most_live) {
  // The file has pages only where records were written, however large its two halves are.
  OwnedFd fd(memfd_create("memtide-journal", MFD_CLOEXEC));
  if (!fd.valid() || fchmod(fd.get(), 0600) != 0 ||
      ftruncate(fd.get(), static_cast<off_t>(FileBytes())) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a journal: ", strerrorname_np(errno)));
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Map(std::move(fd)));
  Header& header = HeaderOf(journal->memory_);
  header.version = kJournalVersion;
  header.counts.store(ToWord({}), std::memory_order_release);
  journal->most_live_ = most_live;
  // The magic number comes last: a daemon that is killed before leaves a file that Open() refuses.
  std::memcpy(header.magic, kJournalMagic, sizeof(kJournalMagic));
  return journal;
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(OwnedFd fd) {
  // Another version may have another size, too.
  struct {
    char magic[sizeof(kJournalMagic)];
    uint64_t version;
  } start = {};
  const bool is_journal = pread(fd.get(), &start, sizeof(start), 0) == sizeof(start) &&
                          std::memcmp(start.magic, kJournalMagic, sizeof(kJournalMagic)) == 0;
  if (!is_journal) return absl::DataLossError("the file is not a memtided journal");
  if (start.version < kOldestVersion || start.version > kJournalVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the journal has version ", start.version,
                                                      "; this memtided reads versions ",
                                                      kOldestVersion, " to ", kJournalVersion));
  }
  struct stat status;
  // A shorter file would be mapped all the same, and end the daemon with SIGBUS when it is read.
  if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != FileBytes()) {
    return absl::DataLossError("the journal is cut off");
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Map(std::move(fd)));
  Header& header = HeaderOf(journal->memory_);
  const uint64_t word = header.counts.load(std::memory_order_acquire);
  const absl::optional<Active> active = FromWord(word);
  if (!active.has_value() && header.version >= kFirstVersionWithSums) {
    return absl::DataLossError("the journal's length is damaged");
  }
  journal->active_ = active.value_or(Active{(word & kOldSecondHalf) != 0, word & ~kOldSecondHalf});
  MEMTIDE_RETURN_IF_ERROR(journal->Read(/*has_sums=*/active.has_value()));
  // That process may have ended while it wrote the other half, or before it freed it.
  journal->to_free_[1 - journal->active_.half] = kMostBytes.count();
  // A process that is killed here leaves the old half, or the new one, which the word tells apart.
  if (!active.has_value()) MEMTIDE_RETURN_IF_ERROR(journal->RewriteNow());
  // A daemon of an older version would read the records wrongly.
  header.version = kJournalVersion;
  return journal;
}

uint64_t Journal::ToWord(Active active) {
  const uint64_t low = active.end | (active.half == 1 ? kSecondHalf : 0);
  return (~low << 32) | low;
}

absl::optional<Journal::Active> Journal::FromWord(uint64_t word) {
  const uint64_t low = word & UINT32_MAX;
  const Active active{(low & kSecondHalf) != 0, low & ~kSecondHalf};
  if (word != ToWord(active)) return absl::nullopt;
  return active;
}

void Journal::Commit(Active active) {
  active_ = active;
  HeaderOf(memory_).counts.store(ToWord(active), std::memory_order_release);
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Map(OwnedFd fd) {
  void* const memory = mmap(nullptr, FileBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping a journal: ", strerrorname_np(errno)));
  }
  return std::unique_ptr<Journal>(new Journal(std::move(fd), static_cast<char*>(memory)));
}

Journal::~Journal() { munmap(memory_, FileBytes()); }

absl::Status Journal::Read(bool has_sums) {
  const char* const begin = memory_ + Begin(active_.half);
  // A damaged length must not lead beyond the half.
  if (active_.end > kMostBytes.count()) return absl::DataLossError("the journal is damaged");
  uint64_t at = 0;
  for (uint64_t number = 0; at < active_.end; ++number) {
    const auto damaged = [&](const char* what) {
      return absl::DataLossError(absl::StrCat("entry ", number, " of the journal, at offset ", at,
                                              " of half ", active_.half, ", is damaged: ", what));
    };
    EntryHead head;
    const uint64_t head_bytes = has_sums ? sizeof(head) : sizeof(head.size);
    if (active_.end - at < head_bytes) return damaged("it is cut off");
    std::memcpy(&head, begin + at, head_bytes);
    if (head.size > active_.end - at - head_bytes) return damaged("its size exceeds the journal");
    const char* const bytes = begin + at + head_bytes;
    if (has_sums && SumOf({bytes, head.size}) != head.sum) return damaged("it has another sum");
    journal::Entry entry;
    Record record;
    if (!entry.ParseFromArray(bytes, static_cast<int>(head.size)) || !DecodeEntry(entry, &record)) {
      return damaged("it is no record");
    }
    Apply(record, entry);
    at += head_bytes + head.size;
  }
  return absl::OkStatus();
}

template <typename Key, typename T>
void Journal::Keep(std::map<Key, Kept<T>>* records, Key key, const T& record, uint64_t bytes) {
  Kept<T>& place = (*records)[key];
  live_bytes_ += bytes - place.bytes;
  place = {record, bytes};
}

template <typename Key, typename T>
void Journal::Drop(std::map<Key, Kept<T>>* records, Key key) {
  const auto found = records->find(key);
  if (found == records->end()) return;
  live_bytes_ -= found->second.bytes;
  records->erase(found);
}

// jobs_ and chunks_ have what the active half says, unless it is full. ContinueRewrite() writes it
// anew, and Contents() returns it. `entry` is the record, encoded.
void Journal::Apply(const Record& record, const journal::Entry& entry) {
  // Ends come first, because one record may free a place and put a new chunk there.
  for (const JobId job : record.ended) Drop(&jobs_, job);
  for (size_t i = 0; i < record.jobs.size(); ++i) {
    Keep(&jobs_, record.jobs[i].job, record.jobs[i],
         kFramingBytes + entry.jobs(static_cast<int>(i)).ByteSizeLong());
  }
  for (const uint32_t place : record.freed) Drop(&chunks_, place);
  for (size_t i = 0; i < record.chunks.size(); ++i) {
    Keep(&chunks_, PlaceOf(record.chunks[i].chunk), record.chunks[i],
         kFramingBytes + entry.chunks(static_cast<int>(i)).ByteSizeLong());
  }
}

absl::Status Journal::Append(const Record& record) {
  const journal::Entry entry = EncodeEntry(record);
  Apply(record, entry);
  if (live_bytes_ > most_live_.count()) return BecomeFull();
  if (!full_) {
    Active longer = active_;
    if (!Write(longer.half, &longer.end, entry)) return BecomeFull();
    // This store commits the record: a kill before it leaves the journal as it was.
    Commit(longer);
  }
  const uint64_t most_bytes = std::max(kLeastSlice, kRewrittenPerByte * entry.ByteSizeLong());
  if (rewrite_.has_value()) {
    // The record goes behind the content that is written already, of which it may change something.
    if (!Write(1 - active_.half, &rewrite_->end, entry) || !ContinueRewrite(most_bytes)) {
      AbandonRewrite();
    }
  } else if (FreeSome(std::max(kLeastFreed, most_bytes))) {
    // A half is written from empty on.
  } else if (full_ || active_.end >= worth_writing_anew_.count()) {
    BeginRewrite();
  }
  return absl::OkStatus();
}

// An old record could name a slot that was used again, so none is left.
absl::Status Journal::BecomeFull() {
  AbandonRewrite();
  if (full_) return absl::OkStatus();
  full_ = true;
  to_free_[active_.half] = active_.end;
  Commit({active_.half, 0});
  return absl::ResourceExhaustedError(absl::StrCat(
      "the journal of jobs that outlive the daemon has ", FormatBytes(Bytes(live_bytes_)),
      "; at most ", FormatBytes(most_live_),
      ". Until it fits again, no job outlives this daemon: use fewer named jobs or shorter step "
      "manifests"));
}

void Journal::AbandonRewrite() {
  if (rewrite_.has_value()) to_free_[1 - active_.half] = rewrite_->end;
  rewrite_.reset();
}

void Journal::BeginRewrite() {
  while (FreeSome(kMostBytes.count())) {
  }
  rewrite_.emplace();
}

absl::Status Journal::RewriteNow() {
  BeginRewrite();
  return ContinueRewrite(2 * kMostBytes.count()) ? absl::OkStatus() : BecomeFull();
}

bool Journal::ContinueRewrite(uint64_t most_bytes) {
  // Until Commit(), the old half is active and whole.
  uint64_t written = 0;
  while (written < most_bytes) {
    uint64_t bytes = 0;
    if (!WriteSome(&bytes)) return false;
    if (bytes == 0) break;
    written += bytes;
  }
  if (written >= most_bytes) return true;  // There may be more.
  to_free_[active_.half] = active_.end;
  Commit({1 - active_.half, rewrite_->end});
  // At four times the live content, rewriting adds about a third to what Append writes. Half of a
  // half is left for what is appended meanwhile.
  worth_writing_anew_ =
      std::min(std::max(kFewBytes, Bytes(rewrite_->end) * 4), Bytes(kMostBytes.count() / 2));
  rewrite_.reset();
  full_ = false;
  return true;
}

// Writes the next entry of the content; none is left if it has zero `bytes`. False: there is no
// room.
bool Journal::WriteSome(uint64_t* bytes) {
  Record some;
  if (!rewrite_->jobs_are_written) {
    const auto job = jobs_.lower_bound(rewrite_->next_job);
    if (job != jobs_.end()) {
      some.jobs = {job->second.record};
      rewrite_->next_job = JobId(job->first.value() + 1);
    } else {
      rewrite_->jobs_are_written = true;
    }
  }
  if (rewrite_->jobs_are_written) {
    auto chunk = rewrite_->next_chunk > UINT32_MAX
                     ? chunks_.end()
                     : chunks_.lower_bound(static_cast<uint32_t>(rewrite_->next_chunk));
    for (; chunk != chunks_.end() && some.chunks.size() < kChunksPerEntry; ++chunk) {
      some.chunks.push_back(chunk->second.record);
      rewrite_->next_chunk = uint64_t{chunk->first} + 1;
    }
    if (some.chunks.empty()) return true;
  }
  const uint64_t before = rewrite_->end;
  const bool fits = Write(1 - active_.half, &rewrite_->end, EncodeEntry(some));
  *bytes = rewrite_->end - before;
  return fits;
}

// REQUIRES: nothing is written anew.
bool Journal::FreeSome(uint64_t most_bytes) {
  for (int half = 0; half < 2; ++half) {
    uint64_t& end = to_free_[half];
    if (end == 0 || (half == active_.half && !full_)) continue;
    const uint64_t bytes = std::min(end, most_bytes);
    end -= bytes;
    // If the kernel refuses, the memory stays in use until the half is written again.
    (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(Begin(half) + end), static_cast<off_t>(bytes));
    return true;
  }
  return false;
}

bool Journal::Write(int half, uint64_t* end, const journal::Entry& entry) {
  const size_t size = entry.ByteSizeLong();
  // The bound also makes the length fit the 32 bits in front of an entry.
  if (size > kMostBytes.count() || *end + sizeof(EntryHead) + size > kMostBytes.count()) {
    return false;
  }
  char* const at = memory_ + Begin(half) + *end;
  char* const bytes = at + sizeof(EntryHead);
  entry.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes));
  const EntryHead head{static_cast<uint32_t>(size), SumOf({bytes, size})};
  std::memcpy(at, &head, sizeof(head));
  *end += sizeof(head) + size;
  return true;
}

Restore Journal::Contents() const {
  Restore contents;
  for (const auto& [id, job] : jobs_) contents.job_records.push_back(job.record);
  for (const auto& [place, chunk] : chunks_) contents.chunk_records.push_back(chunk.record);
  return contents;
}

}  // namespace memtide
