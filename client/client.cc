#include "client/client.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cuda/cuda_space.h"
#include "client/memory/descriptor.h"
#include "client/memory/signals_blocked.h"
#include "client/rpc/grpc_daemon_session.h"
#include "client/session_events.h"
#include "proto/protocol.h"

namespace memtide::client {
namespace {

// Places per chunk that the job may allocate, enough for the fragmentation of places.
constexpr uint64_t kPlacesPerChunk = 4;

// Raises the soft limit of open files, if it is lower, to what the program's own files and the
// regions of a job need: each region of GPU memory arrives as a descriptor. The hard limit bounds
// it.
void RaiseDescriptorLimit() {
  constexpr rlim_t kOwnFiles = 2048;
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(files.rlim_max, kOwnFiles + kMaxDeviceRegions);
  if (files.rlim_cur >= wanted) return;
  files.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

Client::Client() : generation_(ForkGeneration()) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Options& options) {
  DaemonAddress daemon = options.daemon;
  if (daemon.socket_dir.empty()) daemon.socket_dir = DefaultSocketDir();
  return OpenWith(std::make_unique<GrpcDaemonSession>(std::move(daemon)), options);
}

absl::StatusOr<std::unique_ptr<Client>> Client::OpenWith(std::unique_ptr<DaemonSession> session,
                                                         const Options& options) {
  std::unique_ptr<Client> client(new Client());
  MEMTIDE_RETURN_IF_ERROR(client->Start(std::move(session), options));
  return client;
}

absl::Status Client::Start(std::unique_ptr<DaemonSession> session, const Options& options) {
  // The threads that are started below must not run the program's signal handlers.
  const SignalsBlocked blocked;
  RaiseDescriptorLimit();  // Before Open, which sends all regions that the job has.
  regions_ = std::make_unique<RegionTable>();
  events_ = std::make_unique<SessionEvents>(regions_.get());
  session_ = std::move(session);
  MEMTIDE_ASSIGN_OR_RETURN(properties_.job, session_->Open(options.job, events_.get()));
  properties_.job.has_ranks = options.job.ranks() > 1;
  const Job& job = properties_.job;
  // A daemon of another version might send values that the address range cannot represent.
  if (job.chunk_size.IsZero() || !job.chunk_size.IsMultipleOf(kChunkAlignment) ||
      job.lease_budget == 0) {
    return absl::InternalError(
        "the daemon opened a job with an invalid chunk size or lease budget");
  }
  properties_.job.lease_budget = LeaseClient::Budget(job.lease_budget, job.lease_slots());
  AddressSpace::Options addresses;
  addresses.chunk_size = job.chunk_size;
  addresses.places = static_cast<uint32_t>(std::min<uint64_t>(
      options.addresses / job.chunk_size, std::max<uint64_t>(1, job.max_chunks) * kPlacesPerChunk));
  addresses.maps_when_idle = job.cuda_maps_when_idle;
  if (addresses.places == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address_bytes is less than one chunk of ", FormatBytes(job.chunk_size)));
  }
  HostSpace* host_space = nullptr;
  MEMTIDE_ASSIGN_OR_RETURN(space_, ReserveSpace(job, addresses, &host_space));
  leases_ = std::make_unique<LeaseClient>(addresses.places, job, session_.get(), space_.get(),
                                          regions_.get());
  events_->Attach(&leases_->monitor());
  if (host_space != nullptr) MEMTIDE_RETURN_IF_ERROR(StartFaultHandling(host_space));
  reclaimer_ = std::thread([leases = leases_.get()] { leases->RunReclaimer(); });
  pthread_setname_np(reclaimer_.native_handle(), "memtide-reclaim");
  ahead_ = std::thread([leases = leases_.get()] { leases->RunAhead(); });
  pthread_setname_np(ahead_.native_handle(), "memtide-ahead");
  properties_.base = space_->base();
  properties_.places = space_->places();
  properties_.device = space_->device();
  properties_.needs_streams = space_->needs_streams();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AddressSpace>> Client::ReserveSpace(
    const Job& job, const AddressSpace::Options& options, HostSpace** host_space) {
  // An emulated device lends shared memory, so only a real GPU needs CUDA.
  const bool on_device = job.device_slots > 0;
  if (on_device && job.device_memory == MemoryKind::kCudaDescriptor) {
    return ReserveCudaSpace(options, job.cuda_device_uuid);
  }
  if (on_device && job.device_memory == MemoryKind::kCudaIpc) {
    return OpenCudaPointers(options, job.cuda_device_uuid);
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<HostSpace> space, HostSpace::Reserve(options));
  *host_space = space.get();
  return space;
}

absl::Status Client::StartFaultHandling(HostSpace* space) {
  MEMTIDE_ASSIGN_OR_RETURN(
      faults_, FaultLoop::Start(space, [leases = leases_.get()](const PageFault& fault) {
        return leases->HandleFault(fault.place, fault.access);
      }));
  MEMTIDE_ASSIGN_OR_RETURN(SegvRegistration registration,
                           SegvRegistration::Create(space, faults_->request_fd()));
  segv_registration_.emplace(std::move(registration));
  properties_.handles_faults = true;
  properties_.kernel_faults = space->kernel_faults();
  return absl::OkStatus();
}

Client::~Client() {
  if (!CheckProcess().ok()) {
    Abandon();
    return;
  }
  // The order matters. The SIGSEGV handler goes first, while the FaultLoop still handles the faults
  // that it waits for. The session goes last, because its events use all other members.
  segv_registration_.reset();
  if (leases_ != nullptr) leases_->monitor().Stop();
  if (reclaimer_.joinable()) reclaimer_.join();
  if (ahead_.joinable()) ahead_.join();
  faults_.reset();
  space_.reset();  // Unmaps all places, before Close() ends their leases.
  if (regions_ != nullptr) regions_->RemoveAll();
  if (session_ != nullptr) session_->Close();
}

// A forked child has none of the threads, and any lock may be held forever, so nothing can be torn
// down. Leaking is harmless: the child has neither the descriptors (Descriptor) nor the memory
// (MADV_DONTFORK).
void Client::Abandon() {
  static_cast<void>(regions_.release());
  static_cast<void>(events_.release());
  static_cast<void>(session_.release());
  static_cast<void>(space_.release());
  static_cast<void>(leases_.release());
  static_cast<void>(faults_.release());
  if (segv_registration_.has_value()) {
    // tidy(raw-new): leaked on purpose, see above.
    static_cast<void>(new SegvRegistration(std::move(*segv_registration_)));
  }
  // tidy(raw-new): leaked on purpose, see above.
  static_cast<void>(new std::thread(std::move(reclaimer_)));
  // tidy(raw-new): leaked on purpose, see above.
  static_cast<void>(new std::thread(std::move(ahead_)));
}

absl::Status Client::CheckProcess() const {
  if (generation_ == ForkGeneration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this memtide client was opened before the process forked, and a child does not inherit its "
      "memory: open a client in the child, or use this one only in the parent");
}

absl::Status Client::CheckStreams() const {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  if (properties_.needs_streams) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "work on a GPU is waited for on all streams here (needs_streams is 0), so none are named");
}

absl::Status Client::CoverStreams(absl::Span<const uint64_t> streams) {
  MEMTIDE_RETURN_IF_ERROR(CheckStreams());
  space_->CoverStreams(streams);
  return absl::OkStatus();
}

absl::Status Client::CoverAllStreams() {
  MEMTIDE_RETURN_IF_ERROR(CheckStreams());
  space_->CoverAllStreams();
  return absl::OkStatus();
}

absl::StatusOr<class Use> Client::Use(std::vector<PlaceId> places, Access access,
                                      absl::optional<Duration> deadline) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  MEMTIDE_RETURN_IF_ERROR(leases_->Acquire(places, access, deadline));
  return client::Use(this, std::move(places));
}

absl::StatusOr<void*> Client::Wrap(const Span& span) const {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  const uint64_t base = reinterpret_cast<uint64_t>(properties_.base);
  const uint64_t size = (space_->chunk_size() * space_->places()).count();
  // Subtractions instead of sums, because a sum of the caller's numbers could overflow.
  if (base == 0 || span.address < base || span.address - base > size ||
      span.size_bytes > size - (span.address - base)) {
    return absl::InvalidArgumentError(
        absl::StrCat(span.size_bytes, " bytes at address ", span.address,
                     " are not in the client's range of ", size, " bytes at ", base));
  }
  return spans_.Wrap(span, properties_.device);
}

// The next owner of a returned span may write to it on any stream, so the span is held back until
// the work that its last owner launched is complete.
size_t Client::TakeReturned(Span* spans, size_t capacity) {
  // A forked child has no GPU work of its own to wait for, and must not call CUDA.
  const bool here = CheckProcess().ok();
  const MutexLock lock(&spans_mutex_);
  std::array<Span, 64> batch;
  absl::optional<uint64_t> begun;
  while (const size_t count = spans_.TakeReturned(batch.data(), batch.size())) {
    // One fence covers all spans returned so far. Recording one is a call to CUDA, so it is done
    // once.
    if (!begun.has_value()) begun = here ? space_->RecordFence() : 0;
    for (size_t i = 0; i < count; ++i) returned_spans_.push_back({batch[i], *begun});
  }
  size_t taken = 0;
  absl::optional<uint64_t> done;
  while (taken < capacity && !returned_spans_.empty()) {
    const ReturnedSpan& oldest = returned_spans_.front();
    // Spans that were returned together share a fence, which is queried once.
    if (done != oldest.fence && here && !space_->IsDone(oldest.fence)) break;
    done = oldest.fence;
    spans[taken++] = oldest.span;
    returned_spans_.pop_front();
  }
  return taken;
}

Use::Use(Client* client, std::vector<PlaceId> places)
    : client_(client), places_(std::move(places)) {}

Use::Use(Use&& other) noexcept
    : client_(std::exchange(other.client_, nullptr)), places_(std::move(other.places_)) {}

Use& Use::operator=(Use&& other) noexcept {
  if (this != &other) {
    End();
    client_ = std::exchange(other.client_, nullptr);
    places_ = std::move(other.places_);
  }
  return *this;
}

Use::~Use() { End(); }

void Use::End() {
  // EndUse fails only if the session is lost: the use has ended then, too.
  if (client_ != nullptr && client_->CheckProcess().ok()) {
    client_->leases()->EndUse(places_).IgnoreError();
  }
  client_ = nullptr;
}

std::string DefaultSocketDir() {
  constexpr char kSystem[] = "/run/memtide";
  if (const char* chosen = getenv("MEMTIDE_SOCKET_DIR"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  // A daemon of the system serves all users, so its directory comes before a user's own.
  if (geteuid() == 0 || access(kSystem, F_OK) == 0 || runtime == nullptr || *runtime == '\0') {
    return kSystem;
  }
  return absl::StrCat(runtime, "/memtide");
}

}  // namespace memtide::client
