// Implements client/memtide.h on client/client.h: sessions, chunks, hints and tensors.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/memory_kind.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "client/abi/client_call.h"
#include "client/abi/device_option.h"
#include "client/abi/structs.h"
#include "client/memory/segv_handler.h"
#include "client/memtide.h"

namespace {

using memtide::Access;
using memtide::Bytes;
using memtide::ChunkKind;
using memtide::client::CheckArray;
using memtide::client::Client;
using memtide::client::CopyCommonFields;
using memtide::client::Guarded;
using memtide::client::HomeTier;
using memtide::client::InitialContent;
using memtide::client::LeaseClient;
using memtide::client::NullArgument;
using memtide::client::PlaceId;
using memtide::client::PlaceRange;
using memtide::client::Places;
using memtide::client::PlacesAt;
using memtide::client::ReadCommonFields;
using memtide::client::Span;
using memtide::client::WithClient;
using memtide::client::WithLeases;
using memtide::client::WithPlaces;

// TakeReturned() writes to the caller's array as if it held Spans.
static_assert(sizeof(Span) == sizeof(memtide_span));
// In memtide.h, 0 stands for no choice, so its kinds of memory are one more than MemoryKind's.
static_assert(static_cast<int>(memtide::MemoryKind::kCudaIpc) + 1 == MEMTIDE_CUDA_IPC);
static_assert(static_cast<int>(memtide::v1::MEMORY_KIND_CUDA_IPC) == MEMTIDE_CUDA_IPC);

absl::StatusOr<Client::Options> ReadOptions(const memtide_options* given) {
  memtide_options options = {};
  if (given != nullptr) {
    MEMTIDE_ASSIGN_OR_RETURN(options, ReadCommonFields("options", given));
  }
  Client::Options result;
  if (options.socket_dir != nullptr) result.daemon.socket_dir = options.socket_dir;
  if (options.program != nullptr) result.daemon.program = options.program;
  if (options.job_name != nullptr) result.job.set_job_name(options.job_name);
  result.job.set_chunk_size_bytes(options.chunk_bytes);
  result.job.set_device_share_bytes(options.device_share_bytes);
  result.job.set_host_share_bytes(options.host_share_bytes);
  result.job.set_ssd_share_bytes(options.ssd_share_bytes);
  result.job.set_rank(options.rank);
  result.job.set_ranks(options.ranks);
  result.job.mutable_time_to_live()->set_seconds(options.time_to_live_s);
  result.job.set_durable_every(options.durable_every);
  result.job.set_alike(options.alike);
  if (options.group != nullptr) result.job.set_group(options.group);
  result.job.set_group_rank(options.group_rank);
  result.job.set_group_ranks(options.group_ranks);
  // Zero in a field means the default, as it does in a field that the program does not know.
  if (options.address_bytes != 0) result.addresses = Bytes(options.address_bytes);
  if (options.device_memory > MEMTIDE_CUDA_IPC) {
    return absl::UnimplementedError(
        absl::StrCat("device_memory ", options.device_memory, " is not one of 0 to 3"));
  }
  // The numbers are equal; a static_assert above checks the last of them.
  result.job.set_device_memory(static_cast<memtide::v1::MemoryKind>(options.device_memory));
  if (options.device != nullptr) {
    MEMTIDE_RETURN_IF_ERROR(memtide::client::SetDevice(options.device, &result.job));
  }
  return result;
}

int Allocate(memtide_client* client, int kind, uint32_t count, InitialContent initial_content,
             HomeTier home, uint32_t* first_place) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (first_place == nullptr) return NullArgument("first_place");
    // UNIMPLEMENTED rather than INVALID_ARGUMENT: a later version may know the number.
    if (kind < MEMTIDE_OTHER || kind > MEMTIDE_ACTIVATION) {
      return absl::UnimplementedError(absl::StrCat("kind ", kind, " is not one of ", MEMTIDE_OTHER,
                                                   " to ", MEMTIDE_ACTIVATION));
    }
    MEMTIDE_ASSIGN_OR_RETURN(
        const PlaceRange range,
        leases.Allocate(count, static_cast<ChunkKind>(kind), initial_content, home));
    *first_place = range.first.value();
    return absl::OkStatus();
  });
}

}  // namespace

extern "C" {

int memtide_open(const memtide_options* options, memtide_client** client) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    // A caller that ignores an error then closes NULL, which has no effect.
    *client = nullptr;
    absl::StatusOr<Client::Options> read = ReadOptions(options);
    if (!read.ok()) return read.status();
    absl::StatusOr<std::unique_ptr<Client>> opened = Client::Open(*read);
    if (!opened.ok()) return opened.status();
    // memtide_close() takes the ownership back.
    *client = reinterpret_cast<memtide_client*>(opened->release());
    return absl::OkStatus();
  });
}

// tidy(raw-new): the C interface hands ownership out and takes it back.
void memtide_close(memtide_client* client) { delete reinterpret_cast<Client*>(client); }

int memtide_get_properties(memtide_client* client, memtide_properties* properties) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (properties == nullptr) return NullArgument("properties");
    const Client::Properties& known = opened.properties();
    memtide_properties result = {};
    result.places = known.places;
    result.base = known.base;
    result.chunk_bytes = known.job.chunk_size.count();
    result.device_slots = known.job.device_slots;
    result.host_slots = known.job.host_slots;
    result.ssd_slots = known.job.ssd_slots;
    result.max_chunks = known.job.max_chunks;
    result.lease_budget = known.job.lease_budget;
    result.kernel_faults = known.kernel_faults ? 1 : 0;
    result.handles_faults = known.handles_faults ? 1 : 0;
    result.device_memory = static_cast<uint32_t>(known.job.device_memory) + 1;
    result.dl_device_type = known.device.type;
    result.dl_device_id = known.device.id;
    result.needs_streams = known.needs_streams ? 1 : 0;
    result.device_number = known.job.device_number;
    result.job_id = known.job.id;
    result.session_id = known.job.session_id;
    CopyCommonFields(result, properties);
    return absl::OkStatus();
  });
}

int memtide_get_limits(memtide_client* client, memtide_limits* limits) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (limits == nullptr) return NullArgument("limits");
    const memtide::client::DaemonLimits& known = opened.properties().job.limits;
    memtide_limits result = {};
    result.chunks_per_call = known.chunks_per_call;
    result.step_manifest_bytes = static_cast<uint32_t>(known.step_manifest.count());
    result.chunks_per_node = known.chunks_per_node;
    result.max_wait_s = static_cast<uint32_t>(known.max_wait / std::chrono::seconds(1));
    result.min_slots = known.min_slots;
    CopyCommonFields(result, limits);
    return absl::OkStatus();
  });
}

int memtide_allocate(memtide_client* client, int kind, uint32_t count, uint32_t* first_place) {
  return Allocate(client, kind, count, InitialContent::kZeros, HomeTier::kLowest, first_place);
}

int memtide_allocate_undefined(memtide_client* client, int kind, uint32_t count,
                               uint32_t* first_place) {
  return Allocate(client, kind, count, InitialContent::kUndefined, HomeTier::kLowest, first_place);
}

int memtide_allocate_above_ssd(memtide_client* client, int kind, uint32_t count,
                               uint32_t* first_place) {
  return Allocate(client, kind, count, InitialContent::kUndefined, HomeTier::kHost, first_place);
}

int memtide_free(memtide_client* client, uint32_t first_place, uint32_t count) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    // Destructors of inherited objects free chunks in a forked child, too, where nothing is theirs.
    if (!opened.CheckProcess().ok()) return absl::OkStatus();
    return opened.leases()->Free({PlaceId(first_place), count});
  });
}

int memtide_discard(memtide_client* client, const uint32_t* places, size_t count) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(places, count, "places"));
    // As memtide_free.
    if (!opened.CheckProcess().ok()) return absl::OkStatus();
    return opened.leases()->Discard(PlacesAt(places, count));
  });
}

int memtide_offer(memtide_client* client, const uint32_t* places, size_t count, uint8_t* shared) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(shared, count, "shared"));
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<size_t> numbers, leases.Offer(at));
    for (size_t i = 0; i < count; ++i) shared[i] = 0;
    for (const size_t number : numbers) shared[number] = 1;
    return absl::OkStatus();
  });
}

int memtide_offer_when_written(memtide_client* client, const uint32_t* places, size_t count) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    return leases.OfferWhenWritten(at);
  });
}

int memtide_duplicate(memtide_client* client, const uint32_t* places, size_t count, uint32_t copies,
                      uint32_t* first_place) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    if (first_place == nullptr) return NullArgument("first_place");
    MEMTIDE_ASSIGN_OR_RETURN(const memtide::client::PlaceRange range, leases.Duplicate(at, copies));
    *first_place = range.first.value();
    return absl::OkStatus();
  });
}

int memtide_acquire(memtide_client* client, const uint32_t* places, size_t count, int access,
                    int timeout_ms) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    if (access != MEMTIDE_READ && access != MEMTIDE_WRITE) {
      return absl::UnimplementedError(absl::StrCat("access ", access,
                                                   " is not MEMTIDE_READ or "
                                                   "MEMTIDE_WRITE"));
    }
    absl::optional<memtide::Duration> deadline;
    // A negative timeout means no deadline, zero means not to wait.
    if (timeout_ms >= 0) deadline = std::chrono::milliseconds(timeout_ms);
    return leases.Acquire(at, access == MEMTIDE_WRITE ? Access::kWrite : Access::kRead, deadline);
  });
}

int memtide_release(memtide_client* client, const uint32_t* places, size_t count) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    return leases.EndUse(at);
  });
}

int memtide_cover_streams(memtide_client* client, const uint64_t* streams, size_t count) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(streams, count, "streams"));
    return opened.CoverStreams({streams, count});
  });
}

int memtide_cover_all_streams(memtide_client* client) {
  return WithClient(client,
                    [&](Client& opened) -> absl::Status { return opened.CoverAllStreams(); });
}

int memtide_moment(memtide_client* client, int phase, const char* name, uint64_t own_device_bytes,
                   uint64_t own_host_bytes) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (phase < 0 || phase > MEMTIDE_STEP) {
      return absl::InvalidArgumentError(absl::StrCat(
          "phase ", phase, " is not 0, MEMTIDE_FORWARD, MEMTIDE_BACKWARD or MEMTIDE_STEP"));
    }
    memtide::client::Moment moment;
    moment.phase = static_cast<memtide::Phase>(phase);
    if (name != nullptr) moment.name = name;
    moment.own_device = memtide::Bytes(own_device_bytes);
    moment.own_host = memtide::Bytes(own_host_bytes);
    leases.BeginMoment(std::move(moment));
    return absl::OkStatus();
  });
}

int memtide_end_iteration(memtide_client* client) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    leases.EndIteration();
    return absl::OkStatus();
  });
}

int memtide_protect(memtide_client* client) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    leases.Protect();
    return absl::OkStatus();
  });
}

int memtide_evict(memtide_client* client, const uint32_t* places, size_t count) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    return leases.Evict(at);
  });
}

int memtide_flush(memtide_client* client) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status { return leases.Flush(); });
}

int memtide_resize(memtide_client* client, uint64_t device_share_bytes, int timeout_ms) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    // A Resize always waits, because several processes may have to give memory back.
    if (timeout_ms == 0 || timeout_ms < -1) {
      return absl::InvalidArgumentError("timeout_ms must be -1 or greater than 0");
    }
    const memtide::Duration deadline = timeout_ms == -1 ? opened.properties().job.limits.max_wait
                                                        : std::chrono::milliseconds(timeout_ms);
    MEMTIDE_RETURN_IF_ERROR(opened.CheckProcess());
    return opened.leases()->Resize(Bytes(device_share_bytes), deadline);
  });
}

int memtide_address(memtide_client* client, uint32_t place, void** address) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (address == nullptr) return NullArgument("address");
    // Client::address() does not check its argument.
    if (place >= opened.properties().places) {
      return absl::InvalidArgumentError(
          absl::StrCat("place ", place, " is not below ", opened.properties().places));
    }
    *address = opened.address(PlaceId(place));
    return absl::OkStatus();
  });
}

int memtide_wrap(memtide_client* client, uint64_t address, uint64_t bytes,
                 void** dl_managed_tensor) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (dl_managed_tensor == nullptr) return NullArgument("dl_managed_tensor");
    MEMTIDE_ASSIGN_OR_RETURN(*dl_managed_tensor, opened.Wrap({address, bytes}));
    return absl::OkStatus();
  });
}

int memtide_take_returned(memtide_client* client, memtide_span* spans, size_t capacity,
                          size_t* count) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (spans == nullptr) return NullArgument("spans");
    if (count == nullptr) return NullArgument("count");
    *count = opened.TakeReturned(reinterpret_cast<Span*>(spans), capacity);
    return absl::OkStatus();
  });
}

int memtide_get_stats(memtide_client* client, memtide_stats* stats) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (stats == nullptr) return NullArgument("stats");
    const memtide::client::LeaseStats known = leases.monitor().stats();
    memtide_stats result = {};
    result.chunks = known.chunks;
    result.leases_held = known.leases_held;
    result.leases_in_use = known.leases_in_use;
    result.acquires = known.acquires;
    result.acquire_hits = known.acquire_hits;
    result.faults = known.faults;
    result.upgrades = known.upgrades;
    result.releases = known.releases;
    result.calls = known.calls;
    result.wait_nanoseconds = static_cast<uint64_t>(known.waits.all.count());
    result.lease_budget = known.lease_budget;
    result.slots = known.slots;
    result.blocking_calls = known.blocking_calls;
    result.maps = leases.space().maps();
    result.protected_iterations = leases.space().protected_iterations();
    result.call_nanoseconds = static_cast<uint64_t>(known.waits.calls.count());
    result.map_nanoseconds = static_cast<uint64_t>(known.waits.maps.count());
    result.unmap_nanoseconds = static_cast<uint64_t>(known.waits.unmaps.count());
    CopyCommonFields(result, stats);
    return absl::OkStatus();
  });
}

int memtide_reinstall_handlers(void) {
  return Guarded([] { return memtide::client::InstallSegvHandler(); });
}

const char* memtide_version(void) { return memtide::kVersion; }

}  // extern "C"
