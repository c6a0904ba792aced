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
#include "journal.pb.h"

namespace memtide {
namespace {

constexpr char kMagic[8] = {'m', 'e', 'm', 't', 'i', 'd', 'e', 'J'};
constexpr uint64_t kVersion = 4;
// Version 1 has no stripes: its stores are striped evenly. Neither has version 2 jobs of ranks. Up
// to version 3 no entry has a sum, and the word has no check. All else is the same.
constexpr uint64_t kOldestVersion = 1, kFirstVersionWithSums = 4;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kSecondHalf = uint64_t{1} << 31;
constexpr uint64_t kOldSecondHalf = uint64_t{1} << 63;  // Of versions without sums.
static_assert(Journal::kMostBytes.count() < kSecondHalf);
// Chunks per entry when the journal is compacted.
// An entry is encoded as one protobuf message, whose size this bounds.
constexpr size_t kChunksPerEntry = 4096;

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

void Encode(const JobRecord& job, journal::Job* out) {
  out->set_id(job.job.value());
  out->set_uid(job.uid);
  out->set_name(job.name);
  out->set_chunk_bytes(job.chunk_size.count());
  out->set_time_to_live_ns(job.time_to_live.count());
  for (const Bytes share : job.shares) out->add_share_bytes(share.count());
  for (const uint32_t slots : job.guaranteed) out->add_guaranteed_slots(slots);
  out->set_device_memory(static_cast<uint32_t>(job.device_memory));
  out->set_device(job.device);
  for (const RegionId region : job.regions) out->add_regions(region.value());
  for (const StoreId store : job.stores) out->add_stores(store.value());
  for (const std::vector<uint32_t>& counts : job.store_stripes) {
    out->add_store_stripes()->mutable_per_cycle()->Add(counts.begin(), counts.end());
  }
  out->set_slots_per_region(job.slots_per_region);
  out->set_slots_per_store(job.slots_per_store);
  out->set_committed_step(job.committed_step);
  out->set_step_manifest(job.manifest);
  for (const RankRecord& rank : job.ranks) {
    journal::Rank* const added = out->add_ranks();
    added->set_committed_step(rank.committed_step);
    added->set_step_manifest(rank.manifest);
  }
}

JobRecord Decode(const journal::Job& job) {
  JobRecord out;
  out.job = JobId(job.id());
  out.uid = job.uid();
  out.name = job.name();
  out.chunk_size = Bytes(job.chunk_bytes());
  out.time_to_live = Duration(job.time_to_live_ns());
  // The journal may be damaged, so that no length in it is relied on.
  const int tiers = std::min(kTiers, job.share_bytes_size());
  for (int i = 0; i < tiers; ++i) out.shares[i] = Bytes(job.share_bytes(i));
  const int guaranteed = std::min(kTiers, job.guaranteed_slots_size());
  for (int i = 0; i < guaranteed; ++i) out.guaranteed[i] = job.guaranteed_slots(i);
  out.device_memory = static_cast<MemoryKind>(job.device_memory());
  out.device = job.device();
  for (const uint32_t region : job.regions()) out.regions.push_back(RegionId(region));
  for (const uint32_t store : job.stores()) out.stores.push_back(StoreId(store));
  for (const journal::Stripes& stripes : job.store_stripes()) {
    out.store_stripes.emplace_back(stripes.per_cycle().begin(), stripes.per_cycle().end());
  }
  out.slots_per_region = job.slots_per_region();
  out.slots_per_store = job.slots_per_store();
  out.committed_step = job.committed_step();
  out.manifest = job.step_manifest();
  for (const journal::Rank& rank : job.ranks()) {
    out.ranks.push_back({rank.committed_step(), rank.step_manifest()});
  }
  return out;
}

void Encode(const ChunkRecord::Copy& copy, journal::Chunk::Copy* out) {
  out->set_slot(copy.slot);
  out->set_valid(copy.valid);
  out->mutable_sums()->Add(copy.sums.begin(), copy.sums.end());
}

void Encode(const ChunkRecord& chunk, journal::Chunk* out) {
  out->set_id(chunk.chunk.value());
  out->set_job(chunk.job.value());
  out->set_kind(static_cast<uint32_t>(chunk.kind));
  out->set_version(chunk.version.value());
  if (chunk.host.has_value()) Encode(*chunk.host, out->mutable_host());
  if (chunk.ssd.has_value()) Encode(*chunk.ssd, out->mutable_ssd());
  out->set_torn(chunk.torn);
  for (const RankName& name : chunk.names) {
    journal::Chunk::Name* const added = out->add_names();
    added->set_id(name.id.value());
    added->set_rank(name.rank);
  }
}

ChunkRecord::Copy Decode(const journal::Chunk::Copy& copy) {
  return {copy.slot(), copy.valid(), {copy.sums().begin(), copy.sums().end()}};
}

ChunkRecord Decode(const journal::Chunk& chunk) {
  ChunkRecord out;
  out.chunk = ChunkId(chunk.id());
  out.job = JobId(chunk.job());
  out.kind = static_cast<ChunkKind>(chunk.kind());
  out.version = Version(chunk.version());
  if (chunk.has_host()) out.host = Decode(chunk.host());
  if (chunk.has_ssd()) out.ssd = Decode(chunk.ssd());
  out.torn = chunk.torn();
  for (const journal::Chunk::Name& name : chunk.names()) {
    out.names.push_back({ChunkId(name.id()), name.rank()});
  }
  return out;
}

journal::Entry Encode(const Record& record) {
  journal::Entry entry;
  for (const JobRecord& job : record.jobs) Encode(job, entry.add_jobs());
  for (const JobId job : record.ended) entry.add_ended(job.value());
  for (const ChunkRecord& chunk : record.chunks) Encode(chunk, entry.add_chunks());
  for (const uint32_t place : record.freed) entry.add_freed(place);
  return entry;
}

// False if a field has a value that no daemon writes.
bool Decode(const journal::Entry& entry, Record* record) {
  for (const journal::Job& job : entry.jobs()) {
    if (job.device_memory() > static_cast<uint32_t>(MemoryKind::kCudaIpc)) return false;
    if (job.device() >= kMostDevices) return false;
    if (job.chunk_bytes() == 0) return false;
    record->jobs.push_back(Decode(job));
  }
  for (const uint64_t job : entry.ended()) record->ended.push_back(JobId(job));
  for (const journal::Chunk& chunk : entry.chunks()) {
    if (chunk.kind() >= kChunkKinds) return false;
    record->chunks.push_back(Decode(chunk));
  }
  record->freed.assign(entry.freed().begin(), entry.freed().end());
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create() {
  // The file has pages only where records were written, however large its two halves are.
  OwnedFd fd(memfd_create("memtide-journal", MFD_CLOEXEC));
  if (!fd.valid() || fchmod(fd.get(), 0600) != 0 ||
      ftruncate(fd.get(), static_cast<off_t>(FileBytes())) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a journal: ", strerrorname_np(errno)));
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Map(std::move(fd)));
  Header& header = HeaderOf(journal->memory_);
  header.version = kVersion;
  header.counts.store(ToWord({}), std::memory_order_release);
  // The magic number comes last: a daemon that is killed before leaves a file that Open() refuses.
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return journal;
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(OwnedFd fd) {
  struct stat status;
  // A shorter file would be mapped all the same, and end the daemon with SIGBUS when it is read.
  if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != FileBytes()) {
    return absl::DataLossError("the file is not a memtided journal, or has another version");
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Map(std::move(fd)));
  Header& header = HeaderOf(journal->memory_);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::DataLossError("the file is not a memtided journal");
  }
  if (header.version < kOldestVersion || header.version > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the journal has version ", header.version,
                                                      "; this memtided reads ", kVersion));
  }
  const uint64_t word = header.counts.load(std::memory_order_acquire);
  if (const absl::optional<Active> active = FromWord(word)) {
    MEMTIDE_RETURN_IF_ERROR(journal->Read(*active, /*has_sums=*/true));
  } else if (header.version >= kFirstVersionWithSums) {
    return absl::DataLossError("the journal's length is damaged");
  } else {
    const Active old{(word & kOldSecondHalf) != 0, word & ~kOldSecondHalf};
    MEMTIDE_RETURN_IF_ERROR(journal->Read(old, /*has_sums=*/false));
    // A process that is killed here leaves the old half, or the new one, which the word tells apart.
    MEMTIDE_RETURN_IF_ERROR(journal->Compact(old.half));
  }
  // A daemon of an older version would read the records wrongly.
  header.version = kVersion;
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

absl::StatusOr<std::unique_ptr<Journal>> Journal::Map(OwnedFd fd) {
  void* const memory = mmap(nullptr, FileBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping a journal: ", strerrorname_np(errno)));
  }
  return std::unique_ptr<Journal>(new Journal(std::move(fd), static_cast<char*>(memory)));
}

Journal::~Journal() { munmap(memory_, FileBytes()); }

absl::Status Journal::Read(Active active, bool has_sums) {
  const char* const begin = memory_ + Begin(active.half);
  // A damaged length must not lead beyond the half.
  if (active.end > kMostBytes.count()) return absl::DataLossError("the journal is damaged");
  uint64_t at = 0;
  for (uint64_t number = 0; at < active.end; ++number) {
    const auto damaged = [&](const char* what) {
      return absl::DataLossError(absl::StrCat("entry ", number, " of the journal, at offset ", at,
                                              " of half ", active.half, ", is damaged: ", what));
    };
    EntryHead head;
    const uint64_t head_bytes = has_sums ? sizeof(head) : sizeof(head.size);
    if (active.end - at < head_bytes) return damaged("it is cut off");
    std::memcpy(&head, begin + at, head_bytes);
    if (head.size > active.end - at - head_bytes) return damaged("its size exceeds the journal");
    const char* const bytes = begin + at + head_bytes;
    if (has_sums && SumOf({bytes, head.size}) != head.sum) return damaged("it has another sum");
    journal::Entry entry;
    Record record;
    if (!entry.ParseFromArray(bytes, static_cast<int>(head.size)) || !Decode(entry, &record)) {
      return damaged("it is no record");
    }
    Apply(record);
    at += head_bytes + head.size;
  }
  return absl::OkStatus();
}

// jobs_ and chunks_ have what the active half says. Compact() writes it anew, and Contents()
// returns it.
void Journal::Apply(const Record& record) {
  // Ends come first, because one record may free a place and put a new chunk there.
  for (const JobId job : record.ended) jobs_.erase(job);
  for (const JobRecord& job : record.jobs) jobs_[job.job] = job;
  for (const uint32_t place : record.freed) chunks_.erase(place);
  for (const ChunkRecord& chunk : record.chunks) chunks_[PlaceOf(chunk.chunk)] = chunk;
}

absl::Status Journal::Append(const Record& record) {
  // Compact has reported this once.
  if (full_) return absl::OkStatus();
  Apply(record);
  std::atomic<uint64_t>& counts = HeaderOf(memory_).counts;
  // Only this process writes the word.
  const absl::optional<Active> before = FromWord(counts.load(std::memory_order_relaxed));
  if (!before.has_value()) return absl::DataLossError("the journal's length is damaged");
  Active active = *before;
  if (active.end < worth_writing_anew_.count() && Write(&active, record)) {
    // This store commits the record: a kill before it leaves the journal as it was.
    counts.store(ToWord(active), std::memory_order_release);
    return absl::OkStatus();
  }
  return Compact(before->half);
}

absl::Status Journal::Compact(int old) {
  // Until `counts` changes, the old half is active and whole.
  Active fresh{1 - old, 0};
  bool fits = true;
  Record some;
  for (const auto& [id, job] : jobs_) {
    some.jobs = {job};
    fits = fits && Write(&fresh, some);
  }
  some.jobs.clear();
  for (const auto& [place, chunk] : chunks_) {
    some.chunks.push_back(chunk);
    if (some.chunks.size() < kChunksPerEntry) continue;
    fits = fits && Write(&fresh, some);
    some.chunks.clear();
  }
  fits = fits && Write(&fresh, some);
  full_ = !fits;
  // A full journal is emptied, because an old record could name a slot that was used again.
  if (!fits) fresh.end = 0;
  HeaderOf(memory_).counts.store(ToWord(fresh), std::memory_order_release);
  // At four times the live content, compaction adds about a third to what Append writes.
  worth_writing_anew_ = std::max(kFewBytes, Bytes(fresh.end) * 4);
  // If the kernel refuses, the memory stays in use until the half is written again.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(Begin(old)), static_cast<off_t>(kMostBytes.count()));
  if (fits) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the journal of jobs that outlive the daemon exceeds ", FormatBytes(kMostBytes),
                   "; no job will outlive this daemon. Use fewer named jobs or shorter step "
                   "manifests"));
}

bool Journal::Write(Active* active, const Record& record) {
  const journal::Entry entry = Encode(record);
  const size_t size = entry.ByteSizeLong();
  // The bound also makes the length fit the 32 bits in front of an entry.
  if (size > kMostBytes.count() || active->end + sizeof(EntryHead) + size > kMostBytes.count()) {
    return false;
  }
  char* const at = memory_ + Begin(active->half) + active->end;
  char* const bytes = at + sizeof(EntryHead);
  entry.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes));
  const EntryHead head{static_cast<uint32_t>(size), SumOf({bytes, size})};
  std::memcpy(at, &head, sizeof(head));
  active->end += sizeof(head) + size;
  return true;
}

Restore Journal::Contents() const {
  Restore contents;
  for (const auto& [id, job] : jobs_) contents.job_records.push_back(job);
  for (const auto& [place, chunk] : chunks_) contents.chunk_records.push_back(chunk);
  return contents;
}

}  // namespace memtide
