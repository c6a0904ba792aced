#include "tests/sim/trace.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace memtide::sim {
namespace {

using absl::StrAppend;
using absl::StrCat;

// Names are literals of the trace and statuses are numbers: renaming changes no hash.
std::string Text(Tier tier) {
  return tier == Tier::kDevice ? "device" : tier == Tier::kHost ? "host" : "ssd";
}
std::string Text(MemoryKind kind) {
  return kind == MemoryKind::kSharedMemory ? "shared" : kind == MemoryKind::kCudaIpc ? "ipc" : "fd";
}
std::string Code(const absl::Status& status) {
  return StrCat("code ", static_cast<int>(status.code()));
}
std::string Text(Access access) { return access == Access::kWrite ? "write" : "read"; }
std::string Text(MemoryPlace place) {
  return StrCat("r", place.region.value(), "+", place.offset.count());
}
std::string Text(StorePlace place) {
  return StrCat("s", place.store.value(), "+", place.offset.count());
}
// Place in the table, and the generation where it is not the first.
std::string Text(ChunkId chunk) {
  return StrCat(chunk.value() & 0xffffffff, "g", chunk.value() >> 32);
}
std::string Text(const std::vector<ChunkId>& chunks) {
  std::string text = "[";
  for (const ChunkId chunk : chunks) StrAppend(&text, text.size() > 1 ? " " : "", Text(chunk));
  return text + "]";
}

std::string Text(const std::vector<RegionId>& regions) {
  std::string text;
  for (const RegionId region : regions) StrAppend(&text, " r", region.value());
  return text;
}

// Device 0 is named as the only one, so that the traces of seeds with one device are all alike.
std::string OfDevice(uint32_t device) { return device == 0 ? "" : StrCat("/", device); }
std::string Text(const Pool& pool) { return StrCat(Text(pool.tier), OfDevice(pool.device)); }

std::string Text(const JobRecord& job) {
  std::string text = StrCat(" {job ", job.job.value(), " uid ", job.uid, " '", job.name, "' chunk ",
                            job.chunk_size.count(), " ttl ", job.time_to_live.count(), " ",
                            Text(job.device_memory), OfDevice(job.device), " step ",
                            job.committed_step, " '", job.manifest, "'", Text(job.regions));
  for (const StoreId store : job.stores) StrAppend(&text, " s", store.value());
  for (int tier = 0; tier < kTiers; ++tier) {
    StrAppend(&text, " ", job.shares[tier].count(), "/", job.guaranteed[tier]);
  }
  return StrCat(text, " by ", job.slots_per_region, "/", job.slots_per_store, "}");
}
std::string Text(const ChunkRecord& chunk) {
  std::string text =
      StrCat(" {", Text(chunk.chunk), " job ", chunk.job.value(), " kind ",
             static_cast<int>(chunk.kind), " v", chunk.version.value(), chunk.torn ? " torn" : "");
  for (const auto& copy : {chunk.host, chunk.ssd}) {
    StrAppend(&text, copy ? StrCat(" ", copy->slot, copy->valid ? "" : "?") : " -");
  }
  return text + "}";
}

template <typename Call>
std::string Head(const char* name, const Call& call) {
  return StrCat(name, " call ", call.call.value(), " session ", call.session.value());
}

std::string Text(const std::vector<MomentReport>& moments) {
  std::string text;
  for (const MomentReport& moment : moments) {
    StrAppend(&text, " moment(", moment.name.substr(0, 20), moment.continues ? " continues" : "");
    size_t shown = 0;
    for (const UseReport& use : moment.uses) {
      if (++shown <= 20) StrAppend(&text, " ", Text(use.chunk), Text(use.access));
    }
    StrAppend(&text, " ", moment.uses.size(), " uses", moment.ends_iteration ? " end)" : ")");
  }
  return text;
}

struct EventText {
  std::string operator()(const ClientConnected& e) const {
    return StrCat("Connected session ", e.session.value(), " uid ", e.uid, " pid ", e.pid);
  }
  std::string operator()(const ClientGone& e) const {
    return StrCat("Gone session ", e.session.value());
  }
  std::string operator()(const ClientQuiet& e) const {
    return StrCat("Quiet session ", e.session.value());
  }
  std::string operator()(const DeviceState& e) const {
    return StrCat("DeviceState ", e.device, " ", Code(e.state));
  }
  std::string operator()(const OpenCall& e) const {
    return StrCat(Head("Open", e), " job '", e.job_name.substr(0, 8), "' chunk ",
                  e.chunk_size.count(), " shares ", e.device_share.count(), "/",
                  e.host_share.count(), "/", e.ssd_share.count(), " ttl ", e.time_to_live.count(),
                  e.device.has_value() ? StrCat(" device ", *e.device) : "");
  }
  std::string operator()(const RenewCall& e) const { return Head("Renew", e); }
  std::string operator()(const CloseCall& e) const { return Head("Close", e); }
  std::string operator()(const AllocateCall& e) const {
    return StrCat(Head("Allocate", e), " request ", e.request_id, " count ", e.count,
                  e.undefined ? " undefined" : "", e.transient ? " transient" : "",
                  e.home ? StrCat(" home ", Text(*e.home)) : "");
  }
  std::string operator()(const FetchCall& e) const {
    return StrCat(Head("Fetch", e), " ", Text(e.tier), " ", Text(e.access), " ", Text(e.chunks),
                  " releases ", Text(e.releases), e.wait ? "" : " no wait", " deadline ",
                  e.deadline.count(), Text(e.moments));
  }
  std::string operator()(const ReportCall& e) const {
    return StrCat(Head("Report", e), Text(e.moments));
  }
  std::string operator()(const TraceCall& e) const {
    return StrCat("Trace call ", e.call.value(), " job ", e.job.value());
  }
  std::string operator()(const ReleaseCall& e) const {
    return StrCat(Head("Release", e), " request ", e.request_id, " ", Text(e.chunks));
  }
  std::string operator()(const EvictCall& e) const {
    return StrCat(Head("Evict", e), " ", Text(e.tier), " ", Text(e.chunks));
  }
  std::string operator()(const FreeCall& e) const {
    return StrCat(Head("Free", e), " request ", e.request_id, " ", Text(e.chunks));
  }
  std::string operator()(const DiscardCall& e) const {
    return StrCat(Head("Discard", e), " request ", e.request_id, " ", Text(e.chunks));
  }
  std::string operator()(const OfferCall& e) const {
    return StrCat(Head("Offer", e), " ", Text(e.chunks), " deadline ", e.deadline.count(),
                  e.repeats ? " repeats" : "");
  }
  std::string operator()(const DuplicateCall& e) const {
    return StrCat(Head("Duplicate", e), " request ", e.request_id, " ", Text(e.chunks), " copies ",
                  e.copies, " deadline ", e.deadline.count());
  }
  std::string operator()(const DescribeCall& e) const {
    return StrCat(Head("Describe", e), " ", Text(e.chunks));
  }
  std::string operator()(const ResizeCall& e) const {
    return StrCat(Head("Resize", e), " to ", e.device_share.count(), " deadline ",
                  e.deadline.count());
  }
  std::string operator()(const ReturnRegionsCall& e) const {
    return StrCat(Head("ReturnRegions", e), Text(e.regions));
  }
  std::string operator()(const InspectCall& e) const {
    return StrCat("Inspect call ", e.call.value(), " from ", e.first_chunk, " max ", e.max_chunks);
  }
  std::string operator()(const DrainCall& e) const { return StrCat("Drain call ", e.call.value()); }
  std::string operator()(const EndJobCall& e) const {
    return StrCat("EndJob call ", e.call.value(), " job ", e.job.value(), " of ",
                  e.viewer ? StrCat("user ", *e.viewer) : "any user");
  }
  std::string operator()(const SetQuotasCall& e) const {
    std::string text = StrCat("SetQuotas call ", e.call.value());
    for (const Quota& quota : e.quotas) {
      StrAppend(&text, " ", quota.name);
      for (const auto& bytes : quota.most.bytes) {
        StrAppend(&text, " ", bytes ? StrCat(bytes->count() >> 20, "M") : "-");
      }
      StrAppend(&text, " jobs ", quota.most.jobs ? StrCat(*quota.most.jobs) : "-");
    }
    return text;
  }
  std::string operator()(const TransferDone& e) const {
    return StrCat("TransferDone t", e.transfer.value(), " ", Code(e.status),
                  e.wrong_bytes ? " wrong bytes" : "");
  }
  std::string operator()(const RegionMade& e) const {
    return StrCat("RegionMade r", e.region.value(), " ", Code(e.status));
  }
  std::string operator()(const RegionDropped& e) const {
    return StrCat("RegionDropped r", e.region.value());
  }
  std::string operator()(const StoreMade& e) const {
    return StrCat("StoreMade s", e.store.value(), " ", Code(e.status));
  }
  std::string operator()(const StoreDropped& e) const {
    return StrCat("StoreDropped s", e.store.value());
  }
  std::string operator()(const Tick&) const { return "Tick"; }
  std::string operator()(const HostMemory& e) const {
    return StrCat("HostMemory ", e.available.count());
  }
  std::string operator()(const SlotReleased& e) const {
    return StrCat("SlotEmptied ", Text(e.place));
  }
  std::string operator()(const SlotPopulated& e) const {
    return StrCat("SlotFilled ", Text(e.place), " ", Code(e.status));
  }
  std::string operator()(const StepCall& e) const {
    return StrCat(Head("Step", e), " reads ", e.reads, " of ", Text(e.chunks),
                  e.work == nullptr ? StrCat(" part ", e.part) : "");
  }
  std::string operator()(const EndPartCall& e) const {
    return StrCat(Head("EndPart", e), " part ", e.part, e.computed ? " computed" : "");
  }
  std::string operator()(const CommitCall& e) const {
    return StrCat(Head("Publish", e), " step ", e.step, " ", Text(e.chunks), " from ",
                  Text(e.shadows), e.keep_old_content ? " keep" : "");
  }
  std::string operator()(const Restore& e) const {
    std::string text = "Restore";
    for (const JobRecord& job : e.job_records) StrAppend(&text, Text(job));
    for (const ChunkRecord& chunk : e.chunk_records) StrAppend(&text, Text(chunk));
    return text;
  }
  std::string operator()(const SnapshotSaved& e) const {
    return StrCat("SnapshotSaved job ", e.job.value(), " ", Code(e.status));
  }
  std::string operator()(const StepDone& e) const {
    return StrCat("StepDone ", e.step.value(), " ", Code(e.status));
  }
};

struct ReplyText {
  std::string operator()(const std::monostate&) const { return ""; }
  std::string operator()(const OpenReply& r) const {
    std::string text =
        StrCat(" job ", r.job.value(), " slots ", r.device_slots, OfDevice(r.device), "/",
               r.host_slots, "/", r.ssd_slots, " chunks ", r.max_chunks, " budget ", r.lease_budget,
               " step ", r.committed_step, " '", r.manifest, "' regions");
    return text + Text(r.regions);
  }
  std::string operator()(const AllocateReply& r) const { return StrCat(" ", Text(r.chunks)); }
  std::string operator()(const FetchReply& r) const {
    std::string text;
    for (const Lease& lease : r.leases) {
      StrAppend(&text, " {", Text(lease.chunk), " ", Text(lease.tier), " ", Text(lease.place), " v",
                lease.version.value(), " ", Text(lease.access), "}");
    }
    if (!r.eviction_hints.empty()) StrAppend(&text, " farthest ", Text(r.eviction_hints));
    if (r.leaving > 0) StrAppend(&text, " leaving ", r.leaving);
    return text + Ahead(r.ahead);
  }
  std::string operator()(const ReportReply& r) const { return Ahead(r.ahead); }
  static std::string Ahead(const ChunksAhead& ahead) {
    if (ahead.reads.empty() && ahead.writes.empty()) return "";
    return StrCat(" ahead ", Text(ahead.reads), " writes ", Text(ahead.writes));
  }
  std::string operator()(const DescribeReply& r) const {
    std::string text;
    for (const ChunkInfo& info : r.chunks) {
      StrAppend(&text, " {", Text(info.chunk), " v", info.version.value(),
                info.on_device ? " device" : "", info.on_host ? " host" : "",
                info.on_ssd ? " ssd" : "", info.moving ? " moving" : "", info.torn ? " torn" : "",
                " leases ", info.leases, "}");
    }
    return text;
  }
  std::string operator()(const TraceReply& r) const {
    return StrCat(" moments ", r.moments.size(), " iterations ", r.iteration_ends.size(), " moves ",
                  r.moves.size(), " stalls ", r.stalls.size());
  }
  std::string operator()(const ResizeReply& r) const {
    return StrCat(" slots ", r.device_slots, " budget ", r.lease_budget);
  }
  std::string operator()(const PartReply& r) const {
    std::string text;
    for (const MemoryPlace& place : r.places) StrAppend(&text, " ", Text(place));
    if (r.made) text += " made";
    for (const uint32_t read : r.unknown_reads) StrAppend(&text, " unknown ", read);
    if (r.difference.has_value()) StrAppend(&text, " differs from rank ", r.difference->rank);
    return text;
  }
  std::string operator()(const EndJobReply& r) const {
    return StrCat(" job ", r.job.job.value(), " of user ", r.job.uid);
  }
  std::string operator()(const OfferReply& r) const {
    std::string text;
    for (const uint32_t number : r.shared) StrAppend(&text, " shared ", number);
    for (const uint32_t number : r.leased) StrAppend(&text, " leased ", number);
    return text;
  }
  std::string operator()(const InspectReply& r) const {
    std::string text;
    for (const PoolUsage& pool : r.pools) {
      StrAppend(&text, " ", Text(pool.pool), " used ", pool.used.count(), " reserved ",
                pool.reserved.count(), " withheld ", pool.balloon.count(), " scrubbing ",
                pool.scrubbing.count(), " free ", pool.free.count());
    }
    return StrCat(text, " sessions ", r.session_count, " chunks ", r.chunk_count, " waiting ",
                  r.waiting_calls, " transfers ", r.transfers_in_flight);
  }
};

struct EffectText {
  std::string operator()(const Reply& e) const {
    return StrCat("Reply call ", e.call.value(), " ", Code(e.status),
                  std::visit(ReplyText(), e.value));
  }
  std::string operator()(const Misprediction& e) const {
    return StrCat("Surprise job ", e.job.value(), " number ", e.mispredictions, " iteration ",
                  e.iteration, " uses ", e.uses, " expected ", e.expected, " came ", e.as_expected,
                  e.remembered ? " remembered" : "");
  }
  std::string operator()(const JobLost& e) const {
    return StrCat("JobLost ", e.job.value(), " ", Code(e.why));
  }
  std::string operator()(const Record& e) const {
    std::string text = "Record";
    for (const JobRecord& job : e.jobs) StrAppend(&text, Text(job));
    for (const JobId job : e.ended) StrAppend(&text, " ended ", job.value());
    for (const ChunkRecord& chunk : e.chunks) StrAppend(&text, Text(chunk));
    for (const uint32_t place : e.freed) StrAppend(&text, " freed ", place);
    return text;
  }
  std::string operator()(const SendRegion& e) const {
    return StrCat("SendRegion session ", e.session.value(), " r", e.region.value());
  }
  std::string operator()(const SendRegionGone& e) const {
    return StrCat("RegionGone session ", e.session.value(), " r", e.region.value(), " slots ",
                  e.device_slots, " budget ", e.lease_budget);
  }
  std::string operator()(const SendLeaseBudget& e) const {
    return StrCat("LeaseBudget session ", e.session.value(), " ", e.lease_budget, " of ", e.most);
  }
  std::string operator()(const MachineShort& e) const {
    return StrCat("MachineShort ", e.begins ? "begins" : "ends", " ", e.available.count());
  }
  std::string operator()(const RegionsStayExposed& e) const {
    return StrCat("RegionsStayExposed job ", e.job.value(), " ", Code(e.why));
  }
  std::string operator()(const LentUnderProcess& e) const {
    return StrCat("LentUnderProcess session ", e.session.value(), " slots ", e.slots);
  }
  std::string operator()(const BadCopyFound& e) const {
    return StrCat("BadCopyFound ", Text(e.chunk),
                  e.has_other_copy ? ", another copy is valid" : "");
  }
  std::string operator()(const WritesWait& e) const {
    const absl::optional<uint32_t>& drive = e.budget.drive;
    return StrCat("WritesWait uid ", e.uid, drive ? StrCat(" drive ", *drive) : "");
  }
  std::string operator()(const TransfersFail& e) const {
    return StrCat("TransfersFail job ", e.job.value(), " ", e.count, " ", Code(e.last));
  }
  std::string operator()(const SaveSnapshot& e) const {
    return StrCat("SaveSnapshot", Text(e.snapshot->job));
  }
  std::string operator()(const DropSnapshot& e) const {
    return StrCat("DropSnapshot job ", e.job.value());
  }
  std::string operator()(const ReleaseSlot& e) const { return StrCat("EmptySlot ", Text(e.place)); }
  std::string operator()(const PopulateSlot& e) const { return StrCat("FillSlot ", Text(e.place)); }
  std::string operator()(const Revoke& e) const {
    return StrCat("Revoke session ", e.session.value(), " count ", e.count, " ", Text(e.chunks));
  }
  std::string operator()(const CloseSession& e) const {
    return StrCat("CloseSession session ", e.session.value(), " ", Code(e.reason));
  }
  std::string operator()(const MakeRegion& e) const {
    return StrCat("MakeRegion r", e.region.value(), " ", Text(e.pool), " uid ", e.uid, " ",
                  e.size.count(), e.copy_of ? StrCat(" copy of r", e.copy_of->value()) : "");
  }
  std::string operator()(const DropRegion& e) const {
    return StrCat("DropRegion r", e.region.value());
  }
  std::string operator()(const MakeStore& e) const {
    return StrCat("MakeStore s", e.store.value(), " ", e.size.count());
  }
  std::string operator()(const DropStore& e) const {
    return StrCat("DropStore s", e.store.value());
  }
  std::string operator()(const StartTransfer& e) const {
    const std::string head = StrCat("Transfer t", e.transfer.value(), " ");
    switch (e.kind) {
      case StartTransfer::Kind::kHostToDevice:
        return StrCat(head, "host ", Text(e.from), " to device ", Text(e.to));
      case StartTransfer::Kind::kDeviceToHost:
        return StrCat(head, "device ", Text(e.from), " to host ", Text(e.to));
      case StartTransfer::Kind::kSsdToHost:
        return StrCat(head, "ssd ", Text(e.store), " to host ", Text(e.to));
      case StartTransfer::Kind::kHostToSsd:
        return StrCat(head, "host ", Text(e.from), " to ssd ", Text(e.store));
      case StartTransfer::Kind::kZero:
        return StrCat(head, "zero ", Text(e.to));
      case StartTransfer::Kind::kCompareDeviceWithHost:
        return StrCat(head, "compare device ", Text(e.from), " with host ", Text(e.to));
      case StartTransfer::Kind::kVerifySsd:
        return StrCat(head, "verify ssd ", Text(e.store), " ", e.size.count());
    }
    return head;
  }
  std::string operator()(const AwaitTransfer& e) const {
    return StrCat("AwaitTransfer t", e.transfer.value());
  }
  std::string operator()(const StartStep& e) const {
    std::string text = StrCat("Step ", e.step.value(), " on");
    for (const MemoryPlace& place : e.chunks) StrAppend(&text, " ", Text(place));
    return text;
  }
};

}  // namespace

std::string ToText(const Event& event) { return std::visit(EventText(), event); }
std::string ToText(const Effect& effect) { return std::visit(EffectText(), effect); }

void Trace::Add(Instant now, const Event& event) {
  AddLine(StrCat("#", events_++, " ", now.time_since_epoch().count(), " ns: ", ToText(event)));
}

void Trace::Add(const Effect& effect) {
  std::string words;  // Messages of statuses, which the hash leaves out.
  if (const auto* reply = std::get_if<Reply>(&effect)) words = reply->status.ToString();
  if (const auto* close = std::get_if<CloseSession>(&effect)) words = close->reason.ToString();
  if (const auto* lost = std::get_if<JobLost>(&effect)) words = lost->why.ToString();
  AddLine(StrCat("    -> ", ToText(effect)), words);
}

void Trace::AddLine(std::string line, const std::string& words) {
  for (const char c : line) {
    hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  if (!words.empty()) StrAppend(&line, "  # ", words);
  if (echo_ != nullptr) *echo_ << line << std::endl;
  lines_.push_back(std::move(line));
  if (lines_.size() > lines_kept_) lines_.pop_front();
}

std::string Trace::Last() const {
  std::string text;
  for (const std::string& line : lines_) StrAppend(&text, line, "\n");
  return text;
}

}  // namespace memtide::sim
