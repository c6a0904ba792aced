#include "client/client.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cuda_space.h"
#include "client/descriptor.h"
#include "client/grpc_lender.h"
#include "client/signals_blocked.h"

namespace memtide::client {
namespace {

// Addresses beyond this many times the chunks that there can be would only serve fragmentation.
constexpr uint64_t kPlacesPerChunk = 4;

}  // namespace

// A loss that comes before there is a keeper is kept for it.
class Client::Events : public LenderEvents {
 public:
  explicit Events(RegionTable* regions) : regions_(regions) {}

  void RegionArrived(RegionId id, Region region) override { regions_->Add(id, std::move(region)); }
  void RegionGone(RegionId id, const Resized& left) override {
    const MutexLock lock(&mutex_);
    if (keeper_ != nullptr) {
      keeper_->RegionGone(id, left);
    } else {
      gone_.emplace_back(id, left);
    }
  }
  // Before there is a keeper, there are no leases.
  void RevokeRequested(const Revocation& wanted) override {
    const MutexLock lock(&mutex_);
    if (keeper_ != nullptr) keeper_->Revoke(wanted);
  }
  void LeaseBudgetChanged(uint32_t leases, uint32_t most_in_use) override {
    const MutexLock lock(&mutex_);
    budget_ = {leases, most_in_use};
    if (keeper_ != nullptr) keeper_->ChangeBudget(leases, most_in_use);
  }
  void Lost(const absl::Status& reason) override {
    regions_->Close();
    const MutexLock lock(&mutex_);
    lost_ = reason;
    if (keeper_ != nullptr) keeper_->Lose(reason);
  }
  void Attach(LeaseKeeper* keeper) {
    const MutexLock lock(&mutex_);
    keeper_ = keeper;
    for (const auto& [id, left] : gone_) keeper->RegionGone(id, left);
    if (budget_.has_value()) keeper->ChangeBudget(budget_->first, budget_->second);
    if (!lost_.ok()) keeper->Lose(lost_);
  }

 private:
  RegionTable* const regions_;
  Mutex mutex_;
  LeaseKeeper* keeper_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::pair<RegionId, Resized>> gone_ ABSL_GUARDED_BY(mutex_);  // Before the keeper.
  // The last one told.
  absl::optional<std::pair<uint32_t, uint32_t>> budget_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

Client::Client() : generation_(ForkGeneration()) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Options& options) {
  GrpcLender::Options lender;
  lender.socket_dir = options.socket_dir.empty() ? DefaultSocketDir() : options.socket_dir;
  lender.program = options.program;
  return OpenWith(std::make_unique<GrpcLender>(lender), options);
}

absl::StatusOr<std::unique_ptr<Client>> Client::OpenWith(std::unique_ptr<Lender> lender,
                                                         const Options& options) {
  std::unique_ptr<Client> client(new Client());
  MEMTIDE_RETURN_IF_ERROR(client->Start(std::move(lender), options));
  return client;
}

absl::Status Client::Start(std::unique_ptr<Lender> lender, const Options& options) {
  const SignalsBlocked blocked;
  regions_ = std::make_unique<RegionTable>();
  events_ = std::make_unique<Events>(regions_.get());
  lender_ = std::move(lender);
  MEMTIDE_ASSIGN_OR_RETURN(properties_.job, lender_->Open(options.job, events_.get()));
  const Job& job = properties_.job;
  {
    const MutexLock lock(&published_mutex_);
    published_ = job.published;
  }
  if (job.chunk_size.IsZero() || !job.chunk_size.IsMultipleOf(MiB(2)) || job.lease_budget == 0) {
    return absl::InternalError("the daemon opened a job without usable sizes");
  }
  properties_.job.lease_budget = LeaseKeeper::Budget(
      job.lease_budget, job.device_slots > 0 ? job.device_slots : job.host_slots);
  AddressSpace::Options addresses;
  addresses.chunk_size = job.chunk_size;
  addresses.places = static_cast<uint32_t>(std::min<uint64_t>(
      options.addresses / job.chunk_size, std::max<uint64_t>(1, job.max_chunks) * kPlacesPerChunk));
  if (addresses.places == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address_bytes is less than one chunk of ", FormatBytes(job.chunk_size)));
  }
  HostSpace* watched = nullptr;
  MEMTIDE_ASSIGN_OR_RETURN(space_, ReserveSpace(job, addresses, &watched));
  LeaseCache::Options cache;
  cache.places = addresses.places;
  cache.budget = properties_.job.lease_budget;
  keeper_ = std::make_unique<LeaseKeeper>(cache, lender_.get(), space_.get(), regions_.get());
  events_->Attach(keeper_.get());
  if (watched != nullptr) MEMTIDE_RETURN_IF_ERROR(AnswerTouches(watched));
  room_keeper_ = std::thread([keeper = keeper_.get()] { keeper->KeepRoom(); });
  pthread_setname_np(room_keeper_.native_handle(), "memtide-room");
  properties_.base = space_->base();
  properties_.places = space_->places();
  properties_.device = space_->device();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AddressSpace>> Client::ReserveSpace(
    const Job& job, const AddressSpace::Options& options, HostSpace** watched) {
  const bool on_device = job.device_slots > 0;
  if (on_device && job.device_memory == MemoryKind::kCudaDescriptor) {
    return ReserveCudaSpace(options, job.cuda_device_uuid);
  }
  if (on_device && job.device_memory == MemoryKind::kCudaIpc) {
    return OpenCudaPointers(options, job.cuda_device_uuid);
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<HostSpace> space, HostSpace::Reserve(options));
  *watched = space.get();
  return space;
}

absl::Status Client::AnswerTouches(HostSpace* space) {
  MEMTIDE_ASSIGN_OR_RETURN(faults_,
                           FaultLoop::Start(space, [keeper = keeper_.get()](const Touch& touch) {
                             return keeper->AnswerTouch(touch.place, touch.access);
                           }));
  MEMTIDE_ASSIGN_OR_RETURN(WatchedSpace watched, WatchedSpace::Watch(space, faults_->requests()));
  watched_.emplace(std::move(watched));
  properties_.touches = true;
  properties_.kernel_faults = space->kernel_faults();
  return absl::OkStatus();
}

Client::~Client() {
  if (!CheckProcess().ok()) {
    Abandon();
    return;
  }
  // The handler first, while touches that wait are still answered; the daemon's events last, for
  // they reach into everything else.
  watched_.reset();
  if (keeper_ != nullptr) keeper_->StopKeepingRoom();
  if (room_keeper_.joinable()) room_keeper_.join();
  faults_.reset();
  space_.reset();  // Unmapped before the leases end.
  if (regions_ != nullptr) regions_->RemoveAll();
  if (lender_ != nullptr) lender_->Close();
}

// In a forked child the threads are not there and any lock may be held for ever: nothing can be
// taken down, and nothing that matters is held (Descriptor, MADV_DONTFORK).
void Client::Abandon() {
  static_cast<void>(regions_.release());
  static_cast<void>(events_.release());
  static_cast<void>(lender_.release());
  static_cast<void>(space_.release());
  static_cast<void>(keeper_.release());
  static_cast<void>(faults_.release());
  // tidy(raw-new): kept for ever, see above.
  if (watched_.has_value()) static_cast<void>(new WatchedSpace(std::move(*watched_)));
  // tidy(raw-new): likewise.
  static_cast<void>(new std::thread(std::move(room_keeper_)));
}

absl::Status Client::CheckProcess() const {
  if (generation_ == ForkGeneration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this memtide client was opened before the process forked: its memory is not here. Open one "
      "in the child, or use it only in the parent");
}

absl::StatusOr<PlaceRange> Client::Allocate(uint32_t count, ChunkKind kind, Unwritten unwritten) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Allocate(count, kind, unwritten);
}

absl::Status Client::Free(PlaceRange range) {
  // Owners free in destructors, also in a child that inherited them and where nothing is to free.
  if (!CheckProcess().ok()) return absl::OkStatus();
  return keeper_->Free(range);
}

absl::Status Client::Acquire(absl::Span<const PlaceId> places, Access access,
                             absl::optional<Duration> deadline) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Acquire(places, access, deadline);
}

absl::Status Client::Release(absl::Span<const PlaceId> places) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->EndUse(places);
}

absl::StatusOr<class Use> Client::Use(std::vector<PlaceId> places, Access access,
                                      absl::optional<Duration> deadline) {
  MEMTIDE_RETURN_IF_ERROR(Acquire(places, access, deadline));
  return client::Use(this, std::move(places));
}

absl::Status Client::BeginMoment(Moment moment) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  keeper_->BeginMoment(std::move(moment));
  return absl::OkStatus();
}

absl::Status Client::EndIteration() {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  keeper_->EndIteration();
  return absl::OkStatus();
}

absl::Status Client::Prefetch(absl::Span<const PlaceId> places) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Prefetch(places);
}

absl::Status Client::Evict(absl::Span<const PlaceId> places) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Evict(places);
}

absl::Status Client::Flush() {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Flush();
}

absl::StatusOr<void*> Client::Wrap(const Span& span) const {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  const uint64_t base = reinterpret_cast<uint64_t>(properties_.base);
  const uint64_t size = (space_->chunk_size() * space_->places()).count();
  if (base == 0 || span.address < base || span.address - base > size ||
      span.size_bytes > size - (span.address - base)) {
    return absl::InvalidArgumentError(
        absl::StrCat(span.size_bytes, " bytes at address ", span.address,
                     " are not in the client's range of ", size, " bytes at ", base));
  }
  return spans_.Wrap(span, properties_.device);
}

// Whoever is given a returned span writes to it next, on whichever stream: so not before the work
// that its last owner had begun is done.
size_t Client::TakeReturned(Span* spans, size_t capacity) {
  const bool here = CheckProcess().ok();
  const MutexLock lock(&spans_mutex_);
  std::array<Span, 64> fresh;
  absl::optional<uint64_t> begun;
  while (const size_t count = spans_.TakeReturned(fresh.data(), fresh.size())) {
    if (!begun.has_value()) begun = here ? space_->BegunSoFar() : 0;
    for (size_t i = 0; i < count; ++i) cooling_.push_back({fresh[i], *begun});
  }
  size_t taken = 0;
  absl::optional<uint64_t> done;
  while (taken < capacity && !cooling_.empty()) {
    const Cooling& oldest = cooling_.front();
    if (done != oldest.work && here && !space_->IsDone(oldest.work)) break;
    done = oldest.work;
    spans[taken++] = oldest.span;
    cooling_.pop_front();
  }
  return taken;
}

absl::StatusOr<uint64_t> Client::Step(const StepPart& part) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Step(part);
}

absl::Status Client::Publish(const Publication& publication, absl::Span<const PlaceId> places,
                             absl::Span<const PlaceId> fresh) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  MEMTIDE_RETURN_IF_ERROR(keeper_->Publish(publication, places, fresh));
  const MutexLock lock(&published_mutex_);
  published_ = publication.published;
  return absl::OkStatus();
}

Published Client::published() const {
  const MutexLock lock(&published_mutex_);
  return published_;
}

absl::StatusOr<std::vector<ChunkVersion>> Client::Versions(absl::Span<const PlaceId> places) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Versions(places);
}

absl::StatusOr<std::vector<ChunkId>> Client::ChunkIds(PlaceRange range) const {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  if (range.first.value() > properties_.places ||
      range.count > properties_.places - range.first.value()) {
    return absl::InvalidArgumentError(absl::StrCat(range.count, " places from ",
                                                   range.first.value(), " are not among the ",
                                                   properties_.places));
  }
  return keeper_->ChunkIds(range);
}

absl::StatusOr<PlaceRange> Client::Attach(const std::vector<ChunkId>& chunks) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Attach(chunks);
}

absl::Status Client::Resize(Bytes device_share, Duration deadline) {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->Resize(device_share, deadline);
}

absl::StatusOr<LeaseStats> Client::stats() const {
  MEMTIDE_RETURN_IF_ERROR(CheckProcess());
  return keeper_->stats();
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
  // Fails only when the session is lost or this is a forked child: the use is over either way.
  if (client_ != nullptr) client_->Release(places_).IgnoreError();
  client_ = nullptr;
}

std::string DefaultSocketDir() {
  constexpr char kSystem[] = "/run/memtide";
  if (const char* chosen = getenv("MEMTIDE_SOCKET_DIR"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (geteuid() == 0 || access(kSystem, F_OK) == 0 || runtime == nullptr || *runtime == '\0') {
    return kSystem;
  }
  return absl::StrCat(runtime, "/memtide");
}

}  // namespace memtide::client
